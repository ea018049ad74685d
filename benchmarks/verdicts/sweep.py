"""Run many cases in worker processes, one row per case in a file; started again, a sweep goes on where it stopped.

``DRIFTSCOPE_SWEEP`` is the folder of the rows (``out/sweeps``), ``DRIFTSCOPE_ONLY`` a regular expression of the cases
wanted, ``DRIFTSCOPE_SHARE`` ``k/n`` takes every n-th group, beginning with the k-th; ``DRIFTSCOPE_SEED`` draws other
numbers than the usual ones.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

#: Seconds a case may take.
LIMIT = 240
#: Verdicts that an honest pair may get.
HONEST = ("IDENTICAL", "ROUNDING", "PRECISION")
#: Words that name a narrower format than those in which an ordinary float32 program computes.
CHEAPER = re.compile(r"(explained by|consistent with)[^;]*\b(float16|bfloat16|TF32|float8\w*)\b")


@dataclass(slots=True)
class Row:
    """What the judge said about one case.

    Parameters
    ----------
    case : str
        ``group/case``.
    expected : str
        ``"honest"``, or the id of what was planted.
    verdict : str
        ``"CRASH"`` where driftscope did not answer, ``"REFUSED"`` where the tool under test did not make a program.
    """

    case: str
    expected: str
    verdict: str
    reason: str = ""
    codes: list[str] = field(default_factory=list)
    first: str = ""
    where: str = ""
    seconds: float = 0.0
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One question to the judge: ``ask`` compares and returns the comparison."""

    name: str
    ask: Callable[[], Any]
    expected: str = "honest"
    #: Whether a first finding names the right place, where it is known.
    placed: Callable[[Any], bool] | None = None


class Refused(Exception):
    """The tool under test did not make a program of it: no case."""


class _Late(BaseException):
    pass


def seeded(seed: int) -> torch.Generator:
    """Make a generator of the usual numbers, or of others where ``DRIFTSCOPE_SEED`` asks for them."""
    return torch.Generator().manual_seed(seed + 10_000 * int(os.environ.get("DRIFTSCOPE_SEED", "0")))


