"""Operators by what they compute, whatever a framework calls them."""

from __future__ import annotations

import functools

from driftscope.lift.steps import plain_name

# One piece under the names that torch's tapes, torch's exporters and ONNX give it.
_SAME_PIECE = {
    "linear": ("addmm", "mm", "bmm", "linear", "gemm", "matmul", "baddbmm", "fusedmatmul", "matmuladd", "fusedgemm",
               "mv", "dot", "fusedmatmulactivation"),
    "layernorm": ("layer_norm", "layernormalization", "simplifiedlayernormalization", "rms_norm", "rmsnormalization",
                  "skiplayernormalization", "skipsimplifiedlayernormalization", "fused_rms_norm"),
    "gelu": ("gelu", "fastgelu", "biasgelu", "quickgelu"),
    "conv": ("convolution", "conv", "conv3d", "conv2d", "conv1d", "fusedconv", "mkldnn_convolution", "nhwcconv"),
    "convtranspose": ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convtranspose"),
    "softmax": ("softmax", "biassoftmax", "safe_softmax"),
    "logsoftmax": ("log_softmax", "logsoftmax"),
    "silu": ("silu", "swish"),
    "groupnorm": ("group_norm", "groupnormalization", "instancenormalization", "instance_norm"),
    "batchnorm": ("batch_norm", "batchnormalization", "batch_norm_legit_no_training", "cudnn_batch_norm"),
    "leakyrelu": ("leaky_relu", "leakyrelu"),
    "recurrent": ("gru", "lstm", "rnn", "mkldnn_rnn_layer", "rnn_tanh", "rnn_relu"),
    "attention": ("scaled_dot_product_attention", "scaled_dot_product_flash_attention_for_cpu", "attention",
                  "scaled_dot_product_attention_math", "multiheadattention", "scaled_dot_product_efficient_attention",
                  "scaled_dot_product_flash_attention", "groupqueryattention"),
    "view": ("view", "reshape", "unsafe_view", "flatten", "unflatten", "contiguous", "clone", "alias", "view_copy",
             "identity", "lift_fresh_copy", "detach", "dropout"),
    "transpose": ("transpose", "permute", "t", "numpy_t", "swapaxes", "movedim", "mt"),
    "cat": ("cat", "concat", "concatenate", "stack"),
    "mean": ("mean", "reducemean"),
    "sum": ("sum", "reducesum"),
    "amax": ("amax", "reducemax", "max"),
    "amin": ("amin", "reducemin", "min"),
    "gather": ("embedding", "gather", "index_select", "index", "gathernd", "gatherelements", "select", "take"),
    "where": ("masked_fill", "where"),
    "cast": ("to", "to_copy", "cast", "type_as", "float", "half", "castlike"),
    "slice": ("slice", "narrow"),
    "split": ("split", "split_with_sizes", "chunk", "unbind", "unsafe_split"),
    "sub": ("sub", "rsub", "subtract"),
    "div": ("div", "divide", "true_divide"),
    "mul": ("mul", "multiply"),
    "maxpool": ("max_pool1d", "max_pool2d", "max_pool2d_with_indices", "maxpool", "max_pool3d"),
    "averagepool": ("avg_pool1d", "avg_pool2d", "averagepool", "adaptive_avg_pool2d", "adaptive_avg_pool1d",
                    "globalaveragepool"),
    "pow": ("pow", "square"),
    "pad": ("pad", "constant_pad_nd", "reflection_pad2d", "replication_pad2d"),
    "upsample": ("resize", "upsample_nearest2d", "upsample_bilinear2d", "interpolate", "upsample"),
    "ge": ("ge", "greaterorequal", "greater_equal"),
    "gt": ("gt", "greater"),
    "le": ("le", "lessorequal", "less_equal"),
    "lt": ("lt", "less"),
    "eq": ("eq", "equal"),
    "not": ("not", "logical_not", "bitwise_not"),
    "and": ("and", "logical_and", "bitwise_and"),
    "or": ("or", "logical_or", "bitwise_or"),
    "prod": ("prod", "reduceprod"),
    "logsumexp": ("logsumexp", "reducelogsumexp"),
    "clip": ("clip", "clamp", "hardtanh", "clamp_min", "clamp_max"),
}  # fmt: skip
_FAMILY = {member: family for family, members in _SAME_PIECE.items() for member in members}
# Pieces that only move elements: which of them stand where is the exporter's taste.
MOVES = frozenset({"view", "transpose", "expand", "unsqueeze", "squeeze", "cast", "expand_as", "as_strided"})
#: What takes some of the numbers, and may take all: the only channel, both parts of a complex number, by a mask.
PICKS = frozenset({"where", "select", "slice", "gather", "index", "index_select", "view_as_real", "view_as_complex"})
#: Moves, and what puts elements elsewhere or leaves some out.
TURNS = MOVES | {"flip", "roll", "slice", "permute"}


@functools.cache
def family(operator: str) -> str:
    """The piece an operator computes, whatever a framework calls it."""
    name = plain_name(operator)
    name = name.removeprefix("native_").removeprefix("unsafe_") if name not in _FAMILY else name
    return _FAMILY.get(name, name)


#: Operators that do the same with other numbers: a division what a product does, a mask filled in what one added does.
_INTERCHANGEABLE = frozenset({"mul", "div"}), frozenset({"add", "sub", "where"})


def interchangeable(one: str, other: str) -> bool:
    """Whether two operators of different kinds compute the same of one value with other numbers beside it."""
    return any({family(one), family(other)} <= some for some in _INTERCHANGEABLE)
