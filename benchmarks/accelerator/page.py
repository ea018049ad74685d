"""A record of the accelerator checks as Markdown."""

from __future__ import annotations

from typing import Any


def page_of(record: dict[str, Any]) -> str:
    """Return the page: one row per check, what was found below."""
    versions = f"torch {record['torch']}" + (f", CUDA {record['cuda']}" if record["cuda"] else "")
    lines = [
        f"# {record['name']}", "",
        f"Measured with `make gpu` on {record['date']} in {record['seconds']:.0f} s: {versions}.", "",
        "| check | asks | came out | |", "|---|---|---|---|",
    ]  # fmt: skip
    for row in record["checks"]:
        lines.append(f"| {row['name']} | {_cell(row['asks'])} | {row['state']} | {_cell(row['words'])} |")
    for row in record["checks"]:
        if row["found"]:
            lines += ["", f"## {row['name']}", "", "| what | value |", "|---|---|"]
            lines += [f"| {_cell(str(key))} | {_cell(str(value))} |" for key, value in row["found"].items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
