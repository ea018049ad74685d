"""Records come back as they were, also where a field may be of several kinds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from driftscope.errors import InputError, RecordError
from driftscope.records.finding import Finding
from driftscope.records.json_text import parse_json
from driftscope.records.plain import from_plain, to_plain
from driftscope.records.runs.tables import as_markdown


@dataclass(frozen=True)
class Several:
    """A field of three kinds."""

    field: bool | str | None
    schema: str = "several"


@pytest.mark.parametrize("value", [True, False, "mixed", None])
def test_a_field_of_several_kinds_comes_back(value: bool | str | None) -> None:
    assert from_plain(Several, to_plain(Several(value)), "several").field is value


@pytest.mark.parametrize("value", [3, [], {}])
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(RecordError, match="damaged"):
        from_plain(Several, {"field": value, "schema": "several"}, "several")


def test_a_field_that_is_not_there_is_named_and_one_with_a_default_is_not_missed() -> None:
    assert from_plain(Several, {"field": True, "schema": "several"}, "several") == Several(True)
    with pytest.raises(RecordError, match=r"damaged: a Several has no field$"):
        from_plain(Several, {"schema": "several"}, "several")


@pytest.mark.parametrize("code", ["", "N1", "N0011", "n001", "N001\x1b[2J", "N001\nIDENTICAL: the same bits"])
def test_the_code_of_a_finding_is_a_letter_and_three_digits(code):
    with pytest.raises(InputError, match="a letter and three digits"):
        Finding(code, "what")
    assert Finding("N001", "what").code == "N001"


def test_numbers_that_no_float_holds_are_not_read():
    with pytest.raises(ValueError, match="401 digits"):
        parse_json("[1" + 400 * "0" + "]")
    assert parse_json("[1" + 200 * "0" + "]") == [10**200]


def test_names_in_a_table_become_no_elements_links_or_columns():
    name = "<script>alert(1)</script>\x1b[31m[x](javascript:alert(1))|more"
    line = as_markdown([{"pair": name, "floors": 0.5}]).splitlines()[2]
    assert "<script>" not in line.replace("\\<", "")
    assert "\x1b" not in line
    assert "\\[x\\](" in line
    assert line.count("|") - line.count("\\|") == 3
