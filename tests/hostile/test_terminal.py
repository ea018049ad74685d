"""A name from a file reaches no terminal as an escape sequence: not as an answer, an error, or a line of pytest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from driftscope.cli.surroundings import guard
from driftscope.errors import ProgramError
from driftscope.pytest_plugin import _Summary
from driftscope.report.exchange.github import _write as github_command

RED = "\x1b[31mred\x1b[0m\u202e"


class _Reporter:
    """What pytest gives a plugin to write to."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def section(self, title: str) -> None:
        self.lines.append(title)

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def test_the_summary_of_pytest_spells_escapes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    config: Any = SimpleNamespace(stash=pytest.Stash())
    summary, reporter = _Summary(config), _Reporter()
    made = {"test": f"test_x[{RED}]", "verdict": "DIFFERENT", "reason": f"{RED}\nlast", "file": "a.py", "line": 1}
    summary.pytest_runtest_logreport(SimpleNamespace(driftscope=[made | {"failed": True, "page": "", "findings": []}]))  # type: ignore[arg-type]
    summary.pytest_terminal_summary(reporter)
    text = "\n".join(reporter.lines)
    assert "red" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_an_error_spells_escapes_out(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), guard(debug=False):
        raise ProgramError(f"node {RED} is odd")
    said = capsys.readouterr().err
    assert "red" in said
    assert "\x1b" not in said


def test_a_command_for_github_spells_escapes_out() -> None:
    from pathlib import Path

    line = github_command(f"{RED}.py", 3, RED, (RED,), Path.cwd())
    assert "\x1b" not in line


def test_a_message_of_any_length_loses_its_middle() -> None:
    text = str(ProgramError("begin " + "x" * 100_000 + " end"))
    assert len(text) < 2_100
    assert text.startswith("begin ")
    assert text.endswith(" end")
    assert str(ProgramError("short")) == "short"
