"""How two results differ: same bits, rounding, or the worst difference of structure, shape, dtype or value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.comparison.agreement import agreement, told_apart
from driftscope.records.words import counted
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.transforming import Ragged
from driftscope.transforms.world.snapshot import same_bits


@dataclass(frozen=True)
class Difference:
    """The most serious difference of two result trees.

    Parameters
    ----------
    kind : str
        ``"same"``, ``"rounding"``, ``"value"``, ``"dtype"``, ``"shape"``, ``"structure"`` or ``"escaped"``.
    path : str
        Place in the output tree, as ``out[0]``.
    detail : str
        One sentence with the numbers.
    max_abs, max_rel : float or None
    worst : tuple of two str or None
        Plain value and transform's value at the worst element.
    index : tuple of int
        Where that is.
    """

    kind: str
    path: str = "out"
    detail: str = ""
    max_abs: float | None = None
    max_rel: float | None = None
    worst: tuple[str, str] | None = None
    index: tuple[int, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether it is no more than rounding."""
        return self.kind in ("same", "rounding")


_ORDER = ("same", "rounding", "value", "dtype", "shape", "structure", "escaped")


def differ(plain: Any, other: Any, *, any_float: bool = False) -> Difference:
    """Compare two result trees leaf by leaf; the worst difference is returned, never none.

    Parameters
    ----------
    plain, other : tree of tensors and Python values
    any_float : bool
        Two floating dtypes are compared in the narrower one: a derivative carries the dtype of the input or of the
        output, by the direction in which it was taken.
    """
    if isinstance(plain, Ragged):
        return Difference("shape", detail="the examples' results do not stack, yet the transform returned one tensor")
    left, right = internals.tree_leaves(plain), internals.tree_leaves(other)
    if len(left) != len(right):
        return Difference("structure", detail=f"{counted(len(left), 'output')}, with the transform {len(right)}")
    names = ["out"] if len(left) == 1 else [f"out[{i}]" for i in range(len(left))]
    found = [
        _leaf(*(_alike(a, b) if any_float else (a, b)), name) for a, b, name in zip(left, right, names, strict=True)
    ]
    return max(found, key=lambda d: _ORDER.index(d.kind), default=Difference("same"))


def _alike(plain: Any, other: Any) -> tuple[Any, Any]:
    if not (isinstance(plain, torch.Tensor) and isinstance(other, torch.Tensor)) or plain.dtype == other.dtype:
        return plain, other
    if internals.is_wrapped(other) or not (plain.is_floating_point() and other.is_floating_point()):
        return plain, other
    narrow = min(plain.dtype, other.dtype, key=lambda dtype: torch.finfo(dtype).bits)
    return plain.to(narrow), other.to(narrow)


def _leaf(plain: Any, other: Any, path: str) -> Difference:
    if isinstance(other, torch.Tensor) and internals.is_wrapped(other):
        return Difference("escaped", path, f"{path} is {internals.wrapper_kind(other)}")
    if isinstance(plain, torch.Tensor) and isinstance(other, torch.Tensor):
        return tensors_differ(plain.detach(), other.detach(), path)
    if isinstance(plain, torch.Tensor) or isinstance(other, torch.Tensor):
        one, two = (x.item() if isinstance(x, torch.Tensor) and x.numel() == 1 else x for x in (plain, other))
        if isinstance(one, (int, float)) and isinstance(two, (int, float)) and _close(float(one), float(two)):
            return Difference("rounding", path)
        return Difference("structure", path, f"{type(plain).__name__}, with the transform {type(other).__name__}")
    if isinstance(plain, float) and isinstance(other, float):
        if plain == other or (math.isnan(plain) and math.isnan(other)):
            return Difference("same", path)
        kind = "rounding" if _close(plain, other) else "value"
        return Difference(kind, path, f"{plain!r}, with the transform {other!r}", worst=(repr(plain), repr(other)))
    if type(plain) is not type(other):
        return Difference("structure", path, f"{type(plain).__name__}, with the transform {type(other).__name__}")
    try:
        equal = bool(plain == other)
    except (TypeError, ValueError, RuntimeError):
        return Difference("structure", path, f"{path} holds {type(plain).__name__}, which cannot be compared")
    if equal or (isinstance(plain, object) and type(plain).__eq__ is object.__eq__):
        return Difference("same", path)
    return Difference("value", path, f"{plain!r:.60}, with the transform {other!r:.60}")


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9)


def tensors_differ(plain: torch.Tensor, other: torch.Tensor, path: str = "out") -> Difference:
    """Compare two plain tensors."""
    if plain.shape != other.shape:
        return Difference("shape", path, f"shape {tuple(plain.shape)}, with the transform {tuple(other.shape)}")
    if plain.dtype != other.dtype:
        return Difference("dtype", path, f"{plain.dtype}, with the transform {other.dtype}")
    plain, other = _strided(plain), _strided(other)
    if plain.device.type == "meta" or other.device.type == "meta" or same_bits(plain, other):
        return Difference("same", path)
    return _values_differ(plain, other, path)


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return (tensor if tensor.layout == torch.strided else tensor.to_dense()).resolve_conj().resolve_neg()


def _values_differ(plain: torch.Tensor, other: torch.Tensor, path: str) -> Difference:
    judged = agreement(plain, other)
    index = judged.index or (0,) * plain.dim()
    worst = told_apart(plain[index].item(), other[index].item())
    size = abs(plain[index].item())
    relative = judged.max_abs / size if size and math.isfinite(size) else None
    detail = f"{path}{list(index) if index else ''} is {worst[0]}, with the transform {worst[1]}"
    return Difference("rounding" if judged.agrees else "value", path, detail, judged.max_abs, relative, worst, index)
