"""Asking stored runs with SQL. DuckDB reads the row files where they are; nothing is imported into a database.

Three tables: ``rows`` (all rows of all runs, with ``run`` and ``study`` in front), ``runs`` (one line for each run) and
``environment`` (run, name, value). A run with many rows is read from ``rows-<fingerprint>.parquet`` beside its row
files, which is made on the first question and again when rows were added.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from driftscope.errors import DependencyMissing, InputError
from driftscope.records.runs.listing import flattened, summary_of
from driftscope.records.runs.store import RunFolder

_COPY = re.compile(r"rows-[0-9a-f]{12}\.parquet")
_LARGE = 4 << 20  # bytes of row files from which a Parquet copy pays


@contextlib.contextmanager
def connect() -> Iterator[Any]:
    """Open DuckDB in memory.

    Raises
    ------
    DependencyMissing
        If duckdb is not installed.
    """
    if importlib.util.find_spec("duckdb") is None:
        raise DependencyMissing("asking stored runs", "duckdb", "store")
    import duckdb

    with duckdb.connect() as database:
        yield database


def ask(runs: Sequence[RunFolder], sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Answer a SELECT.

    Parameters
    ----------
    runs : sequence of RunFolder
    sql : str
        One SELECT over ``rows``, ``runs`` and ``environment``.

    Returns
    -------
    columns : list of str
    rows : list of tuple

    Raises
    ------
    InputError
        If it is not a single SELECT, or DuckDB does not understand it; its own words are given.
    """
    with connect() as database:
        import duckdb

        try:
            statements = database.extract_statements(sql)
        except duckdb.Error as error:
            raise InputError(f"DuckDB does not understand the query: {error}") from error
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise InputError("a query is one SELECT statement: stored rows are read, never changed")
        try:
            _define(database, runs, sql.lower())
        except (duckdb.Error, RuntimeError) as error:
            raise InputError(f"the stored rows cannot be read, they are damaged: {error}") from error
        try:
            answer = database.execute(sql)
            # A text that is not Unicode ends in C++'s bad_cast, a RuntimeError and not one of DuckDB's own.
            return [column[0] for column in answer.description], answer.fetchall()
        except (duckdb.Error, RuntimeError) as error:
            words = str(error).partition("Traceback")[0].strip().rstrip(":")
            raise InputError(f"DuckDB cannot answer the query: {words}") from error


def rows_sql(run: RunFolder) -> str:
    """Return SQL that reads the rows of a run, finished cells only, each once."""
    sources = run.row_files()
    if not sources:
        return "SELECT NULL::VARCHAR AS cell, NULL::VARCHAR AS outcome WHERE false"
    small = sum(path.stat().st_size for path in sources) < _LARGE
    copy = None if small or run.is_live() else _parquet_copy(run, sources)
    if copy is None:
        return _once(rows_file_sql(sources, run.columns()))
    return f"SELECT * FROM read_parquet({quoted(str(copy))})"


def rows_file_sql(paths: Sequence[Path], columns: Mapping[str, str]) -> str:
    """Return SQL that reads files of JSON lines with the given types."""
    files = ", ".join(quoted(str(path)) for path in paths)
    types = ", ".join(f"{quoted(name)}: {quoted(kind)}" for name, kind in columns.items())
    return (
        f"SELECT * EXCLUDE (filename), filename AS writer FROM read_json([{files}], format='newline_delimited', "
        f"ignore_errors=true, filename=true, maximum_object_size=67108864, columns={{{types}}})"
        if "cell" in columns
        else f"SELECT * FROM read_json([{files}], format='newline_delimited', columns={{{types}}})"
    )


def quoted(text: str) -> str:
    """Return an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def _once(source: str) -> str:
    """Keep finished cells, of each the latest attempt, of equal ones the earliest writer's."""
    return (
        f"SELECT * EXCLUDE (writer, whole) FROM (SELECT *, count(DISTINCT part) OVER "
        f"(PARTITION BY cell, attempt, writer) = parts AS whole FROM ({source}) WHERE cell IS NOT NULL) "
        f"WHERE whole QUALIFY rank() OVER (PARTITION BY cell ORDER BY attempt DESC, writer) = 1"
    )


def _parquet_copy(run: RunFolder, sources: Sequence[Path]) -> Path | None:
    """Return a copy of the rows that is fast to ask, None where it cannot be written beside them."""
    state = repr([(path.name, path.stat().st_size) for path in sources])
    copy = run.path / f"rows-{hashlib.blake2b(state.encode(), digest_size=6).hexdigest()}.parquet"
    if not copy.exists():
        draft = copy.with_name(f".{copy.name}.{secrets.token_hex(4)}.part")
        if not os.access(run.path, os.W_OK):
            return None
        try:
            with connect() as database:
                source = _once(rows_file_sql(sources, run.columns()))
                database.execute(f"COPY ({source}) TO {quoted(str(draft))} (FORMAT parquet)")
            draft.replace(copy)
        except OSError:  # a full disk: the rows themselves are still there to be asked
            return None
        finally:
            draft.unlink(missing_ok=True)
        for stale in run.path.glob("rows-*.parquet"):
            if stale != copy and _COPY.fullmatch(stale.name):
                stale.unlink(missing_ok=True)
    return copy


def _define(database: Any, runs: Sequence[RunFolder], asked: str) -> None:
    """Define the tables that a query names: counting the cells of a million rows takes longer than asking them."""
    if not runs:
        raise InputError("there are no runs to ask; `driftscope study` makes one")
    if "rows" in asked:
        parts = [
            f"SELECT {quoted(run.name)} AS run, {quoted(str(run.header['study']))} AS study, * FROM ({rows_sql(run)})"
            for run in runs
        ]
        database.execute("CREATE VIEW rows AS " + " UNION ALL BY NAME ".join(parts))
    if "runs" in asked:
        _fill(database, "runs", [summary_of(run) for run in runs])
    if "environment" in asked:
        entries = [
            {"run": run.name, "name": name, "value": value}
            for run in runs
            for name, value in flattened(run.header.get("environment", {})).items()
        ]
        _fill(database, "environment", entries)


def _fill(database: Any, table: str, lines: Sequence[Mapping[str, str | int]]) -> None:
    if not lines:
        return
    columns = {name: "BIGINT" if isinstance(value, int) else "VARCHAR" for name, value in lines[0].items()}
    database.execute(f"CREATE TABLE {table} ({', '.join(f'{c} {t}' for c, t in columns.items())})")
    marks = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", [list(line.values()) for line in lines])
