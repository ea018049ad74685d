"""What is taken for the batch when nobody says so, and what is said where there is none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.invariance.wrapping import called_by
from driftscope.programs.loading.load import load_program

HONEST = ("same", "rounding")
X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
STEPS = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(1))


def batch_of(model, inputs, **options):
    report = ds.check_invariance(model, inputs, axes="batch", explain=False, **options)
    return report.outcomes["batch"], report.axes.get("batch", ""), report.reasons["batch"]


@pytest.mark.parametrize(
    "make", [lambda: nn.LSTM(6, 3), lambda: nn.GRU(6, 3), lambda: nn.TransformerEncoderLayer(6, 2, 8).eval()]
)
def test_modules_told_batch_first_false_have_their_batch_along_axis_1(make):
    outcome, axes, _ = batch_of(make(), STEPS)
    assert outcome in HONEST
    assert "=1" in axes


class Exchanging(nn.Module):
    """Takes the batch first and gives it to its recurrent part second."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(6, 3)

    def forward(self, x):
        return self.rnn(x.transpose(0, 1))[0].transpose(0, 1)


def test_a_module_that_exchanges_the_axes_itself_has_its_batch_along_axis_0():
    outcome, axes, _ = batch_of(Exchanging(), STEPS)
    assert outcome in HONEST
    assert "x=0" in axes


def test_a_leak_along_the_batch_is_not_hidden_by_another_axis():
    class Leaking(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    report = ds.check_invariance(Leaking(), X, axes="batch")
    assert report.outcomes["batch"] == "different"
    assert "batch='x=1'" in report.first.fix
    assert report.first.verified is None


def test_a_weight_of_the_same_length_is_not_part_of_the_batch():
    outcome, axes, _ = batch_of(lambda x, w: x @ w, (torch.randn(6, 6), torch.randn(6, 6)))
    assert outcome in HONEST
    assert axes == "x=0, out: axis 0"


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.sum(), "out is a scalar for 4 rows and a scalar for 1"),
        (lambda x: x @ x.T, "out is 4x4 for 4 rows and 1x1 for 1"),
        (lambda x: x.mean(0), "out is 6 for 4 rows and 6 for 1"),
    ],
)
def test_outputs_without_rows_are_said_to_have_none(function, words):
    outcome, _, reason = batch_of(function, X)
    assert outcome == "not-applicable"
    assert words in reason


class Counting(nn.Module):
    def __init__(self, where):
        super().__init__()
        self.where = where
        self.count = 0
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.count += 1
        return x * (self.calls if self.where == "buffer" else self.count if self.where == "attribute" else 2)


@pytest.mark.parametrize(("where", "expected"), [("buffer", "different"), ("attribute", "different"), ("", "same")])
def test_what_a_module_keeps_between_calls_is_seen_and_hides_nothing_else(where, expected):
    model = Counting(where)
    report = ds.check_invariance(model, X, axes=("repeat", "batch"), explain=False)
    assert report.outcomes == {"repeat": expected, "batch": "same"}
    assert (model.count, float(model.calls)) == (0, 0.0)
    if expected == "different":
        assert report.first.code == "I006"
        assert "keeps something of the first" in report.first.what


def test_trying_a_repair_leaves_the_mode_of_every_part():
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    model[1].eval()
    wrapped = called_by(load_program(model), lambda function, x: function(x) * 2)
    assert torch.equal(wrapped(X), model(X).detach() * 2)
    ds.check_invariance(model, X, axes="batch")
    assert [m.training for m in model.modules()] == [True, True, False]


def _scores(x, *, time_first=False, shared=False):
    y = x.cumsum(-1) / (x.abs().amax() if shared else x.abs().amax((1, 2), keepdim=True))
    return (y.transpose(0, 1) if time_first else y).flatten(0, 1)


@pytest.mark.parametrize("time_first", [False, True])
def test_several_entries_for_each_row_in_one_axis_are_the_rows_of_the_batch(time_first):
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    honest = ds.check_invariance(lambda x: _scores(x, time_first=time_first), x, axes=("batch", "order"), explain=False)
    assert "5 entries for each row" in honest.axes["batch"]
    assert set(honest.outcomes.values()) <= {"same", "rounding"}
    shared = ds.check_invariance(lambda x: _scores(x, time_first=time_first, shared=True), x, axes="batch")
    assert shared.outcomes["batch"] == "different"
    assert "amax" in shared.first.where.operator


@pytest.mark.parametrize("masked", [True, False])
def test_padding_is_taken_out_of_scores_whose_rows_and_positions_are_one_axis(masked):
    def scores(x, mask):
        mean = (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None] if masked else x.mean(1, True)
        return (x - mean).flatten(0, 1)

    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    report = ds.check_invariance(scores, {"x": x, "mask": torch.ones(3, 5)}, axes="padding", explain=False)
    assert report.outcomes["padding"] in (("same", "rounding") if masked else ("different",))


@pytest.mark.parametrize("layers", [1, 2])
def test_the_batch_of_a_recurrent_layer_is_found_in_its_states(layers):
    torch.manual_seed(0)
    x, zeros = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(layers, 3, 6)
    report = ds.check_invariance(
        nn.LSTM(4, 6, layers, batch_first=True).eval(), (x, (zeros, zeros)), axes="batch", explain=False
    )
    assert report.outcomes["batch"] in HONEST, report.reasons
