"""``driftscope report RECORD``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from driftscope.cli.answers import answer_options, give
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command
from driftscope.errors import InputError, RecordError
from driftscope.records.words import counted


@make_command(
    "report",
    examples=(
        ("driftscope report record.json -o page.html", "make a page of a stored record"),
        ("driftscope report page.html", "read a page on the terminal"),
        ("driftscope report runs/gemm-0001 -o page.html", "make a page of a stored run"),
        ("driftscope report page.html --json", "get the record out of a page"),
        ("driftscope report page.html --annotate model.onnx seen.onnx", "see each node's drift in Netron"),
    ),
)
@click.argument("record", metavar="RECORD.json|PAGE.html|runs/ID")
@click.option("--annotate", nargs=2, type=click.Path(), metavar="MODEL OUT",
              help="Copy MODEL.onnx, the record's B, to OUT with each node's drift as its metadata.")  # fmt: skip
@click.option("--node-data", type=click.Path(dir_okay=False), metavar="FILE",
              help="Write node data for Model Explorer as JSON.")  # fmt: skip
@click.option("--measure", type=click.Choice(["drift", "floors"]), default="drift", show_default=True,
              help="What --node-data holds: drift between the sides in float64, or B's error in floors.")  # fmt: skip
@answer_options
def command(record: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Show a stored record again, or turn it into a page.

    Nothing is run, no tensor library is needed (but for --annotate), and the exit code is 0 whatever the verdict was.
    """
    loaded = _loaded(record)
    if options["node_data"]:
        _write_node_data(loaded, Path(options["node_data"]), options["measure"])
    if options["annotate"]:
        count = _annotate(loaded, *map(Path, options["annotate"]))
        if not journey.quiet:
            click.echo(f"Wrote {options['annotate'][1]}: {counted(count, 'node')} annotated", err=True)
    give(loaded, as_json=as_json, outputs=outputs, quiet=journey.quiet, details=journey.verbose)


def _loaded(record: str) -> Any:
    """Return the record of a file, or that of a run's folder."""
    folder = Path(record).resolve()
    if folder.is_dir():
        from driftscope.studies import open_study

        if not (folder / "run.json").is_file():
            told = f"`{shlex.join(['driftscope', 'runs', 'list', '--store', record])}` lists the runs in it"
            raise RecordError(f"{record!r} is a folder and no stored run, which would hold a run.json; {told}")
        return open_study(str(folder)).record
    from driftscope.report.pages.page import load

    return load(record)


def _write_node_data(loaded: Any, target: Path, measure: str) -> None:
    from driftscope.report.exchange.node_data import node_data

    data = json.dumps(node_data(loaded, measure), indent=2) + "\n"
    try:
        target.write_text(data, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r}: {error.strerror or error}") from error


def _annotate(loaded: Any, source: Path, target: Path) -> int:
    from driftscope.programs.inspection.annotating import annotate
    from driftscope.report.exchange.node_data import require_nodes

    require_nodes(loaded)
    about = {"verdict": str(loaded.verdict), "reason": loaded.reason}
    try:
        return annotate(source, target, loaded.nodes, about)
    except OSError as error:
        raise InputError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
