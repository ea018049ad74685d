"""One self-contained page per record: no network, no scripts but its own, the record itself inside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftscope.errors import RecordError
from driftscope.records.files import PAGE_SUFFIXES, read_text
from driftscope.records.json_text import TooDeep, parse_json
from driftscope.records.kinds.collection import COLLECTION_SCHEMA, Collection
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.verification import Verification
from driftscope.records.user_code import portable
from driftscope.report import kinds, wording
from driftscope.report.exchange.sarif import sarif_of
from driftscope.report.pages import comparison_view, sheet_view, shell

_OPENING = f'<script type="application/json" id="{shell.RECORD_ID}">'
_DEEPEST = 60  # levels of nesting a record may have; ours have fewer than ten


def render(record: Any) -> str:
    """Write a record of any kind as one HTML page.

    Returns
    -------
    str
        Works offline, without scripts too; its Content-Security-Policy allows nothing but the page's own style and
        script, by hash. :func:`read` gets the record back.
    """
    # A page is sent to others: it holds no path of the machine it was made on.
    data = portable(record.to_dict())
    record = _record_of(data, "page")
    return shell.page(data, *_drawn(record))


def _drawn(record: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the title of a page and what is drawn on it: one sheet, or one for each comparison of a collection."""
    if isinstance(record, Collection):
        entries = []
        for i, entry in enumerate(record.entries, start=1):
            told = {"above": wording.one_line(entry.title), "comment": wording.one_line(entry.comment)}
            entries.append(_entry(entry.comparison, f"entry-{i}") | told)
        return wording.one_line(record.title), entries
    drawn = _entry(record, "entry-1")
    return drawn["title"], [drawn]


def _entry(record: Any, anchor: str) -> dict[str, Any]:
    drawn = sheet_view.document(kinds.sheet_of(record), anchor)
    if not isinstance(record, Comparison):
        return drawn
    return drawn | {"title": f"{record.verdict}: {drawn['title']}"} | comparison_view.drawings(record, anchor)


def fragment(record: Any) -> str:
    """Write a compact version for notebooks: no scripts, no style sheet that could reach the notebook's own."""
    return shell.templates().get_template("fragment.html").render(e=sheet_view.excerpt(kinds.sheet_of(record)))


def markdown(record: Any) -> str:
    """Write a compact version in Markdown: for notebooks, pull requests and job summaries."""
    if isinstance(record, Collection):
        parts = (f"## {wording.one_line(e.title)}\n\n{markdown(e.comparison)}" for e in record.entries)
        return "\n".join(parts)
    return sheet_view.markdown(kinds.sheet_of(record))


def sarif(record: Any) -> dict[str, Any]:
    """Return the findings of a record that stand on a line of source, as a SARIF log."""
    comparisons = [e.comparison for e in record.entries] if isinstance(record, Collection) else [record]
    return sarif_of(f for one in comparisons for f in kinds.sheet_of(one).findings)


def read(path: str | Path) -> dict[str, Any]:
    """Return the record a page or a ``.json`` file holds, as plain data.

    Raises
    ------
    RecordError
        If the file is missing, is not one of ours, or is damaged.
    """
    text = read_text(path)
    name = str(path)
    if Path(path).suffix.lower() in PAGE_SUFFIXES:
        _, opening, rest = text.partition(_OPENING)
        text, closing, _ = rest.partition("</script>")
        if not opening or not closing:
            raise RecordError(f"{name!r} holds no record: it is not a driftscope page, or it was cut short")
    try:
        data = parse_json(text, deepest=_DEEPEST)
    except TooDeep as error:
        raise RecordError(f"{name!r} is nested too deeply to be a record") from error
    except ValueError as error:  # also for whole numbers of thousands of digits
        raise RecordError(f"{name!r} is not a record, or is damaged: {error}") from error
    if isinstance(data, list) and data and all(isinstance(one, dict) and "max_abs_diff" in one for one in data):
        return Verification.from_torch(data).to_dict()  # what asdict() of torch's VerificationInfo gives
    if not isinstance(data, dict):
        raise RecordError(f"{name!r} is not a record: it holds a {type(data).__name__}, not an object")
    return data


def load(path: str | Path) -> Any:
    """Return the record a page or a ``.json`` file holds, of whatever kind.

    Raises
    ------
    RecordError
        As :func:`read`, and if the record's schema is unknown.
    """
    return _record_of(read(path), str(path))


def _record_of(data: Mapping[str, Any], name: str) -> Any:
    return Collection.from_dict(data) if data.get("schema") == COLLECTION_SCHEMA else kinds.record_of(data, name)
