"""``ds.reproducible()``: a context in which what torch adds is added in a fixed order, or refused.

The mode stands where torch has decomposed a call into its own operators, so ``@``, ``einsum``, ``nn.Linear`` and
attention in its plain form all arrive as the few products, sums and normalisations below. An operator that could add
something and has no fixed order here is refused by name: a context that lets it pass would promise what it cannot
keep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.accumulation.exact import layers, pools, reductions
from driftscope.accumulation.exact.fixed import gradients, kernels, losses, resizing
from driftscope.accumulation.exact.formats import STORED
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.errors import InputError

#: Operators without a tag that move, make, compare or select values and add none.
_ADDS_NOTHING = frozenset(
    (
        "_assert_async", "_local_scalar_dense", "_pin_memory", "_prelu_kernel", "_prelu_kernel_backward",
        "_reshape_alias", "_to_copy", "_unique2", "_unsafe_view", "adaptive_max_pool2d", "all", "amax", "amin",
        "aminmax", "any", "arange", "argmax", "argmin", "argsort", "as_strided", "bernoulli",
        "broadcast_tensors", "bucketize", "cat", "clone", "constant_pad_nd", "contiguous", "copy",
        "count_nonzero", "cummax", "cummin", "detach", "diag_embed", "diagonal_backward", "embedding", "empty",
        "empty_like", "empty_permuted", "empty_strided", "equal", "eye", "fill", "flip", "full", "full_like",
        "gather", "im2col", "index", "index_copy", "index_fill", "index_put", "index_select", "is_nonzero", "is_pinned",
        "is_same_size", "isin", "item", "kthvalue", "lift", "lift_fresh", "lift_fresh_copy", "masked_fill",
        "masked_scatter", "masked_select", "max", "max_pool2d_with_indices", "max_pool3d_with_indices",
        "median", "min", "native_dropout", "new_empty", "new_empty_strided", "new_full", "new_ones",
        "new_zeros", "nll_loss2d_backward", "nll_loss_backward", "nonzero", "normal", "one_hot", "ones",
        "ones_like", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "put",
        "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "random",
        "randperm", "repeat", "repeat_interleave", "resize", "roll", "rot90", "scalar_tensor", "scatter",
        "searchsorted", "select_backward", "select_scatter", "set", "slice_backward", "slice_scatter", "sort",
        "split_with_sizes_copy", "squeeze", "stack", "t", "take", "topk", "transpose", "tril", "tril_indices",
        "triu", "triu_indices", "unfold", "uniform", "unique_dim", "unsafe_split", "unsqueeze",
        "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d",
        "where", "zero",
        "zeros", "zeros_like",
    )
)  # fmt: skip

#: What to write instead of a refused operator.
_INSTEAD = {
    "_native_multi_head_attention": "set torch.backends.mha.set_fastpath_enabled(False)",
    "_transformer_encoder_layer_fwd": "set torch.backends.mha.set_fastpath_enabled(False)",
}


def reproducible() -> TorchDispatchMode:
    """Make a context in which torch's sums do not depend on batch, order of rows, threads, layout or device.

    Inside, ``torch.sum``, ``mean`` and ``var`` are those of ``ds.exact``; ``matmul``, ``mm``, ``bmm``, ``addmm`` and
    ``linear`` are its sequential chains, to which the bias is then added. ``softmax`` adds its exponentials as
    integers, so padding a row with -infinity changes no bit; ``layer_norm`` adds in sixteen lanes of float64; both have
    a compiled kernel of their own, and so have attention, ``gelu``, ``silu``, ``sigmoid`` and ``tanh``. Convolutions
    are products with the patches of their input, attention is its formula, ``cumsum`` adds in turn in float64, and
    BatchNorm in evaluation mode is pointwise. Poolings by averages, embedding bags, GroupNorm, InstanceNorm, recurrent
    layers (LSTM, GRU, RNN), norms of vectors, ``logsumexp``, ``std``, the usual losses, ``cdist`` and interpolation are
    made of these; ``index_add``, ``scatter_add`` and ``index_put`` add in the order of their terms.

    A backward pass may run inside: its products and sums have a fixed order too. The gradient of a row's input then
    does not depend on the other rows; the gradient of a weight is a sum over all of them, in their order.

    Returns
    -------
    context manager
        To be entered with ``with``. What is computed inside can also be differentiated outside, by torch's own kernels.

    Raises
    ------
    InputError
        Inside the context, for an operator that may add something and has no fixed order here (a
        fused encoder layer, an interpolation with antialiasing, a product of all elements, BatchNorm in train mode, a
        Fourier transform); the message names it.

    Notes
    -----
    ``gelu``, ``silu``, ``sigmoid`` and ``tanh`` of float32 and narrower are fixed lists of float32 operations, with the
    same bits on every machine. Other functions of single elements (``exp``, ``log``, ``pow``, ...) are torch's,
    evaluated in float64 and rounded once: its kernels round the last elements of a row otherwise than those before. Of
    float64 they are torch's own, which another version, instruction set or place in a row can change in the last bit.

    torch adds the gradients of a tensor that is used three times in the order of its own graph, and its attention has
    another graph where the last axis of an operand is not contiguous.
    """
    return _Reproducible()


class _Reproducible(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name, fixed, passes = _order_of(func)
        given = kwargs or {}
        if passes and "alpha" not in given:
            return func(*args, **given)
        floats = list(_inexact((*args, *given.values())))
        if not floats:
            return func(*args, **given)
        if fixed is not None and "out" not in given and all(dtype in STORED for dtype in floats):
            with torch.no_grad():
                return fixed(*args, **given)
        if name.rstrip("_") != "put" or given.get("accumulate") or any(args[3:4]):
            hint = _INSTEAD.get(name, "take it out of the context, or write it with sums and products")
            raise InputError(f"ds.reproducible() has no fixed order for torch's operator {name}: {hint}.")
        return func(*args, **given)


#: Functions of one element that are one IEEE operation or a choice, so that every kernel has the same bits.
_EXACT = frozenset(
    (
        "_conj", "_to_copy", "abs", "add", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil",
        "clamp", "clamp_max", "clamp_min", "clone", "copysign", "div", "eq", "fill", "floor", "floor_divide",
        "fmax", "fmin", "fmod", "frac", "ge", "gt", "hardtanh", "isfinite", "isinf", "isnan", "isneginf",
        "isposinf", "le", "leaky_relu", "logical_and", "logical_not", "logical_or", "logical_xor", "lt",
        "masked_fill", "maximum", "minimum", "mul", "nan_to_num", "ne", "neg", "nextafter", "positive",
        "reciprocal", "relu", "remainder", "round", "sgn", "sign", "signbit", "sqrt", "square", "sub",
        "threshold", "threshold_backward", "trunc", "where", "zero",
    )
)  # fmt: skip

#: Those that torch gave no tag as functions of one element.
_UNTAGGED = frozenset(("linalg_cross", "celu", "elu", "hardswish", "logit", "mish", "selu", "softplus"))

#: Operators of float32 steps of their own.
_OWN = frozenset(("sigmoid", "tanh", "silu", "gelu"))


def _pointwise(name: str, func: Any) -> Callable[..., Any] | None:
    """Evaluate a function of single elements so that it has the same bits wherever an element lies.

    torch's kernels round the last elements of a row, or those of a view, otherwise than the others.
    """
    plain = name.rstrip("_")
    if plain in _OWN:
        return functools.partial(_own, plain, name.endswith("_"), func)
    tagged = torch.Tag.pointwise in func.tags
    # A sum that scales an operand first is no single operation; it alone among these is asked for what stands here.
    if (tagged and plain not in _EXACT - {"add", "sub"}) or plain in _UNTAGGED | gradients.OF_ELEMENTS:
        return functools.partial(_in_float64, name.endswith("_"), func)
    return None


def _own(name: str, in_place: bool, func: Any, x: torch.Tensor, **given: Any) -> Any:
    if x.dtype is torch.float64:
        return func(x, **given)
    found = kernels.elements("gelu_of_tanh" if given.get("approximate") == "tanh" else name, x)
    return x.copy_(found) if in_place else found


def _in_float64(in_place: bool, func: Any, *args: Any, **given: Any) -> Any:
    """Evaluate a function of elements in float64 and round once."""
    floats = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
    if not floats or all(a.dtype is torch.float64 for a in floats):
        return func(*args, **given)
    wide = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    found = func(*wide, **given)  # a function in place writes into the float64 copy
    if not isinstance(found, torch.Tensor) or found.dtype is not torch.float64:
        return func(*args, **given)
    dtype = functools.reduce(torch.promote_types, (a.dtype for a in floats if a.dim()), floats[0].dtype)
    found = rounded_once(found, dtype)
    return args[0].copy_(found) if in_place else found


@functools.cache
def _order_of(func: Any) -> tuple[str, Callable[..., Any] | None, bool]:
    """The name of an operator, what stands in its place, and whether it may pass whatever its arguments are."""
    name = func._schema.name.removeprefix("aten::")
    plain = name.rstrip("_")
    fixed = _FIXED.get(name) or _pointwise(name, func)
    moves = any(r.alias_info and not r.alias_info.is_write for r in func._schema.returns)
    adds_nothing = moves or not _ADDS_NOTHING.isdisjoint((name, plain)) or torch.Tag.pointwise in func.tags
    alone = fixed is None and adds_nothing and "reduce" not in func._overloadname and plain != "put"
    return name, fixed, plain in _EXACT or alone


def _inexact(arguments: Iterable[Any]) -> Iterator[torch.dtype]:
    """Yield the dtypes of floating-point numbers among arguments: the order of their sums could be seen."""
    for one in arguments:
        if isinstance(one, list | tuple):
            yield from _inexact(one)
        dtype = one.dtype if isinstance(one, torch.Tensor) else one
        if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex):
            yield dtype


# --- what has a fixed order ------------------------------------------------------------------------------------------


def _sum(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return reductions.sum(_as_asked(x, dtype), dim, keepdim, dtype=dtype)


def _mean(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return reductions.mean(_as_asked(x, dtype), dim, keepdim, dtype=dtype)


def _as_asked(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """Integers to be added as floats are converted first, as torch does."""
    return x if dtype is None or x.is_floating_point() else x.to(dtype)


def _var(x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return reductions.var(x, dim, correction=1 if correction is None else int(correction), keepdim=keepdim)


def _product(a: torch.Tensor, b: torch.Tensor) -> Any:
    return kernels.product(a, b)


def _added(base: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta * base + alpha * (a @ b)``, each operation rounded to the dtype by itself.

    torch turns a linear layer into this operator or into a product and a sum, depending on the strides of its input;
    so written, both have the same bits.
    """
    if alpha == beta == 1 and base.dim() == 1 and a.dim() == b.dim() == 2 and len(base) == b.shape[1]:
        return kernels.product(a, b, base)
    result = kernels.product(a, b)
    if alpha != 1:
        result = result * alpha
    if beta == 0:
        return result
    return result + (base if beta == 1 else base * beta)


