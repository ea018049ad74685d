"""Forty real outputs, for review: ``python docs/forty_outputs.py`` writes ``docs/explanation/forty-outputs.md``.

Six broken exports, an honest one, a float16 one and one compared with itself, each as a terminal of 60 and of 100
columns shows it; annotations, notebook text, and one answer of every other command. Above them stands the
twenty-second test: the line and column at which place, cause and fix of each broken export are read first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

DOCS = Path(__file__).parent
PAGE = DOCS / "explanation" / "forty-outputs.md"
WIDTHS = (60, 100)
_HEAD = """\
# Forty real outputs

What driftscope prints, whole: written by `python docs/forty_outputs.py` on {machine}, to be read in
review. Numbers, kernels and which side is closer vary with the machine; the words do not.

## The twenty-second test

Somebody who never saw driftscope is to name place, cause and next step within twenty seconds. Where each is read
first, as line:column of a terminal:

| broken export | what was done | columns | place | cause | fix |
|---|---|---|---|---|---|
{rows}
"""
#: name -> what must be read: the place, a word of the cause, the beginning of the fix
WANTED = {
    "epsilon": ("blocks.1.norm2", "epsilon", "fix"), "gelu": ("blocks.0", "approximate", "fix"),
    "axis": ("blocks.1", "axis is", "fix"), "weight": ("blocks.0.down", "multiplied by 1.01", "fix"),
    "wiring": ("blocks.1", "it reads", "fix"), "cast": ("narrowed", "float16", "fix"),
}  # fmt: skip


def seen_at(text: str, words: str) -> str:
    """Return ``line:column`` of words in a text that may break lines at any space; "–" where they do not stand."""
    lines = text.split("\n")
    for start in range(len(lines)):
        joined, columns = "", []
        for offset, line in enumerate(lines[start : start + 2]):
            stripped = line.strip()
            begin = len(line) - len(line.lstrip())
            joined += (" " if joined else "") + stripped
            columns += ([(offset, begin)] if offset else []) + [(offset, begin + k) for k in range(len(stripped))]
        at = joined.find(words)
        if at >= 0 and at < len(columns) and columns[at][0] == 0:
            return f"{start + 1}:{columns[at][1] + 1}"
    return "–"


def comparisons() -> Iterator[tuple[str, str, Any]]:
    """Compare the model with every export; name, what was done, the record."""
    import onnx
    from broken_models import BROKEN, exported, make

    import driftscope as ds

    model, inputs = make()
    for name, (done, build) in BROKEN.items():
        onnx.save(build(), f"{name}.onnx")
        yield name, done, ds.compare(model, f"{name}.onnx", inputs)
    onnx.save(exported(), "honest.onnx")
    yield "honest", "exported and nothing else", ds.compare(model, "honest.onnx", inputs)
    yield "float16", "the model itself in float16", ds.compare(model, ds.torch(model, dtype="float16"), inputs)
    yield "itself", "nothing", ds.compare(model, model, inputs)


def others() -> Iterator[tuple[str, Callable[[int], str]]]:
    """Answers of the other commands, as functions of the width."""
    import torch
    from broken_models import make
    from pictured import Net, Pool, clip

    import driftscope as ds
    from driftscope.report import kinds
    from driftscope.report.terminal.lines import folded

    def text(record: Any) -> Callable[[int], str]:
        plain = getattr(record, "record", record)  # reports that hold a program keep their record beside it
        return lambda width: kinds.text_of(plain, width=width, color=False)

    model, inputs = make()
    torch.manual_seed(0)
    yield "shapes", text(ds.check_shapes(Pool(), (torch.randn(4, 6, 8), torch.ones(4, 6))))
    yield "transforms", text(ds.check_transforms(clip, torch.randn(5, 8), transforms=("vmap", "grad")))
    yield "matrix", text(ds.compare_all({"eager": model, "honest": "honest.onnx", "gelu": "gelu.onnx"}, inputs))
    yield (
        "study",
        text(ds.studies.reduction("mean", sizes=(512,), dtypes=("float32",), permutations=8, workers=0).record),
    )
    order = str(ds.reveal("torch.sum", 256))
    yield "reveal", lambda width: folded(order, width)
    yield "half", text(ds.check_half(Net().eval(), torch.randn(8, 64)))


def outputs() -> Iterator[tuple[str, str]]:
    """Every output with its title; the twenty-second table comes of the first ones."""
    from driftscope.records.kinds.session import Session, SessionEntry
    from driftscope.report.exchange import github
    from driftscope.report.pages import page
    from driftscope.report.terminal.comparison import render

    records = list(comparisons())
    for name, done, record in records:
        for width in WIDTHS:
            yield f"{name} ({done}), {width} columns", render(record, width=width)
    for name, done, record in records[:6]:
        entry = SessionEntry(f"test_{name}", record.verdict, record.answer, record.findings, True, "", "test_it.py", 7)
        lines = github.commands(Session((entry,)), Path.cwd())
        yield f"{name} ({done}), GitHub annotation", lines[0]
    for name, _, record in records[5:9]:
        yield f"{name}, notebook or pull request (Markdown)", page.markdown(record).rstrip()
    for name, write in others():
        for width in WIDTHS:
            yield f"{name}, {width} columns", write(width)


def table(texts: dict[str, str]) -> str:
    """Return the rows of the twenty-second test."""
    rows = []
    for name, words in WANTED.items():
        for width in WIDTHS:
            title = next(t for t in texts if t.startswith(f"{name} (") and t.endswith(f"{width} columns"))
            done = title.partition("(")[2].rpartition(")")[0]
            rows.append(" | ".join((f"| {name}", done, str(width), *(seen_at(texts[title], w) for w in words))) + " |")
    return "\n".join(rows)


@contextlib.contextmanager
def project() -> Iterator[None]:
    """Stand in a folder of its own, as a user does: places are named from it."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        for name in ("broken_models.py", "pictured.py"):
            shutil.copy(DOCS / name, folder)
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            os.chdir(before)
            sys.path.remove(folder)


def main() -> int:
    """Write the page."""
    from driftscope.records.environment import capture

    with project():
        texts = dict(outputs())
    machine = str(capture().get("processor", {}).get("model") or "one machine")
    blocks = [f"## {k}. {title}\n\n````text\n{text}\n````" for k, (title, text) in enumerate(texts.items(), start=1)]
    PAGE.write_text(
        "\n\n".join([_HEAD.format(machine=machine, rows=table(texts)).rstrip(), *blocks]) + "\n", encoding="utf-8"
    )
    click.echo(f"{len(texts)} outputs in {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
