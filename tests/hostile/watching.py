"""Runs cases in a forked child, warm from its parent, and watches what it does: time, memory, signals, writes, code."""

from __future__ import annotations

import builtins
import collections
import contextlib
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS = 20
BYTES = 2 << 30


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Packages that honest work imports late; a file that makes anything else be imported was believed.
_AT_HOME = _words(
    """
    torch sympy mpmath numpy onnx onnxruntime driftscope safetensors ml_dtypes rich click yaml jinja2 networkx
    pygments markupsafe google onnx_ir onnxscript encodings functorch torchgen duckdb expecttest hypothesis
    gmpy2 gmpy flint scipy pandas ipython matplotlib packaging
    """
)
_FORBIDDEN = _words(
    """
    os.system os.exec os.posix_spawn os.spawn os.startfile os.fork os.forkpty subprocess.Popen socket.connect
    socket.bind ctypes.dlopen os.mkdir os.rename os.remove os.rmdir os.symlink os.link os.chmod os.truncate
    shutil.rmtree webbrowser.open urllib.Request
    """
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass
class Tally:
    """What became of the cases.

    Parameters
    ----------
    outcomes : Counter
        ``read`` or ``refused``.
    bad : list of (int, str)
        Number of a case and what it did that nothing may do.
    slowest, largest : float, int
        Seconds of the slowest case; bytes by which the child grew.
    """

    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    bad: list[tuple[int, str]] = field(default_factory=list)
    slowest: float = 0.0
    largest: int = 0


def watched(act: Callable[[Path], Any], write: Callable[[int, Path], Path], count: int, folder: Path) -> Tally:
    """Try ``count`` cases.

    Parameters
    ----------
    act : callable
        What is done with a file: returns, or raises a DriftscopeError.
    write : callable
        Writes the case of a number into a folder and returns its path.
    count : int
    folder : Path
        The only place where anything may be written.
    """
    tally, begin = Tally(), 0
    while begin < count:
        begin = _batch(act, write, range(begin, count), folder, tally)
    return tally


def _batch(
    act: Callable[[Path], Any], write: Callable[[int, Path], Path], numbers: Sequence[int], folder: Path, tally: Tally
) -> int:
    """Run cases in one child until it ends; return the number to go on with."""
    receiving, sending = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        sys.dont_write_bytecode = True  # modules that are imported late would be written down
        try:
            _in_child(act, write, numbers, folder, sending)
        finally:  # a mistake in the changes themselves must not go on as a second parent
            os._exit(70)
    os.close(sending)
    try:
        return _follow(child, receiving, numbers, tally)
    finally:
        os.close(receiving)


def _follow(child: int, receiving: int, numbers: Sequence[int], tally: Tally) -> int:
    current, started, rest, done = numbers[0], time.monotonic(), b"", False
    patience = 60 * SECONDS  # of the wall: other processes want the processor, too; libraries are loaded first
    while True:
        ready, _, _ = select.select([receiving], [], [], 1.0)
        if not ready:
            if time.monotonic() - started > patience:
                os.kill(child, signal.SIGKILL)
                tally.bad.append((current, "hangs"))
                os.waitpid(child, 0)
                return current + 1
            continue
        data = os.read(receiving, 65536)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            kind, _, words = line.decode().partition(" ")
            if kind == "begin":
                current, started, patience = int(words), time.monotonic(), 6 * SECONDS
            elif kind == "bad":
                tally.bad.append((current, words))
            elif kind == "end":
                outcome, seconds, size = words.split()
                tally.outcomes[outcome] += 1
                tally.slowest = max(tally.slowest, float(seconds))
                tally.largest = max(tally.largest, int(size))
            done = done or kind == "done"
    _, status = os.waitpid(child, 0)
    if done:
        return numbers[-1] + 1
    tally.bad.append((current, f"ends the process: {os.waitstatus_to_exitcode(status)}"))
    return current + 1


def _in_child(
    act: Callable[[Path], Any], write: Callable[[int, Path], Path], numbers: Sequence[int], folder: Path, sending: int
) -> None:
    """Never returns."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + 2 * BYTES, hard))
    report = _Reporter(sending, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(-4, 0):  # what honest work imports late is imported now
        with contextlib.suppress(Exception):
            act(write(number, folder))
    for number in numbers:
        report.say(f"begin {number}")
        path = write(number, folder)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # SIGVTALRM ends the child after so much computing
        started = time.process_time()
        outcome = report.tried(act, path)
        seconds = time.process_time() - started
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if grown > BYTES:
            report.say(f"bad takes {grown} bytes")
            before += grown // 1024
        report.say(f"end {outcome} {seconds:.4f} {grown}")
    report.say("done")
    os._exit(0)


class _Reporter:
    """Tells the parent what a case did."""

    def __init__(self, sending: int, folder: Path):
        self._sending, self._folder, self._acting = sending, str(folder.resolve()), False
        builtins.CANARY = self._executed  # type: ignore[attr-defined]  (what every planted piece of code calls)
        sys.addaudithook(self._hear)

    def say(self, line: str) -> None:
        """Send one line."""
        os.write(self._sending, line.replace("\n", " ").encode("utf-8", "replace")[:3000] + b"\n")

    def tried(self, act: Callable[[Path], Any], path: Path) -> str:
        """Run one case."""
        from driftscope.errors import DriftscopeError

        self._acting = True
        try:
            act(path)
            return "read"
        except DriftscopeError as error:
            if len(str(error)) > 5000:
                self.say(f"bad is refused at length: {str(error)[:200]}")
            return "refused"
        except BaseException as error:
            lines = traceback.format_exc().strip().splitlines()[-7:]
            self.say(f"bad raises {type(error).__name__}: {str(error)[:200]} | {' | '.join(lines)}")
            return "raised"
        finally:
            self._acting = False

    def _executed(self, *_: Any, **__: Any) -> int:
        self.say("bad executes code of the file")
        return 0

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._acting:
            return
        if event == "open" and isinstance(args[2], int) and args[2] & _WRITING:
            path = os.path.abspath(os.fsdecode(args[0])) if isinstance(args[0], (str, bytes)) else ""
            # What is opened in the place of a folder is a file without a name (O_TMPFILE): a worker's own log.
            nameless = os.path.isdir(path)
            at_home = path.startswith((self._folder, "/dev/", "/proc/")) or "__pycache__" in path
            if path and not at_home and not nameless:
                self.say(f"bad writes {path[:200]}")
        elif event == "subprocess.Popen" and args[0] == sys.executable and "isolation.process" in str(args[1]):
            return  # the worker, whose model ended it or its time
        elif event == "os.truncate" and isinstance(args[0], int):
            return  # a file that is open already: its opening was seen
        elif event in ("os.remove", "os.rmdir") and args[1] != -1:
            return  # inside of shutil.rmtree, which was seen with its folder
        elif event in _FORBIDDEN:
            if not str(args[0] if args else "").startswith(self._folder):
                self.say(f"bad does {event}{args!r:.200}")
        elif event == "import":
            root = str(args[0]).partition(".")[0]
            at_home = root in _AT_HOME or root in _EARLY or (root in sys.stdlib_module_names and root != "this")
            if args[0] not in sys.modules and not at_home and not root.startswith("_sysconfigdata"):
                self.say(f"bad imports {str(args[0])[:100]}")


_EARLY = {name.partition(".")[0] for name in sys.modules}
