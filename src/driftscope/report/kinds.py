"""Which records there are, and who draws them: one line for each schema."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from driftscope.errors import RecordError
from driftscope.report.sheet import Sheet
from driftscope.report.terminal import sheet as sheet_text

#: schema -> (module of the record, its class, module of its ``sheet_of``)
KINDS: dict[str, tuple[str, str, str]] = {
    "driftscope/comparison/1": (
        "driftscope.records.kinds.comparison", "Comparison", "driftscope.report.sheets.comparison"),
    "driftscope/accumulation/1": (
        "driftscope.records.kinds.accumulation", "AccumulationRecord", "driftscope.report.sheets.accumulation"),
    "driftscope/verification/1": (
        "driftscope.records.kinds.verification", "Verification", "driftscope.report.sheets.verification"),
    "driftscope/session/1": ("driftscope.records.kinds.session", "Session", "driftscope.report.sheets.session"),
    "driftscope/transforms/1": (
        "driftscope.records.kinds.transform_report", "TransformReport", "driftscope.report.sheets.transforms"),
    "driftscope/shapes/1": ("driftscope.records.kinds.shape_report", "ShapeRecord", "driftscope.report.sheets.shapes"),
    "driftscope/invariance/1": (
        "driftscope.records.kinds.invariance_report", "InvarianceReport", "driftscope.report.sheets.invariance"),
    "driftscope/matrix/1": ("driftscope.records.kinds.matrix", "DriftMatrix", "driftscope.report.sheets.matrix"),
    "driftscope/blame/1": ("driftscope.records.kinds.left_out", "Blame", "driftscope.report.sheets.blame"),
    "driftscope/half-precision/1": (
        "driftscope.records.kinds.half_precision", "HalfPrecision", "driftscope.report.sheets.half"),
    "driftscope/study/1": ("driftscope.records.kinds.study", "StudyRecord", "driftscope.report.sheets.study"),
    "driftscope/unanswered/1": (
        "driftscope.records.kinds.unanswered", "Unanswered", "driftscope.report.sheets.unanswered"),
}  # fmt: skip


#: schema -> module of its ``render(record, *, width, color)``, where a terminal says it in words of its own
OWN_WORDS: dict[str, str] = {
    "driftscope/comparison/1": "driftscope.report.terminal.comparison",
    "driftscope/shapes/1": "driftscope.report.terminal.shapes",
    "driftscope/transforms/1": "driftscope.report.terminal.transforms",
    "driftscope/invariance/1": "driftscope.report.sheets.invariance",
    "driftscope/blame/1": "driftscope.report.sheets.blame",
    "driftscope/half-precision/1": "driftscope.report.sheets.half",
    "driftscope/study/1": "driftscope.report.sheets.study",
}


#: Records whose ``str`` is that line.
_SAID_BY_THEMSELVES = (
    "driftscope/comparison/1", "driftscope/accumulation/1", "driftscope/unanswered/1", "driftscope/verification/1",
    "driftscope/session/1",
)  # fmt: skip


def sheet_of(record: Any) -> Sheet:
    """Return the sheet of a record of any kind that has one."""
    module = importlib.import_module(KINDS[record.schema][2])
    sheet: Sheet = module.sheet_of(record)
    return sheet


def first_line_of(record: Any) -> str:
    """Return the answer as its first line says it: verdict, place, cause."""
    if record.schema in _SAID_BY_THEMSELVES:
        return str(record)
    sheet = sheet_of(record)
    return f"{sheet.headline}: {sheet.reason}" if sheet.reason else sheet.headline


def text_of(record: Any, *, width: int, color: bool) -> str:
    """Write a record for a terminal: in words of its own where its kind has them, else as its sheet.

    Which kinds have words of their own stands in :data:`OWN_WORDS`.
    """
    if record.schema in OWN_WORDS:
        own: Callable[..., str] = importlib.import_module(OWN_WORDS[record.schema]).render
        return own(record, width=width, color=color)
    return sheet_text.render(sheet_of(record), width=width, color=color)


def record_of(data: Mapping[str, Any], source: str) -> Any:
    """Read a record of any kind from plain data.

    Raises
    ------
    RecordError
        If the schema is unknown or the data is damaged; ``source`` names the file.
    """
    known = KINDS.get(str(data.get("schema")))
    if known is None:
        raise RecordError(
            f"{source!r} holds no record this version can read (schema {data.get('schema')!r}); "
            f"known: {', '.join(KINDS)}"
        )
    module, name, _ = known
    record_class: Callable[..., Any] = getattr(importlib.import_module(module), name)
    try:
        return record_class.from_dict(data)  # type: ignore[attr-defined]
    except RecordError as error:
        raise RecordError(f"{source!r}: {error}") from error
