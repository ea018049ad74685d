"""``driftscope pretty MODEL``."""

from __future__ import annotations

import json

import click

from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command
from driftscope.cli.unanswered import unanswered


@make_command(
    "pretty",
    runs=unanswered,
    examples=(
        ("driftscope pretty model.onnx", "one line per node, weights with shape and values"),
        ("driftscope pretty model.onnx --optimized", "what onnxruntime made of it, and runs"),
    ),
)
@click.argument("model")
@click.option("--optimized", is_flag=True, help="List the graph that the runtime made of the model and runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the lines as JSON.")
def command(model: str, *, journey: Journey, optimized: bool, as_json: bool) -> None:
    """List the graph of an .onnx or .pt2 file."""
    with journey.travelling():
        journey("Loading the tensor libraries")
        from driftscope.programs.inspection.listing import listing_of
        from driftscope.report.wording import clean

        # Names come from whoever made the file: none of them may steer a terminal.
        lines = [clean(line) for line in listing_of(model, optimized=optimized).split("\n")]
    say(json.dumps({"model": model, "optimized": optimized, "lines": lines}) if as_json else "\n".join(lines))
