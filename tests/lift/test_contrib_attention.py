"""Attention, rotary embedding and grouped attention: the lift equals onnxruntime's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from one_node import OneNode, assert_lift_agrees, distance, lifted, run

from driftscope.errors import CannotLift
from driftscope.lift.steps import Kind, Step

RNG = np.random.default_rng(21)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def i32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


def attention(inputs: Sequence[np.ndarray | None], outputs: int = 1, **attributes: Any) -> OneNode:
    return OneNode("Attention", [X, W, B, *inputs], {"num_heads": 2, **attributes}, outputs)


def multi_head(inputs: Sequence[np.ndarray | None], outputs: int = 1, **attributes: Any) -> OneNode:
    return OneNode("MultiHeadAttention", [X, *inputs], {"num_heads": 2, **attributes}, outputs)


def grouped(
    past: int, new: int, lengths: Sequence[int], *rest: np.ndarray | None, outputs: int = 3, **attributes: Any
) -> OneNode:
    """GroupQueryAttention of 4 query heads on 2 key heads of size 16; total length is the greatest."""
    batch = len(lengths)
    cache = [f32(batch, 2, past, 16), f32(batch, 2, past, 16)] if past else [None, None]
    total = max(lengths)
    inputs = [f32(batch, new, 64), f32(batch, new, 32), f32(batch, new, 32), *cache]
    inputs += [i32(*[n - 1 for n in lengths]), i32(total), *rest]
    attributes = {"num_heads": 4, "kv_num_heads": 2, **attributes}
    return OneNode("GroupQueryAttention", inputs, attributes, outputs)


X, W, B = f32(2, 5, 8), f32(8, 24), f32(24)
KEYS, VALUES = f32(2, 7, 8), f32(2, 7, 8)
PAST = f32(2, 2, 2, 3, 4)
COS, SIN = f32(16, 8), f32(16, 8)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
LEFT_MASK = np.array([[0, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)

ATTENTION = {
    "plain": attention([]),
    "scale": attention([], scale=0.3),
    "causal": attention([], unidirectional=1),
    "lengths": attention([i32(3, 5)]),
    "starts": attention([i32(3, 5, 1, 0)]),
    "mask-2d": attention([MASK]),
    "mask-3d": attention([RNG.integers(0, 2, (2, 5, 5)).astype(np.int32)], mask_filter_value=-5.0),
    "left-padding-causal": attention([LEFT_MASK], unidirectional=1),
    "past": attention([None, PAST], 2),
    "past-causal": attention([None, PAST], 2, unidirectional=1),
    "past-mask": attention([np.concatenate([MASK[:, ::-1][:, :3], MASK], 1), PAST], 2, unidirectional=1),
    "bias": attention([None, None, f32(1, 2, 5, 5)]),
    "sizes": OneNode("Attention", [X, f32(8, 28), f32(28)], {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}),
}

MULTI_HEAD = {
    "mha": multi_head([X, f32(2, 5, 8)]),
    "mha-cross": multi_head([KEYS, f32(2, 7, 12)]),
    "mha-bias": multi_head([X, X, f32(24)], scale=0.2),
    "mha-mask": multi_head([KEYS, VALUES, None, np.array([[1, 1, 1, 0, 0, 0, 1], [1] * 7], np.int32)]),
    "mha-lengths": multi_head([KEYS, VALUES, None, i32(3, 7)]),
    "mha-mask-3d": multi_head([KEYS, VALUES, None, RNG.integers(0, 2, (2, 5, 7)).astype(np.int32)]),
    "mha-score-bias": multi_head([KEYS, VALUES, f32(24), None, f32(2, 1, 5, 7)]),
    "mha-past": multi_head([X, X, f32(24), None, None, PAST[0], PAST[1]], 3),
    "mha-causal": multi_head([X, X], unidirectional=1),
    "mha-causal-past": multi_head([X, X, None, None, None, PAST[0], PAST[1]], 3, unidirectional=1),
    "mha-split": multi_head([f32(2, 2, 7, 4), f32(2, 2, 7, 4)]),
    "decoder-cross": OneNode(
        "DecoderMaskedMultiHeadAttention", [f32(2, 1, 8), f32(2, 2, 6, 4), f32(2, 2, 6, 4)], {"num_heads": 2}
    ),
}

PLACES = RNG.integers(0, 16, (2, 5))
ROTARY = {
    "offset": OneNode("RotaryEmbedding", [f32(2, 5, 16), np.array([3]), f32(16, 4), f32(16, 4)]),
    "interleaved": OneNode("RotaryEmbedding", [f32(2, 5, 16), PLACES, f32(16, 4), f32(16, 4)], {"interleaved": 1}),
    "split": OneNode("RotaryEmbedding", [f32(2, 2, 5, 8), PLACES, f32(16, 4), f32(16, 4)]),
    "partial": OneNode(
        "RotaryEmbedding",
        [f32(2, 5, 16), PLACES, f32(16, 2), f32(16, 2)],
        {"num_heads": 2, "rotary_embedding_dim": 4},
    ),
    "partial-interleaved": OneNode(
        "RotaryEmbedding",
        [f32(2, 2, 5, 8), PLACES, f32(16, 2), f32(16, 2)],
        {"num_heads": 2, "rotary_embedding_dim": 4, "interleaved": 1},
    ),
    "half": OneNode("RotaryEmbedding", [f16(2, 5, 16), np.array([3]), f16(16, 4), f16(16, 4)]),
}

_PACKED = OneNode(
    "GroupQueryAttention",
    [f32(2, 5, 128), None, None, None, None, i32(4, 4), i32(5), COS, SIN],
    {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "rotary_interleaved": 1},
    3,
)
_HALF = OneNode(
    "GroupQueryAttention",
    [f16(2, 5, 64), f16(2, 5, 32), f16(2, 5, 32), None, None, i32(4, 4), i32(5), f16(16, 8), f16(16, 8)],
    {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1},
    3,
)
GROUPED = {
    "gqa": grouped(0, 5, [5, 5]),
    "gqa-scale": grouped(0, 5, [5, 5], scale=0.4),
    "gqa-ragged-prompt": grouped(0, 5, [3, 5]),
    "gqa-ragged-prompt-rotary": grouped(0, 5, [3, 5], COS, SIN, do_rotary=1),
    "gqa-packed": _PACKED,
    "gqa-rotary": grouped(0, 5, [5, 5], COS, SIN, do_rotary=1),
    "gqa-token": grouped(4, 1, [5, 5], COS, SIN, do_rotary=1),
    "gqa-ragged-token": grouped(4, 1, [3, 5], COS, SIN, do_rotary=1),
    "gqa-roomy-cache": grouped(9, 1, [3, 5]),
    "gqa-chunk": grouped(4, 3, [7], COS, SIN, do_rotary=1),
    "gqa-softcap": grouped(0, 5, [5, 5], softcap=1.5),
    "gqa-window": grouped(0, 5, [5, 5], local_window_size=2),
    "gqa-smooth": grouped(0, 5, [5, 5], smooth_softmax=1),
    "gqa-sink": grouped(0, 5, [5, 5], None, None, None, None, f32(4)),
    "gqa-bias": grouped(0, 5, [5, 5], None, None, None, f32(2, 4, 5, 5)),
    "gqa-bias-softcap": grouped(0, 5, [5, 5], None, None, None, f32(1, 1, 5, 5), softcap=1.5),
    "gqa-positions": grouped(0, 5, [5, 5], COS, SIN, np.arange(10).reshape(2, 5), do_rotary=1),
    "gqa-token-positions": grouped(4, 1, [5, 5], COS, SIN, np.array([[7], [9]]), do_rotary=1),
    "gqa-bidirectional": grouped(0, 5, [3, 5], causal=0),
    "gqa-scores": grouped(0, 5, [5, 5], outputs=4, qk_output=1),
    "gqa-weights": grouped(0, 5, [5, 5], outputs=4, qk_output=2),
    "gqa-half": _HALF,
}

CASES = {**ATTENTION, **MULTI_HEAD, **ROTARY, **GROUPED}


@pytest.mark.parametrize("name", CASES)
def test_lift_equals_the_kernel(name: str) -> None:
    assert_lift_agrees(CASES[name])


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("plain", "unidirectional", 1),
        ("scale", "scale", 0.31),
        ("mask-3d", "mask_filter_value", -6.0),
        ("mha", "num_heads", 4),
        ("interleaved", "interleaved", 0),
        ("gqa-softcap", "softcap", 1.6),
        ("gqa-window", "local_window_size", 3),
        ("gqa-smooth", "smooth_softmax", 0),
        ("gqa-rotary", "rotary_interleaved", 1),
    ],
)
def test_another_attribute_is_another_function(name: str, attribute: str, value: object) -> None:
    right = CASES[name]
    wrong = OneNode(right.op_type, right.inputs, {**right.attributes, attribute: value}, right.outputs)
    expected = run(right.model(), right.feeds())
    results = lifted(wrong.model(), wrong.feeds()).run()
    assert distance(expected[0], results[0].value) > 1e-3


def test_noise_enters_every_step_inside_an_attention() -> None:
    """A fused attention rounds where the separate nodes do; the node itself only moves the result."""
    kinds: dict[str, Kind] = {}

    def observe(step: Step) -> None:
        kinds[step.name] = step.rounding.kind
        if step.rounding.squares is not None:
            assert torch.broadcast_shapes(step.rounding.squares().shape, step.outputs[0].shape)

    case = attention([MASK], unidirectional=1)
    lifted(case.model(), case.feeds()).run(observe=observe)
    assert kinds == {
        "node/QKV": Kind.DOT,
        "node/scores": Kind.DOT,
        "node/mask": Kind.ROUND,
        "node/softmax": Kind.SOFTMAX,
        "node/values": Kind.DOT,
        "node": Kind.EXACT,
    }


def test_what_an_observer_returns_for_an_inner_step_is_used() -> None:
    def flatten(step: Step) -> list[torch.Tensor] | None:
        return [torch.full_like(step.outputs[0], 0.2)] if step.operator == "softmax" else None

    case = multi_head([X, X])
    expected = lifted(case.model(), case.feeds()).run(observe=flatten)[0].value
    mean = torch.from_numpy(X).double().mean(1, keepdim=True).expand(2, 5, 8)
    torch.testing.assert_close(expected, mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "case",
    [
        grouped(9, 1, [3, 5], sliding_window_cache=1, local_window_size=4),
        grouped(4, 1, [5, 5], k_quant_type="PER_TENSOR"),
        attention([None, None, None], past_present_share_buffer=1),
        attention([], do_rotary=1),
    ],
    ids=["window-cache", "quantised-cache", "shared-buffer", "rotary-inside"],
)
def test_what_is_not_covered_is_refused_with_a_reason(case: OneNode) -> None:
    with pytest.raises(CannotLift, match=r"node 'node' .* cannot be evaluated in float64: "):
        lifted(case.model(), case.feeds()).run()
