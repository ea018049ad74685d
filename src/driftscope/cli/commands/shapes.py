"""``driftscope shapes TARGET``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from driftscope.cli.answers import answer_options, give
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command
from driftscope.cli.unanswered import unanswered
from driftscope.errors import Exit, InputError

if TYPE_CHECKING:
    from driftscope.records.kinds.shape_report import ShapeRecord

#: What each choice of --fail-on fails for.
FAILING = {"wrong": ("wrong", "crash"), "lost": ("wrong", "crash", "lost"), "never": ()}


@make_command(
    "shapes",
    runs=unanswered,
    examples=(
        ("driftscope shapes model.py:make_model", "which shapes does the export keep, on the model's own inputs?"),
        ("driftscope shapes model.py:Net --input x=2x5:float32 --fail-on lost", "in CI: fail if any shape is lost"),
        ("driftscope shapes model.py:Net --input x=2x5:float32 --dynamic x=0,1 -o page.html", "only these may vary"),
        ("driftscope shapes model.py:make_model --onnx out.onnx", "write the ONNX file, and say where it is wrong"),
        ("driftscope shapes model.py:make_model --save-cover kept", "write programs that keep every shape"),
    ),
)
@click.argument("target")
@click.option("--input", "inputs", multiple=True, metavar="NAME=SPEC|FILE",
              help="An example input: x=2x5:float32, or a file. Repeatable.")  # fmt: skip
@click.option("--dynamic", multiple=True, metavar="NAME=AXES|FILE:NAME",
              help="Axes that may vary: x=0,1 (repeatable), or a dynamic_shapes of torch.export: model.py:spec."
              " [default: all of every input]")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of drawn inputs.")
@click.option("--onnx", metavar="FILE", help="Write the ONNX file of the best export, and probe it.")
@click.option("--no-onnx", is_flag=True, help="Probe the exported program alone.")
@click.option("--aoti", is_flag=True, help="Also compile with AOTInductor and probe that; takes minutes.")
@click.option("--save-cover", metavar="DIR", help="Write programs that keep every shape, with a manifest.")
@click.option("--fail-on", type=click.Choice(list(FAILING)), default="wrong", show_default=True,
              help="Mildest outcome that ends with exit code 1: lost includes wrong.")  # fmt: skip
@answer_options
def command(target: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Say which shapes a model keeps when it is exported, and why it loses the others.

    TARGET is package.module:name or file.py:name: a module, a callable, or a function without arguments that returns
    one, or one and its inputs.

    The model is run at shapes inside and just outside what its example shows, and so is what is made of it: the
    exported program, the same without its checks, ONNX on onnxruntime. What was tried is said; nothing is proved.
    """
    with journey.travelling():
        journey("Loading the tensor libraries")
        record = _checked(target, options, journey)
    give(record, as_json=as_json, outputs=outputs, quiet=journey.quiet)
    raise SystemExit(int(Exit.FINDING if fails(record, options["fail_on"]) else Exit.SAME))


def fails(record: ShapeRecord, fail_on: str) -> bool:
    """Whether a record has an outcome that ``--fail-on`` names; a model that was not exported has.

    What was asked for comparison alone (the program without its checks, a plain export) does not count.
    """
    from driftscope.report.sheets.shapes import ASIDE

    bad = FAILING[fail_on]
    if not bad:
        return False
    targets = [name for name in record.targets if name not in ASIDE]
    return not record.mode or any(record.count(name, outcome) for name in targets for outcome in bad)


def _checked(target: str, options: dict[str, Any], journey: Journey) -> ShapeRecord:
    from driftscope.programs.loading.references import resolve_to_call
    from driftscope.shapes.checking import check_shapes
    from driftscope.shapes.covering.covered_program import cover_shapes
    from driftscope.shapes.covering.files import check_folder

    if options["save_cover"]:
        check_folder(Path(options["save_cover"]))
    found, inputs = resolve_to_call(target, options["inputs"], seed=options["seed"])
    dynamic = _dynamic(options["dynamic"])
    targets: tuple[str, ...] | None = () if options["no_onnx"] else None
    if options["aoti"]:
        targets = ("aoti",) if options["no_onnx"] else ("onnx", "aoti")
    journey(f"Exporting {found.name} and running it at many shapes")
    report = check_shapes(found.program, inputs, dynamic=dynamic, targets=targets, onnx=options["onnx"])
    if [f.code for f in report.findings] == ["S007"]:  # the command line's own inputs
        raise InputError(report.findings[0].what)
    if options["save_cover"]:
        journey("Looking for programs that keep every shape")
        made = cover_shapes(found.program, inputs, dynamic=dynamic)
        click.echo(f"Wrote {made.save(options['save_cover'])}: {made}", err=True)
    return replace(report.record, command=command_line(target, options))


def _dynamic(words: Sequence[str]) -> Any:
    """Read ``x=0,1`` as a spec of what may vary; ``model.py:spec`` names one with Dims, or a function that makes it."""
    if not words:
        return "all"
    from driftscope.programs.loading.references import find, is_reference

    if len(words) == 1 and is_reference(words[0]):
        found = find(words[0])
        return found() if callable(found) else found
    from torch.export import Dim

    spec: dict[str, Any] = {}
    for word in words:
        name, equals, axes = word.partition("=")
        parts = [axis.strip() for axis in axes.split(",") if axis.strip()]
        if not equals or not all(part.removeprefix("-").isdecimal() for part in parts):
            raise click.BadParameter(f"{word!r} is not of the form x=0,1", param_hint="--dynamic")
        name, named = name.strip(), {int(part): Dim.AUTO for part in parts}
        before = spec.get(name)
        if before is not None and not (parts and isinstance(before, dict)):
            said = f"{word!r} says otherwise of {name!r} than another --dynamic"
            raise click.BadParameter(said, param_hint="--dynamic")
        spec[name] = (before or {}) | named if parts else Dim.DYNAMIC  # without axes: a number may vary
    return spec


def command_line(target: str, options: dict[str, Any]) -> str:
    """Return the command that makes this record again; how it is shown or stored is left out."""
    words = ["driftscope", "shapes", target]
    for flag, name in (("--input", "inputs"), ("--dynamic", "dynamic")):
        for value in options[name]:
            words += [flag, value]
    for flag, name in (("--onnx", "onnx"), ("--save-cover", "save_cover")):
        if options[name]:
            words += [flag, options[name]]
    words += [flag for flag, name in (("--no-onnx", "no_onnx"), ("--aoti", "aoti")) if options[name]]
    return shlex.join([*words, "--seed", str(options["seed"]), "--fail-on", options["fail_on"]])
