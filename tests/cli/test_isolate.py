"""Whatever a program does to its process, the command answers: exit code 1 or 2, a finding, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from driftscope.cli import main
from driftscope.cli.isolating import asked_of

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the child process is forked")

PROGRAMS = """
import asyncio, ctypes, os, signal, subprocess, sys, time
import torch

class Own(BaseException):
    pass

from driftscope.studies import study

@study(axes={"a": [1, 2, 3, 4]})
def ending(a):
    if a == 3:
        os._exit(0)
    return {"b": a}

def make(): return torch.nn.Linear(3, 2), (torch.ones(4, 3),)
def ok(x): return x * 1
def half_off(x): return x * 1.5
def ends(x): os._exit(0)
def aborts(x): os.abort()
def segfaults(x): ctypes.string_at(0)
def exits(x): sys.exit(0)
def interrupts(x): raise KeyboardInterrupt
def raises_own(x): raise Own("boo")
def cancels(x): raise asyncio.CancelledError
def hangs(x):
    while True: pass
def fills(x):
    held = []
    while True: held.append(torch.ones(2**24))
def writes_to_one(x):
    os.write(1, b"FROM NATIVE CODE\\n")
    print("FROM PRINT")
    return x * 1
def tells_how_it_waits(x):
    print("LOOKS", os.environ.get("GOMP_SPINCOUNT"), file=sys.stderr)
    return x * 1
class Wordless(BaseException):
    def __str__(self): raise RuntimeError("no words")
def raises_wordless(x): raise Wordless
def ends_by_signal(x):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
def leaves_a_child(x):
    subprocess.Popen(["sleep", "600"])
    return x * 1
def waits(x):
    import tempfile
    open(os.path.join(tempfile.mkdtemp(), "left"), "w").close()
    print("WAITING", file=sys.stderr, flush=True)
    time.sleep(600)