def _soft_shrink(x: torch.Tensor, width: float = 0.5) -> Any:
    """Written out, because torch's kernel gives zeros of either sign."""
    return torch.where(x > width, x - width, torch.where(x < -width, x + width, x * 0))


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
    flat = kernels.product(x.reshape(-1, x.shape[-1]), weight.t(), bias)
    return flat.reshape(*x.shape[:-1], len(weight))


def _softmax(x: torch.Tensor, dim: int, half_to_float: bool = False) -> Any:
    return kernels.softmax(x.float() if half_to_float else x, dim)


def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return kernels.softmax(x if dtype is None else x.to(dtype), dim, masked_rows_are_zero=True)


def _attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, _dropout: float = 0.0, is_causal: bool = False, *,
    attn_mask: torch.Tensor | None = None, scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention as torch's plain formula has it for other strides, and the logarithms of its sums.

    Only a backward pass reads the second.
    """
    wide = torch.float64 if query.dtype is torch.float64 else torch.float32
    q, k, v = (t.to(wide) for t in (query, key, value))
    mask = gradients.mask_of(attn_mask, is_causal, q, k)
    found, statistics = kernels.attention(q, k, v, mask, gradients.scale_of(scale, q))
    sums = statistics[..., 0] + statistics[..., 1].log()
    return found.to(query.dtype), sums


def _trace(x: torch.Tensor) -> Any:
    return reductions.sum(x.diagonal())


def _sum_of_numbers(x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _sum(torch.where(x.isnan(), 0.0, x), dim, keepdim, dtype=dtype)


def _norm(x: torch.Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return pools.vector_norm(x, 2 if order is None else order, dim, keepdim, dtype=dtype)


_FIXED: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "nansum": _sum_of_numbers,
    "trace": _trace,
    "norm": _norm,
    "mean": _mean,
    "var": _var,
    "mm": _product,
    "bmm": _product,
    "mv": _product,
    "dot": _product,
    "matmul": _product,
    "addmm": _added,
    "addmv": _added,
    "baddbmm": _added,
    "linear": _linear,
    "_softmax": _softmax,
    "_safe_softmax": _safe_softmax,
    "native_layer_norm": kernels.layer_norm,
    "_log_softmax": layers.log_softmax,
    "cumsum": layers.cumulative_sum,
    "convolution": layers.convolution,
    "native_batch_norm": layers.batch_norm,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "avg_pool2d": pools.average_pool,
    "avg_pool3d": pools.average_pool,
    "_adaptive_avg_pool2d": pools.adaptive_average_pool,
    "_adaptive_avg_pool3d": pools.adaptive_average_pool,
    "_embedding_bag": pools.embedding_bag,
    "_embedding_bag_forward_only": pools.embedding_bag,
    "native_group_norm": pools.group_norm,
    "mkldnn_rnn_layer": pools.lstm_layer,
    "linalg_vector_norm": pools.vector_norm,
    "logsumexp": pools.log_of_sum,
    "std": pools.std,
    "glu": pools.gated,
    "softshrink": _soft_shrink,
    "log_sigmoid_forward": pools.log_sigmoid,
    "mse_loss": pools.squared_error,
    "smooth_l1_loss": losses.smooth_absolute,
    "huber_loss": losses.huber,
    "binary_cross_entropy": losses.cross_entropy_of_probabilities,
    "binary_cross_entropy_with_logits": losses.cross_entropy_of_scores,
    "soft_margin_loss": losses.soft_margin,
    "_cdist_forward": losses.distances,
    "upsample_linear1d": resizing.linear,
    "upsample_bilinear2d": resizing.linear,
    "upsample_trilinear3d": resizing.linear,
    "upsample_bicubic2d": resizing.cubic,
    "nll_loss_forward": pools.likelihood_loss,
    "nll_loss2d_forward": pools.likelihood_loss,
    **gradients.FIXED,
}
