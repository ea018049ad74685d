"""How a command gives its answer: text or JSON on stdout, a page or a record in a file."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from driftscope.cli.surroundings import say
from driftscope.records.files import check_target
from driftscope.records.kinds.collection import Collection
from driftscope.records.kinds.comparison import Comparison

PIPED_WIDTH = 100
WIDEST = 120


def answer_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json`` and a repeatable ``-o``."""
    function = click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")(function)
    return click.option(
        "-o", "--output", "outputs", multiple=True, callback=_writable, metavar="FILE",
        help="Also write FILE: a page (.html), the record (.json), a summary (.md) or SARIF (.sarif). Repeatable.",
    )(function)  # fmt: skip


def _writable(_ctx: click.Context, _parameter: click.Parameter, paths: Sequence[str]) -> Sequence[str]:
    from driftscope.errors import InputError

    for path in paths:
        try:
            check_target(path)
        except InputError as error:
            raise click.BadParameter(str(error)) from error
    return paths


def give(record: Any, *, as_json: bool, outputs: Sequence[str], quiet: bool, details: bool = False) -> None:
    """Write the record to every file of ``outputs`` first, then the answer to stdout; after Ctrl-C the answer alone."""
    written: list[str] = []

    def answer() -> None:
        say(json.dumps(record.to_dict(), indent=2) if as_json else text_of(record, quiet=quiet, details=details))
        for path in () if quiet or as_json else written:
            click.echo(f"Wrote {path}", err=True)

    try:
        for path in outputs:
            record.save(path)
            written.append(path)
    except KeyboardInterrupt:
        answer()
        raise
    answer()


def text_of(record: Any, *, quiet: bool, details: bool = False) -> str:
    """Write a record for this terminal."""
    from driftscope.report import kinds, wording
    from driftscope.report.terminal import comparison

    width, color = screen()
    if isinstance(record, Collection):
        if quiet:
            return "\n".join(
                wording.one_line(f"{e.comparison.verdict}: {e.title}: {e.comparison.answer}") for e in record.entries
            )
        return comparison.render_collection(record, width=width, color=color, details=details)
    if quiet:
        return wording.one_line(kinds.first_line_of(record))
    if isinstance(record, Comparison):
        return comparison.render(record, width=width, color=color, details=details)
    return kinds.text_of(record, width=width, color=color)


def screen() -> tuple[int, bool]:
    """Return width and whether to use colour: NO_COLOR wins, then FORCE_COLOR, then whether stdout is a terminal."""
    terminal = sys.stdout.isatty()
    color = not os.environ.get("NO_COLOR") and (bool(os.environ.get("FORCE_COLOR")) or terminal)
    if terminal and os.environ.get("TERM") == "dumb" and not os.environ.get("FORCE_COLOR"):
        color = False
    # Piped output has the width of no terminal; COLUMNS, where it is set, is what somebody asked for.
    asked = terminal or os.environ.get("COLUMNS", "").isdigit()
    width = min(shutil.get_terminal_size((PIPED_WIDTH, 24)).columns, WIDEST) if asked else PIPED_WIDTH
    return width, color
