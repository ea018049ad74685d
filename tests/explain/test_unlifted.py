"""A side without a graph: what its numbers say of the arithmetic behind them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.explain.unlifted import narrower_format
from driftscope.records.kinds.comparison import Comparison


def make() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16), nn.LayerNorm(16)).eval()
    return model, torch.randn(16, 32)


def against(change: str) -> Comparison:
    """The model against results that came of it, as a file of an engine's outputs would hold them."""
    model, x = make()
    with torch.no_grad():
        exact, half = model(x), copy.deepcopy(model).half()(x.half())
    results = {
        "float16": half, "float16 in float32": half.float(), "rounded": exact.half(), "bfloat16": exact.bfloat16(),
        "bfloat16 in float32": exact.bfloat16().float(), "scaled": (1.01 * exact).half(),
        "scaled in float32": (1.01 * exact).half().float(), "other": 1.01 * exact,
    }[change]  # fmt: skip
    return ds.compare(model, ds.recorded(results), (x,))


@pytest.mark.parametrize("change", ["float16", "rounded", "bfloat16"])
def test_results_in_a_narrower_format_are_held_against_the_floor_of_that_format(change: str) -> None:
    c = against(change)
    assert c.verdict == "ROUNDING"
    assert "a bug smaller than that would not be seen" in c.answer
    output = c.outputs["out"]
    assert output.tolerance is not None
    assert output.max_abs is not None
    assert output.max_abs <= 2 * output.tolerance.atol


@pytest.mark.parametrize(("change", "format"), [("float16 in float32", "float16"), ("bfloat16 in float32", "bfloat16")])
def test_numbers_that_all_fit_a_narrower_format_say_that_it_was_computed_in(change: str, format: str) -> None:
    c = against(change)
    assert c.verdict == "PRECISION"
    assert f"consistent with {format} arithmetic in B" in c.answer
    assert c.first is not None
    assert c.first.code == "N003"
    assert "Its numbers are in that format" in c.first.why


@pytest.mark.parametrize("change", ["scaled", "scaled in float32", "other"])
def test_a_larger_difference_than_the_narrower_format_makes_stays_one(change: str) -> None:
    c = against(change)
    assert c.verdict == "DIFFERENT"
    assert c.answer.endswith("B cannot be evaluated in float64, so the cause is not known.")


@pytest.mark.parametrize(("value", "reference", "named"), [
    ([0.5 + k for k in range(9)], [0.1 + k for k in range(9)], "bfloat16"),
    ([1.0 + k / 512 for k in range(1, 10)], [0.1 + k for k in range(9)], "float16"),
    ([0.1 + k for k in range(9)], [0.1 + k for k in range(9)], ""),
    ([0.5 + k for k in range(9)], [0.5 + k for k in range(9)], ""),
    ([float(k) for k in range(9)], [0.1 + k for k in range(9)], ""),
    ([0.5], [0.1], ""),
])  # fmt: skip
def test_a_format_is_named_where_the_numbers_leave_no_doubt(
    value: list[float], reference: list[float], named: str
) -> None:
    assert narrower_format(torch.tensor(value), torch.tensor(reference)) == named


def test_what_a_session_returns_is_paired_by_order() -> None:
    model, x = make()
    with torch.no_grad():
        result = model(x)
    assert ds.compare(model, ds.recorded([result.numpy()]), (x,)).verdict == "IDENTICAL"

    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": model(x)}

    assert ds.compare(Named(), ds.recorded(result), (x,)).verdict == "IDENTICAL"
    missing = ds.compare(Named(), ds.recorded([result, result]), (x,))
    assert (missing.verdict, missing.first and missing.first.code) == ("DIFFERENT", "N007")


class Opaque(nn.Module):
    """Leaves torch on the way, so that no graph sees what it does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.norm = model, nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.norm(self.model(x)).detach().numpy().tolist())


def test_a_mode_that_was_noticed_is_said_and_no_cause_is_called_unknown() -> None:
    model, x = make()
    plain = nn.Sequential(model, nn.BatchNorm1d(16)).eval()
    training = ds.compare(plain, Opaque(model).train(), (x,))
    assert training.answer.startswith("B (Opaque) is in train() mode")
    assert "not known" not in training.answer
    assert ds.compare(plain, Opaque(model).eval(), (x,)).verdict == "IDENTICAL"


def test_one_number_repeated_proves_no_format() -> None:
    def four(x):
        return np.array(x.tolist(), dtype=np.float32) * 0 - 4.0  # leaves numpy: it has no graph

    def nearly(x):
        return x * 0 - np.float32(4.001)

    x = {"x": np.random.default_rng(0).normal(size=40).astype(np.float32)}
    for a, b in ((four, nearly), (nearly, four)):
        found = ds.compare(a, b, x)
        assert found.verdict.name in ("DIFFERENT", "INCONCLUSIVE"), found