def rows_at(name: str) -> Path:
    """The file of a sweep's rows."""
    folder = Path(os.environ.get("DRIFTSCOPE_SWEEP", "out/sweeps"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.jsonl"


def read(name: str) -> list[dict[str, Any]]:
    """Every row of a sweep so far; a line that a killed worker cut is none."""
    found: dict[str, dict[str, Any]] = {}
    path = rows_at(name)
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        found[row["case"]] = row
    return list(found.values())


def sweep(name: str, module: str, groups: Sequence[str]) -> list[dict[str, Any]]:
    """Run the groups of a sweep, each in a process of its own; return all rows.

    Parameters
    ----------
    name : str
        Of the file of rows.
    module : str
        Its function ``cases(group)`` yields the cases of one group.
    groups : sequence of str
    """
    only = re.compile(os.environ.get("DRIFTSCOPE_ONLY", ""))
    k, n = (int(part) for part in os.environ.get("DRIFTSCOPE_SHARE", "0/1").split("/"))
    context = multiprocessing.get_context("spawn")
    wanted = [g for g in groups if only.search(g)][k::n]
    while left := _left(name, wanted):
        worker = context.Process(target=_work, args=(name, module, left))
        worker.start()
        worker.join()
        if worker.exitcode:
            _note_crash(name, worker.exitcode, worker.pid)
    return read(name)


def _left(name: str, groups: Sequence[str]) -> list[str]:
    done = {row["case"] for row in read(name)}
    return [g for g in groups if f"{g}/end" not in done]


def _begun(name: str, process: int | None) -> Path:
    return rows_at(name).with_suffix(f".{process}.case")


def _note_crash(name: str, status: int, process: int | None) -> None:
    """Write down the case in which the worker ended, so that the next one passes it."""
    begun = _begun(name, process)
    _write(name, Row(begun.read_text(), "", "CRASH", f"the process ended with status {status}"))
    begun.unlink()


def _work(name: str, module: str, groups: Sequence[str]) -> None:
    """Run group after group; every so often in a new process, because exporters keep memory."""
    import torch

    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _ring)
    for group in groups[:_GROUPS]:
        _run_group(name, module, group)
    _begun(name, os.getpid()).unlink(missing_ok=True)


_GROUPS = 40


def _run_group(name: str, module: str, group: str) -> None:
    done = {row["case"] for row in read(name)}
    begun = _begun(name, os.getpid())
    begun.write_text(f"{group}/end")
    try:
        for case in importlib.import_module(module).cases(group):
            label = f"{group}/{case.name}"
            if label not in done:
                begun.write_text(label)
                _write(name, _row(label, case))
    except Refused as error:
        _write(name, Row(f"{group}/all", "", "REFUSED", str(error)[:300]))
    _write(name, Row(f"{group}/end", "", "END"))


def _ring(_number: int, _frame: Any) -> None:
    raise _Late


def _row(label: str, case: Case) -> Row:
    start = time.perf_counter()
    signal.alarm(LIMIT)
    try:
        found = case.ask()
    except Refused as error:
        return Row(label, case.expected, "REFUSED", str(error)[:300])
    except _Late:
        return Row(label, case.expected, "CRASH", f"took longer than {LIMIT} s")
    except Exception as error:  # every one is a row: the sweep looks for them
        return Row(label, case.expected, "CRASH", f"{type(error).__name__}: {error}"[:500])
    finally:
        signal.alarm(0)
    first = found.first
    whys = [f"{f.what} {f.why}" for f in found.findings if not f.note][:3]
    return Row(
        label, case.expected, str(found.verdict), found.reason, [f.code for f in found.findings],
        "" if first is None else first.what, "" if first is None else str(first.where),
        round(time.perf_counter() - start, 2), {"whys": whys, **_first(found, case)},
    )  # fmt: skip


def _first(found: Any, case: Case) -> dict[str, Any]:
    """Whether the first finding is at the right place, what it advises, and whether that was tried."""
    first = found.first
    if first is None:
        return {}
    placed = {} if case.placed is None else {"placed": case.placed(first)}
    return {**placed, "fix": first.fix, "verified": first.verified,
            "later": [f"{f.where}: {f.what}" for f in found.findings if not f.note and f is not first]}  # fmt: skip


def _write(name: str, row: Row) -> None:
    with rows_at(name).open("a") as out:
        out.write(json.dumps(asdict(row)) + "\n")


def troubles(rows: Iterable[dict[str, Any]], narrow: Callable[[str], bool] = lambda _case: False) -> list[str]:
    """Honest cases that are DIFFERENT, INCONCLUSIVE, crashed or given a cause that cannot be, a line each.

    Parameters
    ----------
    rows : iterable of rows
    narrow : callable
        Whether a case uses narrower formats than float32, of which causes may then speak.
    """
    found = []
    for row in rows:
        if row["verdict"] in ("END", "REFUSED") or row["expected"] not in ("honest", ""):
            continue
        said = " ".join([row["reason"], *row["more"].get("whys", [])])
        if row["verdict"] not in HONEST:
            found.append(f"{row['verdict']:12} {row['case']}: {row['reason'][:150]}")
        elif not narrow(row["case"]) and CHEAPER.search(said):
            found.append(f"false cause  {row['case']}: {row['reason'][:150]}")
    return found


def tally(rows: Iterable[dict[str, Any]]) -> dict[str, int]:
    """How many cases got which verdict."""
    found: dict[str, int] = {}
    for row in rows:
        if row["verdict"] != "END":
            found[row["verdict"]] = found.get(row["verdict"], 0) + 1
    return dict(sorted(found.items()))
