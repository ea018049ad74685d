"""What a declared half format does on a device that takes it at its word, and the smallest set to keep in float32."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from optimised_graphs import WIDTH, batch, model, root_mean_square, stored, written_gelu
from torch import nn

import driftscope as ds
from driftscope.explain.half.keeping import HalfRuns
from driftscope.lift.sources import lift_bound
from driftscope.records.kinds.half_precision import HalfPrecision


def half_batch() -> dict[str, torch.Tensor]:
    return batch(4, torch.float16)


def vanishing(epsilon: float) -> onnx.ModelProto:
    """A float16 division by a norm of zero, which only epsilon keeps from zero."""
    half = np.float16
    nodes = [
        helper.make_node("Mul", ["x", "zero"], ["z"], name="clear"),
        helper.make_node("ReduceMean", ["z", "axes"], ["m"], name="mean", keepdims=1),
        helper.make_node("Add", ["m", "tiny"], ["t"], name="add_tiny"),
        helper.make_node("Mul", ["t", "tiny"], ["d"], name="shrink"),
        helper.make_node("Div", ["x", "d"], ["n"], name="divide"),
        helper.make_node("Mul", ["n", "back"], ["y"], name="back_up"),
    ]
    weights = [
        stored("zero", 0, half), stored("axes", [-1], np.int64), stored("tiny", epsilon, half),
        stored("back", epsilon, half),
    ]  # fmt: skip
    return model(nodes, weights, element=TensorProto.FLOAT16, rows=4)


def test_heisenbug_an_overflow_that_this_processor_never_meets_is_named_with_its_size():
    found = ds.check_half(root_mean_square(200.0), half_batch())
    first = found.failures[0]
    assert not found.fits
    assert (first.kind, first.where.node, first.where.operator) == ("overflow", "square", "Pow")
    peak = float(half_batch()["x"].double().abs().max()) * 200
    assert first.magnitude == pytest.approx(peak**2, rel=1e-2)
    assert first.largest == 65504


def test_the_same_norm_of_smaller_numbers_fits():
    found = ds.check_half(root_mean_square(1.0), half_batch())
    assert found.fits
    assert found.keep == ()
    assert found.error < 5e-3


def test_the_smallest_set_is_what_writes_and_reads_the_large_value():
    found = ds.check_half(root_mean_square(200.0), half_batch())
    assert found.keep == ("square", "mean")
    assert found.error == math.inf or found.error > 0.5
    assert found.error_kept < 5e-3
    assert found.paste[0] == "node_block_list=['square', 'mean']"
    assert found.paste[1] == "op_block_list=[*DEFAULT_OP_BLOCK_LIST, 'Pow', 'ReduceMean']"


def test_of_that_set_nothing_can_be_spared():
    bound = ds.onnx(root_mean_square(200.0)).bind(ds.inputs(half_batch()))
    runs = HalfRuns(lift_bound(bound))
    for spared in ("square", "mean"):
        kept = [name for name in ("square", "mean") if name != spared]
        assert not runs.simulate(kept).finite


def test_the_conversion_tool_takes_the_list_and_the_file_fits_without_the_casts_it_leaves_behind():
    float16 = pytest.importorskip("onnxruntime.transformers.float16")
    tool = pytest.importorskip("onnxruntime.transformers.onnx_model")
    wide = _in_float32(root_mean_square(200.0))
    x = {"x": batch(4)["x"]}
    found = ds.check_half(wide, x)
    assert found.keep == ("square", "mean")
    naive = float16.convert_float_to_float16(_in_float32(root_mean_square(200.0)), keep_io_types=True)
    assert not ds.check_half(naive, x).fits
    mended = float16.convert_float_to_float16(
        _in_float32(root_mean_square(200.0)), keep_io_types=True, node_block_list=list(found.keep)
    )
    # The tool casts to float16 and back between two operators that are both kept: the value overflows in there.
    assert ds.check_half(mended, x).failures[0].where.operator == "Cast"
    tool.OnnxModel(mended).remove_cascaded_cast_nodes()
    assert ds.check_half(mended, x).fits


def _in_float32(proto: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            tensor.CopyFrom(stored(tensor.name, onnx.numpy_helper.to_array(tensor)))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    return proto


def test_bfloat16_has_the_range_of_float32():
    x = {"x": batch(4)["x"]}
    assert not ds.check_half(_in_float32(root_mean_square(200.0)), x, dtype="float16").fits
    assert ds.check_half(_in_float32(root_mean_square(200.0)), x, dtype="bfloat16").fits


class Norm(nn.Module):
    """The same norm in torch, which computes float16 as declared on any processor."""

    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * self.scale
        return h / (h.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()


@pytest.mark.parametrize("scale", [1.0, 200.0, 400.0])
def test_the_simulation_gives_what_torch_really_gives_in_float16(scale):
    x = half_batch()["x"]
    native = Norm(scale)(x)
    runs = HalfRuns(lift_bound(ds.program(Norm(scale)).bind(ds.inputs([x]))))
    simulated = runs.simulate().outputs[0].value
    assert torch.equal(torch.isfinite(simulated), torch.isfinite(native))
    # Torch multiplies by the reciprocal of the count; the mean may round the other way.
    assert torch.allclose(simulated.half(), native, rtol=3e-3, atol=1e-6)


def test_a_number_that_is_zero_in_float16_is_found_by_what_it_does():
    found = ds.check_half(vanishing(1e-4), half_batch())
    assert found.failures[0].kind == "lost"
    assert found.failures[0].where.node == "divide"
    assert {"shrink", "divide"} <= set(found.keep)
    assert math.isfinite(found.error_kept)


def test_a_larger_epsilon_is_not_flagged():
    assert ds.check_half(vanishing(2e-2), half_batch()).fits


def test_a_mask_of_minus_infinity_is_not_an_overflow():
    nodes = [
        helper.make_node("Less", ["x", "zero"], ["below"], name="compare"),
        helper.make_node("Where", ["below", "x", "lowest"], ["s"], name="mask"),
        helper.make_node("Softmax", ["s"], ["y"], name="softmax", axis=-1),
    ]
    for lowest in (-np.inf, float(np.finfo(np.float32).min)):
        proto = model(nodes, [stored("zero", 0), stored("lowest", lowest)], rows=4)
        assert ds.check_half(proto, {"x": batch(4)["x"]}).fits


def test_costs_name_the_type_of_operator_that_rounds_most():
    found = ds.check_half(written_gelu(), batch(), costs=True)
    assert found.fits
    assert found.by_operator
    assert all(row.error < found.error for row in found.by_operator)
    assert [row.error for row in found.by_operator] == sorted(row.error for row in found.by_operator)


def test_compare_says_what_the_provider_widened_and_what_a_device_would_do():
    plain = ds.onnx(root_mean_square(200.0), level="disable")
    c = ds.compare(plain, root_mean_square(200.0), half_batch())
    codes = [f.code for f in c.findings]
    overflow = next(f for f in c.findings if f.code == "N026")
    assert "O008" in codes
    assert overflow.where.node == "square"
    assert "node_block_list=['square', 'mean']" in overflow.fix
    assert overflow.verified
    assert "CPUExecutionProvider" in overflow.what


def test_a_float16_model_that_fits_gets_a_note_and_no_finding():
    c = ds.compare(ds.onnx(root_mean_square(1.0), level="disable"), root_mean_square(1.0), half_batch())
    assert all(f.note for f in c.findings)
    assert "O008" in {f.code for f in c.findings}


def test_float32_gets_neither():
    c = ds.compare(ds.onnx(written_gelu(), level="disable"), written_gelu(), batch())
    assert not {"O008", "N026", "N027", "N028"} & {f.code for f in c.findings}


def test_a_record_is_read_back_and_an_unknown_format_is_refused():
    found = ds.check_half(root_mean_square(200.0), half_batch())
    assert HalfPrecision.from_dict(found.to_dict()).keep == found.keep
    assert "square" in str(found)
    with pytest.raises(ds.InputError, match="not a half format"):
        ds.check_half(root_mean_square(1.0), half_batch(), dtype="float8")


@settings(max_examples=15)
@given(st.floats(0.5, 500.0))
def test_a_norm_fails_exactly_where_the_square_of_its_largest_input_leaves_the_format(scale):
    x = half_batch()
    scaled = (x["x"].double() * np.float16(scale)).to(torch.float16).double()
    expected = bool(torch.isinf(scaled.square().to(torch.float16)).any())
    assert ds.check_half(root_mean_square(scale), x).fits is not expected


def test_width_is_what_the_graphs_declare():
    assert half_batch()["x"].shape[1] == WIDTH


class Cancels(torch.nn.Module):
    def forward(self, x):
        return (x * 1.1 + x * 2.3) - x * 3.4


class Adds(torch.nn.Module):
    def forward(self, x):
        return (x * 1.1 + x * 2.3) + x * 3.4


@pytest.mark.parametrize(("model", "words"), [(Cancels(), "cancels to almost zero"), (Adds(), "a relative error of")])
def test_the_error_of_a_result_that_is_analytically_zero_is_not_a_number(model, words):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    said = str(ds.check_half(model, {"x": x}))
    assert words in said
    assert "e+1" not in said


def test_an_output_that_the_format_does_not_hold_is_to_be_given_wider():
    x = torch.full((2, 8), 300.0)
    large = ds.check_half(Squares(), (x,), dtype="float16")
    assert "give the output sum in float32, or scale it: it reaches 7.2e+05 and float16 ends at 65504" in str(large)
    assert large.findings[0].fix.startswith("Give the output sum in float32")
    small = ds.check_half(torch.nn.Sequential(Squares(), Shrunk()), (x,), dtype="float16")
    assert not small.fits  # the sum still overflows, and keeping it in float32 mends that
    assert "give the output" not in str(small)
    assert "operators in float32" in str(small)


class Squares(torch.nn.Module):
    def forward(self, x):
        return x.square().sum(-1)


class Shrunk(torch.nn.Module):
    def forward(self, x):
        return x / 1e4


def test_a_result_that_is_exactly_zero_is_said_to_be_and_not_called_infinite():
    def zero(x):
        centred = x - x.mean(-1, keepdim=True)
        return (centred * 3.0 - centred * 2.0 - centred) * 1.5

    half = ds.check_half(zero, torch.ones(4, 8) + torch.arange(8.0) / 7)
    assert half.fits
    assert "no finite result" not in half.answer
