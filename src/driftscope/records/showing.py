"""What every record can do with itself: be written as a page or as JSON, and show itself in a notebook."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from driftscope.records.files import PAGE_SUFFIXES, check_target, write_whole


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
        target = check_target(path)
        return write_whole(target, self._written(target.suffix.lower()))

    def _written(self, suffix: str) -> str:
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


def _pages() -> Any:
    # The page room stands above this one; it is asked for by name so that records stay below it.
    return importlib.import_module("driftscope.report.pages.page")
