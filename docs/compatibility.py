"""Which versions driftscope works with: measured, one environment per file of ``constraints/``.

``python docs/compatibility.py run oldest`` makes ``.venv-oldest``, installs driftscope with ``constraints/oldest.txt``,
runs the quick tests there and keeps what came of it in ``docs/measurements/compatibility``; ``... table`` writes the
page from everything that is kept. ``make matrix VERSION=oldest`` does both. Builds of torch other than the one in
``constraints.txt`` bring several gigabytes of CUDA libraries along.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "measurements" / "compatibility"
PAGE = ROOT / "docs" / "reference" / "compatibility.md"
_SHOWN = ("torch", "onnxruntime", "onnx", "numpy", "transformers")
_ASK = """
import importlib.metadata as m, json, platform, sys
from driftscope.records.environment import capture
found, python = capture(), platform.python_version()
print(json.dumps({"python": python, "versions": found["versions"], "processor": found["processor"]["model"]}))
"""


def environment(name: str, python: str) -> Path:
    """Make an environment with driftscope and what its constraints name; return its interpreter."""
    constraints = ROOT / "constraints" / f"{name}.txt"
    if not constraints.is_file():
        known = ", ".join(sorted(path.stem for path in constraints.parent.glob("*.txt")))
        raise SystemExit(f"no constraints/{name}.txt; there are {known}")
    folder = ROOT / f".venv-{name}"
    inside = folder / "bin" / "python"
    if not inside.is_file():
        subprocess.check_call([python, "-m", "venv", str(folder)])
    install = [str(inside), "-m", "pip", "install", "--quiet", "--no-compile", "-c", str(constraints)]
    subprocess.check_call([*install, "-e", f"{ROOT}[test]"])
    return inside


def measure(name: str, python: str, tests: list[str]) -> None:
    """Run the quick tests in the environment of that name and keep the numbers."""
    inside = environment(name, python)
    junit = ROOT / f".venv-{name}" / "junit.xml"
    workers = ["-n", "auto", "--dist", "worksteal"]
    command = [str(inside), "-m", "pytest", "-q", *workers, f"--junitxml={junit}", *tests]
    subprocess.call(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    row = json.loads(subprocess.check_output([str(inside), "-c", _ASK], text=True))
    row |= {"name": name, "date": datetime.date.today().isoformat(), "tests": tests or ["tests"], **counted(junit)}
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(row, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def counted(junit: Path) -> dict[str, object]:
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
    rows.sort(key=lambda row: [int(part) for part in row["versions"]["torch"].split("+")[0].split(".")])
    lines = [
        "# Which versions it works with",
        "",
        "Measured with `make matrix VERSION=NAME`, one environment per file of `constraints/`. A newer version than",
        "the newest here is not refused; `driftscope env` says that it was not tried.",
        "",
        f"| python | {' | '.join(_SHOWN)} | tests | passed | failed | skipped | measured |",
        f"|---|{'---|' * len(_SHOWN)}---|---|---|---|---|",
    ]
    for row in rows:
        versions = " | ".join(row["versions"].get(name, "-") for name in _SHOWN)
        numbers = f"{row['passed']} | {len(row['failed'])} | {sum(row['skipped'].values())}"
        lines.append(f"| {row['python']} | {versions} | {', '.join(row['tests'])} | {numbers} | {row['date']} |")
    for row in rows:
        if row["failed"] or row["skipped"]:
            lines += ["", f"## torch {row['versions']['torch']}, onnxruntime {row['versions']['onnxruntime']}", ""]
            lines += [f"* failed: `{name}`" for name in row["failed"]]
            lines += [f"* {count} skipped: {reason}" for reason, count in row["skipped"].items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("name", nargs="?", default="newest")
    parser.add_argument("--python", default=sys.executable)
    given, tests = parser.parse_known_args()
    if given.what == "run":
        measure(given.name, given.python, tests)
    PAGE.write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
