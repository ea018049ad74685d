"""``driftscope compare A B``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from driftscope.cli.answers import answer_options, give
from driftscope.cli.sessions import LEVELS, PROVIDERS, session_options
from driftscope.cli.surroundings import Journey
from driftscope.cli.surroundings import command as make_command
from driftscope.errors import Exit, InputError
from driftscope.records.files import PAGE_SUFFIXES
from driftscope.records.kinds.collection import Collection, Entry
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.verdict import FailOn

if TYPE_CHECKING:
    from driftscope.programs.isolation.failures import WorkerDied


def _unanswered(died: WorkerDied, options: dict[str, Any]) -> None:
    """Give the record of a comparison whose process did not live to answer."""
    from driftscope.elsewhere import unanswered

    a, b = options["a"], options["b"]
    record = unanswered(died, (a, b), command_line(a, b, options), options["told"])
    give(record, as_json=options["as_json"], outputs=options["outputs"], quiet=options["quiet"])


@make_command(
    "compare",
    runs=_unanswered,
    examples=(
        ("driftscope compare model.py:make_model model.onnx", "a model against its export, on the model's own inputs"),
        ("driftscope compare a.onnx b.onnx --input x=4x64:float32 --seed 7", "on drawn inputs"),
        ("driftscope compare a.onnx b.onnx --input batch.npz -o page.html", "on stored inputs, as one offline page"),
        ("driftscope compare m.onnx m.onnx --level a:disable --level b:all", "did an optimiser break it?"),
        ("driftscope compare m.onnx m.onnx --level a:disable --blame", "which one, and how to leave it out"),
        ("driftscope compare a.onnx b.onnx --reproduce report/", "a small case to send to somebody"),
    ),
)
@click.argument("a")
@click.argument("b")
@click.option("--input", "inputs", multiple=True, metavar="NAME=SPEC|FILE",
              help="An input to draw (x=4x64:float32, ids=1x8:int64:randint(0,100)) or a file with inputs (.npz, "
                   ".npy, .pt, .safetensors, Polygraphy's .json). Repeatable.")  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of drawn inputs and of the noise.")
@click.option("--fail-on", type=click.Choice([f.value for f in FailOn]), default="precision", show_default=True,
              help="Mildest verdict that ends with exit code 1. INCONCLUSIVE counts with precision; function is "
                   "precision, and the same bits by chance from another function.")  # fmt: skip
@click.option("--level", multiple=True, metavar="LEVEL", help=f"Graph optimisation: {', '.join(LEVELS)}.")
@click.option("--disable-optimizer", "disabled", multiple=True, metavar="NAME",
              help="An onnxruntime optimiser to leave out. Repeatable.")  # fmt: skip
@click.option("--threads", multiple=True, metavar="N", help="Threads inside an operator.")
@click.option("--provider", multiple=True, metavar="NAME", help=f"Execution provider: {', '.join(PROVIDERS)}.")
@click.option("--runtime", multiple=True, metavar="NAME",
              help="What runs an ONNX file: onnxruntime, openvino, or a plug-in's name.")  # fmt: skip
@click.option("--blame", is_flag=True,
              help="Leave out each optimisation that acted, one at a time, and name the one that moved the result. "
                   "Done unasked, briefly, when the verdict asks for it.")  # fmt: skip
@click.option("--nodes/--no-nodes", default=None,
              help="Also measure every value on the way. The default for a page.")  # fmt: skip
@click.option("--reproduce", type=click.Path(), metavar="DIR",
              help="Write the smallest piece that shows the drift, its inputs and a script that does not need "
                   "driftscope into DIR.")  # fmt: skip
@click.option("--budget-seconds", type=click.FloatRange(min=0, min_open=True), metavar="S",
              help="Time it should take: what does not fit is left out (explain, then nodes, then repeated noise "
                   "runs), and the record says what.")  # fmt: skip
@click.option(
    "--budget-memory",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="Memory it should hold, likewise.",
)
@click.option("--no-explain", is_flag=True, help="Give the verdict without looking for the place.")
@answer_options
def command(a: str, b: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Say whether B is still the program A, and where it is not.

    A is the reference. Each is an .onnx, .pt2, TorchScript .pt or OpenVINO .xml file, or package.module:name or
    file.py:name, where the name is a module, a callable, or a function without arguments that returns a program or a
    program and its inputs; a module made of its class is set to eval(), and file.py:Net@weights.safetensors puts
    weights into it. A folder stands for its model.onnx, or for a Hugging Face model (config.json with .safetensors); of
    two folders that hold several .onnx files, those of the same name are compared. Two files of weights are compared
    as weights, recorded outputs (.npz) as results.

    Session options (--level, --disable-optimizer, --threads, --provider, --runtime) are for every side that is an
    .onnx file; write b:VALUE or a:VALUE for one side alone.
    """
    with journey.travelling():
        journey("Loading the tensor libraries")
        from driftscope.programs.loading.folders import left_alone, pairs_in

        pairs = pairs_in(a, b)
        if pairs:
            if options["reproduce"]:
                raise InputError("--reproduce writes one case; give the two files instead of their folders")
            said = [""] * (len(pairs) - 1) + [left_alone(a, b)]
            entries = [
                Entry(name, comment, _compared(str(x), str(y), journey, outputs, options))
                for (name, x, y), comment in zip(pairs, said, strict=True)
            ]
            record: Any = Collection(f"{a} and {b}", tuple(entries))
        else:
            record = _compared(a, b, journey, outputs, options)
    give(record, as_json=as_json, outputs=outputs, quiet=journey.quiet, details=journey.verbose)
    each = [entry.comparison for entry in record.entries] if pairs else [record]
    failed = any(FailOn(options["fail_on"]).fails(c.verdict, functions_differ=c.functions_differ) for c in each)
    raise SystemExit(int(Exit.FINDING if failed else Exit.SAME))


