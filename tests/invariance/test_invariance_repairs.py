"""What is offered against a dependence was tried, on the trials that differ most; what only seems to help is not."""

from __future__ import annotations

import time

import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.programs.torch_run import can_flush

X = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))


def _quantised():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 8)).eval()
    return torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x):
        return self.inner(x.reshape(len(x), 4, 4))[0][:, -1]


def _recurrent():
    return torch.ao.quantization.quantize_dynamic(Recurrent().eval(), {nn.LSTM})


def _file():
    """A product of integers, quantised with one scale for the whole input."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    weight = torch.randint(-99, 99, (16, 3), generator=torch.Generator().manual_seed(0), dtype=torch.int8)
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 16), ("y", 3))]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[1:], [numpy_helper.from_array(weight.numpy(), "w")])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(_quantised, "one row at a time", marks=pytest.mark.slow),
        pytest.param(_recurrent, "one row at a time", marks=pytest.mark.slow),
        (_file, "measured ranges"),
        (lambda: lambda x: x / x.abs().amax(), "amax(dim=..., keepdim=True)"),
        (lambda: lambda x: x - x.mean(), "mean(dim=..., keepdim=True)"),
        (lambda: lambda x: x * (1.0 / x.norm()), "vector_norm(dim=..., keepdim=True)"),
    ],
    ids=["quantised", "quantised-lstm", "quantised-file", "largest", "mean", "norm"],
)  # fmt: skip
def test_rows_that_share_a_statistic_are_given_one_each(make, words):
    found = ds.check_invariance(make(), {"x": X} if make is not _quantised else X, axes="batch").first
    assert found.verified
    assert words in found.fix


def test_a_mean_over_rows_alone_has_no_such_repair():
    found = ds.check_invariance(lambda x: x - x.mean(0), {"x": X}, axes="batch").first
    assert not found.verified


class Experts(nn.Module):
    """Two experts; of all tokens in the batch, each takes the first few or all."""

    def __init__(self, room):
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.room = nn.Linear(8, 2), room
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x):
        flat = x.reshape(-1, 8)
        chosen, found = self.gate(flat).argmax(-1), torch.zeros_like(flat)
        for k, expert in enumerate(self.experts):
            at = (chosen == k).nonzero().flatten()[: self.room]
            found[at] = expert(flat[at])
        return x + found.view_as(x)


def test_a_change_of_last_bits_is_no_repair_of_a_leak():
    tokens = torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(3))
    found = ds.check_invariance(Experts(3), {"x": tokens}, axes="batch").first
    assert found.where.operator == "aten.nonzero"
    assert "the other rows decide its size" in found.why
    assert not found.verified


def test_experts_that_take_all_tokens_leave_last_bits_that_a_fixed_order_takes_away():
    tokens = torch.randn(4, 4, 8, generator=torch.Generator().manual_seed(3))
    report = ds.check_invariance(Experts(None), {"x": tokens}, axes="batch")
    leaks = [f for f in report.findings if f.code == "I001"]
    assert all(f.verified and "ds.reproducible()" in f.fix for f in leaks)


def test_what_changes_with_the_time_is_not_mended_by_an_order():
    found = ds.check_invariance(lambda x: x + time.perf_counter_ns() % 1_000_003, {"x": X}, axes="repeat").first
    assert not found.verified


@pytest.mark.skipif(not can_flush(), reason="this processor keeps denormal numbers")
def test_denormals_are_named_and_taken_away_in_float64():
    found = ds.check_invariance(lambda x: (x * 1e-20 * 1e-20) * 1e38, {"x": X}, axes="denormals").first
    assert found.where.operator == "aten.mul"
    assert "returns denormal numbers, below 1.2e-38" in found.why
    assert found.verified
    assert "float64" in found.fix


@pytest.mark.skipif(not can_flush(), reason="this processor keeps denormal numbers")
def test_denormals_of_a_program_that_stays_in_float32_are_flushed_everywhere():
    found = ds.check_invariance(lambda x: (x.float() * 1e-20 * 1e-20) * 1e38, {"x": X}, axes="denormals").first
    assert found.verified
    assert "torch.set_flush_denormal(True)" in found.fix


@pytest.mark.skipif(not can_flush(), reason="this processor keeps denormal numbers")
@pytest.mark.parametrize(("small", "outcome"), [(1e-39, "different"), (1e-30, "same")])
def test_denormals_of_a_file_are_seen_whatever_sessions_were_made_before(small, outcome):
    names = ["x", "half", "y"]
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 16]) for n in names]
    nodes = [helper.make_node("Mul", [names[k], f"c{k}"], [names[k + 1]], f"mul_{k}") for k in range(2)]
    factors = [helper.make_tensor(f"c{k}", TensorProto.FLOAT, [], [c]) for k, c in enumerate((small, 1e38))]
    graph = helper.make_graph(nodes, "g", shapes[:1], shapes[2:], factors)
    report = ds.check_invariance(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), {"x": X}, axes="denormals"
    )
    assert report.outcomes["denormals"] == outcome
    assert [(f.where.node, f.verified) for f in report.findings] == [("mul_0", True)] * (outcome == "different")


# --- places -----------------------------------------------------------------------------------------------------------


def test_rows_that_a_view_mixes_meet_in_the_view():
    weight = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))

    def mixing(x):
        return (x @ weight).view(x.shape[1], x.shape[0], 8).transpose(0, 1) @ weight

    found = ds.check_invariance(mixing, {"x": torch.randn(4, 6, 8)}, axes="batch").first
    assert found.where.operator == "aten.view"


def test_a_leak_is_placed_where_the_program_takes_one_number_of_rows():
    exported = torch.export.export(nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).train(), (X,))
    found = ds.check_invariance(exported, X, axes="batch").first
    assert "batch_norm" in found.where.operator


def test_zeros_of_another_sign_are_no_leak():
    report = ds.check_invariance(lambda x: x.clamp(min=0) * x[:1].sign(), {"x": -X.abs()}, axes="batch")
    assert report.outcomes["batch"] == "same"
