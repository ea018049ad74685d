"""What an operator gave, as values of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from driftscope.lift.kept import KeptNode, equal
from driftscope.lift.onnx.element_types import Format, is_inexact, lifted_storage, storage, wrap_integer
from driftscope.lift.onnx.registry import Value


def tensors(values: Iterable[Any]) -> list[torch.Tensor | None]:
    return [data if isinstance(data, torch.Tensor) else None for data in values]


def default_format(item: Any, formats: Sequence[Format], tensors: Sequence[Any]) -> Format:
    """The format of an output its operator says nothing about (see :class:`Result`)."""
    if not isinstance(item, torch.Tensor):
        return None
    if item.is_floating_point() or item.is_complex():
        found = next((f for f in formats if is_inexact(f)), None)
        return found if found is not None else item.dtype
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
