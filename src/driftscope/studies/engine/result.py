"""What a study returns: rows, tables, pictures, a conclusion in words."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

from driftscope.errors import InputError, ends_us
from driftscope.programs.isolation.choice import watched
from driftscope.records.kinds.study import Statement, StudyRecord, columns_of, types_of
from driftscope.records.runs.rows import OK
from driftscope.records.showing import Shown
from driftscope.records.words import counted
from driftscope.studies import general_views
from driftscope.studies.engine.perform import Outcome, Running, run_study
from driftscope.studies.engine.plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

    from driftscope.records.runs.store import RunFolder


class Study(Shown):
    """The result of a study.

    Parameters
    ----------
    record : StudyRecord
        What is kept of it.
    views : str
        Module that knows how to read its rows; ``""`` for the general one.
    folder : Path or None
        Where its rows are stored.
    """

    __slots__ = ("_views", "folder", "record")

    def __init__(self, record: StudyRecord, views: str = "", folder: Path | None = None):
        self._views: ModuleType = importlib.import_module(views) if views else general_views
        self.record, self.folder = record, folder

    @property
    def schema(self) -> str:
        """The schema of the record, by which pages are drawn."""
        return self.record.schema

    @property
    def name(self) -> str:
        """The study's name."""
        return self.record.name

    @property
    def run(self) -> str:
        """Id of the stored run, ``""`` if it was not stored."""
        return self.record.run

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Plain rows in grid order: axes, results, ``outcome``, ``code``, ``words``."""
        return [dict(row) for row in self.record.rows]

    @property
    def failures(self) -> list[dict[str, Any]]:
        """The rows of cells that raised, crashed, were killed, ran out of memory or out of time."""
        return [dict(row) for row in self.record.failures]

    @property
    def conclusion(self) -> str:
        """What the rows show, in words; :attr:`statements` has the evidence of each sentence."""
        return self.record.conclusion

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The sentences of the conclusion, each with its evidence."""
        return self.record.statements

    @property
    def environment(self) -> Mapping[str, Any]:
        """Library versions, processor, arithmetic libraries, threads."""
        return self.record.environment

    def to_pandas(self) -> Any:
        """Return the rows as a pandas DataFrame (needs ``driftscope[frames]``)."""
        from driftscope.records.runs.tables import frame_of

        return frame_of(self.record.rows)

    def matrix(self, value: str | None = None, **where: Any) -> Any:
        """Return the study's table: of which kind depends on the study, see its own documentation.

        Parameters
        ----------
        value : str or None
            The column to show; None for the study's main result.
        where
            Axis values, as ``dtype="float16"``: only rows of these.

        Raises
        ------
        InputError
            If no finished row has these, or there is no such column.
        DependencyMissing
            If pandas is not installed.
        """
        record = _selected(self.record, where)
        if value is not None and not any(value in row for row in record.rows):
            raise InputError(f"there is no column {value!r}; there are {', '.join(columns_of(record.rows))}")
        return self._views.matrix(record, value)

    def plot(self, path: str | Path, **where: Any) -> Path:
        """Draw the study into a .png, .svg or .pdf file.

        Raises
        ------
        DependencyMissing
            If matplotlib is not installed.
        InputError
            If the file cannot be written, or there is nothing to draw.
        """
        from pathlib import Path

        drawn: Path = self._views.plot(_selected(self.record, where), Path(path))
        return drawn

    def save(self, path: str | Path) -> Path:
        """Write the rows (.csv, .md, .parquet, .jsonl), the record (.json) or a page (.html)."""
        from pathlib import Path

        from driftscope.records.files import PAGE_SUFFIXES
        from driftscope.records.runs.tables import TABLE_SUFFIXES, write_table

        target = Path(path)
        if target.suffix.lower() in TABLE_SUFFIXES:
            return write_table(self.record.rows, target)
        record = self._pictured() if target.suffix.lower() in PAGE_SUFFIXES else self.record
        return record.save(target)

    def _repr_html_(self) -> str:
        return self._pictured()._repr_html_()

    def _repr_markdown_(self) -> str:
        return self.record._repr_markdown_()

    def _pictured(self) -> StudyRecord:
        return replace(self.record, pictures=self._pictures())

    def _pictures(self) -> dict[str, str]:
        """Draw the study for its page; without matplotlib, or without rows that can be drawn, there is no picture."""
        if importlib.util.find_spec("matplotlib") is None:
            return {}
        import tempfile
        from pathlib import Path

        with tempfile.TemporaryDirectory() as folder:
            try:
                drawn = self.plot(Path(folder) / "study.svg")
            except InputError:
                return {}
            return {self.name: drawn.read_text(encoding="utf-8")}

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return self.record.to_dict()

    def __str__(self) -> str:
        return str(self.record)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Study {self.run or self.name}: {counted(len(self.record.rows), 'row')}{failed}>"


