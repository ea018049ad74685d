"""Bugs in scalars, masks and tables, and casts that somebody inserted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from .architectures import sinusoids
from .bug import CHEAPER, FLOAT, HALF, HONEST, Bug, Plant
from .edits import cast, change, constant_slot, find, insert_after, stored, times

Array = np.ndarray


def _constant(operator: str, index: int, edit: Callable[[Array], Array]) -> Plant:
    def plant(model: ModelProto) -> str:
        node = find(model, operator, index)
        return change(node, model, constant_slot(model, node), edit)

    return plant


def _scaled(operator: str, index: int, factor: float) -> Plant:
    return _constant(operator, index, lambda c: c * factor)


def _users(model: ModelProto, operator: str, matches: Callable[[Array], bool]) -> list[tuple[NodeProto, int]]:
    """Return (node, slot) of nodes of that operator whose stored operand matches, in graph order."""
    names = {i.name for i in model.graph.initializer}
    return [
        (node, slot)
        for node in model.graph.node
        if node.op_type == operator
        for slot, name in enumerate(node.input)
        if name in names and matches(stored(model, name))
    ]


def _causal(edit: Callable[[Array], Array]) -> Plant:
    def plant(model: ModelProto) -> str:
        node, slot = _users(model, "Add", lambda c: c.shape == (9, 9))[0]
        return change(node, model, slot, edit)

    return plant


def _sees_next(mask: Array) -> Array:
    return np.where(np.triu(np.ones_like(mask), k=2) > 0, mask.min(), 0.0)


def _sees_four(mask: Array) -> Array:
    return np.where(np.tril(np.ones_like(mask), k=-4) > 0, mask.min(), mask)


def _tables(base: float, shift: int = 0) -> tuple[Array, Array]:
    """The decoder's rotary tables for 9 positions of 8 columns, as float32."""
    frequency = np.float32(base) ** -(np.arange(0, 8, 2, dtype=np.float32) / 8)
    angle = np.arange(shift, 9 + shift, dtype=np.float32)[:, None] * frequency
    angle = np.concatenate((angle, angle), axis=1)
    return np.cos(angle), np.sin(angle)


def _rotary(base: float) -> Plant:
    def plant(model: ModelProto) -> str:
        cos, sin = _tables(base)
        uses = _users(model, "Mul", lambda c: c.shape == (9, 8))
        for (node, slot), table in zip(uses[:2], (cos, sin), strict=True):
            change(node, model, slot, lambda _, table=table: table)
        return uses[0][0].name

    return plant


def _keys_one_position_late(model: ModelProto) -> str:
    cos, sin = _tables(10000.0, shift=1)
    uses = _users(model, "Mul", lambda c: c.shape == (9, 8))[2:4]
    for (node, slot), table in zip(uses, (cos, sin), strict=True):
        change(node, model, slot, lambda _, table=table: table)
    return uses[0][0].name


def _rms_epsilon(index: int, edit: Callable[[Array], Array]) -> Plant:
    def plant(model: ModelProto) -> str:
        node, slot = _users(model, "Add", lambda c: c.size == 1 and 0 < float(c.ravel()[0]) < 1e-5)[index]
        return change(node, model, slot, edit)

    return plant


def _late_positions(table: Array) -> Array:
    return sinusoids(10, 32)[1:].numpy().reshape(table.shape)


def _sines_then_cosines(table: Array) -> Array:
    return np.concatenate((table[:, 0::2], table[:, 1::2]), axis=1)


def _one_bucket_wrong(bias: Array) -> Array:
    i, j = np.indices(bias.shape[-2:])
    wrong = bias.copy()
    wrong[:, abs(i - j) == 3] = bias[:, 0, 2][:, None]
    return wrong


def _first_state(model: ModelProto) -> str:
    return change(find(model, "Gather"), model, 1, lambda _: np.array(0))


def _nonzero_start(model: ModelProto) -> str:
    return change(find(model, "GRU"), model, 5, lambda h: h + 0.01)


