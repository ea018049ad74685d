"""Refused specs are changed as little as torch asks for, and never frozen or thinned out for the sake of acceptance."""

from __future__ import annotations

import pytest
from torch.export import Dim

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.candidates import CandidateSearch
from driftscope.shapes.capture.export import Capture, Refusal
from driftscope.shapes.capture.inference import infer
from driftscope.shapes.capture.repairing import repaired
from driftscope.shapes.probe.axes import arguments_of
from shapes.small_models import ByValue, Gated, Halved, Looped, PoolAndAdd, pool_inputs, seeded


def search(model, inputs, dynamic="all") -> CandidateSearch:
    arguments = arguments_of(model, inputs)
    return CandidateSearch(model, arguments, infer([arguments], dynamic))


def own_names(arguments, start: str = "d") -> tuple[Dim, ...]:
    return tuple(Dim(f"{start}{number}") for number, _ in enumerate(arguments.axes))


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (PoolAndAdd(), pool_inputs()),
        (Gated(), (seeded(2, 6), seeded(2, 6))),
        (Halved(), (seeded(7, 2),)),
        (Looped(), (seeded(3, 2),)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_axis_its_own_name_is_repaired_until_accepted(model, inputs):
    one = search(model, inputs)
    found = repaired(Attempt(Mode.NAMED, own_names(one.arguments)), one.attempt)
    assert isinstance(found.result, Capture), found.result
    assert found.steps, "torch refuses this spec as it stands"


def test_an_accepted_spec_is_left_alone():
    one = search(Gated(), (seeded(2, 6), seeded(2, 6)))
    batch = Dim("batch")
    found = repaired(Attempt(Mode.NAMED, (batch, None, batch, None)), one.attempt)
    assert isinstance(found.result, Capture)
    assert found.steps == ()


def test_a_suggestion_that_freezes_is_not_followed():
    one = search(Halved(), (seeded(7, 2),))
    found = repaired(Attempt(Mode.NAMED, (Dim("rows"), None)), one.attempt)
    assert "rows = 7" in found.rejected
    assert isinstance(found.result, Capture)
    # 6 and 7 halve to the same number: the suggestion would have lost one of them.
    assert found.result.relations.admits(_points([(6, 2), (7, 2), (8, 2)])).tolist() == [True, True, False]


def _points(rows):
    import numpy as np

    return np.array(rows, np.int64)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("Constraints violated (a)!\n\nSuggested fixes:\n  a = Dim('a', max=9)", "a[0,9]"),
        ("Constraints violated (a)!\n\nSuggested fixes:\n  b = 2*a", "2*a"),
        ("Constraints violated (b)! - Not all values", "DYNAMIC"),
        ("Something nobody has seen", "DYNAMIC"),
    ],
)
def test_what_a_message_asks_for(words, expected):
    first = Attempt(Mode.NAMED, (Dim("a"), Dim("b")))
    asked: list[Attempt] = []

    def attempt(one: Attempt) -> Refusal:
        asked.append(one)
        return Refusal(one, "UserError", words if len(asked) == 1 else "enough")

    repaired(first, attempt)
    from driftscope.shapes.capture.repairing import _word

    assert any(expected in _word(size) for size in asked[1].sizes), [_word(s) for s in asked[1].sizes]


def test_repairing_ends_when_nothing_helps():
    calls = []

    def never(one: Attempt) -> Refusal:
        calls.append(one)
        return Refusal(one, "UserError", "Suggested fixes:\n  a = b\n  b = a")

    found = repaired(Attempt(Mode.NAMED, (Dim("a"), Dim("b"))), never)
    assert isinstance(found.result, Refusal)
    assert len(calls) <= 9


def test_what_cannot_be_exported_stays_refused():
    found = search(ByValue(), (seeded(3),)).automatic()
    assert found.capture is None
    assert "data-dependent" in found.repair.result.words
