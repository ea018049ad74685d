"""Real architectures: a clean export is not flagged, a bug is named with its node, module and source line."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import ModelProto, NodeProto
from transformer_models import MODELS, made

import driftscope as ds
from driftscope.records.verdict import Verdict
from planted.edits import as_identity, attribute, change, find, swap_inputs
from planted.naming import names

pytestmark = pytest.mark.slow

Plant = Callable[[ModelProto], str]


@pytest.fixture(scope="session")
def exported(request: pytest.FixtureRequest) -> Callable[[str], ModelProto]:
    folder: Path = request.config.cache.mkdir("transformer-exports")

    def get(name: str) -> ModelProto:
        # The instruction set too: by it, seeded weights differ in their last bits.
        path = folder / f"{name}-{torch.__version__}-{torch.backends.cpu.get_cpu_capability()}.onnx"
        if not path.exists():
            module, inputs = made(name)
            onnx.save(torch.onnx.export(module, inputs, dynamo=True, verbose=False).model_proto, path)
        return onnx.load(path)

    return get


def _epsilon(index: int) -> Plant:
    return lambda m: attribute(find(m, "LayerNormalization", index), "epsilon", to=1e-3)


def _weight(operator: str, index: int, edit: Callable[[np.ndarray], np.ndarray]) -> Plant:
    def plant(model: ModelProto) -> str:
        held = {i.name for i in model.graph.initializer if len(i.dims) >= 2}
        nodes = [n for n in model.graph.node if n.op_type == operator and len(n.input) > 1 and n.input[1] in held]
        return change(nodes[index], model, 1, edit)

    return plant


def _one_channel(w: np.ndarray) -> np.ndarray:
    w[..., 3] *= 1.01
    return w


def _skipped(operator: str, index: int, slot: int = 0) -> Plant:
    return lambda m: as_identity(find(m, operator, index), slot)


def _root(model: ModelProto) -> str:
    """A root mean square becomes a mean square, in the middle of the decoder."""
    node = find(model, "Sqrt", 6)
    node.op_type = "Abs"
    return node.name


def _softmax(model: ModelProto) -> str:
    return attribute(find(model, "Softmax", 1), "axis", to=-2)


BUGS: tuple[tuple[str, str, Plant], ...] = (
    ("bert", "layer-norm-epsilon", _epsilon(3)),
    ("bert", "weight-transposed", _weight("MatMul", 1, np.transpose)),
    ("bert", "activation-skipped", _skipped("Gelu", 1)),
    ("bert", "softmax-over-queries", _softmax),
    ("llama-with-cache", "channel-scaled", _weight("MatMul", 9, _one_channel)),
    ("llama-with-cache", "past-after-present", lambda m: swap_inputs(find(m, "Concat", 5))),
    ("llama-with-cache", "gate-skipped", _skipped("Sigmoid", 0)),
    ("vit", "layer-norm-epsilon", _epsilon(2)),
    ("vit", "rows-rolled", _weight("MatMul", 5, lambda w: np.roll(w, 1, axis=0))),
    ("resnet", "channels-reversed", _weight("Conv", 3, lambda w: w[:, ::-1])),
    ("resnet", "activation-skipped", _skipped("Relu", 2)),
    ("t5", "weight-in-other-order", _weight("MatMul", 7, lambda w: w[::-1])),
    ("t5", "root-lost", _root),
    ("t5", "residual-skipped", _skipped("Add", 14)),
)


@pytest.mark.parametrize("name", list(MODELS))
def test_a_clean_export_is_the_same_function(name: str, exported: Callable[[str], ModelProto]):
    module, inputs = made(name)
    comparison = ds.compare(module, exported(name), inputs)
    assert comparison.verdict is Verdict.ROUNDING, comparison.reason
    assert not [f for f in comparison.findings if not f.note]


@pytest.mark.parametrize(("name", "_bug", "plant"), BUGS, ids=[f"{name}-{bug}" for name, bug, _ in BUGS])
def test_a_bug_is_named_with_module_and_line(name: str, _bug: str, plant: Plant, exported: Callable[[str], ModelProto]):
    module, inputs = made(name)
    broken = copy.deepcopy(exported(name))
    guilty = plant(broken)
    comparison = ds.compare(module, broken, inputs)
    assert comparison.verdict is Verdict.DIFFERENT, comparison.reason
    first = comparison.first
    assert names(first, guilty), f"named {first}, guilty is {guilty}"
    assert first is not None
    path, file, line = _source(next(n for n in broken.graph.node if n.name == guilty))
    assert first.where.module == path
    assert (first.where.file, first.where.line) == (file, line)


def _source(node: NodeProto) -> tuple[str, str, int]:
    """Module path of a node, and the innermost line outside of libraries, read from what torch's exporter wrote."""
    written = {p.key: p.value for p in node.metadata_props}
    frames = re.findall(r'File "([^"]+)", line (\d+)', written["pkg.torch.onnx.stack_trace"])
    file, line = [f for f in frames if "/site-packages/" not in f[0]][-1]
    return ast.literal_eval(written["pkg.torch.onnx.name_scopes"])[-2], file, int(line)
