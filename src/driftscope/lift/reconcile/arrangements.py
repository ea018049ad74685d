"""In which orders the numbers of a tensor stand in other programs: transposed, by gates, in blocks of channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch.nn import functional as F

from driftscope.comparison.measuring.spread import finite
from driftscope.lift.onnx.contrib.nchwc import blocked_view

_BLOCKS = (16, 8, 4)  # channels per block of onnxruntime's blocked convolutions, by processor
#: How well norms of a tensor and of its rounding agree, whatever the order of the elements.
ALIKE = 2e-2
# Elements that tell one order from another before all of them are looked at.
_FIRST = 64


def rearrangements(source: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    """Yield ``source`` in every arrangement an exporter uses to fit ``shape``.

    As it is (reshaped), with its axes permuted, and with its leading axis cut into 3 or 4 gate blocks in another
    order (the recurrent operators of ONNX order their gates differently).
    """
    return (view.reshape(shape) for view in _exporters(source))


def arranged(source: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    """Yield ``source`` in every arrangement that fits ``shape``, onnxruntime's blocked filters among them.

    A blocked convolution pads its channels with zeros to a multiple of the block.
    """
    return (view.reshape(shape) for view in _all(source, shape))


def numbered(source: torch.Tensor, shape: torch.Size, k: int) -> torch.Tensor:
    """The k-th arrangement that :func:`arranged` yields."""
    return next(itertools.islice(_all(source, shape), k, None)).reshape(shape)


def expanded_axis(value: torch.Tensor) -> list[int]:
    """The first axis of several rows, where all are equal: as initial states are, which all examples have."""
    axis = next((k for k, size in enumerate(value.shape) if size > 1), None)
    if axis is None or value.ndim < 2:
        return []
    one = value.narrow(axis, 0, 1)
    alike = torch.equal(one, value.narrow(axis, 1, 1)) and torch.equal(one.expand_as(value), value)
    return [axis] if alike else []


def without_repeats(table: torch.Tensor) -> Iterator[torch.Tensor]:
    """A table without the repetitions of its first axis, then of its next."""
    for axis in expanded_axis(table):
        one = table.narrow(axis, 0, 1)
        yield one
        yield from without_repeats(one)


def near(source: torch.Tensor, value: torch.Tensor, reach: float) -> Iterator[tuple[int, torch.Tensor]]:
    """The arrangements of a tensor whose first elements are within ``reach`` of a value's, and their numbers."""
    first = torch.arange(min(_FIRST, value.numel()))
    wanted = value.reshape(-1)[: len(first)]
    for k, view in enumerate(_all(source, value.shape)):
        there = view[torch.unravel_index(first.to(view.device), view.shape)] if view.dim() else view.reshape(1)
        gap = (wanted - there).abs()
        if not bool((gap > reach).any()):  # what is no number on both sides tells nothing here
            yield k, view.reshape(value.shape)


def _exporters(source: torch.Tensor) -> Iterator[torch.Tensor]:
    """What an exporter makes of a tensor, as views where that can be: their elements in order are the arrangement."""
    yield source
    if 2 <= source.ndim <= 5:
        for order in itertools.permutations(range(source.ndim)):
            if order != tuple(range(source.ndim)):
                yield source.permute(order)
    # A recurrent operator of ONNX has an axis of directions before them.
    gated = source.squeeze(0) if source.ndim > 1 and source.shape[0] == 1 else source
    for gates in (3, 4):
        if 1 <= gated.ndim <= 2 and gated.shape[0] % gates == 0:
            blocks = gated.chunk(gates, 0)
            for order in itertools.permutations(range(gates)):
                yield torch.cat([blocks[k] for k in order], 0)


def _all(source: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    if source.numel() == math.prod(shape):
        yield from _exporters(source)
    elif source.ndim == 1 and shape and shape[0] == math.prod(shape) > source.numel():
        yield F.pad(source, (0, shape[0] - source.numel()))
    if source.ndim != 4 or len(shape) != 4 or source.shape[2:] != shape[2:]:
        return
    missing = [wanted - have for wanted, have in zip(shape[:2], source.shape[:2], strict=True)]
    if min(missing) < 0:
        return
    padded = F.pad(source, (0, 0, 0, 0, 0, missing[1], 0, missing[0]))
    for block in _BLOCKS:
        if shape[0] % block == 0:
            yield blocked_view(padded, block, False)
            if shape[1] % block == 0:
                yield blocked_view(padded, block, True)


def near_pairs(
    values: torch.Tensor, others: torch.Tensor, reach: float | torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of all pairs of numbers of two lists that are within reach of each other: sorted, not tried.

    Where the reach of one of the others is no finite number, it has none.
    """
    order = values.argsort()
    ordered, far = values[order], torch.as_tensor(reach, dtype=values.dtype).nan_to_num(0.0, 0.0, 0.0)
    first, last = torch.searchsorted(ordered, others - far), torch.searchsorted(ordered, others + far, right=True)
    counts = last - first
    other = torch.repeat_interleave(counts)
    return order[torch.arange(len(other)) - (counts.cumsum(0) - counts - first)[other]], other


def same_norms(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have as many elements and about the same norms, whatever their order."""
    if one.numel() != other.numel():
        return False
    norms = zip(_norms(widened(one)), _norms(widened(other)), strict=True)
    return all(math.isclose(x, y, rel_tol=ALIKE) for x, y in norms)


def sizes_of(value: torch.Tensor) -> tuple[float, ...]:
    """Of the finite elements the norms, and the largest magnitude: what no order of them changes."""
    return *_norms(value), float(finite(value).abs().max())


def _norms(value: torch.Tensor) -> tuple[float, float]:
    flat = value.reshape(-1)
    norms = float(torch.linalg.vector_norm(flat, 1.0)), float(torch.linalg.vector_norm(flat, 2.0))
    return norms if math.isfinite(norms[0]) else _norms(finite(flat))


def widened(value: torch.Tensor) -> torch.Tensor:
    """A tensor in float64, or in complex128."""
    return value.to(torch.complex128 if value.is_complex() else torch.float64)
