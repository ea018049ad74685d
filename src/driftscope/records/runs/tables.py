"""Rows of a study as tables: DataFrame, CSV, Markdown, Parquet, JSON lines."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from driftscope.errors import DependencyMissing, InputError
from driftscope.records.kinds.study import columns_of, types_of
from driftscope.records.runs.rows import spelled
from driftscope.records.words import clean, escaped

TABLE_SUFFIXES = (".csv", ".md", ".parquet", ".jsonl")
Rows = tuple[Mapping[str, Any], ...]


def frame_of(rows: Rows) -> Any:
    """Return rows as a pandas DataFrame.

    Raises
    ------
    DependencyMissing
        If pandas is not installed.
    """
    if importlib.util.find_spec("pandas") is None:
        raise DependencyMissing("to_pandas()", "pandas", "frames")
    import pandas

    return pandas.DataFrame([dict(row) for row in rows], columns=columns_of(rows))


def write_table(rows: Rows, path: Path) -> Path:
    """Write rows in the format the suffix names.

    Raises
    ------
    InputError
        For an unknown suffix or a place that cannot be written.
    DependencyMissing
        For Parquet without duckdb.
    """
    suffix = path.suffix.lower()
    if suffix not in TABLE_SUFFIXES:
        raise InputError(f"cannot write a table to {str(path)!r}: the name must end in {', '.join(TABLE_SUFFIXES)}")
    try:
        if suffix == ".parquet":
            _write_parquet(rows, path)
        else:
            path.write_text({".csv": as_csv, ".md": as_markdown, ".jsonl": as_lines}[suffix](rows), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from error
    return path


def as_csv(rows: Rows) -> str:
    """Write rows as CSV with a header line; lists as JSON, None as nothing, every digit of a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = columns_of(rows)
    writer.writerow(columns)
    writer.writerows([[_cell(row.get(name)) for name in columns] for row in rows])
    return text.getvalue()


def as_markdown(rows: Rows) -> str:
    """Write rows as a Markdown table, numbers to four digits and on the right."""
    columns = columns_of(rows)
    numeric = {c: all(isinstance(r.get(c), (int, float, type(None))) for r in rows) for c in columns}
    lines = ["| " + " | ".join(columns) + " |", "|" + "|".join("--:" if numeric[c] else "---" for c in columns) + "|"]
    lines += ["| " + " | ".join(_in_markdown(_short(row.get(c))) for c in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _in_markdown(text: str) -> str:
    return escaped(" ".join(clean(text).split())).replace("|", "\\|")


def as_lines(rows: Rows) -> str:
    """Write rows as JSON lines."""
    return "".join(json.dumps({k: spelled(v) for k, v in row.items()}, ensure_ascii=False) + "\n" for row in rows)


def _write_parquet(rows: Rows, path: Path) -> None:
    from driftscope.records.runs.queries import connect, quoted, rows_file_sql

    types = types_of(rows)
    lines = path.with_name(f".{path.name}.jsonl.part")
    try:
        lines.write_text(as_lines(rows), encoding="utf-8")
        with connect() as database:
            database.execute(f"COPY ({rows_file_sql([lines], types)}) TO {quoted(str(path))} (FORMAT parquet)")
    finally:
        lines.unlink(missing_ok=True)


def _cell(value: Any) -> Any:
    return json.dumps(spelled(value)) if isinstance(value, list) else "" if value is None else value


def _short(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return f"{len(value)} numbers"
    return str(value)
