"""The package is typed for those who use it: a script of theirs passes mypy --strict, and a mistake in it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
SCRIPT = Path(__file__).with_name("user_script.py")
ROOT = Path(__file__).parents[2]


@pytest.mark.sweep  # mypy reads torch from the start, which takes it a minute
def test_a_script_passes_strictly_and_its_mistakes_are_found(tmp_path):
    wrong = tmp_path / "wrong.py"
    text = SCRIPT.read_text(encoding="utf-8").replace("return found.verdict.value", "return found.verdict_value")
    wrong.write_text(text.replace('level="all"', "level=3"), encoding="utf-8")
    options = ["--strict", "--cache-dir", str(tmp_path / "cache"), "--config-file", str(tmp_path / "none.ini")]
    (tmp_path / "none.ini").write_text("[mypy]\nfollow_imports = silent\n")
    line = [sys.executable, "-m", "mypy", *options, str(SCRIPT), str(wrong)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT / "src")
    said = [entry for entry in done.stdout.splitlines() if ": error:" in entry]
    assert [entry for entry in said if "wrong.py" not in entry] == [], done.stdout
    assert any("verdict_value" in entry for entry in said), done.stdout + done.stderr
    assert any("arg-type" in entry and "level" in entry for entry in said), done.stdout
