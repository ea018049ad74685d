"""What an operator gave, as values of the graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch

from driftscope.lift.kept import KeptNode, equal
from driftscope.lift.onnx.element_types import (
    Format,
    is_inexact,
    lifted_storage,
    storage,
    wrap_integer,
)
from driftscope.lift.onnx.registry import Value
from driftscope.programs.isolation.memory import available_bytes

# Share of the free memory for values that somebody asks for.
_SHARE = 0.05


class AskedFor:
    """Values of a run that somebody asks for by name, as far as there is room.

    Parameters
    ----------
    names : collection of str
    """

    def __init__(self, names: Collection[str]):
        self._names, self._room = names, _SHARE * available_bytes()
        self.values: dict[str, Value] = {}

    def take(self, name: str, value: Value | None) -> None:
        """Keep a value if it is asked for."""
        if name in self._names and value is not None:
            self._room -= value.data.nbytes if isinstance(value.data, torch.Tensor) else 0
            if self._room >= 0:
                self.values[name] = value

    def take_rest(self, held: Callable[[str], Value | None]) -> None:
        """Keep what was not forgotten on the way."""
        for name in self._names:
            if name not in self.values:
                self.take(name, held(name))


def tensors(values: Iterable[Any]) -> list[torch.Tensor | None]:
    return [data if isinstance(data, torch.Tensor) else None for data in values]


def default_format(item: Any, formats: Sequence[Format], tensors: Sequence[Any]) -> Format:
    """The format of an output its operator says nothing about (see :class:`Result`)."""
    if not isinstance(item, torch.Tensor):
        return None
    if item.is_floating_point() or item.is_complex():
        for native in formats:
            if is_inexact(native):
                return native
        return item.dtype
    if item.dtype == torch.bool:
        return torch.bool
    for native, tensor in zip(formats, tensors, strict=False):
        if isinstance(tensor, torch.Tensor) and tensor.dtype == item.dtype and not is_inexact(native):
            return native
    return item.dtype


def stored_as(item: Any, format: Format, constant: bool) -> Any:
    if not isinstance(item, torch.Tensor) or format is None:
        return item
    dtype = storage(format) if constant else lifted_storage(format)
    return wrap_integer(item.to(dtype), format)


def as_before(outputs: Sequence[Value], before: KeptNode | None) -> list[Value]:
    """The outputs of a node, those that came out the same as in another run as its own objects."""
    if before is None or len(before.after) != len(outputs):
        return list(outputs)
    return [old if _alike(new, old) else new for new, old in zip(outputs, before.after, strict=True)]


def _alike(new: Value, old: Value) -> bool:
    if not isinstance(new.data, torch.Tensor) or not isinstance(old.data, torch.Tensor):
        return new.data is old.data
    return new.format == old.format and new.constant == old.constant and equal(new.data, old.data)