def _compared(a: str, b: str, journey: Journey, outputs: Sequence[str], options: dict[str, Any]) -> Comparison:
    """Load both programs and compare them."""
    for_a, for_b = session_options(a, b, options)  # what cannot be is said before a tensor library is loaded
    from driftscope.inquiry import compare
    from driftscope.programs.isolation.breadcrumbs import tell
    from driftscope.programs.loading.load import load_program

    tell(stage="load", side="A", program=a)
    program_a = load_program(a, **for_a)
    tell(stage="load", side="B", program=b)
    program_b = load_program(b, **for_b)
    return compare(
        program_a, program_b, list(options["inputs"]) or None, explain=not options["no_explain"],
        blame=True if options["blame"] else None, nodes=_wants_nodes(options["nodes"], outputs),
        reproduce=options["reproduce"], seed=options["seed"],
        budget_seconds=options["budget_seconds"], budget_memory=options["budget_memory"],
        progress=journey, command=command_line(a, b, options),
    )  # fmt: skip


def _wants_nodes(asked: bool | None, outputs: Sequence[str]) -> bool:
    """A page shows the way through the programs unless told not to; on the terminal nobody would see it."""
    return asked if asked is not None else any(path.lower().endswith(PAGE_SUFFIXES) for path in outputs)


def command_line(a: str, b: str, options: dict[str, Any]) -> str:
    """Return the command that makes this record again; how it is shown or stored is left out."""
    words = ["driftscope", "compare", a, b]
    repeated = (("--input", "inputs"), ("--level", "level"), ("--disable-optimizer", "disabled"),
                ("--threads", "threads"), ("--provider", "provider"), ("--runtime", "runtime"))  # fmt: skip
    for flag, name in repeated:
        for value in options[name]:
            words += [flag, value]
    words += ["--seed", str(options["seed"])]
    for flag, name in (("--budget-seconds", "budget_seconds"), ("--budget-memory", "budget_memory")):
        if options[name] is not None:
            words += [flag, f"{options[name]:g}"]
    words += [flag for flag, name in (("--blame", "blame"), ("--no-explain", "no_explain"), ("--nodes", "nodes"))
              if options[name]]  # fmt: skip
    return shlex.join(words)
