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
