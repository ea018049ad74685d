"""A native runtime that takes its process down is a finding; the process that asked lives on."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope import elsewhere
from driftscope.errors import RuntimeCrashed
from driftscope.programs.isolation.choice import isolating

pytestmark = pytest.mark.skipif(os.name != "posix", reason="worker processes need POSIX")

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def model(nodes, given, made, constants=()):
    graph = helper.make_graph(
        nodes, "graph under test",
        [helper.make_tensor_value_info(*given)],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in made],
        [numpy_helper.from_array(value, name) for name, value in constants],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def recurrent(kind: str, gates: int):
    rng = np.random.default_rng(0)
    weights = [(n, rng.normal(size=(1, gates * 5, k)).astype("f")) for n, k in (("W", 3), ("R", 5))]
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="first"),
             helper.make_node(kind, ["r", "W", "R"], ["y"], name="the_cell", hidden_size=5)]  # fmt: skip
    return model(nodes, ("x", TensorProto.FLOAT, ["s", "b", 3]), [("y", TensorProto.FLOAT)], weights)


def attention(bias: bool):
    rng = np.random.default_rng(0)
    constants = [("w", rng.normal(size=(4, 12)).astype("f")), ("b", np.zeros(12, "f"))]
    node = helper.make_node(
        "Attention", ["x", "w", "b"][: 3 if bias else 2], ["y"], name="heads", domain="com.microsoft", num_heads=1
    )
    return model(
        [node], ("x", TensorProto.FLOAT, ["n", 2, 4]), [("y", TensorProto.FLOAT)], constants[: 2 if bias else 1]
    )


def relu():
    return model(
        [helper.make_node("Relu", ["x"], ["y"])], ("x", TensorProto.FLOAT, ["n", 3]), [("y", TensorProto.FLOAT)]
    )


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_a_recurrent_cell_with_an_empty_batch_is_a_finding_with_its_node(kind, gates):
    record = ds.compare(recurrent(kind, gates), recurrent(kind, gates), torch.randn(2, 0, 3))
    found = record.first
    assert record.verdict == "INCONCLUSIVE"
    assert (found.code, found.where.node, found.where.operator) == ("R006", "the_cell", kind)
    assert found.evidence["side"] == "A"
    assert found.fix


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3)])
def test_the_same_cell_with_a_batch_runs(kind, gates):
    assert ds.compare(recurrent(kind, gates), recurrent(kind, gates), torch.randn(2, 1, 3)).verdict == "IDENTICAL"


def test_attention_without_a_bias_is_a_finding_about_its_side():
    record = ds.compare(lambda x: x * 1, attention(bias=False), torch.randn(1, 2, 4))
    assert (record.first.code, record.first.where.operator) == ("R006", "Attention")
    assert record.first.evidence["side"] == "B"


def test_attention_with_a_bias_runs():
    assert ds.compare(attention(bias=True), attention(bias=True), torch.randn(1, 2, 4)).verdict == "IDENTICAL"


def test_a_program_made_before_a_crash_runs_after_it():
    program = ds.onnx(relu())
    before = program(X)["y"]
    with pytest.raises(RuntimeCrashed):
        ds.onnx(recurrent("LSTM", 4))(torch.randn(2, 0, 3))
    assert torch.equal(program(X)["y"], before)


def test_the_worker_gives_the_bits_of_this_process():
    program, large = ds.onnx(recurrent("LSTM", 4)), torch.randn(50, 20_000, 3)
    for value in (torch.randn(2, 1, 3), large, torch.randn(2, 1, 3)):
        there = program(value)["y"]
        with isolating(False):
            here = ds.onnx(recurrent("LSTM", 4))(value)["y"]
        assert torch.equal(there, here)


def test_large_outputs_keep_their_values_whatever_their_shapes_depend_on():
    nodes = [helper.make_node("NonZero", ["x"], ["where"]), helper.make_node("Identity", ["x"], ["same"])]
    outputs = [("where", TensorProto.INT64), ("same", TensorProto.FLOAT), ("x", TensorProto.FLOAT),
               ("w", TensorProto.FLOAT)]  # fmt: skip
    weight = np.arange(30_000, dtype="f")
    program = ds.onnx(model(nodes, ("x", TensorProto.FLOAT, ["n", 3]), outputs, [("w", weight)]))
    held = []
    for step, rows in enumerate((10_000, 10_000, 10_000, 20_000, 20_000, 10_000)):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(step)) * (torch.arange(3) != step % 3)
        held.append((x, program(x)))
    for x, found in held:
        assert torch.equal(found["where"], x.nonzero().T)
        assert torch.equal(found["same"], x)
        assert torch.equal(found["x"], x)
        assert torch.equal(found["w"], torch.from_numpy(weight))


@pytest.mark.parametrize("name", ["float16", "float64", "bool", "int8", "uint8", "int64", "bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_every_format_and_shape_passes_through(name, shape):
    element = {"float16": 10, "float64": 11, "bool": 9, "int8": 3, "uint8": 2, "int64": 7, "bfloat16": 16,
               "float8_e4m3fn": 17}[name]  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", element, list(shape))],
        [helper.make_tensor_value_info("y", element, list(shape))],
    )  # fmt: skip
    program = ds.onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9))
    value = torch.ones(shape).to(getattr(torch, name))
    found = program(value)["y"]
    assert found.dtype == value.dtype
    assert found.shape == value.shape
    assert torch.equal(found.float(), value.float())


def test_the_record_says_what_ran_where():
    record = ds.compare(torch.relu, relu(), X)
    assert (record.programs["a"]["isolated"], record.programs["b"]["isolated"]) == (False, True)
    assert ds.compare(torch.relu, relu(), X, isolate=False).programs["b"]["isolated"] is False


def test_a_crash_can_be_pickled():
    crash = RuntimeCrashed("onnxruntime", "run", "the process crashed", "R006").at("n", "Op")
    assert vars(pickle.loads(pickle.dumps(crash))) == vars(crash)


def children(pid: int) -> list[int]:
    return [int(p) for t in Path(f"/proc/{pid}/task").iterdir() for p in (t / "children").read_text().split()]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_worker_does_not_outlive_a_killed_parent():
    code = f"""import driftscope as ds, onnx, torch
