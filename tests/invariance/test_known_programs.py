"""The rest of the catalogue: programs of every kind along the axis that is asked of each."""

from __future__ import annotations

import pytest

import driftscope as ds
from invariance.known_programs import PROGRAMS, KnownProgram

#: As different as can be, in a second; the others are asked by ``python -m benchmarks invariance_catalogue``.
QUICK = {
    "routing-changes-sizes", "scores-in-one-axis-scaled-by-all", "reshape-mixes-rows", "exported-for-one-batch",
    "file-softmax-of-all", "file-reshaped-to-three-rows", "gru-packed-True", "gru-packed-False", "weak-mask-in-half",
    "window-cut-short", "streaming-keeps-too-few", "scan-kept-in-half", "moving-mean",
}  # fmt: skip


def _asked(known: KnownProgram) -> None:
    report = ds.check_invariance(known.make(), known.inputs, axes=(known.axis,), **known.options)
    assert report.outcomes[known.axis] in known.right, report.reasons
    if known.place:
        assert report.first is not None
        assert known.place in str(report.first.where.operator)


def test_names_are_unique() -> None:
    assert len({(known.id, known.axis) for known in PROGRAMS}) == len(PROGRAMS)
    assert {known.id for known in PROGRAMS} >= QUICK


@pytest.mark.parametrize("known", [k for k in PROGRAMS if k.id in QUICK], ids=lambda k: k.id)
@pytest.mark.sampled(4)
def test_the_outcome_and_the_place_are_right(known: KnownProgram) -> None:
    _asked(known)


@pytest.mark.sweep
@pytest.mark.parametrize("known", [k for k in PROGRAMS if k.id not in QUICK], ids=lambda k: k.id)
def test_the_outcome_and_the_place_are_right_in_the_whole_catalogue(known: KnownProgram) -> None:
    _asked(known)
