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
