"""The answer on a terminal: short, fitting, verdict first, next step last, and harmless whatever a model is called."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import record_examples
from driftscope.records.collection import Collection, Entry
from driftscope.records.comparison import OutputRecord
from driftscope.records.verdict import Verdict
from driftscope.report import text, wording

EVERY = pytest.mark.parametrize("name", record_examples.ALL)
WIDTHS = pytest.mark.parametrize("width", [40, 60, 80, 100, 140])


@EVERY
@WIDTHS
def test_fits_the_screen(name: str, width: int) -> None:
    lines = text.render(record_examples.ALL[name](), width=width).splitlines()
    assert len(lines) <= text.MAX_LINES
    assert max(cell_len(line) for line in lines) <= width


@EVERY
@WIDTHS
def test_begins_with_the_verdict_and_ends_with_the_next_step(name: str, width: int) -> None:
    record = record_examples.ALL[name]()
    lines = text.render(record, width=width).splitlines()
    assert lines[0].startswith(f"{record.verdict}: ")
    # On a narrow screen the sentence may need a second line.
    assert any(line.startswith("next ") for line in lines[-2:])


@pytest.mark.parametrize("name", ["identical", "rounding", "precision", "different", "many"])
def test_the_last_line_is_the_next_step_at_the_usual_width(name: str) -> None:
    assert text.render(record_examples.ALL[name]()).splitlines()[-1].startswith("next ")


@EVERY
def test_plain_text_holds_no_control_characters(name: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", text.render(record_examples.ALL[name]()))


def test_colour_changes_the_look_and_not_the_words() -> None:
    record = record_examples.different()
    coloured = text.render(record, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == text.render(record)


def test_only_what_matters_is_coloured() -> None:
    first, *rest = text.render(record_examples.different(), color=True).splitlines()
    assert first.startswith("\x1b[1;31mDIFFERENT: \x1b[0mnot the same function")
    assert rest[-1].startswith("\x1b[2mnext       \x1b[0m\x1b[1mmake that change")


def test_names_are_not_markup() -> None:
    record = dataclasses.replace(record_examples.rounding(), reason="[bold]x[/bold] :smile: {0}")
    assert "[bold]x[/bold] :smile: {0}" in text.render(record)


def test_a_finding_is_told_whole() -> None:
    shown = text.render(record_examples.different())
    for words in ("N001", "node_layer_norm_3 (LayerNormalization)", "digits.py:42", "epsilon is 0.001 here",
                  "set the attribute epsilon", "tried: it works"):  # fmt: skip
        assert words in shown


def test_the_worst_outputs_are_shown_when_there_are_many() -> None:
    shown = text.render(record_examples.many())
    assert "out['extra']" in shown
    assert "out['scores']" in shown
    assert "and 54 outputs no worse than these" in shown
    assert "findings more" in shown


def test_few_outputs_keep_their_order() -> None:
    shown = text.render(record_examples.different())
    assert shown.index("out['logits']  ") < shown.index("out['hidden']")


def test_what_the_first_line_says_is_not_said_again() -> None:
    record = record_examples.different()
    first = dataclasses.replace(record.findings[0], what=record.reason)
    assert text.render(dataclasses.replace(record, findings=(first,))).count("in float64 they still differ") == 1
    alone = dataclasses.replace(first, why="", fix="")
    assert text.render(dataclasses.replace(record, findings=(alone,))).count("in float64 they still differ") == 2


def test_what_was_not_decided_gets_no_tolerance() -> None:
    output = record_examples.value("out", Verdict.INCONCLUSIVE)
    record = record_examples.comparison(Verdict.INCONCLUSIVE, "random", (output,))
    assert "rtol" not in text.render(record)
    decided = dataclasses.replace(record, outputs=(dataclasses.replace(output, verdict=Verdict.DIFFERENT),))
    assert "rtol" in text.render(decided)


def test_both_sides_and_the_numbers_of_an_output_are_there() -> None:
    shown = text.render(record_examples.rounding())
    for words in ("torch eager", "onnxruntime 1.31.1", "0.61", "3.1e-16", "48", "9.5e-07", "0.64", "0.55",
                  "rtol=1.3e-06, atol=2e-06", "B is closer to float64", "rounding up to 1.5 floors"):  # fmt: skip
        assert words in shown


def test_what_was_not_measured_has_no_column() -> None:
    head = text.render(record_examples.inconclusive()).splitlines()[5]
    assert head.split() == ["output", "verdict", "ulp", "max", "abs"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("identical", "use the tolerance"),
        ("rounding", "use the tolerance"),
        ("precision", "make that change"),
        ("different", "make that change"),
        ("inconclusive", "driftscope rule R004"),
        ("many", "driftscope rule N007"),
    ],
)
def test_next_step(name: str, words: str) -> None:
    assert words in wording.next_step(record_examples.ALL[name]())


def test_a_collection_shows_every_entry_under_its_title() -> None:
    entries = (
        Entry("The export", "Nothing moved.", record_examples.rounding()),
        Entry("The broken copy", "All moved.", record_examples.different()),
    )
    shown = text.render_collection(Collection("Two", entries))
    order = [shown.index(w) for w in ("1. The export", "ROUNDING: ", "Nothing moved.", "2. The broken", "DIFFERENT: ")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, wording.NOTHING), (0.0, "0"), (0.6137, "0.61"), (0.6, "0.6"), (1.0, "1"), (12.34, "12"), (690.0, "690"),
        (9999.0, "9999"), (10_000.0, "1.0e+04"), (0.0099, "9.9e-03"), (3.14e-16, "3.1e-16"), (-0.5, "-0.5"),
        (float("inf"), "∞"), (float("-inf"), "-∞"), (float("nan"), "nan"), (10**400, "∞"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, expected: str) -> None:
    assert wording.number(value) == expected


@given(st.floats(min_value=1e-300, max_value=1e300), st.integers(min_value=1, max_value=6))
def test_a_number_keeps_its_significant_digits(value: float, digits: int) -> None:
    assert float(wording.number(value, digits)) == pytest.approx(value, rel=10.0 ** (1 - digits))


@given(st.text(), st.integers(min_value=5, max_value=60))
def test_eliding_keeps_both_ends(words: str, width: int) -> None:
    short = wording.elide(words, width)
    assert len(short) <= max(width, 0)
    assert short == words or (words.startswith(short.split("…")[0]) and words.endswith(short[-2:]))


@given(st.text())
def test_cleaned_text_cannot_steer_a_terminal(words: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", wording.clean(words))


def test_closer_counts_outputs() -> None:
    one = record_examples.value("out[0]", Verdict.ROUNDING)
    two = dataclasses.replace(one, closer="a")
    unknown = OutputRecord("out[1]", Verdict.DIFFERENT, "missing", "structure")
    assert wording.closer_sentence([one]).startswith("B is closer to float64: rms error")
    assert wording.closer_sentence([one, one, two]) == "closer to float64: A on 1, B on 2 of 3 outputs"
    assert wording.closer_sentence([unknown]) == ""
