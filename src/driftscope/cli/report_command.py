"""``driftscope report RECORD``."""

from __future__ import annotations

import click

from driftscope.cli.answers import answer_options, give
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command


@make_command(
    "report",
    examples=(
        ("driftscope report record.json -o page.html", "make a page of a stored record"),
        ("driftscope report page.html", "read a page on the terminal"),
        ("driftscope report page.html --json", "get the record out of a page"),
    ),
)
@click.argument("record", metavar="RECORD.json|PAGE.html")
@answer_options
def command(record: str, *, journey: Journey, as_json: bool, output: str | None) -> None:
    """Show a stored record again, or turn it into a page.

    Nothing is run, no tensor library is needed, and the exit code is 0 whatever the verdict was.
    """
    from driftscope.report.page import load

    give(load(record), as_json=as_json, output=output, quiet=journey.quiet)
