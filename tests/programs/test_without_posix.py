"""Where nothing can be forked and no file inherited, as on Windows: workers are started anew and called by address.

Simulated: every process finds the modules, functions and signals missing that Windows does not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

MISSING = """
import os, signal, sys
for name in ("SIGBUS", "SIGTRAP", "SIGSYS", "SIGUSR1", "SIGKILL", "SIGALRM", "setitimer", "getitimer"):
    delattr(signal, name)
for name in ("fork", "forkpty", "setsid", "getpgid", "killpg", "setpgid", "memfd_create", "pread", "sched_getaffinity",
             "getuid"):
    delattr(os, name)
for name in ("resource", "fcntl", "pwd", "grp", "termios"):
    sys.modules[name] = None
import faulthandler, subprocess
del faulthandler.register
subprocess.Popen.kill = lambda process: os.kill(process.pid, 9)  # there by a call of Windows, not by a signal
"""
PROGRAMS = """
import os
def ok(x): return x * 1
def ends(x): os._exit(0)
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(MISSING)
    (tmp_path / "p.py").write_text(PROGRAMS)
    (tmp_path / "tmp").mkdir()
    return tmp_path


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_nothing_that_is_missing_is_needed_to_open_the_library_and_its_commands(elsewhere):
    code = """if True:
        import importlib, os, pkgutil, signal, sys
        assert not hasattr(os, "fork") and sys.modules["fcntl"] is None
        import driftscope.cli, driftscope.cli.commands, driftscope.programs.isolation as isolation
        for package in (driftscope.cli, driftscope.cli.commands, isolation):
            for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
                importlib.import_module(found.name)
        from driftscope.programs.isolation.workers import WorkerPool
        with WorkerPool(1) as pool:
            print(pool.submit(divmod, 7, 2).result())
        with WorkerPool(1, preload=("no_such_module_here",)) as pool:
            print(pool.submit(divmod, 7, 2).exception())
    """
    said = python(elsewhere, "-c", code).stdout.splitlines()
    assert said == ["(3, 1)", "the process could not start: ModuleNotFoundError: No module named 'no_such_module_here'"]
    assert list((elsewhere / "tmp").iterdir()) == []


@pytest.mark.slow
def test_a_runtime_runs_in_a_worker_and_its_crash_is_a_finding(elsewhere):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(elsewhere / "m.onnx"))
    code = """if True:
        import os, torch
        import driftscope as ds
        for rows in (4, 400_000):
            record = ds.compare(torch.relu, "m.onnx", torch.randn(rows, 3))
            print(record.verdict, record.programs["b"]["isolated"])
        from driftscope.programs.runtimes.native import worker_process
        try:
            worker_process.asked("onnxruntime", "run", os._exit, 3)
        except ds.errors.DriftscopeError as error:
            print(error.code)
        print(ds.compare(torch.relu, "m.onnx", torch.randn(4, 3)).verdict)
    """
    said = python(elsewhere, "-c", code)
    assert said.stdout.split() == ["IDENTICAL", "True", "IDENTICAL", "True", "R006", "IDENTICAL"], said.stderr


@pytest.mark.slow
def test_a_command_works_in_a_process_started_anew(elsewhere):
    x = ("--input", "x=4x3:float32", "--json")
    same = python(elsewhere, "-m", "driftscope", "compare", "p.py:ok", "p.py:ok", *x, "--max-seconds", "250")
    assert (same.returncode, json.loads(same.stdout)["verdict"]) == (0, "IDENTICAL")
    died = python(elsewhere, "-m", "driftscope", "compare", "p.py:ok", "p.py:ends", *x)
    first = json.loads(died.stdout)["findings"][0]
    assert (died.returncode, first["code"], first["evidence"]["side"]) == (1, "R006", "B")
    refused = python(elsewhere, "-m", "driftscope", "compare", "p.py:ok", "p.py:nothing", *x)
    assert (refused.returncode, refused.stdout, "nothing" in refused.stderr) == (2, "", True)
    assert list((elsewhere / "tmp").iterdir()) == []
