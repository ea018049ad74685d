"""Which versions driftscope works with: measured, one environment per file of ``constraints/``.

``python docs/compatibility.py run torch2.8`` makes ``.venv-torch2.8``, installs driftscope with
``constraints/torch2.8.txt``, runs the tests of what depends on versions there (``SUITE``: a walk through all
commands with what the installed torch exports, onnxruntime's levels, ``.pt2`` files, what lifts; a minute or two) and
keeps what came of it in
``docs/measurements/compatibility``; ``... table`` writes the page from everything that is kept.
``make matrix VERSION=torch2.8`` does both; ``VERSION=oldest`` and ``VERSION=newest`` are the oldest and newest torch.
``... beside oldest`` runs tests here, with the oldest numpy, onnx and onnxruntime put before the installed ones and
without JAX, which asks for newer ones.
Other tests may be named behind it: ``python docs/compatibility.py run torch2.8 tests`` runs every quick test.
Builds of torch other than the one in ``constraints.txt`` bring several gigabytes of CUDA libraries along. Where uv is
installed it makes the environments, in a third of the time.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "measurements" / "compatibility"
PERSONALITIES = ROOT / "docs" / "measurements" / "personalities.json"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
_SHOWN = ("torch", "onnxruntime", "onnx", "numpy", "transformers")
# What depends on the versions of libraries, and is short: every command, what this torch exports, this onnxruntime.
SUITE = (
    "tests/cli/test_walk.py",
    "tests/programs/test_onnx_runtime.py",
    "tests/programs/test_pt2_files.py",
    "tests/lift/test_tape_exported.py",
    "tests/lift/test_onnx_lift.py",
    "tests/records/test_environment.py",
    "tests/comparison/test_judge.py",
)
# With older libraries put before the installed ones: what reads, runs and lifts files, and what is numbers alone.
BESIDE = ("tests/cli/test_walk.py", "tests/programs", "tests/lift/test_onnx_lift.py",
          "tests/lift/test_numpys_own_code.py", "tests/numerics", "tests/comparison", "tests/records")  # fmt: skip
_ASK = """
import importlib.metadata as m, json, platform, sys
from driftscope.records.environment import capture
found, python = capture(), platform.python_version()
print(json.dumps({"python": python, "versions": found["versions"], "processor": found["processor"]["model"]}))
"""


def known() -> list[str]:
    """Return the names of the environments, by torch's version and then the others'."""
    names = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "constraints").glob("*.txt")}
    return sorted(names, key=lambda name: [_numbers(_pinned(names[name], of)) for of in _SHOWN])


def _pinned(constraints: str, package: str) -> str:
    found = re.search(rf"^{package}==(\S+)", constraints, re.MULTILINE)
    return found[1] if found else "0"


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version.split("+")[0])]


def environment(name: str, python: str, folder: Path) -> Path:
    """Make an environment with driftscope and what its constraints name; return its interpreter."""
    constraints = ROOT / "constraints" / f"{name}.txt"
    if not constraints.is_file():
        raise SystemExit(f"no constraints/{name}.txt; there are {', '.join(known())}, oldest and newest")
    inside = folder / "bin" / "python"
    if not inside.is_file():
        subprocess.check_call([python, "-m", "venv", str(folder)])
    quick = shutil.which("uv")
    install = [quick, "pip", "install", "--python", str(inside)] if quick else [str(inside), "-m", "pip", "install"]
    options = ["--quiet", *([] if quick else ["--no-compile"]), "-c", str(constraints)]
    subprocess.check_call([*install, *options, "-e", f"{ROOT}[test]"])
    return inside


def measure(name: str, python: str, tests: list[str], folder: Path, ready: bool) -> None:
    """Run tests in the environment of that name and keep the numbers."""
    inside = folder / "bin" / "python" if ready else environment(name, python, folder)
    junit = folder / "junit.xml"
    workers = ["-n", os.environ.get("WORKERS", "auto"), "--dist", "worksteal"]
    # The walk is marked as a sweep.
    chosen = ["-m", "not slow and not sweep" if tests else "not slow"]
    command = [str(inside), "-m", "pytest", "-q", *chosen, *workers, f"--junitxml={junit}"]
    junit.unlink(missing_ok=True)
    subprocess.call([*command, *(tests or SUITE)], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if not junit.is_file():
        raise SystemExit(f"{name}: the tests ended before they were counted; nothing was kept")
    row = {"name": name, "date": datetime.date.today().isoformat(), "tests": tests or ["suite"], **counted(junit)}
    row |= running_with(str(inside), os.environ)
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(row, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def beside(name: str, tests: list[str]) -> int:
    """Run tests here, with the libraries that an environment names put before our own, torch and what rests on it not.

    Takes two minutes where an environment of its own takes several more: ``make oldest``. Returns pytest's exit code.
    """
    pins = (ROOT / "constraints" / f"{name}.txt").read_text(encoding="utf-8").split("\n")
    wanted = [pin for pin in pins if re.match(r"(?!torch|transformers)[\w-]+==", pin)]
    folder = ROOT / f".venv-beside-{name}" / "site-packages"  # where what is nobody's own code is looked for
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--no-deps", "--upgrade"]
    subprocess.check_call([*install, "--target", str(folder), *wanted])
    # The JAX that is installed asks for a newer numpy and would fail halfway: here it is as if there were none.
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['jax'] = None\n", encoding="utf-8")
    found = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "src")])}
    versions = running_with(sys.executable, found)["versions"]
    missed = [pin for pin in wanted if _pinned(pin, pin.split("==")[0]) != versions.get(pin.split("==")[0])]
    if missed:
        raise SystemExit(f"{', '.join(missed)} installed in {folder}, but others are imported: {versions}")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-n", "auto", "--dist", "worksteal"]
    return subprocess.call([*command, *(tests or BESIDE)], cwd=ROOT, env=found)


def running_with(python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Ask an interpreter for its version, those of its libraries and its processor."""
    told: dict[str, Any] = json.loads(subprocess.check_output([python, "-c", _ASK], text=True, env=dict(environment)))
    return told


