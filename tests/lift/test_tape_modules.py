"""The lift of a module is the module in float64, whatever fused kernels its native run chose."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from float64_truth import assert_truth, distance, lift, truth
from torch import nn

from driftscope.errors import CannotLift


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def _layer(**options):
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, **options)


SEQUENCE = (2, 5, 16)
IMAGE = (2, 4, 9, 9)
MODULES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4), nn.Softmax(-1)), SEQUENCE),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(16), nn.RMSNorm(16, eps=1e-6), nn.LayerNorm((5, 16))), SEQUENCE),
    "encoder": (lambda: nn.TransformerEncoder(_layer(), 2), SEQUENCE),
    "encoder pre-norm": (lambda: _layer(norm_first=True, activation="gelu"), SEQUENCE),
    "lstm": (lambda: nn.LSTM(16, 8, 2, batch_first=True, bidirectional=True), SEQUENCE),
    "lstm without biases": (lambda: nn.LSTM(16, 8, bias=False), SEQUENCE),
    "lstm projected": (lambda: nn.LSTM(16, 8, proj_size=4), SEQUENCE),
    "gru": (lambda: nn.GRU(16, 8, 2, batch_first=True, bidirectional=True), SEQUENCE),
    "rnn": (lambda: nn.RNN(16, 8, nonlinearity="relu"), SEQUENCE),
    "conv, batch norm, relu in place": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        IMAGE,
    ),
    "grouped and transposed convolutions": (
        lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2, padding="same"), nn.ConvTranspose2d(8, 2, 2, stride=2)),
        IMAGE,
    ),
    "channels last": (lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last), IMAGE),
    "group norm": (
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        IMAGE,
    ),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_is_itself_in_float64(name):
    build, shape = MODULES[name]
    module = build().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    assert_truth(module, torch.randn(shape))


@pytest.mark.parametrize("fast", [True, False])
def test_both_paths_of_the_encoder_are_one_function(fast):
    encoder = nn.TransformerEncoder(_layer(), 2, enable_nested_tensor=False).eval()
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    torch.backends.mha.set_fastpath_enabled(fast)
    try:
        tape = assert_truth(encoder, torch.randn(SEQUENCE), src_key_padding_mask=mask)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    fused = [e for e in tape.tape.entries if e.facts.name == "_transformer_encoder_layer_fwd"]
    assert bool(fused) is fast


def test_nested_fast_path_leaves_padding_zero():
    """With padding, the encoder's fast path drops padded positions; the lift must be of that path."""
    encoder = nn.TransformerEncoder(_layer(), 2).eval()
    x = torch.randn(SEQUENCE)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[0, 3:] = True
    tape = lift(encoder, x, src_key_padding_mask=mask)
    with torch.no_grad():
        native = encoder(x, src_key_padding_mask=mask)
    value = tape.run()[0].value
    assert torch.count_nonzero(value[0, 3:]) == 0
    assert torch.count_nonzero(native[0, 3:]) == 0
    assert torch.allclose(value, native.double(), atol=1e-5)
    with torch.no_grad():
        exact = encoder.double()(x.double(), src_key_padding_mask=mask)
    assert float((value - exact)[~mask].abs().max()) < 1e-13


def test_multihead_attention_with_weights():
    attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(SEQUENCE)
    assert_truth(attention, x, x, x)
    assert_truth(attention, x, x[:, :3], x[:, :3], need_weights=False)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"scale": 0.3},
        {"attn_mask": torch.ones(9, 9).tril().bool()},
        {"attn_mask": torch.linspace(-1, 1, 81).reshape(9, 9)},
        {"enable_gqa": True},
    ],
    ids=["plain", "causal", "scale", "boolean mask", "float mask", "grouped heads"],
)
def test_fused_attention_is_its_mathematics(options):
    q = torch.randn(IMAGE)
    k = q[:, :2] if options.get("enable_gqa") else q
    options = dict(options)
    mask = options.pop("attn_mask", None)
    if mask is None:
        assert_truth(lambda q, k: F.scaled_dot_product_attention(q, k, k, **options), q, k)
    else:
        assert_truth(lambda q, k, m: F.scaled_dot_product_attention(q, k, k, attn_mask=m), q, k, mask)


def test_parametrised_weights_are_folded_natively():
    """A weight computed from weights is a constant: exporters fold it in its own format, and so does the lift."""
    module = nn.utils.parametrizations.weight_norm(nn.Linear(16, 4)).eval()
    x = torch.randn(SEQUENCE)
    exact = F.linear(x.double(), module.weight.double(), module.bias.double())
    tape = lift(module, x)
    assert distance(tape.run(), [exact]) <= 1e-14
    assert any(c.origin == "computed" and c.value.shape == (4, 16) for c in tape.constants())


