"""Which records there are, and who draws them: one line for each schema."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from driftscope.errors import RecordError
from driftscope.report import sheet_text
from driftscope.report.sheet import Sheet

#: schema -> (module of the record, its class, module of its ``sheet_of``)
KINDS: dict[str, tuple[str, str, str]] = {
    "driftscope/comparison/1": (
        "driftscope.records.comparison", "Comparison", "driftscope.report.comparison_sheet"),
    "driftscope/accumulation/1": (
        "driftscope.records.accumulation_record", "AccumulationRecord", "driftscope.report.accumulation_sheet"),
    "driftscope/verification/1": (
        "driftscope.records.verification", "Verification", "driftscope.report.verification_sheet"),
    "driftscope/session/1": ("driftscope.records.session", "Session", "driftscope.report.session_sheet"),
    "driftscope/transforms/1": (
        "driftscope.records.transform_report", "TransformReport", "driftscope.report.transforms_sheet"),
    "driftscope/shapes/1": ("driftscope.records.shape_report", "ShapeRecord", "driftscope.report.shapes_sheet"),
    "driftscope/matrix/1": ("driftscope.records.matrix", "DriftMatrix", "driftscope.report.matrix_sheet"),
    "driftscope/blame/1": ("driftscope.records.left_out", "Blame", "driftscope.report.blame_sheet"),
    "driftscope/half-precision/1": (
        "driftscope.records.half_precision", "HalfPrecision", "driftscope.report.half_sheet"),
    "driftscope/study/1": ("driftscope.records.study_record", "StudyRecord", "driftscope.report.study_sheet"),
}  # fmt: skip


def sheet_of(record: Any) -> Sheet:
    """Return the sheet of a record of any kind that has one."""
    module = importlib.import_module(KINDS[record.schema][2])
    sheet: Sheet = module.sheet_of(record)
    return sheet


def text_of(record: Any, *, width: int, color: bool) -> str:
    """Write a record for a terminal: in words of its own where its kind has them, else as its sheet.

    A kind with words of its own has a ``render(record, *, width, color)`` in the module of its ``sheet_of``.
    """
    module = importlib.import_module(KINDS[record.schema][2])
    own: Callable[..., str] | None = getattr(module, "render", None)
    if own is not None:
        return own(record, width=width, color=color)
    return sheet_text.render(module.sheet_of(record), width=width, color=color)


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
    return record_class.from_dict(data)  # type: ignore[attr-defined]
