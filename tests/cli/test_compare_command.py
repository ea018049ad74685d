"""``driftscope compare`` on real files: the answer, the exit code, what goes where."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from click.testing import Result

from driftscope.cli.sessions import session_options
from driftscope.errors import InputError
from driftscope.report.pages import page

NO_OPTIONS = {"level": (), "threads": (), "provider": (), "runtime": (), "disabled": ()}
SPEC = ("--input", "x=4x8:float32")


def sentence(result: Result) -> str:
    """Return what stderr says, which must be one line."""
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("Error")]
    assert "Traceback" not in result.stderr
    return line


def test_a_file_is_itself(run, files: Path) -> None:
    result = run("compare", files / "a.onnx", files / "same.onnx", *SPEC)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("IDENTICAL: ")


def test_a_changed_scale_is_another_program(run, files: Path) -> None:
    result = run("compare", files / "a.onnx", files / "broken.onnx", *SPEC)
    assert result.exit_code == 1
    assert result.stdout.startswith("DIFFERENT: ")
    assert "mul_1" in result.stdout


def test_a_factory_is_compared_on_its_own_inputs_and_may_print(run, files: Path) -> None:
    result = run("compare", f"{files / 'factory.py'}:make", files / "a.onnx", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["verdict"] in ("IDENTICAL", "ROUNDING")
    assert "this goes to stdout" in result.stderr


@pytest.mark.parametrize(("fail_on", "code"), [("different", 1), ("precision", 1), ("rounding", 1), ("never", 0)])
def test_fail_on_decides_the_exit_code(run, files: Path, fail_on: str, code: int) -> None:
    result = run("compare", files / "a.onnx", files / "broken.onnx", *SPEC, "--fail-on", fail_on, "--no-explain")
    assert result.exit_code == code


def test_json_page_and_record_are_one_and_the_same(run, files: Path, tmp_path: Path) -> None:
    saved = [tmp_path / "page.html", tmp_path / "record.json"]
    answers = [
        run("compare", files / "a.onnx", files / "broken.onnx", *SPEC, "--nodes", "--json", "-o", out) for out in saved
    ]
    for answer, out in zip(answers, saved, strict=True):
        assert page.read(out) == json.loads(answer.stdout)
    one, two = (json.loads(a.stdout) | {"times": {}} for a in answers)
    assert one == two


def test_the_record_holds_the_command_that_makes_it_again(run, files: Path) -> None:
    given = ("compare", str(files / "a.onnx"), str(files / "broken.onnx"), *SPEC, "--seed", "7", "--no-explain")
    first = json.loads(run(*given, "--json").stdout)
    assert shlex.split(first["command"])[0] == "driftscope"
    again = json.loads(run(*shlex.split(first["command"])[1:], "--json").stdout)
    assert again | {"times": {}} == first | {"times": {}}


def test_quiet_prints_the_verdict_line_and_verbose_tells_the_steps(run, files: Path) -> None:
    quiet = run("compare", files / "a.onnx", files / "same.onnx", *SPEC, "-q")
    assert len(quiet.stdout.splitlines()) == 1
    verbose = run("compare", files / "a.onnx", files / "same.onnx", *SPEC, "-v")
    assert "Loading both programs ..." in verbose.stderr
    assert verbose.stdout.splitlines()[0] == quiet.stdout.strip()


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("missing.onnx", "a.onnx"), "missing.onnx"),
        (("a.onnx", "factory.py:nothing"), "nothing"),
        (("a.onnx", "same.onnx", "--input", "x=4x9:float32"), "x"),
        (("a.onnx", "same.onnx", "--input", "x=4x8:floaty"), "floaty"),
        (("a.onnx", "same.onnx", "--input", "nosuch.npz"), "nosuch.npz"),
        (("a.onnx", "same.onnx", *SPEC, "--level", "al"), "did you mean 'all'?"),
        (("a.onnx", "same.onnx", *SPEC, "--threads", "0"), "at least 1"),
        (("a.onnx", "same.onnx", *SPEC, "-o", "nowhere/page.html"), "nowhere"),
        (("a.onnx", "same.onnx", *SPEC, "-o", "page.pdf"), ".html"),
        (("a.onnx", "same.onnx", "--fail-on", "diferent"), "diferent"),
        (("a.onnx", "same.onnx", "--sede", "1"), "--seed"),
    ],
)
def test_what_cannot_be_used_is_one_sentence_and_exit_2(
    run, files: Path, args: tuple[str, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    before = sorted(p.name for p in files.iterdir())
    result = run("compare", *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in sentence(result)
    assert [p for p in sorted(p.name for p in files.iterdir()) if p != "__pycache__"] == [
        p for p in before if p != "__pycache__"
    ]


def test_a_damaged_file_is_one_sentence(run, files: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.onnx").write_bytes((files / "a.onnx").read_bytes()[:60])
    result = run("compare", files / "a.onnx", tmp_path / "cut.onnx", *SPEC)
    assert result.exit_code in (1, 2)
    assert "Traceback" not in result.stderr + result.stdout


def test_session_options_are_for_both_files_or_for_one() -> None:
    both = session_options("a.onnx", "b.ONNX", NO_OPTIONS | {"level": ("basic",), "threads": ("2",)})
    assert both == ({"level": "basic", "threads": 2},) * 2
    one = session_options(
        "a.onnx", "b.onnx", NO_OPTIONS | {"level": ("a:disable", "b:all"), "disabled": ("b:X", "b:Y")}
    )
    assert one == ({"level": "disable"}, {"level": "all", "disabled": ("X", "Y")})
    only = session_options("m.py:make", "b.onnx", NO_OPTIONS | {"provider": ("cuda",)})
    assert only == ({}, {"provider": "cuda"})
    assert session_options("m.py:make", "n.py:file", NO_OPTIONS | {"level": ("b:all",)}) == ({}, {"level": "all"})


@pytest.mark.parametrize(
    ("given", "words"),
    [({"level": ("all", "basic")}, "twice"), ({"level": ("fast",)}, "knows"), ({"threads": ("two",)}, "whole number")],
)
def test_session_options_that_cannot_be(given: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        session_options("a.onnx", "b.onnx", NO_OPTIONS | given)
    with pytest.raises(InputError, match="neither side"):
        session_options("a.py:f", "b.py:f", NO_OPTIONS | {"level": ("all",)})
