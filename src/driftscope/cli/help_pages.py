"""Help that begins with examples, and errors that name what was probably meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable
from typing import Any

import click


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'compare'?"`` when ``word`` is close to something known, else the empty string."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class ExamplesFirst(click.Command):
    """A command whose help shows what to type before it lists what can be typed."""

    def __init__(self, *args: Any, examples: tuple[tuple[str, str], ...] = (), **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first sentence, the examples, the usage, then everything else."""
        first, _, rest = inspect.cleandoc(self.help or "").partition("\n")
        formatter.write_text(first)
        if self.examples:
            with formatter.section("Examples"):
                for line, purpose in self.examples:
                    formatter.write(f"  {line}\n      {purpose}\n")
        formatter.write_paragraph()
        self.format_usage(ctx, formatter)
        if rest.strip():
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(rest.strip("\n"))
        self.format_options(ctx, formatter)
