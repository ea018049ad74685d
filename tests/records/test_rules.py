"""Every finding code that the code uses is explained, and every explanation is whole."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import pytest

import driftscope.records
from driftscope.errors import InputError
from driftscope.records.rules import RULES, rule

PACKAGE = Path(str(resources.files(driftscope.records))).parent
SECTIONS = ["How it was measured", "Usual causes", "What to do", "Example"]


def used() -> dict[str, str]:
    """Return the codes in the sources, each with a file that uses it."""
    found = {}
    for source in sorted(PACKAGE.rglob("*.py")):
        for code in re.findall(r"""["']([NWOSTRI]\d{3})["']""", source.read_text(encoding="utf-8")):
            if source.name != "rules.py":
                found[code] = source.name
    return found


def test_every_code_in_use_is_explained() -> None:
    assert {code: where for code, where in used().items() if code not in RULES} == {}


def test_the_search_for_codes_finds_some() -> None:
    assert {"N001", "R004", "O001"} <= set(used())


def test_every_page_belongs_to_a_code_and_every_code_has_a_page() -> None:
    pages = {path.stem for path in (PACKAGE / "records" / "codes").glob("*.md")}
    assert pages == set(RULES)


@pytest.mark.parametrize("code", RULES)
def test_a_page_says_everything_it_should(code: str) -> None:
    page = RULES[code].page
    title = re.match(r"# (\w\d{3}): (.+)\n\n\S", page)
    assert title is not None
    assert title.group(1) == code
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    for section in re.split(r"^## .+$", page, flags=re.MULTILINE)[1:]:
        assert section.strip()
    assert page.count("```") % 2 == 0
    assert page.endswith("\n")
    assert not page.endswith("\n\n")
    assert max(map(len, page.splitlines())) <= 100


@pytest.mark.parametrize("code", RULES)
def test_a_code_is_in_the_list_in_one_line(code: str) -> None:
    r = RULES[code]
    assert re.fullmatch(r"[NWOSTRI]\d{3}", code)
    assert r.meaning.endswith(".")
    assert len(r.title) <= 28
    assert not r.title.endswith(".")


def test_codes_are_in_order_within_their_family() -> None:
    for letter in "NWOSTRI":
        family = [code for code in RULES if code.startswith(letter)]
        assert family == sorted(family)


def test_a_code_is_found_however_it_is_written_and_a_wrong_one_is_refused() -> None:
    assert rule(" n001 ") is RULES["N001"]
    with pytest.raises(InputError, match="did you mean N0"):
        rule("N0011")
    with pytest.raises(InputError, match="or word 'flors'; did you mean floors, floor"):
        rule("flors")
    with pytest.raises(InputError, match="lists them all"):
        rule("!")
