"""``driftscope reveal KERNEL``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click

from driftscope.cli.answers import screen
from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command
from driftscope.cli.unanswered import unanswered
from driftscope.errors import InputError
from driftscope.records.files import check_target

DRAWN = (".svg", ".png")


def _sizes(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdecimal() for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form 32x4096x32")
    return tuple(int(part) for part in parts)


def _threads(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int | None, ...]:
    if text is None:
        return (None,)
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise click.BadParameter(f"{text!r} is not of the form 2 or 1,2")
    return tuple(int(part) for part in parts)


def _drawing(_ctx: click.Context, _parameter: click.Parameter, paths: Sequence[str]) -> Sequence[str]:
    for path in paths:
        try:
            if not path.lower().endswith(DRAWN):
                check_target(path)
        except InputError as error:
            raise click.BadParameter(f"{error}, or .svg or .png for the tree alone") from error
    return paths


@make_command(
    "reveal",
    runs=unanswered,
    examples=(
        ("driftscope reveal torch.sum --n 4096", "in which order are 4096 numbers added?"),
        (
            "driftscope reveal torch.matmul --n 4096 --shape 32x4096x32 --threads 1,2",
            "does it depend on threads?",
        ),
        ("driftscope reveal model.onnx:logits --n 1152 -o tree.svg", "inside a node of a model, with a picture"),
        ("driftscope reveal kernels.py:my_sum --n 256 --dtype float16", "a function of your own"),
    ),
)
@click.argument("kernel")
@click.option("--n", type=click.IntRange(max=1 << 26), required=True, help="Number of terms; K of a matrix product.")
@click.option(
    "--dtype", default="float32", show_default=True, help="Of the terms: float64, float32, float16, bfloat16."
)
@click.option(
    "--shape", callback=_sizes, metavar="MxKxN", help="Shape of a product, or ROWSxN of a sum. Only it is run."
)
@click.option("--threads", callback=_threads, metavar="N[,N]", help="Threads; several are revealed and contrasted.")
@click.option("--max-seconds", type=float, default=120.0, show_default=True,
              help="Time that asking may take; a call that does not return is stopped a minute later.")  # fmt: skip
@click.option("--max-calls", type=int, help="Calls of the kernel that asking may take.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    callback=_drawing,
    metavar="FILE",
    help="Also draw the tree (.svg, .png) or write a page (.html) or the record (.json). Repeatable.",
)
@click.option("--device", help="Where torch computes, as cuda.")
@click.option("--sketch", is_flag=True, help="Ask for some hundred of the terms only; for very long sums.")
@click.option("--dependence", is_flag=True, help="Also try other numbers of rows and threads.")
def command(kernel: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Say in which order a kernel adds, in which format, and whether with FMA.

    KERNEL is torch.sum, torch.mean, torch.matmul, torch.linear, torch.bmm, numpy.sum or numpy.matmul; model.onnx:output
    for the sum or product that computes that value; package.module:name or file.py:name for a function that reduces
    the last axis of (rows, n).

    The order is verified: adding in it gives the kernel's bits on every row that was tried.
    """
    if outputs and len(options["threads"]) > 1:
        raise InputError("-o writes one answer; give one number of --threads")
    with journey.travelling():
        journey("Loading the tensor libraries")
        from driftscope.accumulation.revealing.reveal_kernel import reveal_sum

        found = []
        for threads in options["threads"]:
            journey(f"Asking {kernel}" + (f" on {threads} threads" if threads else ""))
            limits = {word: options[word] for word in ("dtype", "shape", "max_seconds", "max_calls", "device")}
            limits["sketch"] = True if options["sketch"] else None
            found.append(reveal_sum(kernel, options["n"], threads=threads, **limits))
        tried = [one.dependence() for one in found] if options["dependence"] else []
    for path in outputs:
        found[0].draw(path) if path.lower().endswith(DRAWN) else found[0].save(path)
    if as_json:
        plain = [one.to_dict() for one in found]
        for record, each in zip(plain, tried, strict=False):
            record["dependence"] = each.to_dict()
        say(json.dumps(plain[0] if len(plain) == 1 else plain, indent=2))
        return
    if journey.quiet:
        say("\n\n".join(one.pattern for one in found))
        return
    from driftscope.report.terminal.lines import folded

    words = [str(one) for one in found]
    words += [f"this order  {each}" for each in tried]
    words += [found[0].explain(other) for other in found[1:]]
    say(folded("\n\n".join(words), screen()[0]))
    for path in outputs:
        click.echo(f"Wrote {path}", err=True)
