"""z3 proves what follows from the checks of a program, and gives sizes where it does not."""

from __future__ import annotations

import pytest

from driftscope.errors import InputError
from driftscope.shapes.capture.candidates import CandidateSearch
from driftscope.shapes.capture.inference import infer
from driftscope.shapes.conditions.expressions import Size, operation
from driftscope.shapes.conditions.proving import REFUTED, UNKNOWN, implied, prove
from driftscope.shapes.probe.axes import arguments_of
from shapes.small_models import DampLong, Folded, Gated, seeded

pytest.importorskip("z3")


def relations(model, *inputs):
    arguments = arguments_of(model, inputs)
    return CandidateSearch(model, arguments, infer([arguments])).automatic().capture.relations


def test_what_is_checked_is_proved_and_what_is_not_is_refuted_with_sizes():
    checked = relations(Folded(), seeded(2, 12))
    assert prove(checked, "x.shape[1] % 3 == 0")
    refuted = prove(checked, "x.shape[1] % 6 == 0")
    assert refuted.answer == REFUTED
    assert refuted.counterexample["x.shape[1]"] % 6
    assert refuted.counterexample["x.shape[1]"] % 3 == 0


def test_the_unchecked_lower_bound_is_not_taken_for_granted():
    checked = relations(DampLong(), seeded(2, 4))
    assert not prove(checked, "x.shape[0] >= 2")
    assert prove(checked, "x.shape[0] >= 2", least=2)


def test_equal_sizes_follow_from_equal_sizes():
    checked = relations(Gated(), seeded(2, 6), seeded(2, 6))
    assert prove(checked, "x.shape[0] + 1 == gate.shape[0] + 1 and x.shape[1] == 6")


def test_what_z3_has_no_word_for_is_unknown_and_not_an_error():
    power = operation("==", operation("**", Size("a"), Size("b")), 8)
    assert implied([power], operation("==", Size("a"), 2)).answer == UNKNOWN


@pytest.mark.parametrize("words", ["y.shape[0] == 2", "x.shape[0] ==", "import os"])
def test_a_statement_that_is_none_is_refused(words):
    with pytest.raises(InputError, match=r"x\.shape\[0\]"):
        prove(relations(DampLong(), seeded(2, 4)), words)
