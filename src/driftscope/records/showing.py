"""What every record can do with itself: be written as a page or as JSON, read back, and show itself in a notebook."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from driftscope.records.plain import from_plain, to_plain

if TYPE_CHECKING:
    from pathlib import Path


class Shown:
    """A record that can be saved and shown; the record itself says only what it holds, in ``to_dict``."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        raise NotImplementedError

    def save(self, path: str | Path) -> Path:
        """Write the record: JSON for ``.json``, a self-contained page for ``.html``.

        ``.md`` is a summary in Markdown; ``.sarif`` holds the findings that stand on a line of source, for code hosts.

        Raises
        ------
        InputError
            If it cannot be written there; nothing is ever half-written.
        """
        from driftscope.records.files import check_target, write_whole

        target = check_target(path)
        return write_whole(target, self._written(target.suffix.lower()))

    def _written(self, suffix: str) -> str:
        import json

        from driftscope.records.files import PAGE_SUFFIXES

        text: str
        if suffix in PAGE_SUFFIXES:
            text = _pages().render(self)
        elif suffix == ".md":
            text = _pages().markdown(self)
        else:
            kept = _pages().sarif(self) if suffix == ".sarif" else self.to_dict()
            text = json.dumps(kept, indent=2) + "\n"
        return text

    def __repr__(self) -> str:
        # What a prompt shows after a call: the answer, not every field.
        first = str(self).partition("\n")[0] if type(self).__str__ is not object.__str__ else ""
        return f"<{type(self).__name__}{': ' if first else ''}{first}>"

    def _repr_html_(self) -> str:
        html: str = _pages().fragment(self)
        return html

    def _repr_markdown_(self) -> str:
        text: str = _pages().markdown(self)
        return text


class Record(Shown):
    """A dataclass whose fields are what it holds; its field ``schema`` has the schema's name for a default."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data (NaN and infinities as the strings "nan", "inf", "-inf")."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a record back; refuses a schema it does not know.

        Raises
        ------
        RecordError
            If ``data`` is not a record of this kind and schema, or is damaged.
        """
        schema = {field.name: field.default for field in fields(cls)}["schema"]  # type: ignore[arg-type]
        return from_plain(cls, data, str(schema))


def _pages() -> Any:
    # The page room stands above this one; it is asked for by name so that records stay below it.
    return importlib.import_module("driftscope.report.pages.page")
