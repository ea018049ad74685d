"""Small files to compare, and a way to run commands in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

Command = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_width_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Piped output follows COLUMNS, which test runners may set."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def run() -> Command:
    """Run ``driftscope`` with these arguments."""
    from driftscope.cli import main

    def run_command(*args: object, **options: Any) -> Result:
        return CliRunner().invoke(main, [str(a) for a in args], **options)

    return run_command


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``a.onnx``, the same program as ``same.onnx``, and ``broken.onnx``, whose scale is wrong."""
    folder = tmp_path_factory.mktemp("files")
    for name, scale in (("a", 0.5), ("same", 0.5), ("broken", 0.5001)):
        _save_small_model(scale, folder / f"{name}.onnx")
    (folder / "factory.py").write_text(FACTORY)
    return folder


FACTORY = """
import torch

class Scaled(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x * 0.5)

def make():
    print("this goes to stdout")
    return Scaled().eval(), {"x": "4x8:float32"}

def fails():
    raise ZeroDivisionError("in the factory")
"""


def _save_small_model(scale: float, path: Path) -> None:
    """Save Relu(x * scale) on 4x8 float32."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Mul", ["x", "scale"], ["scaled"], name="mul_1"),
        helper.make_node("Relu", ["scaled"], ["y"], name="relu_1"),
    ]
    graph = helper.make_graph(
        nodes, "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 8])],
        [numpy_helper.from_array(np.float32(scale).reshape(()), "scale")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(path))
