"""``driftscope rule [CODE]``."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from driftscope.cli.answers import WIDEST, screen
from driftscope.cli.surroundings import Journey, say
from driftscope.cli.surroundings import command as make_command


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

    N: numerics. W: weights. O: observation, optimisers and binding. R: what a runtime refuses or cannot do.
    """
    from driftscope.records.rules import RULES, rule
    from driftscope.records.words import WORDS, word

    if code is None:
        if as_json:
            say(json.dumps([asdict(r) for r in RULES.values()], indent=2))
            return
        widest = max(len(r.title) for r in RULES.values())
        lines = [f"{r.code}  {r.title:<{widest}}  {r.meaning}" for r in RULES.values()]
        lines += [f"      {w.name:<{widest}}  {w.meaning}" for w in WORDS.values()]
        say("\n".join(map(_cut, lines)))
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


def _cut(line: str) -> str:
    """Cut a line of the list at a word; the whole sentence is on the code's page."""
    return line if len(line) <= WIDEST else f"{line[: WIDEST - 2].rpartition(' ')[0]} …"


def _formatted(page: str) -> str:
    width, color = screen()
    if not color:
        return page.rstrip()
    import io

    from rich.console import Console
    from rich.markdown import Markdown

    stream = io.StringIO()
    console = Console(file=stream, width=min(width, 96), force_terminal=True, highlight=False)
    console.print(Markdown(page, hyperlinks=False))
    return stream.getvalue().rstrip()
