"""Weights with the class they belong to: ``model.py:Net@weights.safetensors``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftscope.errors import ProgramError
from driftscope.programs.loading.references import is_reference
from driftscope.records.words import listed

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
_NAMED = 4


def parted(text: str) -> tuple[str, Path] | None:
    """Part ``file.py:name@weights``; None for a text of another form."""
    reference, sign, file = text.rpartition("@")
    if not sign or not is_reference(reference) or not file.lower().endswith(SUFFIXES):
        return None
    return reference, Path(file)


def with_weights(module: Any, file: Path, reference: str) -> Any:
    """Return a copy of a module with the tensors of a file in it, every name and every shape matched.

    Parameters
    ----------
    module : torch.nn.Module
    file : Path
        Safetensors, or a dictionary of tensors as ``torch.save`` writes it; nothing else is unpickled.
    reference : str
        How the module was named, for messages.

    Raises
    ------
    ProgramError
        If it is no module, the file cannot be read, or names or shapes do not match.
    """
    if not hasattr(module, "load_state_dict"):
        raise ProgramError(f"{reference} gives a {type(module).__name__}, which holds no weights; give a module")
    tensors = read_weights(file)
    own = module.state_dict()
    problems = [f"lacks {listed(sorted(set(own) - set(tensors)), _NAMED)}"] if set(own) - set(tensors) else []
    problems += [f"holds {listed(sorted(set(tensors) - set(own)), _NAMED)} besides"] if set(tensors) - set(own) else []
    odd = [n for n in own if n in tensors and tuple(own[n].shape) != tuple(tensors[n].shape)]
    problems += [f"has other shapes for {listed(odd, _NAMED)}"] if odd else []
    if problems:
        raise ProgramError(f"{file} does not fit {reference}: it {', and it '.join(problems)}")
    filled = copy.deepcopy(module)
    filled.load_state_dict(tensors)
    return filled


def read_weights(file: Path) -> Mapping[str, Any]:
    """Read the tensors of a file by name, without unpickling anything else.

    Raises
    ------
    ProgramError
        If the file is missing, damaged, or holds anything but tensors by name.
    """
    if not file.is_file():
        raise ProgramError(f"{file}: no such file")
    if file.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return dict(load_file(str(file)))
        except (SafetensorError, OSError, ValueError) as error:
            raise ProgramError(f"{file} cannot be read: {error}") from error
    from driftscope.programs.pickled_tensors import load_tensors

    found: Any = load_tensors(file, str(file), ProgramError)
    found = found.get("state_dict", found) if isinstance(found, Mapping) else found
    if not isinstance(found, Mapping) or not all(hasattr(value, "shape") for value in found.values()):
        raise ProgramError(f"{file} holds no dictionary of tensors by name")
    return found
