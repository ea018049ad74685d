"""Blocked channels: the operators of ``com.microsoft.nchwc``, which onnxruntime writes for convolutional graphs.

Such a graph stores activations as (N, C/B, H, W, B) in a tensor that calls itself (N, C, H, W), C padded with
zeros to a multiple of the block size B, and filters in a blocked order of their own. Here an activation stays in
ordinary NCHW order with its padded channels: ReorderInput pads, ReorderOutput cuts, and everything between them,
elementwise nodes included, computes the same numbers at other addresses. Filters are constants of the graph in
their stored order and are brought back to (O, I, H, W) where they are used.

Semantics: onnxruntime's ``nchwc_ops.cc``, ``nchwc_transformer.cc`` and MLAS ``reorder.cpp``.
"""

from __future__ import annotations

import functools

import torch
from torch.nn import functional as F

from driftscope.errors import CannotLift
from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.contrib.activations import finish
from driftscope.lift.onnx.contrib.convolution import Terms
from driftscope.lift.onnx.ops.pooling import average_pool, global_average_pool, global_max_pool, max_pool
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding
from driftscope.programs.bare_sessions import bare_session

NCHWC = "com.microsoft.nchwc"


@functools.cache
def native_block_size() -> int:
    """Channels per block of the installed onnxruntime on this processor, asked of onnxruntime itself.

    A blocked graph does not say its block size. onnxruntime reads such a graph with the block size of the
    machine it runs on, so this is also what a graph saved elsewhere means here.
    """
    import numpy as np
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("ReorderInput", ["x"], ["y"], domain=NCHWC)],
        "block_size",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, None, 1, 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    try:
        (blocked,) = bare_session(model, threads=1).run(None, {"x": np.zeros((1, 4, 1, 1), np.float32)})
    except Exception as error:  # onnxruntime's errors have no class of their own
        words = str(error).split("\n", 1)[0]
        raise CannotLift(f"onnxruntime has no blocked channels on this processor: {words}") from error
    return int(blocked.shape[1])


def block_size(channels: int) -> int | None:
    """The block size of a filter with that many (padded) output channels; None if there is none."""
    native = native_block_size()
    return next((b for b in (native, 16, 8, 4) if channels % b == 0), None)


def unblocked_filter(w: torch.Tensor, block: int, paired: bool) -> torch.Tensor:
    """Bring a blocked filter back to (O, I, H, W).

    Parameters
    ----------
    w : torch.Tensor, (O, I, H, W) by name
        Stored as (O/B, I/B, H, W, B input, B output) where ``paired``, else as (O/B, I, H, W, B output).
    block : int
        B.
    paired : bool
        Whether input channels are blocked too.
    """
    o, i, h, k = w.shape
    if paired:
        stored = w.reshape(o // block, i // block, h, k, block, block)
        return stored.permute(0, 5, 1, 4, 2, 3).reshape(o, i, h, k)
    return w.reshape(o // block, i, h, k, block).permute(0, 4, 1, 2, 3).reshape(o, i, h, k)


def blocked_filter(w: torch.Tensor, block: int, paired: bool) -> torch.Tensor:
    """The inverse of :func:`unblocked_filter`."""
    return blocked_view(w, block, paired).reshape(w.shape)


def blocked_view(w: torch.Tensor, block: int, paired: bool) -> torch.Tensor:
    """A filter as a view whose elements stand in the order of the blocked one."""
    o, i, h, k = w.shape
    if paired:
        return w.reshape(o // block, block, i // block, block, h, k).permute(0, 2, 4, 5, 3, 1)
    return w.reshape(o // block, block, i, h, k).permute(0, 2, 3, 4, 1)


@operator("ReorderInput", domain=NCHWC)
def reorder_input(node: Node, x: torch.Tensor) -> torch.Tensor:
    """(N, C, H, W), or (N, H, W, C) with ``channels_last``, to blocked channels: C is padded with zeros."""
    if node.integer("channels_last", 0):
        x = x.movedim(-1, 1)
    return F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % native_block_size()))


@operator("ReorderOutput", domain=NCHWC)
def reorder_output(node: Node, x: torch.Tensor) -> torch.Tensor:
    """Blocked channels to (N, channels, H, W), or (N, H, W, channels) with ``channels_last``."""
    x = x[:, : node.integer("channels")]
    return x.movedim(1, -1) if node.integer("channels_last", 0) else x


@operator("Conv", domain=NCHWC)
def nchwc_conv(
    node: Node,
    x: torch.Tensor,
    w: torch.Tensor,
    b: torch.Tensor | None = None,
    addend: torch.Tensor | None = None,
) -> Result:
    """``activation(conv(x, w) + b + addend)`` with a blocked filter.

    x has blocked channels, or is an ordinary NCHW image with fewer channels than a block (then, as in a
    depthwise convolution, the filter's input channels are not blocked).
    """
    block = block_size(w.shape[0])
    if block is None:
        raise node.refuse(f"its filter has {w.shape[0]} output channels, which no block size divides")
    paired = w.shape[1] >= block and w.shape[1] % block == 0
    terms = Terms(x, unblocked_filter(w, block, paired), b, addend)
    return finish(node, "Conv", terms.total(node), dot(terms.length, lambda: terms.squares(node)))


# A window sees one channel at a time, so the order of channels is nothing to it.
operator("MaxPool", domain=NCHWC)(max_pool)
operator("AveragePool", domain=NCHWC)(average_pool)
operator("GlobalMaxPool", domain=NCHWC)(global_max_pool)
operator("GlobalAveragePool", domain=NCHWC)(global_average_pool)


@operator("Upsample", domain=NCHWC)
def nchwc_upsample(node: Node, x: torch.Tensor) -> Result:
    """Resize by integer scales, nearest or linear."""
    scales = node.integers("scales")[2:]
    if node.text("mode", "nearest") == "nearest":
        return Result(x.repeat_interleave(scales[0], 2).repeat_interleave(scales[1], 3))
    mode = node.text("coordinate_transformation_mode", "asymmetric")
    for axis, scale in zip((2, 3), scales, strict=True):
        x = _interpolated(x, axis, scale, mode)
    return Result(x, Rounding(Kind.DOT, 4))


def _interpolated(x: torch.Tensor, axis: int, scale: int, mode: str) -> torch.Tensor:
    if scale == 1:
        return x
    length = x.shape[axis]
    # Which neighbours is decided in float32, as in the kernel; their shares are real numbers.
    low = _places(length, scale, mode, torch.float32).floor().to(torch.int64).clamp(max=length - 1)
    share = (_places(length, scale, mode, torch.float64) - low).to(x.device, x.dtype)
    share = share.reshape([-1 if d == axis else 1 for d in range(x.dim())])
    low, high = low.to(x.device), (low + 1).clamp(max=length - 1).to(x.device)
    return x.index_select(axis, low) * (1 - share) + x.index_select(axis, high) * share


def _places(length: int, scale: int, mode: str, dtype: torch.dtype) -> torch.Tensor:
    """Where each output element lies in the input."""
    place = torch.arange(length * scale, dtype=dtype)
    if mode == "align_corners":
        return place * (length - 1) / (length * scale - 1)
    if mode == "half_pixel":
        return ((place + 0.5) / scale - 0.5).clamp(min=0)
    return place / scale
