"""Write the reference pages that are made from the code: the command line, the finding codes, the record's schema.

``python docs/generate.py`` writes them; a test says when one is out of date.
"""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path

import click

import driftscope
from driftscope.cli import COMMANDS, main
from driftscope.records.json_schema import schema_of
from driftscope.records.kinds.collection import COLLECTION_SCHEMA, Collection
from driftscope.records.rules import RULES
from driftscope.report.kinds import KINDS

REFERENCE = Path(__file__).parent / "reference"
_FAMILIES = {
    "N": "numerics",
    "W": "weights",
    "O": "observation, optimisers and binding",
    "S": "shapes",
    "T": "transforms",
    "I": "invariance",
    "R": "what a runtime refuses or cannot do",
}
_WIDTH = 98


def pages() -> dict[str, str]:
    """Return every generated page: path below ``docs/reference`` to text."""
    made = {
        "cli.md": command_line(),
        "api.rst": api(),
        "codes/index.md": code_index(),
    }
    made |= {f"{schema.split('/')[1]}.schema.json": text for schema, text in schemas().items()}
    return made | {f"codes/{rule.code}.md": rule.page for rule in RULES.values()}


def schemas() -> dict[str, str]:
    """Return the JSON Schema of every kind of record by the name of its schema."""
    classes = {COLLECTION_SCHEMA: Collection}
    for schema, (module, name, _) in KINDS.items():
        classes[schema] = getattr(importlib.import_module(module), name)
    return {
        # A record whose JSON is not simply its fields says itself what it looks like.
        schema: _json(cls.json_schema() if hasattr(cls, "json_schema") else schema_of(cls, schema))
        for schema, cls in classes.items()
    }


def api() -> str:
    """Return the page of the Python API: Sphinx fills in the docstrings."""
    parts = ["Python API\n==========\n\n``import driftscope as ds``; every name below is opened when it is first used."]
    kinds: dict[str, list[str]] = {"Functions": [], "Records and programs": [], "Errors": []}
    modules = []
    for name in sorted(set(dir(driftscope)) - {"__version__"}):
        found = getattr(driftscope, name)
        if inspect.ismodule(found):
            modules.append((name, list(found.__all__)))
        elif inspect.isclass(found):
            kinds["Errors" if issubclass(found, Exception) else "Records and programs"].append(
                f".. autoclass:: driftscope.{name}\n   :members:"
            )
        else:
            kinds["Functions"].append(f".. autofunction:: driftscope.{name}")
    for title, entries in kinds.items():
        parts.append(f"{title}\n{'-' * len(title)}\n\n" + "\n\n".join(entries))
    for name, members in modules:
        title = f"ds.{name}"
        inner = getattr(driftscope, name)
        lines = [_directive(f"driftscope.{name}.{m}", getattr(inner, m)) for m in members]
        parts.append(f"{title}\n{'-' * len(title)}\n\n" + "\n\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _directive(path: str, found: object) -> str:
    if inspect.isclass(found):
        return f".. autoclass:: {path}\n   :members:"
    return f".. autofunction:: {path}" if callable(found) else f".. autodata:: {path}"


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
        if isinstance(command, click.Group):
            inner = click.Context(command, info_name=name, parent=group, terminal_width=_WIDTH)
            parts += [
                f"### driftscope {name} {verb}\n\n{_help(one, verb, inner)}" for verb, one in command.commands.items()
            ]
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
