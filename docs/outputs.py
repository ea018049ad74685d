"""Run what a page of the documentation shows, and compare or replace the outputs printed on it.

``python docs/outputs.py PAGE ...`` says where a page shows something else than what happens now; with ``--write`` the
outputs on the page are replaced. What is run, in the order of the page and in one empty folder:

* ```` ```python ````: executed, all blocks of a page in one namespace; a ```` ```text ```` block right after it is its
  output. With ``file=NAME`` the block is written to that file instead.
* ```` ```console ````: each line that begins with ``$ `` is a command, what follows is its output. With ``from="2. "``
  and ``to="3. "`` only the lines from one that begins so to before another that begins so are shown; ``slow=yes``
  marks what the quick tests leave out.

Everything else is only read. Numbers, places and which side is closer differ between machines and are not compared.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/tutorial/first-drift.md", "docs/howto/choose-a-tolerance.md",
         "docs/howto/convert-to-float16.md", "docs/howto/compare-onnxruntime-settings.md",
         "docs/howto/which-optimiser-did-it.md", "docs/howto/find-the-guilty-line.md", "docs/howto/keep-every-shape.md",
         "docs/howto/survive-vmap.md", "docs/howto/run-a-study.md", "docs/howto/test-in-ci.md",
         "docs/howto/see-drift-in-other-tools.md", "docs/howto/export-a-transformer-safely.md",
         "docs/howto/see-what-a-result-depends-on.md", "docs/explanation/guards.md")  # fmt: skip
CUT = "…"
_FENCE = re.compile(r"^```(?P<kind>\w+)(?P<options>[^\n`]*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(slots=True)
class Block:
    """One fenced block of a page.

    Parameters
    ----------
    kind : str
        ``python``, ``console``, ``text`` and whatever else is not run.
    body : str
    start, end : int
        Where the body stands in the page.
    options : dict of str
    adjacent : bool
        Whether nothing but white space stands between it and the block before.
    """

    kind: str
    body: str
    start: int
    end: int
    options: dict[str, str] = field(default_factory=dict)
    adjacent: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a page shows and what happens: the block, and the body it should have."""

    block: Block
    now: str

    @property
    def agrees(self) -> bool:
        """Whether the page shows what happens, numbers aside."""
        return masked(self.block.body) == masked(self.now)


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        options = dict(part.split("=", 1) for part in shlex.split(match["options"]))
        adjacent = bool(found) and not text[end : match.start()].strip()
        found.append(Block(match["kind"], match["body"], match.start("body"), match.end("body"), options, adjacent))
        end = match.end()
    return found


def masked(text: str) -> str:
    """Return a text without what differs between machines and runs."""
    text = re.sub(r"(?m)^exactness .*\n?(?: {10,}.*\n?)*", "", text)
    # Kernels differ between processors: the same bits here may be rounding there.
    text = re.sub(r"(?m)^(IDENTICAL|ROUNDING): .*(\n {10,}.*)*", "SAME", text)
    text = re.sub(r"IDENTICAL|ROUNDING", "SAME", re.sub(r"(?m)^\(\(.*\)\)$", "(groups of equal bits)", text))
    text = re.sub(r"(?m) +(A|B|equal|–)$", "", text)
    text = re.sub(r"\((axis|tail|block)[^)]*\)| at axis \d+, index \d+", "", text)
    text = re.sub(r"\+(cpu|cu\d+)\b", "", text)
    text = re.sub(r" \(\d+:\d\d:\d\d\)", "", text)  # pytest says minutes too, once a run takes one
    text = re.sub(r"[-+]?\d[\d,.]*(e[-+]?\d+)?", "#", text)
    # Sentences wrap where their numbers end.
    return re.sub(r"\s+([,.:;)])", r"\1", " ".join(text.split()))


def run_page(text: str, folder: Path, *, slow: bool = True) -> Iterator[Output]:
    """Run the blocks of a page in ``folder`` and yield every output; without those marked ``slow=yes`` if asked."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    with contextlib.chdir(folder), _importable(folder):
        for block in blocks_of(text):
            if "slow" in block.options and not slow:
                continue
            if block.kind == "python" and "file" in block.options:
                (folder / block.options["file"]).write_text(block.body, encoding="utf-8")
            elif block.kind == "python":
                printed = _executed(block.body, namespace)
            elif block.kind == "text" and block.adjacent:
                yield Output(block, printed)
            elif block.kind == "console":
                yield Output(block, _console(block))


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        # The next page has a model.py of its own.
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]


def _executed(source: str, namespace: dict[str, object]) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        exec(compile(source, "page", "exec"), namespace)  # noqa: S102
    return stream.getvalue()


def _console(block: Block) -> str:
    lines: list[str] = []
    for line in block.body.splitlines():
        if line.startswith("$ "):
            lines += [line, *_shown(_command(line[2:]).splitlines(), block.options)]
    return "\n".join(lines) + "\n"


def _command(line: str) -> str:
    words = shlex.split(line, comments=True)
    if words[0] == "driftscope":
        # With a tensor library loaded, commands work in this process: what a child writes to the real standard error is
        # not seen here, and a page would read otherwise alone than after another one.
        import torch  # noqa: F401
        from click.testing import CliRunner

        from driftscope.cli import main

        return CliRunner(env={"COLUMNS": "100"}).invoke(main, words[1:], prog_name="driftscope").output.rstrip()
    if words[0] in ("pytest", "python"):
        command = [sys.executable, *(["-m", "pytest"] if words[0] == "pytest" else []), *words[1:]]
        # The page's folder is not this repository: its pytest settings are not meant.
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80", "PYTEST_ADDOPTS": ""},
        )
        return done.stdout.rstrip()
    raise ValueError(f"a page runs {words[0]!r}; only driftscope, python and pytest are run (use ```bash for others)")


def _shown(lines: list[str], options: dict[str, str]) -> list[str]:
    first, last = 0, len(lines)
    if "from" in options:
        first = _line(lines, 0, options["from"])
    if "to" in options:
        last = _line(lines, first, options["to"])
    kept = "\n".join(lines[first:last]).strip("\n").splitlines()
    return [*([CUT] if first else []), *kept, *([CUT] if last < len(lines) else [])]


def _line(lines: list[str], start: int, prefix: str) -> int:
    for index in range(start, len(lines)):
        if lines[index].startswith(prefix):
            return index
    raise ValueError(f"no line of the output begins with {prefix!r}:\n" + "\n".join(lines))


def rewritten(text: str, outputs: list[Output]) -> str:
    """Return the page with every output replaced by what happens now."""
    for output in reversed(outputs):
        text = text[: output.block.start] + output.now + text[output.block.end :]
    return text


@click.command()
@click.argument("pages", nargs=-1)
@click.option("--write", is_flag=True, help="Replace the outputs on the pages.")
def main(pages: tuple[str, ...], write: bool) -> None:
    """Compare the outputs on PAGES with what happens now."""
    wrong = 0
    for name in pages or PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as place:
            # Findings name a file by its folder and name: this one is on the page.
            folder = Path(place).resolve() / "example"
            folder.mkdir()
            outputs = list(run_page(text, folder))
        stale = [o for o in outputs if not o.agrees]
        wrong += len(stale)
        if write:
            path.write_text(rewritten(text, outputs), encoding="utf-8")
        for output in stale:
            line = text[: output.block.start].count("\n")
            click.echo(f"{name}:{line}: {'replaced' if write else 'shows something else'}\n{output.now}", err=True)
        click.echo(f"{name}: {len(outputs)} outputs", err=True)
    raise SystemExit(0 if write or not wrong else 1)


if __name__ == "__main__":
    main()
