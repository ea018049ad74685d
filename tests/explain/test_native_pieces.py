"""The kernel outside its floor is named; honest kernels are within theirs, fused or not, in float32 and float16."""

from __future__ import annotations

import pytest
import torch
from optimised_graphs import batch, four_bit_model, root_mean_square, two_faults, written_gelu
from torch import nn

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.explain.native.pieces import Outlier, _approximation, _reproduced, outside_their_floor
from driftscope.explain.native.program_kernels import native_pieces_of
from driftscope.explain.native.ways.known_ways import Way
from driftscope.lift.steps import Kind, Rounding, Step
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Where
from planted.architectures import ARCHITECTURES


def outside(program, inputs):
    bound = program.bind(ds.inputs(inputs))
    drifts, disturbed, _ = native_pieces_of(bound)
    assert disturbed is None
    assert drifts
    return outside_their_floor(drifts)


@pytest.mark.parametrize("graph", [four_bit_model, two_faults])
def test_the_kernel_with_rounded_activations_is_named(graph):
    found = outside(ds.onnx(graph()), batch())
    assert [d.where.operator for d in found] == ["MatMulNBits"]
    assert found[0].floors > 100


@pytest.mark.parametrize("graph", [four_bit_model, written_gelu])
def test_the_same_product_unfused_is_within_its_floor(graph):
    assert outside(ds.onnx(graph(), level="disable"), batch()) == []


def test_float16_on_the_cpu_is_within_its_floor():
    assert outside(ds.onnx(root_mean_square(1.0)), batch(4, torch.float16)) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", ["encoder", "mlp", "convnet", "decoder", "padded", "groupnet"])
@pytest.mark.sampled(5)
def test_honest_torch_kernels_are_within_their_floors(name, dtype):
    architecture = ARCHITECTURES[name]
    assert outside(ds.program(architecture.module(dtype)), list(architecture.example(dtype))) == []


def test_compare_names_the_kernel_and_what_its_attribute_allows():
    c = ds.compare(ds.onnx(four_bit_model(), level="disable"), four_bit_model(), batch())
    found = next(f for f in c.findings if f.code == "N025")
    assert found.where.operator == "MatMulNBits"
    assert "accuracy_level=4" in found.why
    assert "int8" in found.why


class Cheaper(nn.Module):
    """The last layer multiplies in bfloat16 where the processor can."""

    def __init__(self, precision: str):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(96, 96), nn.LayerNorm(96), nn.Linear(96, 32)
        self.precision = precision

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(torch.relu(self.first(x)))
        before = torch.backends.mkldnn.matmul.fp32_precision
        torch.backends.mkldnn.matmul.fp32_precision = self.precision
        try:
            return self.last(hidden)
        finally:
            torch.backends.mkldnn.matmul.fp32_precision = before


def test_a_product_in_bfloat16_is_named_with_its_line_though_nothing_in_the_graph_says_so():
    x = torch.randn(32, 96, generator=torch.Generator().manual_seed(0))
    exact, cheap = Cheaper("ieee").eval(), Cheaper("bf16").eval()
    with torch.no_grad():
        if torch.equal(exact(x), cheap(x)):
            pytest.skip("this processor multiplies float32 in float32 whatever is asked")
    c = ds.compare(exact, cheap, [x])
    found = next(f for f in c.findings if f.code == "N025")
    assert c.verdict is ds.Verdict.PRECISION
    assert found.where.module == "last"
    assert found.where.line
    assert "bfloat16 multiplication" in found.why


@pytest.mark.parametrize("off", [4e-7, 1e-5])
def test_a_saturated_recurrent_kernel_may_be_off_like_the_functions_in_it(off):
    """onnxruntime's tanh is 1.0000005 far out: an approximation; a state off by 1e-5 is none."""
    value = torch.ones(2, 3, 4, dtype=torch.float64)
    step = Step(
        0, "gru", "GRU", Where(), ["x"], ["y"], [value * 3000], [value], [torch.float32],
        Rounding(Kind.SUM), {}, False,
    )  # fmt: skip
    found = _approximation(step, value * off, value, 2.0**-24)
    assert (found is not None) == (off < 1e-6)


def test_a_program_that_writes_in_place_is_left_alone():
    def function(x):
        y = x * 2
        y[0].add_(1)
        return y

    with pytest.raises(CannotLift, match="writes into memory"):
        native_pieces_of(ds.program(function).bind(ds.inputs([torch.randn(4, 4)])))


@pytest.mark.parametrize("off", [0.0, 2e-4])
def test_a_replay_that_predicts_every_bit_of_an_error_names_it_and_another_does_not(off):
    model, x = nn.Linear(32, 4, bias=False), torch.randn(5, 32, generator=torch.Generator().manual_seed(0))
    tape = lift_torch(model, (x,), {}, module=model)
    names: list[str] = []
    (exact,) = (out.value for out in tape.run(observe=lambda step: names.append(step.output_names[0])))
    way = Way("float16 multiplication", factors="float16")
    with way.active():
        (native,) = (out.value for out in tape.run())
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    drift = native - exact + off * noise
    outlier = Outlier(exact, drift, 1e-7 * noise, Kind.DOT)
    found, _ = _reproduced(tape, {names[-1]: exact + drift}, {names[-1]: outlier}, [way])
    assert [known["way"] for known in found.values()] == (["float16 multiplication"] if off == 0.0 else [])


def test_the_relative_error_of_an_exponential_is_that_of_results_beyond_one():
    """Below one its error is absolute: 1e-8 of 1e-4 is no relative error of 1e-6."""
    x, value = torch.tensor([-9.2, 6.9]).double(), torch.tensor([1e-4, 1e3]).double()
    step = Step(0, "e", "Exp", Where(), ["x"], ["y"], [x], [value], [torch.float32], Rounding(Kind.FUNCTION), {})
    found = _approximation(step, torch.tensor([1e-8, 1e-3]).double(), value, 2.0**-24)
    assert str(found) == "relative error up to 1e-06 where results exceed one"
    assert _approximation(step, torch.tensor([1e-8, 1e-1]).double(), value, 2.0**-24) is None


@pytest.mark.parametrize("bias", [-20.0, -57.0, -80.0])
def test_a_gate_that_onnxruntime_closes_too_early_is_named_however_small_the_results(bias, tmp_path):
    """Its sigmoid is zero below -18: a state of 1e-25 is 0.0 there, and no ordinary rounding."""
    layer = nn.LSTM(6, 4).eval()
    layer.bias_ih_l0.data[12:] = bias  # the output gate
    x = torch.randn(3, 2, 6, generator=torch.Generator().manual_seed(0))
    path = str(tmp_path / "lstm.onnx")
    torch.onnx.export(layer, (x,), path, dynamo=True, verbose=False)
    for pair in ((layer, path), (path, layer)):
        found = ds.compare(*pair, (x,))
        assert str(found.verdict) == "PRECISION"
        assert "LSTM" in found.outputs[0].reason
        assert "relative accuracy is lost" in found.outputs[0].reason
