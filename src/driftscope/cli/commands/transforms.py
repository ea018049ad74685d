"""``driftscope transforms FUNCTION``."""

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
from driftscope.records.files import check_place
from driftscope.records.verdict import FailOn

if TYPE_CHECKING:
    from driftscope.records.kinds.transform_report import TransformReport

PATCH = "driftscope.patch"

# Transforms have no bits that happen to be the same.
_FAIL_ON = [f.value for f in FailOn if f is not FailOn.FUNCTION]


def _dims(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> Any:
    """Read ``0`` or ``0,None,1``."""
    if text is None:
        return None
    parts = [part.strip() for part in text.strip("() ").rstrip(",").split(",")]
    if not all(part.lower() == "none" or part.removeprefix("-").isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form 0 or 0,None,1")
    dims = tuple(None if part.lower() == "none" else int(part) for part in parts)
    return dims[0] if len(dims) == 1 and dims[0] is not None else dims  # not given is another thing than None


def _names(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, ...] | None:
    """Split at the commas outside of parentheses and brackets."""
    if text is None:
        return None
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(part.strip() for part in parts if part.strip())


@make_command(
    "transforms",
    runs=unanswered,
    examples=(
        ("driftscope transforms model.py:loss --input x=8x4:float32", "what do vmap, grad, jacfwd ... do to it?"),
        ("driftscope transforms model.py:loss --input x=8x4:float32 --fix", "write the edits that were tried and work"),
        ("driftscope transforms model.py:step --input w=4:float32 --input x=8x4:float32 --in-dims None,0",
         "w is shared by all examples"),
        ("driftscope transforms model.py:loss --input x=8x4:float32 --transforms 'vmap,vmap(grad),compile_aot_eager'",
         "others, and compositions"),
    ),
)  # fmt: skip
@click.argument("function")
@click.option("--input", "inputs", multiple=True, metavar="NAME=SPEC|FILE",
              help="An argument with the mapped axis: x=8x4:float32, or a file. Repeatable.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of drawn inputs.")
@click.option(
    "--in-dims", callback=_dims, metavar="DIMS", help="Mapped axis of each argument, as 0 or 0,None. [default: 0]"
)
@click.option("--randomness", type=click.Choice(["error", "different", "same"]), default="error", show_default=True,
              help="As for torch.vmap.")  # fmt: skip
@click.option("--transforms", callback=_names, metavar="NAME,...",
              help="vmap, grad, vjp, jvp, jacrev, jacfwd, hessian, linearize, functional_call, compile, export, "
                   "compositions as vmap(grad). [default: the first seven and functional_call]")  # fmt: skip
@click.option("--fix", is_flag=True, help=f"Write the edits that were tried and work to {PATCH}, for `git apply`.")
@click.option("--patch", default=PATCH, show_default=True, metavar="FILE", help="Where --fix writes.")
@click.option("--fail-on", type=click.Choice(_FAIL_ON), default="precision", show_default=True,
              help="Mildest outcome that ends with exit code 1: different is a wrong value; precision also a refusal "
                   "or a finding; rounding also rounding.")  # fmt: skip
@answer_options
def command(function: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Say what function transforms do to a function, on which line, and the edit.

    FUNCTION is package.module:name or file.py:name, a function of one example or a module; a function without
    arguments is called and returns one, or one and its inputs.

    Every transform is compared with the plain program: vmap with the loop over the examples, derivatives with
    torch.autograd, compile and export with the plain call.
    """
    if options["fix"]:
        check_place(options["patch"])
    with journey.travelling():
        journey("Loading the tensor libraries")
        record = _checked(function, options, journey)
    give(record, as_json=as_json, outputs=outputs, quiet=journey.quiet)
    if options["fix"]:
        _write_patch(record, options["patch"], quiet=journey.quiet)
    from driftscope.report.terminal.transforms import record_fails

    raise SystemExit(int(Exit.FINDING if record_fails(record, FailOn(options["fail_on"])) else Exit.SAME))


def _checked(function: str, options: dict[str, Any], journey: Journey) -> TransformReport:
    from driftscope.programs.loading.references import resolve_to_call
    from driftscope.transforms.checking import check_transforms

    found, inputs = resolve_to_call(function, options["inputs"], seed=options["seed"])
    examples = arguments_of(found.program, inputs, function)
    journey(f"Running {found.name} under its transforms")
    chosen = {"transforms": options["transforms"]} if options["transforms"] else {}
    in_dims = 0 if options["in_dims"] is None else options["in_dims"]
    record = check_transforms(found.program, *examples, in_dims=in_dims, randomness=options["randomness"], **chosen)
    return replace(record, command=command_line(function, options))


def arguments_of(function: Any, inputs: Any, name: str) -> tuple[Any, ...]:
    """Bring inputs into the order of a function's parameters.

    Raises
    ------
    InputError
        If a name is no parameter, or a required one is missing.
    """
    import inspect

    if not inputs.by_name:
        return tuple(inputs.args)
    try:
        target = function.forward if hasattr(function, "forward") else function
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return tuple(inputs.kwargs.values())
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return tuple(inputs.kwargs.values())
    unknown = [n for n in inputs.names if n not in parameters]
    if unknown:
        raise InputError(f"{name} has no argument {', '.join(unknown)}; it has {', '.join(parameters)}")
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name not in inputs.kwargs
               and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]  # fmt: skip
    if missing:
        raise InputError(f"{name} needs an input for {', '.join(missing)}: --input {missing[0]}=8x4:float32")
    return tuple(inputs.kwargs[n] for n in parameters if n in inputs.kwargs)


def _write_patch(record: TransformReport, path: str, *, quiet: bool) -> None:
    """Write the verified edits as one unified diff; nothing when there is none."""
    from driftscope.transforms.repairs.patches import applied_in, one_patch

    patch, count = one_patch(f.patch for f in record.findings if f.patch and f.verified)
    if patch:
        Path(path).write_text(patch, encoding="utf-8")
    if not quiet:
        told = "No tried edit to write"
        if patch:
            folder = applied_in(patch.partition("\n")[0].removeprefix("--- a/"))
            apply = f"git apply {path}" if folder == Path.cwd() else f"cd {folder} && git apply {Path(path).resolve()}"
            told = f"Wrote {count} tried edit{'s' * (count != 1)}: {apply}"
        click.echo(told, err=True)


def command_line(function: str, options: dict[str, Any]) -> str:
    """Return the command that makes this record again."""
    words = ["driftscope", "transforms", function]
    for value in options["inputs"]:
        words += ["--input", value]
    words += ["--seed", str(options["seed"])]
    words += _written("--in-dims", options["in_dims"]) + _written("--transforms", options["transforms"])
    if options["randomness"] != "error":
        words += ["--randomness", options["randomness"]]
    return shlex.join(words)


def _written(flag: str, value: Any) -> list[str]:
    if value is None:
        return []
    parts: Sequence[Any] = value if isinstance(value, tuple) else (value,)
    return [flag, ",".join(map(str, parts))]
