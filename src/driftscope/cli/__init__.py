"""The command line: ``driftscope compare | reveal | report | rule | env | demo``.

Each command is one file, opened when it is called, so that ``--help`` answers before a tensor library is loaded.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

from driftscope.cli.help_pages import ExamplesFirst, suggestion

COMMANDS = {
    "compare": ("driftscope.cli.commands.compare", "Say whether two programs are the same program."),
    "compare-many": ("driftscope.cli.commands.compare_many", "Compare many pairs of programs, and give one table."),
    "reveal": ("driftscope.cli.commands.reveal", "Say in which order a kernel adds."),
    "shapes": ("driftscope.cli.commands.shapes", "Say which shapes an export keeps, and why it loses others."),
    "study": ("driftscope.cli.commands.study", "Run many variants of one computation."),
    "runs": ("driftscope.cli.commands.runs", "List, show, compare and query stored runs."),
    "transforms": ("driftscope.cli.commands.transforms", "Say what vmap, grad and friends do to a function."),
    "invariance": ("driftscope.cli.commands.invariance", "Say whether a result depends on its batch, threads, run."),
    "report": ("driftscope.cli.commands.report", "Show a stored record again, or turn it into a page."),
    "pretty": ("driftscope.cli.commands.pretty", "List the graph of a model, as stored or as it runs."),
    "rule": ("driftscope.cli.commands.rule", "Explain a finding code."),
    "env": ("driftscope.cli.commands.env", "Print the environment numbers are made in."),
    "demo": ("driftscope.cli.commands.demo", "Run the main job on real digits."),
}


class _LazyGroup(ExamplesFirst, click.Group):
    """A group whose commands are imported when they are asked for."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.obj = list(args)  # the command line as it was typed, for whoever must give it again
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # From the table: asking each command for its own sentence would import them all.
        with formatter.section("Commands"):
            formatter.write_dl([(name, sentence) for name, (_, sentence) in COMMANDS.items()])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}{suggestion(args[0], COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"driftscope {version('driftscope')}")
        ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    examples=(
        ("driftscope compare model.py:make_model model.onnx", "is the export still the model?"),
        ("driftscope compare model.onnx quantised.onnx -o page.html", "the answer as one offline page"),
        ("driftscope reveal torch.sum --n 4096", "in which order does a kernel add?"),
        ("driftscope rule N001", "what a finding means"),
        ("driftscope demo", "see it on a real model, without network"),
    ),
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
def main() -> None:
    """You changed how a tensor program runs. Is it still the same program?

    \b
    Exit codes: 0 the same (identical bits, or rounding)    1 a finding
                2 something given cannot be used            3 driftscope could not finish
    """
