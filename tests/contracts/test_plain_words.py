"""What is printed keeps to the plain words of the style guide: no riddles, no ranking of equals, no contradiction."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import driftscope
import record_examples
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
