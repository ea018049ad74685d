"""Harder models, one of each family: what is promised holds at points that nobody chose."""

from __future__ import annotations

import pytest

from shapes.harder import layers
from shapes.harder.measuring import measure
from shapes.harder.small import CASES

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
#: A minute of processor time; the rest is left to the sweep.
IN_CI = ("with-past", "pixel-unshuffle", "shrinks", "thumbnail", "of-batch", "keyword-only")

SLOW = (
    "positions",
    "upper-triangle",
    "pooled-to-2",
    "pixel-unshuffle",
    "with-past",
    "named-tuple",
    "in-place",
    "shrinks",
)
EVERY = tuple(c for c in CASES if c.name in SLOW) + layers.CASES


def marked(name: str) -> pytest.MarkDecorator:
    return pytest.mark.slow if name in IN_CI else pytest.mark.sweep


@pytest.mark.parametrize("case", [pytest.param(c, id=c.name, marks=marked(c.name)) for c in EVERY])
def test_what_is_promised_holds(case):
    found = measure(case)
    assert found.points >= 40
    assert found.status == found.points, found.words
    assert found.cover_wrong == 0, found.words
    assert found.guard_wrong == 0, found.words
    assert found.kept >= found.auto
    assert found.kept >= 0.98 * found.running, found.words
    assert not found.changed
