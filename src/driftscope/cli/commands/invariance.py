"""``driftscope invariance PROGRAM``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from driftscope.cli.answers import answer_options, give
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command
from driftscope.cli.unanswered import unanswered
from driftscope.errors import Exit
from driftscope.records.kinds.invariance_report import AXES
from driftscope.records.verdict import FailOn

_FAIL_ON = [f.value for f in FailOn if f is not FailOn.FUNCTION]


@make_command(
    "invariance",
    runs=unanswered,
    examples=(
        ("driftscope invariance model.py:make_model", "does a row depend on its batch, the threads, the run?"),
        ("driftscope invariance model.onnx --input x=4x64:float32 --axes batch,threads", "of an ONNX file"),
        ("driftscope invariance model.py:rnn --input x=7x4x16:float32 --batch x=1", "when the batch is not axis 0"),
        ("driftscope invariance model.py:encoder --axes padding --mask mask=0", "does padding change the results?"),
        ("driftscope invariance model.py:encoder --fail-on rounding", "in CI: fail unless all bits are the same"),
    ),
)
@click.argument("program")
@click.option("--input", "inputs", multiple=True, metavar="NAME=SPEC|FILE",
              help="An input to draw (x=4x64:float32) or a file with inputs. Repeatable.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of drawn inputs and of the noise.")
@click.option("--axes", metavar="AXIS,...", help=f"Any of {', '.join(AXES)}, or all. [default: all but processes]")
@click.option("--batch", metavar="NAME=AXIS,...", help="The batch axis of each input that has one. [default: axis 0]")
@click.option("--sequence", metavar="NAME=AXIS,...", help="The sequence axis of each input. [default: by the mask]")
@click.option("--mask", metavar="NAME[=VALUE]",
              help="The input that marks padding, or holds lengths. [default: by name]")  # fmt: skip
@click.option("--pad", type=int, help="What integers are padded with. [default: the model's pad_token_id]")
@click.option("--no-explain", is_flag=True, help="Do not look for the place, and try no change.")
@click.option("--fail-on", type=click.Choice(_FAIL_ON), default="precision", show_default=True,
              help="Mildest outcome that ends with exit code 1: precision is different or refused.")  # fmt: skip
@answer_options
def command(program: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Say on what a result depends beside its inputs' values: batch, order, threads, run, layout.

    PROGRAM is an .onnx or .pt2 file, or package.module:name or file.py:name, where the name is a module, a callable,
    or a function without arguments that returns one, or one and its inputs.

    At equal shapes the content of other rows must not change one bit of a row. Another batch size may cost rounding,
    which is measured in noise floors.
    """
    with journey.travelling():
        journey("Loading the tensor libraries")
        from driftscope.invariance.checking import DEFAULT_AXES, check_invariance
        from driftscope.programs.feeding.feeds import make_inputs
        from driftscope.programs.loading.load import load_program

        loaded = load_program(program)
        given = make_inputs(list(options["inputs"]), seed=options["seed"]) if options["inputs"] else None
        record = check_invariance(
            loaded, given, axes=options["axes"] or DEFAULT_AXES, batch=options["batch"],
            sequence=options["sequence"], mask=options["mask"], pad=options["pad"],
            explain=not options["no_explain"], seed=options["seed"], progress=journey,
        )  # fmt: skip
        record = replace(record, command=command_line(program, options))
    give(record, as_json=as_json, outputs=outputs, quiet=journey.quiet)
    from driftscope.report.sheets.invariance import record_fails

    raise SystemExit(int(Exit.FINDING if record_fails(record, FailOn(options["fail_on"])) else Exit.SAME))


def command_line(program: str, options: dict[str, Any]) -> str:
    """Return the command that makes this record again."""
    words = ["driftscope", "invariance", program]
    for value in options["inputs"]:
        words += ["--input", value]
    words += ["--seed", str(options["seed"])]
    for flag in ("axes", "batch", "sequence", "mask", "pad"):
        if options[flag] not in (None, ""):
            words += [f"--{flag}", str(options[flag])]
    return shlex.join(words + (["--no-explain"] if options["no_explain"] else []))
