"""Write the reference pages that are made from the code: the command line, the finding codes, the record's schema.

``python docs/generate.py`` writes them; a test says when one is out of date.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from driftscope.cli import COMMANDS, main
from driftscope.records.collection import COLLECTION_SCHEMA, Collection
from driftscope.records.comparison import SCHEMA, Comparison
from driftscope.records.json_schema import schema_of
from driftscope.records.rules import RULES

REFERENCE = Path(__file__).parent / "reference"
_FAMILIES = {
    "N": "numerics",
    "W": "weights",
    "O": "observation, optimisers and binding",
    "R": "what a runtime refuses or cannot do",
}
_WIDTH = 98


def pages() -> dict[str, str]:
    """Return every generated page: path below ``docs/reference`` to text."""
    made = {
        "cli.md": command_line(),
        "comparison.schema.json": _json(schema_of(Comparison, SCHEMA)),
        "collection.schema.json": _json(schema_of(Collection, COLLECTION_SCHEMA)),
        "codes/index.md": code_index(),
    }
    return made | {f"codes/{rule.code}.md": rule.page for rule in RULES.values()}


def command_line() -> str:
    """Return the help of every command as one page."""
    parts = [
        "# Command line",
        "This page is what `--help` prints. Exit codes, `--json` and `-o` mean the same in every command.",
        f"## driftscope\n\n{_help(main, 'driftscope', None)}",
    ]
    group = click.Context(main, info_name="driftscope", terminal_width=_WIDTH)
    for name in COMMANDS:
        command = main.get_command(group, name)
        if command is None:
            raise LookupError(f"no command {name}")
        parts.append(f"## driftscope {name}\n\n{_help(command, name, group)}")
    return "\n\n".join(parts) + "\n"


def code_index() -> str:
    """Return the list of finding codes with links to their pages."""
    lines = [
        "# Finding codes",
        "",
        "A letter and three digits, stable for ever. `driftscope rule CODE` prints the same page on the terminal.",
    ]
    for letter, family in _FAMILIES.items():
        lines += ["", f"## {letter}: {family}", "", "| code | title | meaning |", "|---|---|---|"]
        lines += [
            f"| [{r.code}]({r.code}.md) | {r.title} | {r.meaning} |"
            for r in RULES.values()
            if r.code.startswith(letter)
        ]
    return "\n".join(lines) + "\n"


def _help(command: click.Command, name: str, parent: click.Context | None) -> str:
    settings = {**command.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"```text\n{text}\n```"


def _json(data: object) -> str:
    return json.dumps(data, indent=2) + "\n"


def write() -> list[Path]:
    """Write the pages that changed and return them."""
    written = []
    for name, text in pages().items():
        target = REFERENCE / name
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            written.append(target)
    return written


if __name__ == "__main__":
    for path in write():
        click.echo(f"wrote {path}")
