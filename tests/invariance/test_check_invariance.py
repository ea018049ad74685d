"""One check: axes, laws, findings, refusals, the record, the command and the assertion."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.invariance.rows import same_bits
from driftscope.invariance.trials.circumstances import _exchanged, _moved, _spread
from driftscope.programs.state.torch_settings import flushes_denormals
from driftscope.programs.torch_run import can_flush
from driftscope.records.kinds.invariance_report import InvarianceReport
from driftscope.records.verdict import FailOn
from driftscope.report.kinds import text_of
from driftscope.report.sheets.invariance import record_fails

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
HONEST = ("same", "rounding")


class Scaled(nn.Module):
    """Divides by the largest value of the whole batch."""

    def forward(self, x):
        largest = x.abs().amax()
        return x / largest


def onnx_model(rows: int | str, over: int) -> object:
    """A product and a softmax over one axis, for a fixed or a free number of rows."""
    weight = numpy_helper.from_array(np.linspace(-1, 1, 24, dtype=np.float32).reshape(6, 4), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
         helper.make_node("Softmax", ["h"], ["y"], "softmax", axis=over)],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 4])], [weight],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_rows_that_meet_are_found_with_the_line_and_the_value_they_meet_in():
    report = ds.check_invariance(Scaled(), X, axes="batch")
    assert report.outcomes["batch"] == "different"
    assert report.first.code == "I001"
    assert report.first.where.file.endswith("test_check_invariance.py")
    assert "amax" in report.first.meeting
    assert report.axes == {"batch": "x=0, out: axis 0"}


def test_one_bit_is_a_leak_however_small():
    def leaky(x):
        return x + x.mean(0) * 2.0**-23

    def own(x):
        return x + x.mean(-1, keepdim=True) * 2.0**-23

    assert ds.check_invariance(leaky, X, axes="batch", explain=False).outcomes["batch"] == "different"
    assert ds.check_invariance(own, X, axes="batch", explain=False).outcomes["batch"] in HONEST


def test_a_module_in_train_mode_is_mended_by_eval_and_the_module_stays_as_it_was():
    model = nn.BatchNorm1d(6)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    report = ds.check_invariance(model, X, axes="batch")
    assert report.outcomes["batch"] == "different"
    assert (report.first.verified, report.first.fix) == (True, "call .eval() on the module first")
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert ds.check_invariance(model.eval(), X, axes="batch").outcomes["batch"] in HONEST


def test_a_program_that_draws_random_numbers_does_not_repeat_itself():
    report = ds.check_invariance(nn.Dropout(), X)
    assert report.outcomes.pop("repeat") == "different"
    assert set(report.outcomes.values()) == {"not-applicable"}
    assert report.first.code == "I006"
    assert report.first.verified


def test_what_does_not_depend_on_anything_is_the_same_along_every_axis():
    report = ds.check_invariance(torch.relu, X)
    varied = {axis: outcome for axis, outcome in report.outcomes.items() if outcome != "not-applicable"}
    assert set(varied) >= {"repeat", "batch", "order", "threads", "layout"}
    assert set(varied.values()) == {"same"}
    assert report.findings == ()


def test_a_function_that_reads_memory_without_strides_depends_on_the_layout():
    def careless(x):
        return torch.as_strided(x, x.shape, (x.shape[1], 1), x.storage_offset()) * 1.0

    report = ds.check_invariance(careless, X, axes=("layout",), explain=False)
    assert report.outcomes["layout"] == "different"
    assert report.first.code == "I005"
    assert ds.check_invariance(lambda x: x * 1.0, X, axes="layout", explain=False).outcomes["layout"] == "same"


def test_a_function_that_refuses_a_layout_says_so():
    report = ds.check_invariance(lambda x: x.view(-1), X, axes="layout", explain=False)
    assert report.outcomes["layout"] == "refused"
    assert report.first.code == "I008"


def test_the_place_of_a_row_may_matter():
    def numbered(x):
        return x + torch.arange(len(x))[:, None]

    assert ds.check_invariance(numbered, X, axes="order", explain=False).outcomes["order"] == "different"


def test_the_batch_may_be_another_axis():
    across = nn.LSTM(6, 3)
    x = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(1))
    time = ds.check_invariance(across, x, axes="batch", batch="input=0", explain=False)
    rows = ds.check_invariance(across, x, axes="batch", batch="input=1", explain=False)
    assert (time.outcomes["batch"], rows.outcomes["batch"] in HONEST) == ("different", True)
    with pytest.raises(ds.InputError, match="no input 'y'"):
        ds.check_invariance(across, x, batch="y=0")
    with pytest.raises(ds.InputError, match=r"batch='x=--1' is not of the form"):
        ds.check_invariance(lambda x: x, torch.randn(4, 3), batch="x=--1")
    with pytest.raises(ds.InputError, match="no axis 7"):
        ds.check_invariance(across, x, batch="input=7")


def test_the_value_in_which_the_rows_of_a_file_meet_is_named_and_not_its_user():
    graph = helper.make_graph(
        [helper.make_node("Abs", ["x"], ["size"], "size"),
         helper.make_node("ReduceMax", ["size"], ["largest"], "largest", keepdims=0),
         helper.make_node("Div", ["x", "largest"], ["y"], "scaled")],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
    )  # fmt: skip
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = ds.check_invariance(ds.onnx(file), {"x": X}, axes="batch")
    assert report.outcomes["batch"] == "different"
    assert (report.first.where.node, report.first.where.operator) == ("largest", "ReduceMax")


@pytest.mark.parametrize(("over", "outcomes"), [(1, HONEST), (0, ("different",))])
def test_onnx_files_are_examined_alike(over, outcomes):
    report = ds.check_invariance(ds.onnx(onnx_model("n", over)), {"x": X}, axes=("batch", "threads", "order"))
    assert report.outcomes["batch"] in outcomes
    assert report.outcomes["threads"] in HONEST
    if over == 0:
        assert report.first.where.operator == "Softmax"


def test_a_fixed_batch_is_refused_and_its_rows_are_compared_all_the_same():
    fixed = ds.check_invariance(ds.onnx(onnx_model(4, 1)), {"x": X}, axes="batch", explain=False)
    assert fixed.outcomes["batch"] == "refused"
    assert any("kept" in trial.trial for trial in fixed.trials)
    leaking = ds.check_invariance(ds.onnx(onnx_model(4, 0)), {"x": X}, axes="batch", explain=False)
    assert leaking.outcomes["batch"] == "different"


def test_wrong_axes_are_refused():
    with pytest.raises(ds.InputError, match="'bach' is not one of"):
        ds.check_invariance(torch.relu, X, axes="bach")


@pytest.mark.parametrize("lay", [_exchanged, _spread, _moved(4), _moved(16), _moved(64)])
def test_layouts_hold_the_same_values(lay):
    assert same_bits(lay(X), X)


def test_bits_are_compared_and_not_values():
    zero = torch.zeros(2)
    assert not same_bits(zero, -zero)
    assert same_bits(torch.full((2,), torch.nan), -torch.full((2,), torch.nan))
    assert not same_bits(zero, zero.double())


def test_the_record_comes_back_and_says_itself():
    report = ds.check_invariance(Scaled(), X, axes="batch")
    assert InvarianceReport.from_dict(json.loads(json.dumps(report.to_dict()))).to_dict() == report.to_dict()
    text = text_of(report, width=100, color=False)
    assert text.startswith("different: at amax_1 (tests/invariance/test_check_invariance.py:")
    assert "amax" in text


def test_what_fails_depends_on_the_limit():
    report = ds.check_invariance(torch.relu, X, axes="batch", explain=False)
    for outcome, failing in {"same": "", "rounding": "r", "refused": "rp", "different": "rpd"}.items():
        changed = dataclasses.replace(report, outcomes={"batch": outcome})
        limits = {FailOn.ROUNDING: "r", FailOn.PRECISION: "p", FailOn.DIFFERENT: "d", FailOn.NEVER: "-"}
        assert {word for limit, word in limits.items() if record_fails(changed, limit)} == set(failing)


def test_the_assertion_passes_fails_and_takes_what_is_known():
    ds.testing.assert_invariant(torch.relu, X, axes="batch")
    with pytest.raises(AssertionError, match="amax"):
        ds.testing.assert_invariant(Scaled(), X, axes="batch")
    ds.testing.assert_invariant(Scaled(), X, axes="batch", expect={"batch": "different"})
    with pytest.raises(AssertionError, match="batch: same, expected different"):
        ds.testing.assert_invariant(torch.relu, X, axes="batch", expect={"batch": "different"}, explain=False)


def test_the_fixture_has_the_assertion(driftscope):
    driftscope.assert_invariant(torch.relu, X, axes="batch")
    with pytest.raises(AssertionError):
        driftscope.assert_invariant(Scaled(), X, axes="batch", explain=False)


class _Product(nn.Module):
    """Multiplies by two factors; what is between them may be too small for a normal number."""

    def __init__(self, small: float, large: float):
        super().__init__()
        self.small, self.large = small, large

    def forward(self, x):
        return (x * self.small) * self.large


@pytest.mark.skipif(not can_flush(), reason="this processor keeps denormal numbers")
@pytest.mark.parametrize("made", [lambda m: m, lambda m: torch.export.export(m, (X,))], ids=["module", "exported"])
@pytest.mark.parametrize(("small", "outcome"), [(1e-39, "different"), (1e-30, "same")])
def test_denormal_numbers_taken_as_zero_reach_the_program(made, small, outcome):
    report = ds.check_invariance(made(_Product(small, 1e30)), X, axes="denormals", explain=False)
    assert report.outcomes["denormals"] == outcome


@pytest.mark.skipif(not can_flush(), reason="this processor keeps denormal numbers")
def test_both_runs_of_the_denormals_axis_have_one_thread(monkeypatch):
    threads = []

    class Counting(nn.Module):
        def forward(self, x):
            threads.append((torch.get_num_threads(), flushes_denormals()))
            return x + 1

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ds.check_invariance(Counting(), X, axes="denormals", explain=False)
    finally:
        torch.set_num_threads(before)
    assert {(1, False), (1, True)} <= set(threads)
    assert (2, True) not in threads
