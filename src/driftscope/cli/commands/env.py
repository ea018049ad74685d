"""``driftscope env``."""

from __future__ import annotations

import contextlib
import importlib
import json
from typing import Any

import click

from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command

_NAME_WIDTH = 26


@make_command(
    "env",
    examples=(
        ("driftscope env", "what to paste into a bug report"),
        ("driftscope env --json", "the same as data"),
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, journey: Journey, as_json: bool) -> None:
    """Print the environment that numbers are made in.

    Versions, processor and its arithmetic instructions, BLAS, threads, GPU, and the variables that change results.
    """
    from driftscope.records.environment import capture, untried

    with journey.travelling():
        journey("Loading the tensor libraries")
        for module in ("numpy", "torch", "onnxruntime"):
            # What is not installed, or does not load, is missing from the answer: that is the answer.
            with contextlib.suppress(ImportError, OSError):
                importlib.import_module(module)
        found = capture()
    notes = untried(found["versions"])
    if notes:
        found["notes"] = notes
    say(json.dumps(found, indent=2) if as_json else "\n".join(_lines(found)))


def _lines(data: dict[str, Any], indent: int = 0) -> list[str]:
    lines = []
    for name, value in data.items():
        margin = " " * indent
        if isinstance(value, dict) and value:
            lines += [f"{margin}{name}", *_lines(value, indent + 2)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for index, item in enumerate(value):
                lines += [f"{margin}{name} {index}", *_lines(item, indent + 2)]
        elif isinstance(value, list) and any(" " in str(item) for item in value):
            lines += [f"{margin}{name}", *(f"{margin}  {item}" for item in value)]
        else:
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value or "none")
            lines.append(f"{margin}{name:<{_NAME_WIDTH - indent}} {text}")
    return lines
