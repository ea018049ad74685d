"""Poolings, bags, recurrences and losses whose sums have a fixed order, in the signatures of torch's own operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.accumulation.exact import reductions
from driftscope.accumulation.exact.fixed import kernels
from driftscope.accumulation.exact.fixed.gathering import added_flat, positions
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.accumulation.exact.softmax import exponential
from driftscope.errors import InputError

Sizes = Sequence[int]
_SUM, _MEAN, _MAX = 0, 1, 2  # of an embedding bag
_LSTM = 2  # the mode of oneDNN's recurrent layers
EACH, AVERAGE = 0, 1  # reductions of a loss


@dataclass(frozen=True, slots=True)
class AveragedWindows:
    """Which windows an average is taken over, in the words of torch's operator."""

    kernel: Sizes
    stride: Sizes = ()
    padding: Sizes = (0,)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    def of(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the windows of the last axes, as many more axes at the end, and what each sum is divided by."""
        axes = len(self.kernel)
        stride, padding = (_each(s, axes) for s in (self.stride or self.kernel, self.padding))
        counts, first = [], x.dim() - axes
        edges: list[int] = []
        for axis, (k, s, p) in enumerate(zip(self.kernel, stride, padding, strict=True), start=first):
            n = x.shape[axis]
            places = (n + 2 * p - k + (s - 1) * self.ceil_mode) // s + 1
            places -= int(self.ceil_mode and (places - 1) * s >= n + p)
            starts = torch.arange(places) * s - p
            low, high = (starts, n + p) if self.count_include_pad else (starts.clamp(min=0), n)
            counts.append((starts + k).clamp(max=high) - low)
            edges = [p, max((places - 1) * s + k - n - p, 0), *edges]
        found = torch.nn.functional.pad(x, edges)
        for axis, (k, s, c) in enumerate(zip(self.kernel, stride, counts, strict=True), start=first):
            found = found.unfold(axis, k, s).narrow(axis, 0, len(c))
        by = torch.ones((), dtype=torch.float64) * (self.divisor_override or 1)
        for axis, count in enumerate(counts if self.divisor_override is None else ()):
            by = by * count.double().reshape(-1, *[1] * (axes - 1 - axis))
        return found, by.to(x.device)


def average_pool(x: torch.Tensor, *asked: Any, **given: Any) -> torch.Tensor:
    """Add each window exactly, and divide once; over as many last axes as the kernel has."""
    found = AveragedWindows(*asked, **given)
    windows, by = found.of(x)
    total = reductions.sum(windows.flatten(-len(found.kernel)), -1, dtype=torch.float64)
    return rounded_once(total / by, x.dtype)


def average_pool_backward(grad: torch.Tensor, x: torch.Tensor, *asked: Any, **given: Any) -> torch.Tensor:
    """Give each element the gradients of its windows, one after the other."""
    found = AveragedWindows(*asked, **given)
    axes = len(found.kernel)
    # Numbered from one: zero is the padding.
    at, by = found.of((positions(x.shape, x.device) + 1).double())
    shares = (grad.double() / by).reshape(*grad.shape, *[1] * axes).expand(at.shape)
    inside = at > 0
    zeros = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    return rounded_once(added_flat(zeros, at[inside].long() - 1, shares[inside]), x.dtype)


def adaptive_average_pool_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Give each element the gradients of the windows it is in, window after window."""
    axes = grad.dim() - 2 if grad.dim() > 3 else 2
    total = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    lines = grad.double().flatten(-axes).unbind(-1)
    for window, line in zip(_adaptive_windows(x.shape[-axes:], grad.shape[-axes:]), lines, strict=True):
        place: tuple[Any, ...] = (..., *window)
        part = total[place]
        count = part.shape[-axes:].numel()
        part += (line / count).reshape(*line.shape, *[1] * axes)
    return rounded_once(total, x.dtype)


def _each(sizes: Sizes, axes: int) -> tuple[int, ...]:
    return tuple(sizes) * (axes // len(sizes))


def adaptive_average_pool(x: torch.Tensor, output: Sizes) -> torch.Tensor:
    """Average exactly over the windows that torch divides the last axes into."""
    axes = tuple(range(-len(output), 0))
    windows: list[tuple[Any, ...]] = [(..., *w) for w in _adaptive_windows(x.shape[-len(output) :], output)]
    parts = [reductions.mean(x[window], axes) for window in windows]
    return torch.stack(parts, -1).reshape(*x.shape[: -len(output)], *output)


def _adaptive_windows(sizes: Sizes, output: Sizes) -> list[tuple[slice, ...]]:
    spans = [[(i * n // m, -(-(i + 1) * n // m)) for i in range(m)] for n, m in zip(sizes, output, strict=True)]
    return [tuple(slice(*span) for span in spanned) for spanned in itertools.product(*spans)]


def embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_grad_by_freq: bool = False,
    mode: int = _SUM, sparse: bool = False, per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False, padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Add or average the rows of each bag exactly; what torch returns beside them is about places only."""
    pooled, *rest = torch.ops.aten._embedding_bag(
        weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights, include_last_offset, padding_idx
    )
    if mode == _MAX:
        return pooled, *rest
    ends = [int(o) for o in offsets] + [len(indices)] * (not include_last_offset)
    bags = []
    for start, end in itertools.pairwise(ends):
        at = torch.arange(start, end, device=indices.device)
        at = at[indices[at] != padding_idx] if padding_idx >= 0 else at
        rows = weight[indices[at]]
        rows = rows if per_sample_weights is None else rows * per_sample_weights[at, None]
        of = reductions.mean if mode == _MEAN and len(at) else reductions.sum
        bags.append(of(rows, 0))
    return (torch.stack(bags) if bags else pooled), *rest


def group_norm(
    x: torch.Tensor, weight: Any, bias: Any, rows: int, channels: int, places: int, groups: int, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normalise each group of channels by its exact mean and variance, then scale each channel."""
    grouped = x.reshape(rows, groups, -1)
    mean = reductions.mean(grouped, -1, dtype=torch.float64)
    spread = 1.0 / (reductions.var(grouped, -1, correction=0, dtype=torch.float64) + eps).sqrt()
    result = ((grouped.double() - mean[..., None]) * spread[..., None]).reshape(x.shape)
    shape = (1, channels, *[1] * (x.dim() - 2))
    result = result if weight is None else result * weight.double().reshape(shape)
    result = result if bias is None else result + bias.double().reshape(shape)
    return rounded_once(result, x.dtype), rounded_once(mean, x.dtype), rounded_once(spread, x.dtype)


@dataclass(frozen=True, slots=True)
class LstmStep:
    """One step: its position, the state before, the gates in float64, and the state after."""

    at: int
    before: torch.Tensor
    cell: torch.Tensor
    input: torch.Tensor
    forget: torch.Tensor
    new: torch.Tensor
    output: torch.Tensor
    squashed: torch.Tensor
    after: torch.Tensor
    next_cell: torch.Tensor


def lstm_gates(
    x: torch.Tensor, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], state: Sequence[torch.Tensor],
    reverse: bool, has_biases: bool,
) -> Iterator[LstmStep]:  # fmt: skip
    """Yield the steps of one direction of one layer, in the order in which they are computed."""
    h, c = (s.reshape(s.shape[-2:]) for s in state)
    given = kernels.product(x, weights[0].t())
    given = given + biases[0] if has_biases else given
    for at in range(len(x) - 1, -1, -1) if reverse else range(len(x)):
        gates = given[at] + kernels.product(h, weights[1].t())
        i, f, g, o = (gates + biases[1] if has_biases else gates).double().chunk(4, -1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), _tanh(g), _sigmoid(o)
        wide = f * c.double() + i * g
        end = _tanh(wide)
        after, following = rounded_once(o * end, x.dtype), rounded_once(wide, x.dtype)
        yield LstmStep(at, h, c.double(), i, f, g, o, end, after, following)
        h, c = after, following


def refuse_packed(batch_sizes: Sizes, mode: int) -> None:
    """Raise :class:`InputError` for sequences that are packed by oneDNN, and for recurrences other than an LSTM."""
    if batch_sizes or mode != _LSTM:
        raise InputError("ds.reproducible() has no fixed order for packed sequences in oneDNN: unpack them.")


def lstm_layer(
    x: torch.Tensor, inner: torch.Tensor, outer: torch.Tensor, inner_bias: torch.Tensor, outer_bias: torch.Tensor,
    hidden: torch.Tensor, cell: torch.Tensor, reverse: bool, batch_sizes: Sizes, mode: int, hidden_size: int,
    num_layers: int, has_biases: bool, bidirectional: bool, batch_first: bool, train: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """One direction of one layer over a sequence, step by step, as the formula of torch's documentation has it.

    Raises
    ------
    InputError
        For sequences that are packed by oneDNN.
    """
    refuse_packed(batch_sizes, mode)
    steps = list(lstm_gates(x, (inner, outer), (inner_bias, outer_bias), (hidden, cell), reverse, has_biases))
    result = torch.stack([s.after for s in sorted(steps, key=lambda s: s.at)])
    h, c = steps[-1].after, steps[-1].next_cell
    kept = x.new_empty(0, dtype=torch.uint8)
    if train:  # what oneDNN's own backward pass reads
        with torch.enable_grad():
            kept = torch.ops.aten.mkldnn_rnn_layer(
                x, inner, outer, inner_bias, outer_bias, hidden, cell, reverse, batch_sizes, mode, hidden_size,
                num_layers, has_biases, bidirectional, batch_first, train
            )[3]  # fmt: skip
    return result, h.reshape(hidden.shape), c.reshape(cell.shape), kept


def _sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Of float64, with the exponential of this folder: torch's own rounds otherwise at the end of a row."""
    small = exponential(-x.abs())
    return torch.where(x >= 0, 1.0, small) / (1.0 + small)


def _tanh(x: torch.Tensor) -> torch.Tensor:
    small = exponential(-2.0 * x.abs())
    return torch.copysign((1.0 - small) / (1.0 + small), x)


def vector_norm(x: torch.Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """The norms that a sum or an extreme makes: of order 1, 2 and infinity.

    Raises
    ------
    InputError
        For another order.
    """
    if order == 2:
        return reductions.norm(x, dim, keepdim, dtype=dtype)
    if order == 1:
        return reductions.sum(x.abs(), dim, keepdim, dtype=dtype)
    if math.isinf(order):
        values = x.abs() if dtype is None else x.abs().to(dtype)
        axes = tuple(range(x.dim())) if dim is None else dim
        return values.amax(axes, keepdim) if order > 0 else values.amin(axes, keepdim)
    raise InputError(f"ds.reproducible() has no fixed order for a norm of order {order}: write it with sums.")


def log_of_sum(x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    """``m + log(sum(exp(x - m)))`` with the largest element m and an exact sum, rounded once."""
    wide = x.double()
    largest = wide.amax(dim, keepdim=True)
    largest = torch.where(largest.isfinite(), largest, 0.0)
    total = reductions.sum(exponential(wide - largest), dim, True).log() + largest
    axes = [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)]
    kept = total if keepdim else total.reshape([n for d, n in enumerate(x.shape) if d not in axes])
    return rounded_once(kept, x.dtype)


def std(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> torch.Tensor:
    """The root of the exact variance, rounded once."""
    many = 1 if correction is None else int(correction)
    return rounded_once(reductions.var(x, dim, correction=many, keepdim=keepdim, dtype=torch.float64).sqrt(), x.dtype)


def gated(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
    """``glu``, in float64, rounded once."""
    return rounded_once(torch.nn.functional.glu(x.double(), dim), x.dtype)


def log_sigmoid(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, rounded once; the second result serves a backward pass."""
    result = torch.nn.functional.logsigmoid(x.double())
    return rounded_once(result, x.dtype), rounded_once((-x.double().abs()).exp(), x.dtype)


def squared_error(x: torch.Tensor, y: torch.Tensor, reduction: int = AVERAGE) -> Any:
    """``mse_loss``: squares of differences, each rounded, then an exact sum or mean."""
    squares = (x - y).square()
    if reduction == EACH:
        return squares
    return reductions.mean(squares) if reduction == AVERAGE else reductions.sum(squares)


def likelihood_loss(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """``nll_loss``: the weighted scores of the targets, with exact sums; classes lie along axis 1 or the only one."""
    x = x.movedim(1, -1) if x.dim() > 1 else x
    kept = target != ignore_index
    chosen = torch.where(kept, target, 0)
    picked = -x.gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    share = torch.ones_like(picked) if weight is None else weight[chosen]
    share = torch.where(kept, share, 0.0)
    terms = torch.where(kept, picked * share, 0.0)
    total = reductions.sum(share)
    if reduction == EACH or target.dim() == 0:
        return terms, total if target.dim() == 0 else x.new_zeros(())
    wide = reductions.sum(terms, dtype=torch.float64)
    wide = wide / total.double() if reduction == AVERAGE else wide
    return rounded_once(wide, x.dtype), total
