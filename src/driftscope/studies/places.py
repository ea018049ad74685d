"""Rows of one data set, dtype and device together: what the studies of variants are read by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from driftscope.errors import InputError
from driftscope.records.kinds.study import StudyRecord
from driftscope.records.runs.rows import OK
from driftscope.studies.gemm_study.cell import NOT_AVAILABLE

PLACE = ("data", "dtype", "device")


def places(record: StudyRecord) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Walk over data set, dtype and device, with the rows of each."""
    fine = [row for row in record.rows if row.get("outcome") == OK]
    for key in dict.fromkeys(tuple(row[axis] for axis in PLACE) for row in fine):
        yield dict(zip(PLACE, key, strict=True)), [row for row in fine if tuple(row[a] for a in PLACE) == key]


def pair_values(rows: Sequence[Any], column: str) -> dict[tuple[str, str], Any]:
    """Return a column of pairs by both names, in both orders; a variant with itself is a zero or the same bits."""
    there = [row["variant"] for row in rows if row["kind"] == "variant" and row["verdict"] != NOT_AVAILABLE]
    found: dict[tuple[str, str], Any] = {(v, v): "same bits" if column == "verdict" else 0.0 for v in there}
    for row in rows:
        if row["kind"] == "pair":
            if column not in row:
                raise InputError(f"pairs have no column {column!r}; they have max_abs, rms, max_ulp, floors, verdict")
            found[row["variant"], row["other"]] = found[row["other"], row["variant"]] = row[column]
    return found
