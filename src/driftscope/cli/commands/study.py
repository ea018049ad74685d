"""``driftscope study NAME``."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from driftscope.cli.answers import screen, text_of
from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command
from driftscope.cli.unanswered import unanswered
from driftscope.errors import Exit, InputError

if TYPE_CHECKING:
    from driftscope.programs.isolation.failures import WorkerDied

SUFFIXES = (".html", ".json", ".csv", ".md", ".parquet", ".jsonl", ".png", ".svg", ".pdf")
PICTURES = (".png", ".svg", ".pdf")
NAMED = ("gemm", "layer_norm", "reduction")


def outputs_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add a repeatable ``-o`` that takes every format of a study."""
    return click.option(
        "-o", "--output", "outputs", multiple=True, callback=_suffixed, metavar="FILE",
        help="Also write a page (.html), the record (.json), the rows (.csv, .md, .parquet, .jsonl) or the picture "
             "(.png, .svg, .pdf). Repeatable.",
    )(function)  # fmt: skip


def _suffixed(_ctx: click.Context, _parameter: click.Parameter, paths: Sequence[str]) -> Sequence[str]:
    for path in paths:
        if not path.lower().endswith(SUFFIXES):
            raise click.BadParameter(f"{path}: the name must end in {', '.join(SUFFIXES)}")
    return paths


def _memory(ctx: click.Context, _parameter: click.Parameter, gib: float | None) -> int | None:
    """Bytes of one cell: what was asked for it, else for the whole study."""
    given = ctx.params.get("max_memory") if gib is None else gib
    return None if given is None else int(given * 2**30)


def rows_kept(died: WorkerDied, options: dict[str, Any]) -> None:
    """Say what ended a study, and that its rows are kept."""
    kept = f"The rows of finished cells are kept in {options['store']!r}; the same command makes the rest."
    here = " With workers instead of --workers 0, a cell that crashes is a row and the others are made."
    unanswered(died, options, fix=kept + (here if options["workers"] == 0 else ""))


_PLACE = (
    click.option("--workers", type=int, metavar="N", help="Processes; one for each core by default, 0 for this one."),
    click.option("--cluster", metavar="tcp://HOST:PORT", help="A Dask scheduler to run on instead."),
    click.option(
        "--threads", "operator_threads", type=int, default=1, show_default=True, metavar="N",
        help="Threads inside an operator; they change how sums are grouped.",
    ),
    click.option(
        "--seconds", type=float, metavar="S", help="Time limit of one cell; --max-seconds is for all of them."
    ),
    click.option(
        "--memory", type=float, metavar="GIB", callback=_memory,
        help="Memory limit of one cell.  [default: --max-memory]",
    ),
    click.option("--store", default="runs", show_default=True, metavar="FOLDER", help="Where runs are kept."),
    click.option("--run", default="", metavar="ID", help="Id of the run to make, or to go on with."),
    click.option("--new", "fresh", is_flag=True, help="Make a new run even if an unfinished one is there."),
)  # fmt: skip


def place_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add where, under which limits and into which store cells are run."""
    for option in reversed(_PLACE):
        function = option(function)
    return function


@make_command(
    "study",
    runs=rows_kept,
    examples=(
        ("driftscope study reduction", "how far do reordered sums move?"),
        ("driftscope study gemm --set size=256 --dtypes float32,float16 -o gemm.png", "Gemm or MatMul + Add?"),
        ("driftscope study layer_norm --set rows=64 -o page.html", "which operator of LayerNorm, MatMul, Add drifts?"),
        ("driftscope study sweep.yaml --cluster tcp://localhost:8786", "a study of your own, on a cluster"),
    ),
)
@click.argument("study", metavar="gemm|layer_norm|reduction|FILE|module:name")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE[,VALUE]",
              help="A parameter of the study, such as sizes=512,4096 or permutations=32. Repeatable.")  # fmt: skip
@click.option("--dtypes", metavar="NAME[,NAME]", help="The same as --set dtypes=…")
@click.option("--devices", metavar="NAME[,NAME]", help="The same as --set devices=…: cpu, cuda.")
@click.option("--seed", type=int, help="Seed of the data.")
@place_options
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON.")
@outputs_option
def command(study: str, *, journey: Journey, as_json: bool, outputs: Sequence[str], **options: Any) -> None:
    """Run many variants of one computation and say what they show.

    FILE is a study of your own, .yaml or .toml.

    Rows are kept under runs/ID as they come. A cell that raises, crashes, is killed, fills the memory or runs past its
    limit is a row that says so. Stopped and started again, the study makes the rows that are missing.

    The exit code is 1 when a cell failed, else 0.
    """
    from driftscope.cli.settings import settings_of

    chosen = settings_of(options.pop("settings"), options.pop("dtypes"), options.pop("devices"), options.pop("seed"))
    running = {**options, "command": command_line(study, chosen, options), "progress": journey}
    with journey.travelling():
        journey("Loading the tensor libraries")
        done = _asked(study, chosen, running)
        for path in outputs:
            write(done, path)
    show(done, journey, as_json=as_json, outputs=outputs)
    raise SystemExit(int(Exit.FINDING if done.failures else Exit.SAME))


def show(study: Any, journey: Journey, *, as_json: bool, outputs: Sequence[str]) -> None:
    """Write a study to the terminal, and which files hold it."""
    if as_json:
        say(json.dumps(study.to_dict(), indent=2))
        return
    say(answer(study, journey))
    for path in () if journey.quiet else outputs:
        click.echo(f"Wrote {path}", err=True)


def answer(study: Any, journey: Journey) -> str:
    """Write a study for the terminal; its first conclusion alone when it should be quiet."""
    if journey.quiet or study.folder is None:
        return text_of(study.record, quiet=journey.quiet)
    from driftscope.report.sheets.study import render

    width, color = screen()
    return render(study.record, width=width, color=color, store=str(study.folder.parent))


def write(study: Any, path: str) -> None:
    """Write a study in the format that the suffix names."""
    if path.lower().endswith(PICTURES):
        study.plot(path)
    else:
        study.save(path)


def _asked(name: str, settings: dict[str, Any], running: dict[str, Any]) -> Any:
    from driftscope import studies

    if name in NAMED:
        make: Callable[..., Any] = getattr(studies, name)
        known = [p.name for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_KEYWORD]
        unknown = next((key for key in settings if key not in known), None)
        if unknown is not None:
            raise InputError(f"study {name} has no parameter {unknown!r}; it has {', '.join(known)}")
        return make(**settings, **running)
    if settings:
        raise InputError(
            f"--set, --dtypes, --devices and --seed are for {', '.join(NAMED)}; the axes of {name} are in it"
        )
    given = {key: value for key, value in running.items() if value not in (None, "")}
    return studies.load(name).run(**given)


def command_line(study: str, settings: dict[str, Any], options: dict[str, Any]) -> str:
    """Return the command that makes these rows again; where they are kept and computed is left out."""
    words = ["driftscope", "study", study]
    for name, value in settings.items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += ["--set", f"{name}={text}"]
    if options["operator_threads"] != 1:
        words += ["--threads", str(options["operator_threads"])]
    return shlex.join(words)
