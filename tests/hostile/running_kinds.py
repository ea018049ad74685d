"""What is fuzzed by running it: models in the worker, and the commands that run programs on files of inputs."""

from __future__ import annotations

import contextlib
import io
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hostile import large_files, mutations

SECONDS = 10.0  # of one run: a Loop whose count was changed may run for ever, and is stopped
PROGRAM = "def double(x):\n    return x.flatten()[0] * 2\n\n\ndef halves(x):\n    return x / 2\n"


def _seeds() -> list[onnx.ModelProto]:
    rng = np.random.default_rng(0)
    weights = [("w", (8, 6)), ("b", (6,)), ("scale", (6,)), ("k", (4, 1, 3))]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["g"]),
        helper.make_node("LayerNormalization", ["g", "scale", "b"], ["n"], axis=-1, epsilon=1e-5),
        helper.make_node("Softmax", ["n"], ["s"], axis=-1),
        helper.make_node("Unsqueeze", ["s", "zero"], ["u"]),
        helper.make_node("Conv", ["u", "k"], ["y"], group=4, pads=[1, 1]),
    ]
    graph = helper.make_graph(
        nodes, "small network", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(rng.normal(size=shape).astype("f"), name) for name, shape in weights]
        + [numpy_helper.from_array(np.array([0]), "zero")],
    )  # fmt: skip
    network = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return [network, network, large_files.nested_functions(3, 2), large_files.long_loop(5)]


def write_model(number: int, folder: Path) -> Path:
    """Write a model of which a few places of its protobuf are changed."""
    rng = random.Random(number)
    proto = onnx.ModelProto()
    proto.CopyFrom(rng.choice(_seeds()))
    if number >= 0:
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            mutations.protobuf_of(proto, rng)
    path = folder / "a.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def comparing(command: Callable[..., None], folder: Path) -> Callable[[Path], None]:
    """``driftscope compare`` with onnxruntime in its worker, which is given :data:`SECONDS` for one run."""
    from driftscope.programs.isolation.limits import Limits
    from driftscope.programs.runtimes.native import worker_process

    def act(path: Path) -> None:
        worker_process.Limits = lambda: Limits(seconds=SECONDS, memory=2 << 30)  # type: ignore[assignment,misc]
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        command("compare", path, path, "--input", "x=4x8:float32", "--level", "a:disable")

    return act


def write_inputs(number: int, folder: Path) -> Path:
    """Write inputs of which the bytes, or the header, are changed."""
    rng = random.Random(number)
    shape = rng.choice(((2, 3), (1, 4), (3,), (0, 2), (2, 0, 1), ()))
    values = rng.choice(("f", "d", "e", "i8", "?", "u1", "c8", "U3"))
    stream = io.BytesIO()
    np.savez(stream, x=np.resize(np.arange(6), shape).astype(values))
    data = stream.getvalue()
    path = folder / "x.npz"
    path.write_bytes(data if number < 0 or rng.random() < 0.4 else mutations.archive_of(data, rng))
    return path


def on_inputs(command: Callable[..., None], folder: Path, *words: str) -> Callable[[Path], Any]:
    """A command that runs a function of ours on such a file."""
    (folder / "programs.py").write_text(PROGRAM)

    def act(path: Path) -> None:
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        command(words[0], f"{folder / 'programs.py'}:{words[1]}", "--input", path, *words[2:])

    return act
