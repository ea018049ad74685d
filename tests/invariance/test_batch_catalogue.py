"""The catalogue: rows that meet are found, honest ones are not, and the place is the operator in which they meet."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from invariance.invariance_modules import ALL, EXACT_ONES, LEAKS, TWINS, Known


def _inputs(known: Known) -> torch.Tensor:
    return torch.randn(known.shape, generator=torch.Generator().manual_seed(0))


def _made(known: Known) -> torch.nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return known.make()


def test_the_catalogue_is_large_and_its_names_are_unique() -> None:
    assert len({known.id for known in ALL}) == len(ALL) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("known", [k for k in ALL if k not in EXACT_ONES[3:]], ids=lambda k: k.id)
def test_the_outcome_along_the_batch_is_right(known: Known) -> None:
    report = ds.check_invariance(_made(known), _inputs(known), axes=("batch",), explain=False)
    assert report.outcomes["batch"] in known.batch, report.reasons


@pytest.mark.parametrize("known", EXACT_ONES[:3] + [pair[1] for pair in TWINS[:3]], ids=lambda k: k.id)
def test_honest_modules_are_not_flagged(known: Known) -> None:
    report = ds.check_invariance(_made(known), _inputs(known), axes=("batch",), explain=False)
    assert report.outcomes["batch"] in known.batch, report.reasons


@pytest.mark.parametrize("known", [pair[0] for pair in TWINS if pair[0].place], ids=lambda k: k.id)
@pytest.mark.sampled(6)
def test_the_operator_in_which_rows_meet_is_named(known: Known) -> None:
    report = ds.check_invariance(_made(known), _inputs(known), axes=("batch",))
    assert report.outcomes["batch"] in LEAKS
    assert report.first is not None
    assert report.first.code in ("I001", "I002")
    assert any(part in str(report.first.where.operator) for part in known.place.split("|"))


def by_longest(x, lengths):
    """Divide by the longest of the batch; the first and the last row are the longest themselves."""
    keep = torch.arange(x.shape[1]) < lengths[:, None]
    return (x * keep[..., None]).sum(1) / lengths.max()


def by_own_length(x, lengths):
    keep = torch.arange(x.shape[1]) < lengths[:, None]
    return (x * keep[..., None]).sum(1) / lengths[:, None]


def smoothed(x):
    """Mix rows between the first and the last with their neighbours."""
    return x if len(x) < 3 else torch.cat([x[:1], (x[:-2] + x[1:-1] + x[2:]) / 3, x[-1:]])


@pytest.mark.parametrize(("function", "outcome"), [(by_longest, "different"), (by_own_length, "same")])
def test_rows_between_the_ends_are_looked_at_too(function, outcome):
    x, lengths = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([5, 3, 4, 5])
    report = ds.check_invariance(function, {"x": x, "lengths": lengths}, axes=("batch",))
    assert report.outcomes["batch"] == outcome, report


def test_rows_that_are_mixed_with_their_neighbours():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    assert ds.check_invariance(smoothed, {"x": x}, axes=("batch",)).outcomes["batch"] == "different"


class SeesTheSize(torch.nn.Module):
    """A product whose kernel depends on the batch, and then what ``then`` does with the number of rows."""

    def __init__(self, then):
        super().__init__()
        self.linear, self.then = torch.nn.Linear(64, 16), then

    def forward(self, x):
        return self.then(self.linear(x), x)


SIZES_SEEN = [
    (lambda y, x: y * x.shape[0], "aten.mul"),
    (lambda y, x: y / len(x) ** 0.5, "aten.div"),
    (lambda y, x: y + 0.01 * torch.arange(len(x))[:, None], "aten.arange"),
    (lambda y, x: y.tanh() if len(x) < 3 else y, "aten.tanh"),
    (lambda y, x: y * torch.unique(x.round()).numel(), "aten._unique2"),
]


@pytest.mark.parametrize(("then", "operator"), SIZES_SEEN, ids=[operator for _, operator in SIZES_SEEN])
def test_the_place_is_where_more_than_rounding_sets_in(then, operator):
    """And not the product before it, whose last bits change with the batch as well."""
    torch.manual_seed(0)
    report = ds.check_invariance(SeesTheSize(then).eval(), {"x": "4x64:float32"}, axes=("batch",))
    assert report.outcomes["batch"] == "different"
    assert report.first.where.operator == operator


def test_the_place_is_where_another_layout_makes_more_than_rounding():
    torch.manual_seed(0)
    model = SeesTheSize(lambda y, x: y * 2 if x.is_contiguous() else y.tanh()).eval()
    report = ds.check_invariance(model, {"x": "33x64:float32"}, axes=("layout",))
    assert report.outcomes["layout"] == "different"
    assert report.first.where.operator in ("aten.mul", "aten.tanh")


def test_where_only_last_bits_change_the_place_is_the_product():
    torch.manual_seed(0)
    model = SeesTheSize(lambda y, x: y.tanh()).eval()
    report = ds.check_invariance(model, {"x": "4x64:float32"}, axes=("batch",))
    assert report.outcomes["batch"] in ("same", "rounding")
    assert all(f.where.operator == "aten.addmm" for f in report.findings)


def test_float64_is_asked_about_the_two_runs_that_were_compared():
    """A row repeated to three is held against the row alone, not against the four rows that were given."""
    torch.manual_seed(0)
    model = SeesTheSize(lambda y, x: y if len(x) < 3 else y * 1.001).eval()
    report = ds.check_invariance(model, {"x": "4x64:float32"}, axes=("batch",))
    different = [t for t in report.trials if t.outcome == "different"]
    assert different
    assert not any("no difference" in t.reason for t in different)