def perform(plan: Plan, running: Running) -> Study:
    """Run a study and read its rows; after Ctrl-C those that are there, where somebody watches this process."""
    begun: list[RunFolder] = []
    try:
        outcome = run_study(plan, running, begun.append)
    except KeyboardInterrupt as error:
        if not (begun and watched() and ends_us(error)):
            raise
        return stored_study(begun[0])
    return _study(plan, running, outcome)


def stored_study(folder: RunFolder) -> Study:
    """Read a stored run; an unfinished one has the rows that are there."""
    entries = folder.entries()
    header = folder.header
    order = {name: index for index, name in enumerate(_cell_names(header["axes"]))}
    missing = sum(name not in entries for name in order)
    found = sorted(entries.values(), key=lambda entry: order.get(entry.cell, len(order)))
    views = str(header.get("views") or "")
    record = StudyRecord(
        name=str(header["study"]), run=folder.name, axes=header["axes"], fixed=header.get("fixed", {}),
        seed=int(header.get("seed", 0)), rows=tuple(row for entry in found for row in entry.rows),
        environment=header.get("environment", {}), times={e.cell: e.seconds for e in found},
        command=str(header.get("command", "")), missing=missing,
    )  # fmt: skip
    return _concluded(record, views, folder.path)


def _study(plan: Plan, running: Running, outcome: Outcome) -> Study:
    record = StudyRecord(
        name=plan.name, run=outcome.folder.name if outcome.folder else "", axes=dict(plan.grid.axes),
        fixed=dict(plan.fixed), seed=plan.seed, rows=tuple(row for entry in outcome.entries for row in entry.rows),
        environment=outcome.environment, times={e.cell: e.seconds for e in outcome.entries}, command=running.command,
    )  # fmt: skip
    return _concluded(record, plan.views, outcome.folder)


def _concluded(record: StudyRecord, views: str, folder: Path | None) -> Study:
    if views and not views.startswith("driftscope.studies."):
        views = ""  # run.json is a file like any other: it does not choose what is imported
    study = Study(record, views, folder)
    conclude: Callable[[StudyRecord], tuple[Statement, ...]] = study._views.conclude
    statements = general_views.unfinished(record)
    if record.rows:
        statements = (*statements, *conclude(record), *general_views.failures(record))
    tables = getattr(study._views, "tables", None)
    shown = tables(record) if tables is not None and record.rows else ()
    return Study(replace(record, statements=statements, tables=shown, columns=types_of(record.rows)), views, folder)


def _selected(record: StudyRecord, where: Mapping[str, Any]) -> StudyRecord:
    for name in where:
        if not any(name in row for row in record.rows):
            raise InputError(f"no row has a column {name!r}; axes are {', '.join(record.axes)}")
    rows = tuple(row for row in record.rows if all(str(row.get(k)) == str(v) for k, v in where.items()))
    if not any(row.get("outcome") == OK for row in rows):
        raise InputError(f"no finished row has {', '.join(f'{k}={v}' for k, v in where.items()) or 'any result'}")
    return replace(record, rows=rows)


def _cell_names(axes: Mapping[str, Any]) -> list[str]:
    from driftscope.studies.engine.grid import make_grid

    return [cell.name for cell in make_grid(axes).cells()]
