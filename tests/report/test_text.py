"""The answer on a terminal: short, fitting, verdict first, next step last, and harmless whatever a model is called."""

from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import record_examples
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import answer_of
from driftscope.records.kinds.collection import Collection, Entry
from driftscope.records.kinds.output import OutputRecord, Side
from driftscope.records.verdict import Verdict
from driftscope.report import wording
from driftscope.report.terminal import comparison

EVERY = pytest.mark.parametrize("name", record_examples.ALL)
WIDTHS = pytest.mark.parametrize("width", [40, 60, 80, 100, 140])


@EVERY
@WIDTHS
def test_fits_the_screen(name: str, width: int) -> None:
    lines = comparison.render(record_examples.ALL[name](), width=width).splitlines()
    # Narrower than a usual terminal, the first finding is worth more than the number of lines.
    assert width < 100 or name == "hostile" or len(lines) <= comparison.MAX_LINES
    assert max(cell_len(line) for line in lines) <= width


@EVERY
@WIDTHS
def test_begins_with_the_verdict_and_ends_with_the_next_step(name: str, width: int) -> None:
    record = record_examples.ALL[name]()
    lines = comparison.render(record, width=width).splitlines()
    assert lines[0].startswith(f"{record.verdict}: ")
    # On a narrow screen the sentence needs several lines.
    assert any(line.startswith("next ") for line in lines[-4:])


@WIDTHS
@pytest.mark.parametrize("details", [False, True])
def test_place_and_fix_and_every_column_are_whole_however_narrow_it_is(width: int, details: bool) -> None:
    record = record_examples.different()
    words = " ".join(comparison.render(record, width=width, details=details).split())
    first = record.findings[0]
    for whole in (f"{first.fix} (tried: it works)", first.why, first.what, "blocks.1.norm1, digits.py:42", "81,204"):
        assert whole in words
    assert all((title in words) is details for title in ("error A", "error B", "limits"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "B computes something else from node_layer_norm_3 (blocks.1.norm1, digits.py:42) on. In float64"),
        (
            {"evidence": {"cause": "epsilon is 0.001, in A 1e-05."}},
            "B computes something else from node_layer_norm_3 (blocks.1.norm1, digits.py:42) on: epsilon is 0.001",
        ),
        (
            {"code": "W004", "what": "fc.weight differs in row 3."},
            "at node_layer_norm_3 (blocks.1.norm1, digits.py:42), fc.weight differs in row 3. In float64",
        ),
        ({"code": "R003"}, "not the same function: in float64"),
        ({"note": True}, "not the same function: in float64"),
    ],
)
def test_the_answer_names_place_cause_and_size(changes: dict[str, object], said: str) -> None:
    record = record_examples.different()
    first = dataclasses.replace(record.findings[0], **changes)
    assert dataclasses.replace(record, findings=(first,)).answer.startswith(said)


@pytest.mark.parametrize(
    ("drift", "said"),
    [
        (0.0131, "1.3 %"),
        (3.2e-5, "3.2e-05 of their size"),
        (40.0, "40 times their size"),
        (0.998, "100 %"),
        (1.06, "1.1 times their size"),
        (0.99, "99 %"),
    ],
)
def test_a_size_is_a_percentage_where_one_can_be_read(drift: float, said: str) -> None:
    record = record_examples.different()
    output = dataclasses.replace(record.outputs[0], lifted=drift)
    assert f"still differ by {said}" in dataclasses.replace(record, outputs=(output,)).answer


def test_rounding_is_said_in_units_of_rounding_only_where_both_sides_were_measured() -> None:
    record = record_examples.rounding()
    assert record.answer == "the same function; they differ by 0.61 times ordinary rounding"
    by_floor_only = dataclasses.replace(record.outputs[0], lifted=None)
    assert dataclasses.replace(record, outputs=(by_floor_only,)).answer == record.reason
    tie = dataclasses.replace(record.outputs[0], floors=None)
    assert dataclasses.replace(record, outputs=(tie,)).answer == record.reason


def test_neither_of_two_functions_is_closer_nor_one_of_two_equal_errors() -> None:
    record = record_examples.rounding()
    assert "B is closer" in comparison.render(record, details=True)
    different = dataclasses.replace(record.outputs[0], verdict=Verdict.DIFFERENT)
    assert "closer to float64" not in wording.closer_sentence((different,))
    even = dataclasses.replace(record.outputs[0], b=record_examples.side(0.6401))
    assert wording.closer_sentence((even,)) == "both sides are equally close to float64"