def counted(junit: Path) -> dict[str, Any]:
    """Read how many tests passed, which failed, and why others were skipped."""
    passed, failed = 0, []
    skipped: collections.Counter[str] = collections.Counter()
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        reason = case.find("skipped")
        if reason is not None:
            skipped[reason.get("message") or "skipped"] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            passed += 1
    return {"passed": passed, "failed": sorted(failed), "skipped": dict(sorted(skipped.items()))}


def table() -> str:
    """Return the page: one row per environment, what failed and what was skipped below."""
    rows = [json.loads(path.read_text(encoding="utf-8")) for path in KEPT.glob("*.json")]
    rows.sort(key=lambda row: [_numbers(row["versions"].get(of, "0")) for of in _SHOWN])
    lines = [
        "# Which versions it works with",
        "",
        "Measured with `make matrix VERSION=NAME`, one environment per file of `constraints/`. A newer version than",
        "the newest here is not refused; `driftscope env` says that it was not tried. The suite is every command with",
        "what the torch of that environment exports on its onnxruntime, and tests of levels, `.pt2` files and lifts:",
        f"{', '.join(f'`{test}`' for test in SUITE)}.",
        "CI runs `make oldest` too: what reads, runs and lifts files, with the oldest numpy, onnx and onnxruntime of",
        "them and the torch that is there.",
        "",
        f"| environment | python | {' | '.join(_SHOWN)} | tests | passed | failed | skipped | measured |",
        f"|---|---|{'---|' * len(_SHOWN)}---|---|---|---|---|",
    ]
    for row in rows:
        versions = " | ".join(row["versions"].get(name, "-") for name in _SHOWN)
        numbers = f"{row['passed']} | {len(row['failed'])} | {sum(row['skipped'].values())}"
        tests = ", ".join(row["tests"])
        lines.append(f"| {row['name']} | {row['python']} | {versions} | {tests} | {numbers} | {row['date']} |")
    lines += ["", f"Processors: {', '.join(sorted({row['processor'] for row in rows}))}.", ""] if rows else []
    again = {row["name"]: len(row["again"]) for row in rows if row.get("again")}
    if again:
        words = ", ".join(f"{name} ({count})" for name, count in again.items())
        lines += [f"Failed first, and run again alone after a mend: {words}.", ""]
    waiting = [name for name in known() if name not in {row["name"] for row in rows}]
    lines += (
        [f"In `constraints/`, but not run with this version of driftscope yet: {', '.join(waiting)}.", ""]
        if waiting
        else []
    )
    lines += _not_run(rows) + _personalities()
    return "\n".join(lines).rstrip() + "\n"


