"""Files of ``torch.save``: plain tensors in plain containers, and nothing else.

A pickle is a program for a small machine. torch's own ``weights_only`` machine builds tensors and a few containers and
refuses the rest; here it gets an archive that was checked and packed again, so no second reader sees other members than
the check did, and what it built is counted, because a pickle of a few bytes can describe a tree of any size.
"""

from __future__ import annotations

import io
import pickle
import warnings
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any

import torch

from driftscope.errors import DriftscopeError
from driftscope.programs.archives import Archive, opened

MOST_LEAVES = 100_000
DEEPEST = 100
_RUNS_CODE = "holds pickled Python objects, which are not loaded; save plain tensors in tuples, lists or dicts"
_ATOMS = (str, bytes, bool, int, float, complex, type(None), torch.Size, torch.dtype, torch.device)


def load_tensors(source: FilePath | bytes, what: str, error: type[DriftscopeError]) -> Any:
    """Read what ``torch.save`` wrote: a tree of tensors and numbers in tuples, lists and dicts.

    Parameters
    ----------
    source : path or bytes
    what : str
        Its name, for messages.
    error : type of DriftscopeError
        What is raised if the file is damaged, holds anything else, or more than it has bytes for.
    """
    if not (zipfile.is_zipfile(io.BytesIO(source) if isinstance(source, bytes) else source)):
        raise error(f"{what} {_RUNS_CODE} (torch.save has written zip archives since version 1.6; this is none)")
    with opened(source, what, error) as archive:
        packed = _packed(archive, what, error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = torch.load(packed, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as reason:
        raise error(f"{what} {_RUNS_CODE}") from reason
    except Exception as reason:
        # A pickle can make its machine raise anything: wrong types on its stack, sizes that do not fit, deep recursion.
        words = (str(reason).strip().splitlines() or [type(reason).__name__])[0]
        raise error(f"{what} is damaged: {words[:200]}") from reason
    complaint = _complaint(tree)
    if complaint:
        raise error(f"{what} {complaint}")
    return tree


def _packed(archive: Archive, what: str, error: type[DriftscopeError]) -> io.BytesIO:
    """Write the members once more, uncompressed, under one folder of our own naming."""
    copy = io.BytesIO()
    roots = {name.partition("/")[0] for name in archive.names}
    if len(roots) != 1 or not any(name.partition("/")[2] == "data.pkl" for name in archive.names):
        raise error(f"{what} is a zip archive, but not one that torch.save wrote")
    with zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as target:
        for name in archive.names:
            inner = name.partition("/")[2]
            # constants.pkl and code/ belong to TorchScript, which is code.
            if inner in ("data.pkl", "byteorder", "version", ".format_version") or inner.startswith("data/"):
                target.writestr(f"archive/{inner}", archive.read(name))
    copy.seek(0)
    return copy


def _complaint(tree: Any) -> str | None:
    """Say what in a tree is not a plain tensor, number or container; visits at most MOST_LEAVES parts."""
    waiting: list[tuple[Any, int]] = [(tree, 0)]
    visited = 0
    while waiting:
        part, depth = waiting.pop()
        visited += 1
        if visited > MOST_LEAVES:
            return f"describes more than {MOST_LEAVES:,} values"
        if depth > DEEPEST:
            return f"holds containers that lie more than {DEEPEST} deep"
        children = _children(part)
        if children is None:
            return f"holds an object of class {type(part).__name__}; save plain tensors in tuples, lists or dicts"
        waiting.extend((child, depth + 1) for child in children)
    return None


def _children(part: Any) -> Iterable[Any] | None:
    if isinstance(part, torch.Tensor):
        return () if _is_plain(part) else None
    if isinstance(part, _ATOMS):
        return ()
    if isinstance(part, Mapping):
        return (*part.keys(), *part.values())
    return part if isinstance(part, (tuple, list, set, frozenset)) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not (tensor.is_meta or tensor.is_nested)
