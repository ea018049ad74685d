"""``driftscope rule [CODE]``."""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import asdict
from functools import partial

import click

from driftscope.cli.answers import screen
from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command

_CODE = 6  # columns of a code and the gap after it
_NARROWEST = 40  # a column of meanings is not narrower
_WRITTEN = 100  # columns that the pages are written in
# A paragraph, or one point of a list with the lines that go on with it; not a heading, not a row of a table.
_PARAGRAPH = re.compile(r"^(?![#|]|\s*$).+(?:\n(?![#|*]|\s*$).+)*", re.MULTILINE)


@make_command(
    "rule",
    examples=(
        ("driftscope rule N001", "what N001 means and what to do about it"),
        ("driftscope rule floors", "what a word of an answer means: floors, lifted, ulp, exactness"),
        ("driftscope rule", "all codes and words, one line each"),
    ),
)
@click.argument("code", required=False, metavar="[CODE|WORD]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(code: str | None, *, journey: Journey, as_json: bool) -> None:
    """Explain a finding code or a word of an answer, or list them all.

    N: numerics. W: weights. O: observation, optimisers and binding. R: what a runtime refuses or cannot do. S: shapes.
    T: transforms. I: what a result depends on.
    """
    from driftscope.records.rules import RULES, rule
    from driftscope.records.words import WORDS, word

    if code is None:
        if as_json:
            say(json.dumps([asdict(r) for r in RULES.values()], indent=2))
            return
        widest = max(len(r.title) for r in RULES.values())
        told = [(f"{r.code}  {r.title:<{widest}}", r.meaning) for r in RULES.values()]
        told += [(f"      {w.name:<{widest}}", w.meaning) for w in WORDS.values()]
        say("\n".join(line for head, meaning in told for line in _beside(head, meaning)))
        return
    explained = word(code)
    if explained is not None:
        whole = {"word": explained.name, "meaning": explained.meaning, "page": explained.page}
        text = f"{explained.name}: {explained.meaning}" if journey.quiet else _formatted(explained.page)
        say(json.dumps(whole, indent=2) if as_json else text)
        return
    found = rule(code)
    if as_json:
        say(json.dumps({**asdict(found), "page": found.page}, indent=2))
    elif journey.quiet:
        say(f"{found.code} {found.title}: {found.meaning}")
    else:
        say(_formatted(found.page))


def _beside(head: str, meaning: str) -> list[str]:
    """Set a meaning beside its name, wrapped; below it where the screen is too narrow for two columns."""
    width, _ = screen()
    beside = len(head) + 2 if width - len(head) - 2 >= _NARROWEST else 6
    text = f"{head}  {meaning}" if beside > _CODE else f"{head.strip()}\n{' ' * _CODE}{meaning}"
    return [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(line, width, subsequent_indent=" " * beside, break_long_words=False)
    ]


def _reflowed(page: str, width: int) -> str:
    """Break the paragraphs and points of a Markdown page at another width; code and tables stay as they are."""
    blocks = re.split(r"(```.*?```)", page.rstrip(), flags=re.DOTALL)
    return "".join(b if b.startswith("```") else _PARAGRAPH.sub(partial(_wrapped, width), b) for b in blocks)


def _wrapped(width: int, found: re.Match[str]) -> str:
    text = " ".join(found[0].split())
    indent = "  " if text.startswith("* ") else ""
    return textwrap.fill(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _formatted(page: str) -> str:
    width, color = screen()
    if not color:
        return page.rstrip() if width >= _WRITTEN else _reflowed(page, width)
    import io

    from rich.console import Console
    from rich.markdown import Markdown

    stream = io.StringIO()
    console = Console(file=stream, width=min(width, 96), force_terminal=True, highlight=False)
    console.print(Markdown(page, hyperlinks=False))
    return stream.getvalue().rstrip()