"""
X = ("--input", "x=4x3:float32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "p.py").write_text(PROGRAMS)
    (tmp_path / "exits_when_imported.py").write_text("import sys; sys.exit(0)\n")
    (tmp_path / "dies_when_imported.py").write_text("import os; os._exit(0)\n")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def driftscope(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "driftscope", *words], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    assert list((folder / "tmp").iterdir()) == []
    return done


CASES = [
    ("ends", "R006", "ended itself with exit status 0"),
    ("segfaults", "R006", "SIGSEGV in segfaults (p.py:"),
    ("exits", "R002", "sys.exit(0)"),
    ("raises_own", "R002", "Own: boo"),
    ("raises_wordless", "R002", "Wordless"),
    ("ends_by_signal", "R007", "killed by SIGTERM"),
]
MORE = [
    ("aborts", "R006", "SIGABRT in aborts (p.py:"),
    ("interrupts", "R002", "KeyboardInterrupt"),
    ("cancels", "R002", "CancelledError"),
]


def check(folder: Path, name: str, code: str, words: str, *options: str) -> None:
    done = driftscope(folder, "compare", "p.py:ok", f"p.py:{name}", *X, "--json", *options)
    record = json.loads(done.stdout)
    assert done.returncode == 1
    assert record["verdict"] == "INCONCLUSIVE"
    first = record["findings"][0]
    assert (first["code"], first["evidence"]["side"]) == (code, "B")
    assert words in first["what"]
    if code == "R006":
        assert first["fix"].startswith("Take out what ends the process" if name == "ends" else "Native code failed")


@pytest.mark.parametrize(("name", "code", "words"), CASES[:1])
def test_what_a_program_does_to_its_process_is_a_finding(folder, name, code, words):
    check(folder, name, code, words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "words"), [*CASES[1:], *(pytest.param(*case, marks=pytest.mark.sweep) for case in MORE)]
)
def test_what_else_a_program_does_is_a_finding(folder, name, code, words):
    check(folder, name, code, words)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "status"), [("ok", 0), ("half_off", 1)])
def test_a_program_that_only_computes_is_compared(folder, name, status):
    done = driftscope(folder, "compare", "p.py:ok", f"p.py:{name}", *X, "-q")
    assert (done.returncode, done.stdout.split(":")[0]) == (status, "DIFFERENT" if status else "IDENTICAL")


@pytest.mark.slow
def test_a_hang_ends_at_the_time_limit_with_its_line(folder):
    # Much time: the import of torch is part of it.
    check(folder, "hangs", "R009", "in hangs (p.py:", "--max-seconds", "30")


@pytest.mark.slow
def test_a_program_that_fills_the_memory_is_stopped(folder):
    check(folder, "fills", "R008", "more than its memory limit of 2.00 GiB", "--max-memory", "2")


@pytest.mark.slow
def test_what_native_code_writes_to_one_does_not_reach_the_answer(folder):
    done = driftscope(folder, "compare", "p.py:ok", "p.py:writes_to_one", *X, "--json")
    assert json.loads(done.stdout)["verdict"] == "IDENTICAL"
    assert "FROM NATIVE CODE" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [("shapes", "--no-onnx"), ("transforms",)])
def test_other_commands_answer_too(folder, command):
    done = driftscope(folder, command[0], "p.py:ends", *X, *command[1:], "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["findings"][0]["code"] == "R006"


def test_every_command_that_runs_programs_takes_limits():
    lazy = click.Context(main)
    takes = {
        name: {parameter.name for parameter in main.get_command(lazy, name).params} for name in main.list_commands(lazy)
    }
    limited = {name for name, given in takes.items() if {"isolate", "max_seconds", "max_memory"} <= given}
    assert set(takes) - limited == {"runs", "report", "rule", "env"}  # they read, and run nothing


@pytest.mark.slow
def test_a_study_that_ends_its_process_keeps_its_rows(folder):
    done = driftscope(folder, "study", "p.py:ending", "--workers", "0", "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["schema"]) == (1, "driftscope/unanswered/1")
    assert "rows of finished cells are kept in 'runs'" in record["findings"][0]["fix"]
    assert sum(f.read_bytes().count(b"\n") for f in (folder / "runs" / "ending-0001").glob("rows-*.jsonl")) == 2
    named = driftscope(folder, "study", "p.py:ending", "--workers", "1", "--max-memory", "8")
    assert (named.returncode, "1 aborted" in named.stdout) == (1, True)


def test_a_kernel_that_does_not_return_has_a_limit():
    words = {"threads": (None, 1), "dependence": True, "max_seconds": 20.0, "max_calls": None}
    asked = asked_of({**words, "isolate": None, "max_memory": None})
    assert (asked.seconds, asked.limited) == (80.0 + 60.0, False)


@pytest.mark.slow
@pytest.mark.parametrize(("file", "status"), [("exits_when_imported", 2), ("dies_when_imported", 1)])
def test_a_file_that_ends_the_process_when_it_is_imported(folder, file, status):
    done = driftscope(folder, "compare", "p.py:ok", f"{file}.py:f", *X)
    assert done.returncode == status
    assert "sys.exit(0)" in done.stderr or "loading B" in done.stdout


@pytest.mark.slow
def test_an_onnx_file_that_crashes_its_runtime_names_the_node(folder):
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [(n, rng.normal(size=(1, 20, k)).astype("f")) for n, k in (("W", 3), ("R", 5))]
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "W", "R"], ["y"], name="the_cell", hidden_size=5)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["s", "b", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(folder / "m.onnx"))
    done = driftscope(folder, "compare", "m.onnx", "m.onnx", "--input", "x=2x0x3:float32", "--json")
    first = json.loads(done.stdout)["findings"][0]
    assert (done.returncode, first["code"], first["where"]["node"]) == (1, "R006", "the_cell")
    assert driftscope(folder, "compare", "m.onnx", "m.onnx", "--input", "x=2x1x3:float32").returncode == 0


def processes_in(folder: Path) -> list[int]:
    """Processes whose working folder this is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if (entry / "cwd").resolve() == folder and (entry / "stat").read_text().split(") ")[1][0] != "Z":
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def gone(holds, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not holds()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_nothing_stays_when_the_command_is_ended(folder, number, status):
    environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
    process = subprocess.Popen(
        [sys.executable, "-m", "driftscope", "compare", "p.py:ok", "p.py:waits", *X], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job begins with it ignored
    )  # fmt: skip
    assert "WAITING" in process.stderr.readline()
    assert len(processes_in(folder)) >= 2
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == status
    assert "Traceback" not in told
    assert gone(lambda: processes_in(folder))
    assert gone(lambda: list((folder / "tmp").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_program_started_ends_with_it(folder):
    assert driftscope(folder, "compare", "p.py:ok", "p.py:leaves_a_child", *X).returncode == 0
    assert gone(lambda: processes_in(folder))


def test_limits_need_a_child_to_watch(folder):
    done = driftscope(folder, "compare", "p.py:ok", "p.py:ok", "--no-isolate", "--max-seconds", "5")
    assert (done.returncode, "leave --no-isolate out" in done.stderr) == (2, True)


@pytest.mark.slow
def test_what_the_caller_does_at_its_end_is_not_done_by_the_child(tmp_path):
    script = tmp_path / "caller.py"
    script.write_text(
        "import atexit, tempfile, weakref\n"
        "from pathlib import Path\n"
        "from click.testing import CliRunner\n"
        "from driftscope.cli import main\n"
        "atexit.register(lambda: print('the caller ends'))\n"
        "with tempfile.TemporaryDirectory() as folder:\n"
        "    asked = ['reveal', 'torch.sum', '--n', '16']\n"
        "    outputs = [CliRunner().invoke(main, asked).output for _ in range(2)]\n"
        "    print([('verified' in text) for text in outputs], Path(folder).is_dir())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.splitlines() == ["[True, True] True", "the caller ends"]


def test_what_a_program_registers_for_its_end_is_done(tmp_path):
    (tmp_path / "p.py").write_text(
        "import atexit, pathlib, weakref\n"
        "class Kept: pass\n"
        "def ends_well(x):\n"
        "    global kept\n"
        "    kept = Kept()\n"
        f"    atexit.register(pathlib.Path({str(tmp_path / 'at_exit')!r}).touch)\n"
        f"    weakref.finalize(kept, pathlib.Path({str(tmp_path / 'finalized')!r}).touch)\n"
        "    return x * 1\n"
    )
    subprocess.run(
        [sys.executable, "-m", "driftscope", "compare", "p.py:ends_well", "p.py:ends_well", "--input", "x=3:float32"],
        cwd=tmp_path, capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    assert (tmp_path / "at_exit").exists()
    assert (tmp_path / "finalized").exists()


@pytest.mark.parametrize(("policy", "looks"), [("", "3000"), ("ACTIVE", "None")])
def test_threads_of_the_child_do_not_wait_busily_for_long_unless_told_otherwise(
    folder: Path, monkeypatch: pytest.MonkeyPatch, policy: str, looks: str
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    if policy:
        monkeypatch.setenv("OMP_WAIT_POLICY", policy)
    done = driftscope(folder, "compare", "p.py:ok", "p.py:tells_how_it_waits", *X)
    assert f"LOOKS {looks}" in done.stderr
