"""What a comparison leaves out to stay within a budget, and what it still says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.programs.budget import Budget, BudgetSpent

X = torch.linspace(-1, 1, 12).reshape(3, 4)
STEPS = ("explain", "nodes", "noise repeats", "float64 evaluation")


@pytest.fixture
def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    other = nn.Sequential(nn.Linear(4, 8), nn.GELU(approximate="tanh"), nn.Linear(8, 2)).eval()
    other.load_state_dict(model.state_dict())
    return model, other


def left_out(c: ds.Comparison) -> list[str]:
    return [step for f in c.findings if f.code == "O022" for step in f.evidence["left_out"]]


def test_without_a_budget_nothing_is_left_out(pair: tuple[nn.Module, nn.Module]) -> None:
    c = ds.compare(*pair, X, nodes=True)
    assert left_out(c) == []
    assert c.verdict is ds.Verdict.DIFFERENT
    assert c.nodes


def test_a_large_budget_changes_nothing(pair: tuple[nn.Module, nn.Module]) -> None:
    free, bounded = ds.compare(*pair, X), ds.compare(*pair, X, budget_seconds=3600.0, budget_memory=4096.0)
    assert left_out(bounded) == []
    assert [f.code for f in free.findings] == [f.code for f in bounded.findings]


@pytest.mark.parametrize("budget", [{"budget_seconds": 1e-6}, {"budget_memory": 1e-6}], ids=["seconds", "memory"])
def test_no_budget_for_float64_leaves_what_the_values_say(
    pair: tuple[nn.Module, nn.Module], budget: dict[str, float]
) -> None:
    c = ds.compare(*pair, X, nodes=True, **budget)
    assert c.verdict is ds.Verdict.INCONCLUSIVE
    assert left_out(c) == ["float64 evaluation"]
    same = ds.compare(pair[0], pair[0], X, **budget)
    assert same.verdict is ds.Verdict.IDENTICAL
    shapes = ds.compare(pair[0], lambda x: pair[0](x)[:1], X, **budget)
    assert shapes.verdict is ds.Verdict.DIFFERENT


class Clock(Budget):
    """A budget that allows some steps, whatever the time."""

    allowed: frozenset[str] = frozenset()

    def allows(self, step: str, seconds: float) -> bool:
        if step not in self.allowed:
            self.left_out[step] = "not in this test"
        return step in self.allowed


@pytest.mark.parametrize("count", range(4))
def test_steps_are_left_out_one_by_one_and_the_verdict_stays(
    pair: tuple[nn.Module, nn.Module], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Clock, "allowed", frozenset(STEPS[count:]))
    monkeypatch.setattr("driftscope.inquiry.Budget", Clock)
    c = ds.compare(*pair, X, nodes=True)
    assert set(left_out(c)) == set(STEPS[:count])
    assert c.verdict is ds.Verdict.DIFFERENT
    assert bool(c.nodes) == (count < 2)


def test_the_place_is_not_looked_for_without_explain(
    pair: tuple[nn.Module, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [f.where.node for f in ds.compare(*pair, X).findings if not f.note]
    monkeypatch.setattr(Clock, "allowed", frozenset(STEPS[1:]))
    monkeypatch.setattr("driftscope.inquiry.Budget", Clock)
    unnamed = [f.where.node for f in ds.compare(*pair, X).findings if not f.note]
    assert any(named)
    assert not any(unnamed)


def test_a_step_in_progress_ends_with_the_budget() -> None:
    budget = Budget(seconds=1.0)
    budget.check("explain")
    budget.begun -= 2.0
    with pytest.raises(BudgetSpent):
        budget.check("explain")
    assert "ended after" in budget.left_out["explain"]


class Nodes(Budget):
    """A budget of so many nodes of float64 runs, whatever the time."""

    most: int = 0

    def check(self, step: str) -> None:
        type(self).most -= 1
        if self.most < 0:
            self.left_out[step] = "not in this test"
            raise BudgetSpent


@pytest.mark.parametrize(("most", "verdict", "ended"), [
    (0, ds.Verdict.INCONCLUSIVE, ["float64 evaluation"]),
    (12, ds.Verdict.INCONCLUSIVE, ["float64 evaluation"]),
    (85, ds.Verdict.DIFFERENT, ["explain"]),
    (10**6, ds.Verdict.DIFFERENT, []),
])  # fmt: skip
def test_a_float64_run_ends_in_its_middle_where_the_budget_does(
    pair: tuple[nn.Module, nn.Module], most: int, verdict: ds.Verdict, ended: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Nodes, "most", most)
    monkeypatch.setattr("driftscope.inquiry.Budget", Nodes)
    c = ds.compare(*pair, X, budget_seconds=3600.0)
    assert (c.verdict, left_out(c)) == (verdict, ended)
    assert any(f.where.node for f in c.findings if not f.note) == (not ended)


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_budget_is_a_positive_number(value: float, pair: tuple[nn.Module, nn.Module]) -> None:
    with pytest.raises(ds.InputError, match="budget_seconds"):
        ds.compare(*pair, X, budget_seconds=value)
