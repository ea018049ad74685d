"""The rest of onnxruntime's own operators: older and wider forms of standard ones, and fused sums and softmax.

Semantics: onnxruntime, ``docs/ContribOperators.md``.
"""

from __future__ import annotations

import math

import torch

from driftscope.lift.formulas.linear_algebra import as_kernel
from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.ops.indexing import gather_nd
from driftscope.lift.onnx.ops.sampling import grid_sample
from driftscope.lift.onnx.ops.shaping import arange, pad, trilu
from driftscope.lift.onnx.registry import Node, Result, axis_of, integers_of, operator
from driftscope.lift.steps import Kind, Rounding

# These have the standard operators' meaning.
operator("Trilu", domain=MICROSOFT, host=(1,))(trilu)
operator("GatherND", domain=MICROSOFT)(gather_nd)
operator("GridSample", domain=MICROSOFT)(grid_sample)


@operator("Pad", domain=MICROSOFT, host=(1, 2))
def contrib_pad(node: Node, x: torch.Tensor, pads: torch.Tensor, value: torch.Tensor | None = None) -> Result:
    """Pad every axis; pads may be (2 rank,) or (1, 2 rank)."""
    result: Result = pad(node, x, pads, value)
    return result


@operator("Range", domain=MICROSOFT, host=(0, 1, 2))
def contrib_range(
    node: Node, start: torch.Tensor, limit: torch.Tensor, delta: torch.Tensor | None = None
) -> torch.Tensor:
    """``start, start + delta, ...`` below ``limit``; steps of 1 where delta is left out."""
    result: torch.Tensor = arange(node, start, limit, torch.ones_like(start) if delta is None else delta)
    return result


@operator("ExpandDims", domain=MICROSOFT, host=(1,))
def expand_dims(node: Node, x: torch.Tensor, axis: torch.Tensor) -> torch.Tensor:
    """A new axis of length 1; a negative axis counts from the end of the new shape."""
    return x.unsqueeze((integers_of(axis) or [0])[0])


@operator("UnfoldTensor", domain=MICROSOFT)
def unfold_tensor(node: Node, x: torch.Tensor) -> torch.Tensor:
    """All slices of a length along an axis, in a new last axis."""
    return x.unfold(axis_of(node.integer("dim", -1), x.dim()), node.integer("size"), node.integer("step", 1))


@operator("Unique", domain=MICROSOFT)
def contrib_unique(node: Node, x: torch.Tensor) -> Result:
    """Distinct native values of x (n,) in order of appearance, the index of each element's, and counts."""
    _, inverse, counts = torch.unique(node.rounded(x), return_inverse=True, return_counts=True)
    places = torch.arange(len(x), device=x.device)
    first = torch.full((len(counts),), len(x), device=x.device).scatter_reduce(0, inverse, places, "amin")
    order = first.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=x.device)
    outputs = (x[first[order]], rank[inverse], counts[order])
    return Result(outputs, formats=[node.format(0), torch.int64, torch.int64])


@operator("Inverse", domain=MICROSOFT)
def inverse(node: Node, x: torch.Tensor) -> Result:
    """Inverses of square matrices."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.to(torch.float32)
    return Result(torch.linalg.inv(wide).to(x.dtype), as_kernel(torch.linalg.inv, wide))


@operator("CDist", domain=MICROSOFT)
def pairwise_distance(node: Node, a: torch.Tensor, b: torch.Tensor) -> Result:
    """Distances between the rows of a (M, K) and b (N, K), squared unless the metric is euclidean."""
    metric = node.text("metric", "sqeuclidean")
    if metric not in ("sqeuclidean", "euclidean"):
        raise node.refuse(f"its metric is {metric!r}")
    squared = (a[:, None] - b[None]).square().sum(-1)

    def squares() -> torch.Tensor:
        # The kernel adds a.a + b.b - 2 a.b, whose terms are larger than the distance.
        fourth = a.pow(4).sum(-1)[:, None] + b.pow(4).sum(-1)[None]
        return fourth + 4 * (a.square() @ b.square().transpose(0, 1))

    rounding = dot(3 * a.shape[-1], squares)
    if metric == "sqeuclidean":
        return Result(squared, rounding)
    squared = node.inner("Squared", squared, rounding).clamp(min=0)
    return Result(squared.sqrt(), Rounding(Kind.ROUND))


@operator("IsAllFinite", domain=MICROSOFT)
def is_all_finite(node: Node, *inputs: torch.Tensor) -> Result:
    """Whether every native value is finite; or merely not NaN, or merely not infinite."""
    bad = torch.isfinite
    if node.integer("isnan_only", 0):
        bad = torch.isnan
    elif node.integer("isinf_only", 0):
        bad = torch.isinf
    tests = [bad(node.rounded(x, i)) for i, x in enumerate(inputs)]
    good = [t if bad is torch.isfinite else ~t for t in tests]
    answer = torch.stack([g.all() for g in good]).all()
    return Result(answer, formats=[torch.bool])


@operator("BiasAdd", domain=MICROSOFT, kind=Kind.ROUND)
def bias_add(node: Node, x: torch.Tensor, bias: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    """``x + bias + skip``."""
    return node.inner("Add", x + bias, Rounding(Kind.ROUND)) + skip


@operator("BiasDropout", domain=MICROSOFT, host=(3, 4))
def bias_dropout(
    node: Node,
    x: torch.Tensor,
    bias: torch.Tensor,
    residual: torch.Tensor | None = None,
    ratio: torch.Tensor | None = None,
    training: torch.Tensor | None = None,
) -> Result:
    """``x + bias + residual`` outside of training, where it is refused: its mask is random."""
    if training is not None and bool(training) and (ratio is None or float(ratio) > 0):
        raise node.refuse("it drops elements at random (training mode)")
    total = node.inner("Add", x + bias, Rounding(Kind.ROUND))
    mask = torch.ones_like(x, dtype=torch.bool)
    if residual is None:
        return Result((total, mask))
    return Result((total + residual, mask), Rounding(Kind.ROUND))


@operator("BiasSoftmax", domain=MICROSOFT)
def bias_softmax(node: Node, x: torch.Tensor, bias: torch.Tensor) -> Result:
    """Softmax of ``x + bias`` over all dimensions from ``axis`` on.

    With ``is_inner_broadcast`` the bias lacks (or has as 1) some of the dimensions before ``axis`` and is
    repeated along them; without it, it lacks leading dimensions.
    """
    axis = axis_of(node.integer("axis", 1), x.dim())
    if bias.dim() < x.dim():
        # Missing dimensions are those just before the softmax (inner) or the first ones (outer).
        inner = bool(node.integer("is_inner_broadcast"))
        kept = bias.dim() - (x.dim() - axis)
        missing = [1] * (x.dim() - bias.dim())
        shape = [*bias.shape[:kept], *missing, *bias.shape[kept:]] if inner else [*missing, *bias.shape]
        bias = bias.reshape(shape)
    scores = node.inner("Add", x + bias, Rounding(Kind.ROUND))
    flat = torch.softmax(scores.flatten(axis), -1).reshape(scores.shape)
    return Result(flat, Rounding(Kind.SOFTMAX, math.prod(x.shape[axis:])))