def _through(value: str, to: int) -> Plant:
    def plant(model: ModelProto) -> str:
        back = next(
            o.type.tensor_type.elem_type for o in (*model.graph.value_info, *model.graph.output) if o.name == value
        )
        return insert_after(model, value, cast(to), cast(back))

    return plant


def _overflow(model: ModelProto) -> str:
    """Scale by 2**17, store in float16, scale back: exact where it fits, Inf where it does not."""
    up, down = times(model, 2.0**17), times(model, 2.0**-17)
    return insert_after(model, "gelu_1", up, cast(TensorProto.FLOAT16), cast(TensorProto.FLOAT), down)


CONSTANT_BUGS = (
    Bug("attention-scale-plus-1-percent", "encoder", _scaled("Mul", 0, 1.01), "one of two factors"),
    Bug("attention-scale-plus-0.1-percent", "encoder", _scaled("Mul", 2, 1.001), "one of two factors, layer 1"),
    Bug("attention-scale-plus-0.2-percent", "padded", _scaled("Div", 0, 1.002), "sqrt(d) a little large"),
    Bug("embedding-scale", "padded", _constant("Mul", 0, lambda c: c * 0 + 5.625), "sqrt(32) cut short"),
    Bug("temperature-0.1-percent", "mlp", _scaled("Div", 0, 1.001), "0.7 to 0.7007"),
    Bug("branch-scale-0.3-percent", "mlp", _scaled("Mul", 0, 1.003), "0.1 to 0.1003"),
    Bug(
        "mask-does-not-heal",
        "padded",
        _constant("Where", 0, lambda c: np.full_like(c, -10)),
        "-inf to -10: padding still counts a little",
    ),
    Bug("mask-zero", "padded", _constant("Where", 0, np.zeros_like), "scores of padding are 0, not -inf"),
    Bug("causal-mask-off-by-one", "decoder", _causal(_sees_next), "each token sees the next one"),
    Bug("causal-mask-windowed", "decoder", _causal(_sees_four), "each token sees the last four only"),
    Bug("rotary-base-10001", "decoder", _rotary(10001.0), "one part in ten thousand", dtypes=(FLOAT,)),
    Bug("rotary-base-20000", "decoder", _rotary(20000.0), "another base"),
    Bug("keys-one-position-late", "decoder", _keys_one_position_late, "position off by one, keys only"),
    Bug("rms-epsilon-x10", "decoder", _rms_epsilon(1, lambda c: c * 10), "1e-6 to 1e-5"),
    Bug("rms-epsilon-dropped", "relative", _rms_epsilon(1, lambda c: c * 0), "1e-6 to 0"),
    Bug("positions-off-by-one", "padded", _constant("Add", 0, _late_positions), "the table starts at 1"),
    Bug("positions-not-interleaved", "padded", _constant("Add", 0, _sines_then_cosines), "sines, then cosines"),
    Bug("one-bucket-wrong", "relative", _constant("Add", 1, _one_bucket_wrong), "distance 3 has distance 2's bias"),
    Bug("first-state-for-last", "recurrent", _first_state, "the classifier reads the first step"),
    Bug("nonzero-start", "recurrent", _nonzero_start, "the GRU starts at 0.01"),
)

CAST_BUGS = (
    Bug("through-float16", "encoder", _through("add_1", TensorProto.FLOAT16), "one value", (FLOAT,), CHEAPER),
    Bug("through-bfloat16", "mlp", _through("add", TensorProto.BFLOAT16), "one value", (FLOAT,), CHEAPER),
    Bug("through-float8", "encoder", _through("gelu", TensorProto.FLOAT8E4M3FN), "one value", expected=CHEAPER),
    Bug("through-int32", "mlp", _through("linear_3", TensorProto.INT32), "truncated to integers"),
    Bug("float16-overflow", "encoder", _overflow, "Inf where float32 has room", (FLOAT,), CHEAPER),
)

# In float16 this cast stays within the noise that A's own format makes: by DESIGN section 2, step 3, that is
# ROUNDING. It is here so that the border is written down, and tested from both sides.
WITHIN_NOISE = Bug(
    "through-bfloat16-in-half", "mlp", _through("add", TensorProto.BFLOAT16), "one value", (HALF,), HONEST
)
