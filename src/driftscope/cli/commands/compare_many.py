"""``driftscope compare-many LIST.csv|FOLDER``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import click

from driftscope.cli.commands.study import outputs_option, place_options, rows_kept, show, write
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command
from driftscope.errors import Exit
from driftscope.records.verdict import FailOn, Verdict


@make_command(
    "compare-many",
    runs=rows_kept,
    examples=(
        ("driftscope compare-many pairs.csv -o page.html", "every pair of a list, as one page"),
        ("driftscope compare-many models/ --workers 4", "each NAME.pt2 of a folder with its NAME.onnx"),
        ("driftscope compare-many models/ --cluster tcp://localhost:8786", "the same on a cluster"),
    ),
)
@click.argument("source", metavar="LIST.csv|FOLDER")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of drawn inputs and of the noise.")
@click.option("--no-explain", is_flag=True, help="Give the verdicts without looking for places.")
@click.option("--fail-on", type=click.Choice([f.value for f in FailOn]), default="precision", show_default=True,
              help="Mildest verdict that ends with exit code 1.")  # fmt: skip
@place_options
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
@outputs_option
def command(
    source: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], no_explain: bool, fail_on: str,
    seed: int, **options: Any,
) -> None:  # fmt: skip
    """Compare many pairs of programs, and give one table.

    LIST.csv has the columns a and b (as driftscope compare takes them) and, where wanted, name and inputs (several
    separated by ;). In a FOLDER, NAME.onnx is compared with NAME.pt2, and NAME.SOMETHING.onnx with the first of these.

    Rows are kept under runs/ID as they come. A pair that crashes, fills the memory or runs past its limit is a row
    that says so. Stopped and started again, the command makes the rows that are missing.
    """
    words = ["driftscope", "compare-many", source, "--seed", str(seed), *(["--no-explain"] if no_explain else [])]
    with journey.travelling():
        journey("Loading the tensor libraries")
        from driftscope.studies import comparisons

        done = comparisons(
            source, explain=not no_explain, seed=seed, **options, command=shlex.join(words), progress=journey
        )
        for path in outputs:
            write(done, path)
    show(done, journey, as_json=as_json, outputs=outputs)
    fails = FailOn(fail_on)
    failed = any(
        fails.fails(Verdict(row["verdict"]), functions_differ=bool(row["functions_differ"]))
        for row in done.rows
        if row.get("verdict")
    )
    raise SystemExit(int(Exit.FINDING if failed or done.failures else Exit.SAME))