@pytest.mark.parametrize("name", ["identical", "rounding", "precision", "different", "many"])
def test_the_last_line_is_the_next_step_at_the_usual_width(name: str) -> None:
    assert comparison.render(record_examples.ALL[name]()).splitlines()[-1].startswith("next ")


@EVERY
def test_plain_text_holds_no_control_characters(name: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", comparison.render(record_examples.ALL[name]()))


def test_colour_changes_the_look_and_not_the_words() -> None:
    record = record_examples.different()
    coloured = comparison.render(record, color=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == comparison.render(record)


def test_only_what_matters_is_coloured() -> None:
    first, *rest = comparison.render(record_examples.different(), color=True).splitlines()
    assert first.startswith("\x1b[1;31mDIFFERENT: \x1b[0mB computes something else")
    assert rest[-1].startswith("\x1b[2mnext       \x1b[0m\x1b[1mmake that change")


def test_names_are_not_markup() -> None:
    record = dataclasses.replace(record_examples.inconclusive(), reason="[bold]x[/bold] :smile: {0}")
    assert "[bold]x[/bold] :smile: {0}" in comparison.render(record)


def test_a_finding_is_told_whole() -> None:
    shown = comparison.render(record_examples.different())
    for words in ("N001", "node_layer_norm_3 (LayerNormalization)", "digits.py:42", "epsilon is 0.001 here",
                  "set the attribute epsilon", "tried: it works"):  # fmt: skip
        assert words in shown


def test_the_worst_outputs_are_shown_when_there_are_many() -> None:
    shown = comparison.render(record_examples.many())
    assert "out['extra']" in shown
    assert "out['scores']" in shown
    assert "and 54 outputs no worse than these" in shown
    assert "findings more" in shown


def test_few_outputs_keep_their_order() -> None:
    shown = comparison.render(record_examples.different())
    assert shown.index("out['logits']  ") < shown.index("out['hidden']")


def test_what_the_first_line_says_is_not_said_again() -> None:
    record = record_examples.different()
    first = dataclasses.replace(record.findings[0], code="R003", what=record.reason)
    assert comparison.render(dataclasses.replace(record, findings=(first,))).count("in float64 they still differ") == 1
    alone = dataclasses.replace(first, why="", fix="")
    assert comparison.render(dataclasses.replace(record, findings=(alone,))).count("in float64 they still differ") == 2


def test_what_was_not_decided_gets_no_tolerance() -> None:
    output = record_examples.value("out", Verdict.INCONCLUSIVE)
    record = record_examples.comparison(Verdict.INCONCLUSIVE, "random", (output,))
    assert "rtol" not in comparison.render(record)
    decided = dataclasses.replace(record, outputs=(dataclasses.replace(output, verdict=Verdict.DIFFERENT),))
    assert "rtol" in comparison.render(decided)


def test_both_sides_and_the_numbers_of_an_output_are_there() -> None:
    shown = comparison.render(record_examples.rounding(), details=True)
    for words in ("torch eager", "onnxruntime 1.31.1", "0.61", "3.1e-16", "48", "9.5e-07", "0.64", "0.55",
                  "rtol=1.3e-06, atol=2e-06", "B is closer to float64", "rounding up to 1.5 floors"):  # fmt: skip
        assert words in shown


def test_what_was_not_measured_has_no_column() -> None:
    head = comparison.render(record_examples.inconclusive()).splitlines()[5]
    assert head.split() == ["output", "verdict", "max", "abs", "ulp"]


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
    shown = comparison.render_collection(Collection("Two", entries))
    order = [shown.index(w) for w in ("1. The export", "ROUNDING: ", "Nothing moved.", "2. The broken", "DIFFERENT: ")]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, wording.NOTHING), (0.0, "0"), (0.6137, "0.61"), (0.6, "0.6"), (1.0, "1"), (12.34, "12"), (690.0, "690"),
        (9999.0, "9999"), (10_000.0, "1.0e+04"), (0.0099, "9.9e-03"), (3.14e-16, "3.1e-16"), (-0.5, "-0.5"),
        (float("inf"), "∞"), (float("-inf"), "-∞"), (float("nan"), "NaN"), (10**400, "∞"),
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


def test_the_column_closer_ranks_neither_two_functions_nor_equals() -> None:
    sides = [Side("float32", (2,), error=e, error_floors=e) for e in (1.201e-6, 1.204e-6, 2e-6)]

    def said(verdict: Verdict, near: Side, far: Side) -> str:
        return wording.closer(record_examples.value("out", verdict, closer="a", a=near, b=far))

    assert said(Verdict.ROUNDING, sides[0], sides[2]) == "A"
    assert said(Verdict.ROUNDING, sides[0], sides[1]) == "equal"
    assert said(Verdict.DIFFERENT, sides[0], sides[2]) == wording.NOTHING


def test_closer_counts_outputs() -> None:
    one = record_examples.value("out[0]", Verdict.ROUNDING)
    two = dataclasses.replace(one, closer="a")
    unknown = OutputRecord("out[1]", Verdict.DIFFERENT, "missing", "structure")
    assert wording.closer_sentence([one]).startswith("B is closer to float64: rms error")
    assert wording.closer_sentence([one, one, two]) == "closer to float64: A on 1, B on 2 of 3 outputs"
    assert wording.closer_sentence([unknown]) == ""


def test_cheaper_arithmetic_is_said_with_its_cause_and_size_and_no_unit_to_look_up() -> None:
    record = record_examples.precision()
    assert record.answer == (
        "the same function; they differ by 690 times ordinary rounding, explained by TF32 products"
    )
    cast = "same function (in float64 they differ by 8e-16), 1.5e+03 floors (axis 0, index 0): consistent with "
    cast += "rounding to float16 at narrowed (Cast) in B, 0.61 floors of that format"
    output = dataclasses.replace(record.outputs[0], reason=cast, floors=1502.0)
    finding = dataclasses.replace(record.findings[0], where=Where("out", "narrowed", "Cast", "net.norm", "net.py", 7))
    said = dataclasses.replace(record, outputs=(output,), findings=(finding,), reason=cast).answer
    assert said.startswith("the same function; they differ by 1,500 times ordinary rounding, consistent with rounding")
    assert said.endswith("to float16 at narrowed (Cast) in B (net.norm, net.py:7)")
    # Where nothing was found to make it, nothing is said to make it.
    unknown = dataclasses.replace(output, reason="same function, 690 floors: rounding, unusually large")
    assert dataclasses.replace(record, outputs=(unknown,), reason=unknown.reason).answer == unknown.reason


def test_the_sentences_of_a_finding_are_parted_on_one_line() -> None:
    finding = Finding("N001", "epsilon differs", "It is 1e-3 here", "Set it to 1e-5.", verified=True)
    assert wording.message(finding) == "epsilon differs. It is 1e-3 here. Fix: Set it to 1e-5. (tried: it works)"
    assert wording.message(Finding("N001", "epsilon differs")) == "epsilon differs"


def test_a_note_and_both_programs_stand_whole_at_60_columns() -> None:
    record = record_examples.rounding()
    words = " ".join(f"constant{k}" for k in range(40))
    named = {"a": {"name": "x" * 30, "runtime": "a runtime of many words and options, CPU, optimisation level all"}}
    note = Finding("W001", words, note=True)
    text = comparison.render(dataclasses.replace(record, findings=(note,), programs=named), width=60)
    assert "…" not in text
    assert "optimisation level all" in " ".join(text.split())


@pytest.mark.parametrize(
    ("verdict", "lifted", "said"),
    [
        (Verdict.ROUNDING, None, "0.65 times ordinary rounding. B cannot be evaluated in float64, so a bug smaller"),
        (
            Verdict.DIFFERENT,
            None,
            "0.65 times ordinary rounding. B cannot be evaluated in float64, so the cause is not",
        ),
        (Verdict.ROUNDING, 1e-16, "the same function; they differ by 0.65 times ordinary rounding"),
    ],
)
def test_where_b_has_no_float64_run_the_blind_spot_is_said(verdict: Verdict, lifted: float | None, said: str) -> None:
    reason = (
        "by floor only, 0.65 floors: ordinary rounding"
        if lifted is None
        else "same function, 0.65 floors: ordinary rounding"
    )
    output = record_examples.value("out", verdict, floors=0.65, lifted=lifted, reason=reason)
    finding = Finding("R003", reason, where=Where(output="out"))
    answer = answer_of(verdict, reason, [finding], [output])
    assert said in answer
    assert "floors" not in answer


BEYOND = "overflow in B, 2.18e+05 exceeds the largest float16, 65504 at mul_1 (aten.mul)"


@pytest.mark.parametrize(("verdict", "code", "what", "node", "output", "said"), [
    (Verdict.DIFFERENT, "W011", "it holds rows 1, 2, ... of pos; A looks up 0, 1, ...", "n", {"lifted": 0.5},
     "at n, it holds rows 1, 2, ... of pos; A looks up 0, 1, ... In float64 the outputs still differ by 50 %."),
    (Verdict.DIFFERENT, "W004", "w holds other numbers", "n", {"lifted": 0.5},
     "at n, w holds other numbers. In float64 the outputs still differ by 50 %."),
    (Verdict.DIFFERENT, "N001", "", "mask", {"lifted": float("nan"), "reason": "NaN in B only: 9 of 12 elements; more"},
     "B computes something else from mask on. NaN in B only: 9 of 12 elements."),
    (Verdict.DIFFERENT, "O003", "B (Net) is in train() mode: bn", None, {"lifted": 0.5},
     "B (Net) is in train() mode: bn. In float64 the outputs still differ by 50 %."),
    (Verdict.DIFFERENT, "O003", "B (Net) is in train() mode: bn", None,
     {"lifted": None, "floors": 39_305_436.0, "reason": "by floor only, but 3.9e+07 floors"},
     "B (Net) is in train() mode: bn. They differ by 39,000,000 times ordinary rounding; B cannot be evaluated in"
     " float64."),
    (Verdict.DIFFERENT, "N007", "only A has it", None, {"lifted": None, "reason": "only A has it"}, "the reason"),
    (Verdict.PRECISION, "N004", "", "mul_1", {"floors": 1530.0, "reason": f"same function, 1.5e+03 floors: {BEYOND}"},
     "overflow in B at mul_1: 2.18e+05 exceeds the largest float16, 65504; they differ by 1,500 times ordinary"
     " rounding"),
    (Verdict.PRECISION, "N004", "", "mul_1", {"kind": "nan", "reason": f"infinity in B: 8 of 9; more: {BEYOND}"},
     "overflow in B at mul_1: 2.18e+05 exceeds the largest float16, 65504; infinity in B: 8 of 9"),
    (Verdict.INCONCLUSIVE, "N014", "A does not repeat itself", "rand", {},
     "the reason. It draws random numbers at rand."),
    (Verdict.INCONCLUSIVE, "N014", "A does not repeat itself", None, {}, "the reason"),
])  # fmt: skip
def test_the_first_line_says_place_and_cause(
    verdict: Verdict, code: str, what: str, node: str | None, output: dict[str, object], said: str
) -> None:
    differs = {"lifted_threshold": 1e-11} if verdict is Verdict.DIFFERENT else {}
    measured = record_examples.value("out", verdict, **(differs | output))
    finding = Finding(code, what, where=Where(output="out", node=node))
    assert answer_of(verdict, "the reason", [finding], [measured]) == said


def test_the_repr_of_an_output_is_one_line() -> None:
    output = record_examples.value("out", Verdict.DIFFERENT, max_abs=7.5e-4, max_ulp=56776.0)
    assert repr(output) == "<Output out: DIFFERENT, max abs 7.5e-04, 56,776 ulp; float32 (64, 10)>"


def test_the_name_of_an_output_stands_whole_where_half_the_width_holds_it() -> None:
    base = record_examples.different()
    path = "out['probabilities']"
    record = dataclasses.replace(base, outputs=(dataclasses.replace(base.outputs[0], path=path),))
    narrow = comparison.render(record, width=60)
    assert path in narrow
    assert all(f" {title}" in narrow for title in ("verdict", "max abs", "ulp", "in float64"))
    # Twin: a name of more than half the width is shortened in its middle.
    longer = dataclasses.replace(base, outputs=(dataclasses.replace(base.outputs[0], path=f"out['{'p' * 60}']"),))
    assert "p…p" in comparison.render(longer, width=60)


def test_with_details_every_note_is_there() -> None:
    base = record_examples.different()
    notes = tuple(Finding("W001", f"constant {k} rounded", note=True, where=Where(node=f"n{k}")) for k in range(20))
    record = dataclasses.replace(base, findings=(*base.findings, *notes))
    assert "more: see -v" in comparison.render(record, width=100)
    told = comparison.render(record, width=100, details=True)
    assert "more: see" not in told
    assert all(f.what in told for f in notes)


def test_what_cannot_be_decided_ranks_no_side() -> None:
    rounding = record_examples.rounding().outputs[0]
    unsure = dataclasses.replace(rounding, verdict=Verdict.INCONCLUSIVE, closer="a")
    assert (wording.closer(unsure), wording.closer_sentence((unsure,))) == (wording.NOTHING, "")
