"""What every command shares: exit codes, one sentence per error, a clean stdout, quick help."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import record_examples
from driftscope.cli import COMMANDS, answers, surroundings
from driftscope.errors import InputError


def failing(error: BaseException) -> click.Command:
    """Return a command that fails."""

    @surroundings.command("failing")
    def command(*, journey: surroundings.Journey) -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (InputError("no input x; give one"), 2, "Error: no input x; give one"),
        (RuntimeError("boom\nsecond line"), 3, "Error: driftscope could not finish: RuntimeError: boom second line"),
        (MemoryError(), 3, "Error: driftscope could not finish: MemoryError"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (click.UsageError("no such thing"), 2, "no such thing"),
        (RuntimeError("\x1b[31mred"), 3, "\\u001b[31mred"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(error: BaseException, code: int, words: str) -> None:
    result = CliRunner().invoke(failing(error), [])
    assert result.exit_code == code
    assert result.stdout == ""
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback() -> None:
    result = CliRunner().invoke(failing(RuntimeError("boom")), ["--debug"])
    assert result.exit_code == 3
    assert "Traceback" in result.stderr
    assert "raise error" in result.stderr


def test_help_begins_with_examples_and_every_command_has_them(run) -> None:
    for name in COMMANDS:
        text = run(name, "--help").stdout
        assert text.index("Examples:") < text.index("Usage:")
        assert f"driftscope {name}" in text
        assert text == run(name, "-h").stdout
    assert run("--help").stdout.index("Examples:") < run("--help").stdout.index("Usage:")


def test_a_misspelled_command_is_guessed(run) -> None:
    result = run("comapre")
    assert result.exit_code == 2
    assert "did you mean 'compare'?" in result.stderr


def test_version(run) -> None:
    assert run("--version").stdout.startswith("driftscope ")


@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--help"], ["rule", "N001"], ["--version"]])
def test_no_tensor_library_is_loaded_to_say_a_few_words(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom driftscope.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'onnx', 'onnxruntime', 'jinja2', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_stored_record_is_shown_without_a_tensor_library(tmp_path: Path) -> None:
    record = record_examples.different().save(tmp_path / "record.json")
    code = (
        "import sys\nfrom driftscope.cli import main\n"
        f"try: main(['report', {str(record)!r}, '-o', {str(tmp_path / 'page.html')!r}])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'onnx', 'onnxruntime'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "page.html").stat().st_size > 10_000


def test_a_reader_who_leaves_early_is_no_error() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(0.3); from driftscope.cli import main; main(['rule'])"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), complaint) == (0, b"")


def test_a_terminal_without_unicode_still_gets_an_answer(tmp_path: Path) -> None:
    record = record_examples.many(10).save(tmp_path / "record.json")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    code = f"from driftscope.cli import main; main(['report', {str(record)!r}])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.startswith(b"DIFFERENT: ")


@pytest.mark.parametrize(
    ("encoding", "shown"), [("ascii", "v right, . neither, 1-2, ?"), ("utf-8", "✓ right, · neither, 1–2, 漂")]
)
def test_signs_stay_apart_where_the_terminal_lacks_them(
    encoding: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", written)
    surroundings.say("✓ right, · neither, 1–2, 漂")
    assert written.buffer.getvalue().decode(encoding).strip() == shown  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, True), ({}, False, False), ({"NO_COLOR": "1"}, True, False), ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, False, False), ({"TERM": "dumb"}, True, False),
        ({"NO_COLOR": ""}, True, True),
    ],
)  # fmt: skip
def test_when_to_use_colour(
    variables: dict[str, str], terminal: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    width, color = answers.screen()
    assert color is expected
    assert terminal or width == answers.PIPED_WIDTH


def test_what_is_printed_on_the_way_does_not_reach_stdout() -> None:
    @surroundings.command("chatty")
    def command(*, journey: surroundings.Journey) -> None:
        with journey.travelling():
            print("chatter")
            journey("a step")
        surroundings.say("answer")

    quiet, verbose = CliRunner().invoke(command, []), CliRunner().invoke(command, ["-v"])
    assert quiet.stdout == verbose.stdout == "answer\n"
    assert quiet.stderr == "chatter\n"
    assert "a step ..." in verbose.stderr
