"""What is printed keeps to the plain words of the style guide: no riddles, no ranking of equals, no contradiction."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import driftscope
import record_examples
from driftscope.records import words
from driftscope.records.kinds.output import Side
from driftscope.records.verdict import Verdict
from driftscope.report import wording

PACKAGE = Path(driftscope.__file__).parent
#: Words that an engineer in a hurry stumbles over, and what is printed instead.
BANNED = {
    r"\bguilty\b": "first differing",
    r"\bhealthy\b": "reference",
    r"\btold\b": "reported, distinguished",
    r"\bodd\b": "outlier, unknown",
    r"\bits like\b": "its counterpart",
    r"(?<!there )(?<!There )\bis no (?!longer)": "is not a",
    r"where rounding makes none": "that rounding cannot make",
    r"\b(was|is|are|were|be|never) asked\b(?! for)": "probed",
}


def printed(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every string of a file that is no docstring and holds more than a word."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, holders) and node.body]
    docs = {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else ""
        if isinstance(text, str) and " " in text.strip():
            yield node.lineno, text


def stumbling(text: str) -> list[str]:
    """Return the words of a text that are not printed."""
    return [pattern for pattern in BANNED if re.search(pattern, text)]


@pytest.mark.parametrize("room", sorted(p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name != "__pycache__"))
def test_no_sentence_holds_a_banned_word(room: str) -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {text[:80]!r}: not {stumbling(text)}"
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if path.name != "vocabulary.py"  # names of sympy's classes, never printed
        for line, text in printed(path)
        if stumbling(text)
    ]
    assert not found, "\n".join(found)


def test_the_pages_of_the_codes_hold_none_either() -> None:
    pages = sorted((PACKAGE / "records" / "codes").glob("*.md"))
    found = [f"{page.name}: {stumbling(text)}" for page in pages if stumbling(text := page.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("the guilty node", False), ("first differing node", True), ("'hf' is no program", False),
        ("there is no command 'x'", True), ("the graph is no longer exported", True), ("was asked for", True),
        ("terms were asked", False), ("cannot be told apart", False), ("an odd device", False),
    ],
)  # fmt: skip
def test_the_checker_sees_what_it_should(text: str, fine: bool) -> None:
    assert (not stumbling(text)) is fine


#: Nouns that sentences count, and the rooms whose sentences people read.
COUNTED = re.compile(r" (?:[a-z]+ )?(calls|cells|columns|elements|examples|findings|floors|nodes|outputs|pairs|rows|"
                     r"shapes|tables|tensors|values)\b")  # fmt: skip
SPOKEN = ("comparison", "demo", "explain", "invariance", "records", "report", "shapes", "studies", "transforms")
#: Never one: a limit of ours, several by construction, or a name before a verb.
NEVER_ONE = {"t.tie", "_MOST_CELLS", "_MOST_VALUES", "MOST_VALUES", "len(cut.nodes)", "len(names)", "len(found)",
             "number(rounding)", "len(known)"}  # fmt: skip


def uncounted(source: str) -> list[str]:
    """Return what a file prints as a number before a plural, so that it reads "1 rows" one day."""
    found = []
    for node in ast.walk(ast.parse(source)):
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        for value, after in itertools.pairwise(parts):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                name = ast.unparse(value.value)
                number = not re.search(r"(counted|part_of|name|weights|side|worst\['name'\])|'", name) or "len(" in name
                if COUNTED.match(str(after.value)) and number and name not in NEVER_ONE:
                    found.append(f"{value.lineno}: {{{name}}}{after.value[:30]}")
    return found


@pytest.mark.parametrize("room", SPOKEN)
def test_a_number_before_a_noun_agrees_with_it(room: str) -> None:
    files = sorted((PACKAGE / room).rglob("*.py"))
    found = [f"{path.relative_to(PACKAGE)}:{hit}" for path in files for hit in uncounted(path.read_text("utf-8"))]
    assert not found, "use counted() or floors() of records.words:\n" + "\n".join(found)


@pytest.mark.parametrize(("source", "seen"), [
    ("f'{len(rows)} rows of it'", True), ("f'{value:.2g} floors'", True), ("f'{n} stored tensors'", True),
    ("f'{counted(n, \"row\")} of it'", False), ("f'{name} holds rows'", False), ("f'{n} of them'", False),
])  # fmt: skip
def test_the_checker_of_numbers_sees_what_it_should(source: str, seen: bool) -> None:
    assert bool(uncounted(source)) is seen


def test_numbers_agree_with_their_nouns() -> None:
    assert [words.counted(n, "axis", "axes") for n in (0, 1, 2)] == ["0 axes", "1 axis", "2 axes"]
    assert [words.all_of(n, "row") for n in (1, 2)] == ["the one row", "all 2 rows"]
    assert [words.part_of(n, 3, "pair", "differs", "differ") for n in (1, 2)] == [
        "1 of 3 pairs differs",
        "2 of 3 pairs differ",
    ]
    assert [words.floors(v) for v in (1.0, 0.999, 1.04, 0.0, 0.68, 250.4)] == [
        "1 floor", "1 floor", "1 floor", "0 floors", "0.68 floors", "250 floors"]  # fmt: skip
    assert [words.percent(v) for v in (0.0, 1e-9, 0.004, 0.5, 0.999, 1.0)] == [
        "0%", "under 1%", "under 1%", "50%", "over 99%", "100%"]  # fmt: skip


@given(share=st.floats(0.0, 1.0), digits=st.integers(0, 2))
def test_a_share_is_nothing_or_everything_only_where_it_is(share: float, digits: int) -> None:
    said = words.percent(share, digits)
    assert (float(said.rstrip("%")) == 0.0 if said[0].isdigit() else False) == (share == 0.0)
    assert (said.startswith("100")) == (share == 1.0)


sizes = st.floats(1e-12, 1e3)


@given(a=sizes, b=sizes, closer=st.sampled_from(["a", "b", "equal"]), verdict=st.sampled_from(list(Verdict)))
def test_no_side_is_ranked_before_one_whose_number_reads_the_same(
    a: float, b: float, closer: str, verdict: Verdict
) -> None:
    sides = [Side("float32", (2,), floor=1.0, error=e, error_floors=e) for e in (a, b)]
    output = record_examples.value("out", verdict, closer=closer, a=sides[0], b=sides[1])
    said = wording.closer_sentence((output,))
    numbers = re.findall(r"[\d.]+(?:e[-+]\d+)?(?= *(?:,|$))", said)
    assert verdict is not Verdict.DIFFERENT or not said
    assert "is closer" not in said or (len(numbers) == 2 and numbers[0] != numbers[1])
