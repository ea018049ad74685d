"""Recurrent attention, causal convolution, multimodal rotary positions, 4-bit floats: against onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from one_node import OneNode, assert_lift_agrees, lifted

from driftscope.errors import CannotLift

RNG = np.random.default_rng(26)


def f32(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def f16(*shape: int) -> np.ndarray:
    return f32(*shape).astype(np.float16)


def positive(*shape: int) -> np.ndarray:
    return np.abs(f32(*shape)) + np.float32(0.01)


def rates(*shape: int) -> np.ndarray:
    return RNG.random(shape).astype(np.float32)


def unit_keys(*shape: int) -> np.ndarray:
    keys = f32(*shape)
    return (keys / np.linalg.norm(keys, axis=-1, keepdims=True)).astype(np.float32)


def linear(rule: str) -> OneNode:
    decay = -positive(2, 4, 2) if "gated" in rule else None
    beta = rates(2, 4, 2) if "delta" in rule else None
    inputs = [f32(2, 4, 12), unit_keys(2, 4, 12), f32(2, 4, 10), f32(2, 2, 6, 5), decay, beta]
    return OneNode("LinearAttention", inputs, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}, 2)


def four_bits(kind: int) -> OneNode:
    packed = RNG.integers(0, 256, 80).astype(np.uint8)
    settings = {"K": 32, "N": 5, "block_size": 16, "quant_type": kind}
    return OneNode("MatMulBnb4", [f32(3, 32), packed, positive(10)], settings)


PLACES = RNG.integers(0, 16, (3, 2, 5))
CASES = {
    **{rule: linear(rule) for rule in ("linear", "gated", "delta", "gated_delta")},
    "grouped": OneNode(
        "LinearAttention",
        [f32(2, 4, 24), unit_keys(2, 4, 12), f32(2, 4, 10), None, -positive(2, 4, 12), rates(2, 4, 1)],
        {"q_num_heads": 4, "kv_num_heads": 2, "scale": 0.3},
        2,
    ),
    "gate": OneNode("LinearAttentionGate", [f32(2, 4, 3), f32(3), f32(3), f32(2, 4, 3)], {}, 2),
    "gate-half": OneNode("LinearAttentionGate", [f16(2, 4, 3), f32(3), f32(3), f16(2, 4, 3)], {}, 2),
    "conv": OneNode(
        "CausalConvWithState", [f32(2, 4, 7), f32(4, 1, 3), f32(4), f32(2, 4, 2)], {"activation": "silu"}, 2
    ),
    "conv-dilated": OneNode("CausalConvWithState", [f32(2, 4, 7), f32(4, 1, 3)], {"dilation": 2}, 2),
    "conv-last": OneNode(
        "CausalConvWithState", [f32(2, 7, 2, 3), f32(6, 1, 3), None, f32(2, 2, 2, 3)], {"channels_last": 1}, 2
    ),
    "places": OneNode(
        "MRotaryEmbedding",
        [f32(2, 5, 32), PLACES, f32(16, 8), f32(16, 8)],
        {"mrope_section": [3, 3, 2], "num_heads": 2},
    ),
    "places-interleaved": OneNode(
        "MRotaryEmbedding",
        [f32(2, 2, 5, 16), PLACES, f32(16, 8), f32(16, 8)],
        {"mrope_section": [4, 2, 2], "mrope_layout": 1},
    ),
    "places-partial": OneNode(
        "MRotaryEmbedding",
        [f32(2, 5, 32), PLACES, f32(16, 4), f32(16, 4)],
        {"mrope_section": [2, 1, 1], "num_heads": 2, "rotary_embedding_dim": 8, "interleaved": 1},
    ),
    "4-bit-floats": four_bits(0),
    "4-bit-normal-floats": four_bits(1),
}


@pytest.mark.parametrize("name", CASES)
def test_lift_equals_the_kernel(name: str) -> None:
    assert_lift_agrees(CASES[name])


def outputs(case: OneNode) -> list[torch.Tensor]:
    return [leaf.value for leaf in lifted(case.model(), case.feeds()).run()]


@pytest.mark.parametrize(
    ("name", "attribute", "value"),
    [
        ("gated_delta", "update_rule", "gated"),
        ("grouped", "scale", 0.31),
        ("conv", "activation", "none"),
        ("places", "mrope_section", [3, 2, 3]),
        ("4-bit-floats", "quant_type", 1),
    ],
)
def test_another_attribute_is_another_function(name: str, attribute: str, value: Any) -> None:
    right = CASES[name]
    wrong = OneNode(right.op_type, right.inputs, {**right.attributes, attribute: value}, right.outputs)
    assert float((outputs(right)[0] - outputs(wrong)[0]).abs().max()) > 1e-3


def test_a_window_of_states_is_what_shorter_runs_leave() -> None:
    """onnxruntime's CPU kernel has no window; slot j must be the state after token L - W + j."""
    query, key, value, state, decay, beta = linear("gated_delta").inputs
    plain = {"q_num_heads": 2, "kv_num_heads": 2}
    window = np.stack([np.zeros_like(state)] * 4 + [state])
    inputs = [query, key, value, window, decay, beta]
    kept = outputs(OneNode("LinearAttention", inputs, {**plain, "state_window": 5}, 2))[1]
    assert float(kept[0].abs().max()) == 0
    for tokens in range(1, 5):
        part = [t[:, :tokens] for t in (query, key, value)] + [state, decay[:, :tokens], beta[:, :tokens]]
        state_then = outputs(OneNode("LinearAttention", part, plain, 2))[1]
        torch.testing.assert_close(kept[tokens], state_then, rtol=1e-12, atol=1e-12)


def test_a_convolution_goes_on_where_it_stopped() -> None:
    x, weight, bias = f32(2, 4, 9), f32(4, 1, 3), f32(4)
    whole, last = outputs(OneNode("CausalConvWithState", [x, weight, bias], {}, 2))
    first, state = outputs(OneNode("CausalConvWithState", [x[..., :5], weight, bias], {}, 2))
    window = {"state_window": 3}
    past = np.stack([np.zeros((2, 4, 2), np.float32)] * 2 + [state.float().numpy()])
    second, states = outputs(OneNode("CausalConvWithState", [x[..., 5:], weight, bias, past], window, 2))
    torch.testing.assert_close(torch.cat([first, second], -1), whole, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(states[-1], last)
    torch.testing.assert_close(states[-2], torch.from_numpy(x[..., 6:8]).double())


def test_untransposed_4_bit_weights_follow_the_documentation() -> None:
    """onnxruntime's CPU kernel multiplies by the transpose here and reads past its end."""
    straight = four_bits(1)
    packed, scales = straight.inputs[1:]
    rows = outputs(OneNode("MatMulBnb4", [np.eye(32, dtype=np.float32), packed, scales], straight.attributes))[0]
    a = f32(3, 5)
    wide = outputs(OneNode("MatMulBnb4", [a, packed, scales], {**straight.attributes, "transB": 0}))[0]
    torch.testing.assert_close(wide, torch.from_numpy(a).double() @ rows.T)


def test_a_rule_without_its_input_is_refused() -> None:
    case = linear("linear")
    wrong = OneNode("LinearAttention", case.inputs[:4], {**case.attributes, "update_rule": "gated"}, 2)
    with pytest.raises(CannotLift, match="'gated' needs an input"):
        outputs(wrong)
