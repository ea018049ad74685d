"""Records come back as they were, also where a field may be of several kinds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from driftscope.errors import RecordError
from driftscope.records.plain import from_plain, to_plain


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
