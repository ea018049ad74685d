"""Places that look alike are tried in one run: the same are found as when each is tried by itself."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import driftscope as ds
from driftscope.explain.locate import locating
from driftscope.explain.locate.locating import Search

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def encoder() -> tuple[nn.Module, onnx.ModelProto]:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, activation="gelu")
    module = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(module, (X,), dynamo=True, verbose=False)
    return module, exported.model_proto


def _set(model: onnx.ModelProto, operator: str, layers: tuple[int, ...], **attributes: object) -> list[str]:
    nodes = [n for n in model.graph.node if n.op_type == operator]
    for node in (nodes[k] for k in layers):
        kept = [a for a in node.attribute if a.name not in attributes]
        del node.attribute[:]
        node.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in attributes.items())])
    return [nodes[k].name for k in layers]


def _gelus(*layers: int) -> Callable[[onnx.ModelProto], list[str]]:
    return lambda model: _set(model, "Gelu", layers, approximate="tanh")


def _norms(*layers: int) -> Callable[[onnx.ModelProto], list[str]]:
    return lambda model: _set(model, "LayerNormalization", layers, epsilon=1e-3)


def _weight(model: onnx.ModelProto) -> list[str]:
    """Other numbers in a weight of the third layer."""
    node = [n for n in model.graph.node if n.op_type == "Gemm"][2]
    tensor = next(i for i in model.graph.initializer if i.name == node.input[1])
    value = numpy_helper.to_array(tensor).copy()
    value[0] *= 3
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return [node.name]


CHANGES = {
    "in every layer": [_gelus(0, 1, 2, 3)],
    "in some layers": [_gelus(0, 2, 3)],
    "more than are told": [_norms(*range(8))],
    "with another between": [_gelus(0, 1, 2, 3), _norms(4)],
    "of two kinds": [_gelus(0, 1, 2), _norms(0, 2)],
    "with a weight between": [_gelus(0, 1, 3), _weight],
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("turned", [False, True], ids=["B changed", "A changed"])
@pytest.mark.sampled(2)
def test_alike_places_are_found_together_as_one_by_one(encoder, changes, turned: bool, monkeypatch: pytest.MonkeyPatch):
    module, model = encoder
    broken = copy.deepcopy(model)
    names = [name for change in changes for name in change(broken)]
    pair = (broken, module) if turned else (module, broken)
    runs, follow = [0], Search.follow

    def followed(*args: object) -> object:
        runs[0] += 1
        return follow(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Search, "follow", followed)
    together, cost = _told(*pair), runs[0]
    monkeypatch.setattr(locating, "alike_steps", lambda *_args: [])
    alone = _told(*pair)
    assert together == alone
    assert together
    if len(changes) == 1 and not turned:
        assert [told[1] for told in together] == names[:5]
        assert cost < runs[0] - cost


def _told(a: object, b: object) -> list[tuple[object, ...]]:
    found = ds.compare(a, b, X).findings
    return [(f.code, f.where.node, f.what, f.why, f.fix, f.verified) for f in found if not f.note]


def test_an_activation_left_out_of_a_layer_that_torch_fuses_is_named(encoder: tuple[nn.Module, onnx.ModelProto]):
    """What the fused kernel's steps hand on has no name there, and nothing was known of what its activation reads."""
    module, exported = encoder
    model = onnx.ModelProto()
    model.CopyFrom(exported)
    gelu = [node for node in model.graph.node if node.op_type == "Gelu"][2]
    for node in model.graph.node:
        node.input[:] = [gelu.input[0] if name == gelu.output[0] else name for name in node.input]
    model.graph.node.remove(gelu)
    first = ds.compare(module, model, (X,)).first
    assert first is not None
    assert first.verified
    assert "layers.2.linear2" in str(first.where)
    assert f"reads {gelu.input[0]} as it is, where A computes" in first.why
    assert "aten.gelu" in first.why


class Gated(nn.Module):
    """Layers with gates, each of its own activation."""

    def __init__(self, *activations: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.activations = activations
        self.gates, self.downs = (nn.ModuleList(nn.Linear(16, 16) for _ in activations) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for activation, gate, down in zip(self.activations, self.gates, self.downs, strict=True):
            x = x + down(activation(gate(x)) * x)
        return x


@pytest.mark.parametrize("wrong", [(0,), (0, 1), (0, 1, 2), (1, 3), (0, 1, 2, 3)], ids=str)
def test_another_activation_in_several_layers_is_told_in_each(wrong: tuple[int, ...]):
    silu, gelu = nn.functional.silu, nn.functional.gelu
    torch.manual_seed(0)
    a, b = Gated(*[silu] * 4), Gated(*(gelu if k in wrong else silu for k in range(4)))
    b.load_state_dict(a.state_dict())
    found = [f for f in ds.compare(a, b, X).findings if not f.note]
    assert all(f.verified and "is aten.gelu where A has aten.silu" in f.why for f in found), found
    places = {node for f in found for node in (f.where.node, *f.evidence.get("also", ()))}
    assert places == {"gelu", *(f"gelu_{k}" for k in range(1, len(wrong)))}