def test_packed_sequences():
    lstm = nn.LSTM(16, 8, batch_first=True).eval()

    def run(x):
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)[0]

    x = torch.randn(SEQUENCE)
    lifted = lift(run, x).run()
    lstm.double()
    assert distance(lifted, truth(run, x)) <= 1e-13


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_lifted_from_its_stored_weights(dtype):
    module = nn.Sequential(nn.Linear(16, 8), nn.LayerNorm(8), nn.GELU()).to(dtype).eval()
    tape = assert_truth(module, torch.randn(SEQUENCE).to(dtype))
    assert tape.run()[0].format == dtype


def test_train_mode_is_lifted_with_the_drawn_mask_and_batch_statistics():
    module = nn.Sequential(nn.BatchNorm1d(16), nn.Dropout(0.5)).train()
    x = torch.randn(8, 16)
    state = torch.get_rng_state()
    kept = {k: v.clone() for k, v in module.state_dict().items()}
    tape = lift(module, x)
    torch.set_rng_state(state)
    native = module(x)
    first, again = tape.run()[0].value, tape.run()[0].value
    assert torch.equal(first, again)
    assert torch.equal(first == 0, native == 0)
    assert torch.allclose(first, native.double(), atol=1e-5)
    module.load_state_dict(kept)


def test_attention_dropout_is_frozen():
    q = torch.randn(IMAGE)
    tape = lift(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), q)
    assert torch.equal(tape.run()[0].value, tape.run()[0].value)


def test_autocast_rounds_weights_and_nothing_else():
    """A weight's cast is a constant, folded natively as exporters do; activations keep float64."""
    module = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 4)).eval()

    def run(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return module(x)

    x = torch.randn(SEQUENCE)
    outputs = lift(run, x).run()
    assert outputs[0].format is torch.bfloat16
    assert distance(outputs, truth(module.bfloat16(), x)) <= 1e-14


def test_scripted_modules():
    module = torch.jit.script(nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.LayerNorm(8)).eval())
    x = torch.randn(SEQUENCE)
    assert distance(lift(module, x).run(), truth(module, x)) <= 1e-13


def test_compiled_parts_are_seen_call_by_call():
    part = nn.Sequential(nn.Linear(16, 8), nn.Tanh()).eval()
    compiled = torch.compile(part, backend="eager")
    x = torch.randn(SEQUENCE)
    tape = lift(lambda x: compiled(x) * 2, x)
    assert {"addmm", "tanh", "mul"} <= {e.name for e in tape.tape.entries}
    assert distance(tape.run(), [truth(part, x)[0] * 2]) <= 1e-14


def test_fused_dropout_is_frozen_as_a_product():
    x = torch.randn(4, 50)
    tape = lift(lambda x: torch.ops.aten.native_dropout(x, 0.25, True)[0] * 2, x)
    value = tape.run()[0].value
    assert torch.allclose(value, torch.where(value == 0, 0.0, x.double() / 0.75 * 2), rtol=1e-15)
    assert 0.1 < float((value == 0).double().mean()) < 0.4
    assert torch.equal(value, tape.run()[0].value)


def test_a_sample_drawn_into_a_value_is_frozen():
    x = torch.randn(4, 5)
    tape = lift(lambda x: (x * 2).exponential_() + x, x)
    first, again = tape.run()[0].value, tape.run()[0].value
    assert torch.equal(first, again)
    assert bool((first > x.double()).all())


def test_randomness_that_cannot_be_frozen_is_refused():
    x = torch.randn(4, 5)
    with pytest.raises(CannotLift, match="random"):
        lift(lambda x: F.rrelu(x, training=True), x).run()
    assert_truth(lambda x: F.rrelu(x, training=False), x)


def test_a_custom_kernel_is_refused_by_name():
    with torch.library._scoped_library("driftscope_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: (x.to(torch.float16) * 2).float(), "CPU")
        tape = lift(lambda x: torch.ops.driftscope_test.twice(x) + 1, torch.randn(3))
        with pytest.raises(CannotLift, match="driftscope_test::twice"):
            tape.run()


def test_tensors_with_rules_of_their_own_are_refused():
    with pytest.raises(CannotLift, match="sparse"):
        lift(lambda x: x @ x, torch.eye(3).to_sparse())
