"""``driftscope runs list | show | diff | query``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from driftscope.cli.answers import screen
from driftscope.cli.commands.study import answer, outputs_option, write
from driftscope.cli.help_pages import ExamplesFirst
from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command
from driftscope.errors import Exit


class _RunsGroup(ExamplesFirst, click.Group):
    """A group that shows examples first."""


@click.group(
    "runs",
    cls=_RunsGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        ("driftscope runs list", "which runs are kept"),
        ("driftscope runs show gemm-0001 -o gemm.png", "a run again, with its picture"),
        ("driftscope runs diff gemm-0001 gemm-0002", "what changed, and what in the environment"),
        ('driftscope runs query "SELECT dtype, max(floors) FROM rows GROUP BY dtype"', "ask all rows of all runs"),
    ),
)
def command() -> None:
    """List stored runs, show one, lay two side by side, or ask them with SQL."""


def store_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--store``."""
    return click.option("--store", default="runs", show_default=True, metavar="FOLDER", help="Where runs are kept.")(
        function
    )


def _add(name: str, *examples: tuple[str, str]) -> Callable[[Callable[..., Any]], click.Command]:
    def wrap(function: Callable[..., Any]) -> click.Command:
        made = make_command(name, examples=examples)(function)
        command.add_command(made)
        return made

    return wrap


@_add("list", ("driftscope runs list", "the runs in ./runs"))
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_runs(*, journey: Journey, store: str, as_json: bool) -> None:
    """List stored runs: how far each is, how many cells failed, where and when it was started.

    A run that cannot be read, and lines of a run that are no rows, are named below the list. Nothing is changed.
    """
    from driftscope.records.runs.listing import listing_of
    from driftscope.report.terminal import runs

    listed = listing_of(store)
    if as_json:
        say(json.dumps(listed, indent=2))
    else:
        say(runs.listing(listed, store, width=screen()[0]))


@_add("show", ("driftscope runs show reduction-0001", "what it shows"),
      ("driftscope runs show reduction-0001 -o rows.parquet -o picture.png", "rows and picture in files"))  # fmt: skip
@click.argument("run")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
@outputs_option
def show(run: str, *, journey: Journey, store: str, as_json: bool, outputs: Sequence[str]) -> None:
    """Show a stored run: its conclusion, and its rows or its picture in files."""
    with journey.travelling():
        journey("Reading the run")
        from driftscope.studies import open_study

        study = open_study(run, store)
        for path in outputs:
            write(study, path)
    if as_json:
        say(json.dumps(study.to_dict(), indent=2))
        return
    say(answer(study, journey))
    for path in () if journey.quiet else outputs:
        click.echo(f"Wrote {path}", err=True)


@_add("diff", ("driftscope runs diff gemm-0001 gemm-0002", "before and after an upgrade"))
@click.argument("a")
@click.argument("b")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(a: str, b: str, *, journey: Journey, store: str, as_json: bool) -> None:
    """Say which rows changed class from run A to run B, by how many floors, and what differs in the environment.

    The exit code is 0 when all rows are equal, else 1.
    """
    from driftscope.records.runs.listing import difference
    from driftscope.records.runs.store import open_run
    from driftscope.report.terminal import runs

    found = difference(open_run(store, a), open_run(store, b))
    text = runs.difference(found, width=screen()[0])
    if as_json:
        say(json.dumps(found.to_dict(), indent=2))
    else:
        say(text.splitlines()[0] if journey.quiet else text)
    raise SystemExit(int(Exit.FINDING if found.any else Exit.SAME))


@_add(
    "query",
    ('driftscope runs query "SELECT run, count(*) FROM rows GROUP BY run"', "rows of all runs"),
    ("driftscope runs query \"SELECT * FROM environment WHERE name LIKE 'versions.%'\"", "where they were made"),
)
@click.argument("sql")
@store_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def query(sql: str, *, journey: Journey, store: str, as_json: bool) -> None:
    """Ask stored runs with one SELECT, answered by DuckDB where the files are.

    Tables: rows (run, study, axes, results, outcome, code, words, seconds), runs, environment (run, name, value).
    """
    from driftscope.records.runs.queries import ask
    from driftscope.records.runs.rows import spelled
    from driftscope.records.runs.store import runs_in, unreadable_in
    from driftscope.report.terminal import runs
    from driftscope.report.wording import one_line

    columns, rows = ask(runs_in(store), sql)
    for left_out in unreadable_in(store):
        click.echo(one_line(f"Left out: {left_out.reason}"), err=True)
    if as_json:
        plain = [dict(zip(columns, map(spelled, row), strict=True)) for row in rows]
        say(json.dumps(plain, indent=2, default=str))
    else:
        say(runs.table(columns, rows, width=screen()[0]))