ds.onnx(onnx.load_from_string({relu().SerializeToString()!r}))(torch.ones(1, 3))
print(1, flush=True)
input()"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"1\n"
    (worker,) = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{worker}").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("os._exit(0)", "R006"), ("os.abort()", "R006"), ("ctypes.string_at(0)", "R006"), ("sys.exit(0)", "R002"),
        ("os.kill(os.getpid(), 9)", "R007"), ("return x * 1", None),
    ],
)  # fmt: skip
def test_a_whole_comparison_elsewhere_answers_whatever_the_program_does(tmp_path, body, code):
    file = tmp_path / "programs.py"
    file.write_text(
        textwrap.dedent(f"""
        import ctypes, os, sys
        def a(x): return x * 1
        def b(x): {body}
    """)
    )
    record = ds.compare(f"{file}:a", f"{file}:b", X, isolate=True)
    if code is None:
        assert record.verdict == "IDENTICAL"
        assert record.programs["a"]["isolated"] is True
    else:
        assert record.verdict == "INCONCLUSIVE"
        assert (record.first.code, record.first.evidence["side"]) == (code, "B")


def test_a_worker_that_has_imported_another_version_of_a_file_is_not_asked(tmp_path, monkeypatch):
    """The worker outlives a comparison; it was held against what the user's modules were when it imported them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    file = tmp_path / "own_programs.py"
    file.write_text("import own_numbers\ndef a(x): return x * 2.0\ndef b(x): return x * own_numbers.factor()\n")
    for number, (factor, verdict) in enumerate([(2.0, "IDENTICAL"), (3.0, "DIFFERENT"), (2.0, "IDENTICAL")]):
        (tmp_path / "own_numbers.py").write_text(f"# {'edited ' * number}\ndef factor(): return {factor}\n")
        assert ds.compare(f"{file}:a", f"{file}:b", X, isolate=True).verdict == verdict
    # Nor may what is sent by its name be looked for in the old version.
    file.write_text("def c(x): return x * 2.0\ndef d(x): return x + x\n")
    importlib.invalidate_caches()
    module = importlib.import_module("own_programs")
    assert ds.compare(module.c, module.d, X, isolate=True).verdict == "IDENTICAL"
    same = process_of_the_worker()
    assert ds.compare(module.d, module.c, X, isolate=True).verdict == "IDENTICAL"
    assert process_of_the_worker() == same, "nothing was edited: the worker stays"


def process_of_the_worker() -> int:
    return elsewhere._POOLS[os.getpid()].submit(os.getpid).result()
