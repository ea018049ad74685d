"""A command's work in a process started anew, where none can be forked: Windows.

The process runs the same command line. It costs the start of an interpreter, and its progress is not shown; what it
says comes when it has ended.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Sequence

import click

from driftscope.cli.watching import Ended, code_of
from driftscope.programs.isolation.breadcrumbs import SIGN, heard_by, last_told
from driftscope.programs.isolation.choice import MARK, WATCHED, isolating
from driftscope.programs.isolation.failures import WorkerDied
from driftscope.programs.isolation.limits import Limits
from driftscope.programs.isolation.workers import WorkerPool


def spawned(arguments: Sequence[str], limits: Limits, isolate: bool | None) -> Ended:
    """Run a command line in a process of its own.

    Parameters
    ----------
    arguments : sequence of str
        Without the program's name.
    limits : Limits
    isolate : bool or None
        Whether native runtimes have a further process there.
    """
    folder = tempfile.mkdtemp(prefix="driftscope-")
    environment = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), folder)
    try:
        with WorkerPool(1, limits=limits, preload=(__name__,), environment=environment) as pool:
            text, said, code = pool.submit(_answer_of, tuple(arguments), isolate).result()
    except WorkerDied as died:
        return Ended(died=died, told=last_told(died.last_words))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    click.echo(said, err=True, nl=False)
    return Ended(text, code)


def _answer_of(arguments: tuple[str, ...], isolate: bool | None) -> tuple[str, str, int]:
    from driftscope.cli import main

    os.environ.pop(MARK, None)  # it may start workers: those of a study
    os.environ[WATCHED] = str(os.getpid())
    heard_by(lambda facts: _write(f"{SIGN}{json.dumps(facts, default=str)}\n"))
    answer, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(answer), contextlib.redirect_stderr(said), isolating(isolate):
        code = code_of(lambda: main(list(arguments), standalone_mode=False))
    return answer.getvalue(), said.getvalue(), code


def _write(line: str) -> None:
    os.write(2, line.encode())