def _not_run(rows: list[dict[str, Any]]) -> list[str]:
    """Return what failed and what was skipped, and in which environments."""
    failed, skipped = collections.defaultdict(list), collections.defaultdict(list)
    for row in rows:
        for test in row["failed"]:
            failed[test].append(row["name"])
        for reason in row["skipped"]:
            # A reason may name an address in memory or a line of a test: neither says more here.
            skipped[re.sub(r"^.*Skipped: |0x[0-9a-f]+", "", reason)].append(row["name"])
    lines = []
    for title, found in (("What failed", failed), ("What was skipped", skipped)):
        if found:
            lines += [f"## {title}", "", "| what | where |", "|---|---|"]
            everywhere = len(rows)
            for what, names in sorted(found.items()):
                where = "everywhere" if len(names) == everywhere else ", ".join(names)
                lines.append(f"| {what.replace('|', '/')} | {where} |")
            lines.append("")
    return lines


def _personalities() -> list[str]:
    """Return how every quick test did as on other processors, with other threads and in other orders."""
    if not PERSONALITIES.is_file():
        return []
    rows = json.loads(PERSONALITIES.read_text(encoding="utf-8"))
    lines = [
        "## Instruction sets, threads, order",
        "",
        "Every quick test with `make personalities`: the libraries are told by their own switches to use no more than",
        "the instructions of an older processor (`tests/instruction_sets.py`), `OMP_NUM_THREADS` is set, and the order",
        "of the tests is drawn from a number. The rows are from processors without AVX-512.",
        "",
        "The native library was run with AVX-512 in the emulator Bochs (`tests/accumulation/emulated`, a slow test):",
        "every entry point on hostile numbers gives the bits of AVX2, of the baseline, of 64-bit Arm under qemu, and",
        "of plain loops.",
        "",
        "| instructions | threads | order | passed | failed | skipped | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    said: set[str] = set()
    for row in rows:
        numbers = f"{row['passed']} | {len(row['failed'])} | {sum(row['skipped'].values())}"
        lines.append(f"| {row['personality']} | {row['threads']} | {row['seed']} | {numbers} | {row['date']} |")
        where = f"{row['personality']}, {row['threads']} threads"
        said |= {f"* {test} failed under {where}." for test in row["failed"]}
        # Moved there by hand.
        said |= {f"* {test} failed under {where}, and passed alone after a mend." for test in row.get("again", ())}
    lines += ["", *sorted(said), ""]
    return lines


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("run", "beside", "table"))
    parser.add_argument("name", nargs="?", default="newest")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--environment", type=Path, help="an environment to change instead of .venv-NAME")
    parser.add_argument("--ready", action="store_true", help="the environment holds what it should: install nothing")
    given, tests = parser.parse_known_args()
    name = {"oldest": known()[0], "newest": known()[-1]}.get(given.name, given.name)
    if given.what == "beside":
        sys.exit(beside(name, tests))
    if given.what == "run":
        measure(name, given.python, tests, given.environment or ROOT / f".venv-{name}", given.ready)
    PAGE.write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
