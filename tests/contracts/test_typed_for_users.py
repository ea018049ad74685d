"""The package is typed for those who use it: a script of theirs passes the strict checkers, and a mistake does not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("user_script.py")
ROOT = Path(__file__).parents[2]


def mistaken(folder: Path) -> Path:
    """Write the script with two mistakes: an attribute that is not there, a level that is no word."""
    wrong = folder / "wrong.py"
    text = SCRIPT.read_text(encoding="utf-8").replace("return found.verdict.value", "return found.verdict_value")
    wrong.write_text(text.replace('level="all"', "level=3"), encoding="utf-8")
    return wrong


@pytest.mark.sweep  # mypy reads torch from the start, which takes it a minute
def test_a_script_passes_strictly_and_its_mistakes_are_found(tmp_path):
    pytest.importorskip("mypy")
    wrong = mistaken(tmp_path)
    options = ["--strict", "--cache-dir", str(tmp_path / "cache"), "--config-file", str(tmp_path / "none.ini")]
    (tmp_path / "none.ini").write_text("[mypy]\nfollow_imports = silent\n")
    line = [sys.executable, "-m", "mypy", *options, str(SCRIPT), str(wrong)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT / "src")
    said = [entry for entry in done.stdout.splitlines() if ": error:" in entry]
    assert [entry for entry in said if "wrong.py" not in entry] == [], done.stdout
    assert any("verdict_value" in entry for entry in said), done.stdout + done.stderr
    assert any("arg-type" in entry and "level" in entry for entry in said), done.stdout


@pytest.mark.sweep
def test_it_passes_pyright_too(tmp_path):
    """Where pyright is installed (`.[dev]`): a node program, which the package of that name brings when it is run."""
    pytest.importorskip("pyright")
    wrong, right = mistaken(tmp_path), tmp_path / SCRIPT.name
    right.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    chosen = {"include": [wrong.name, right.name], "typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(chosen), encoding="utf-8")
    line = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    assert {Path(each["file"]).name for each in found} == {wrong.name}, done.stdout
    assert {"reportAttributeAccessIssue", "reportArgumentType"} <= {each["rule"] for each in found}
