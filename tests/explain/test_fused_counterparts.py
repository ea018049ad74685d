"""A number inside a fused step and beside written-out steps: the place is the line that holds it, either way round."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper

import driftscope as ds


def fused(x):
    return F.layer_norm(x, (32,))


def written(x):
    centred = x - x.mean(-1, keepdim=True)
    spread = (centred * centred).mean(-1, keepdim=True)
    scale = torch.sqrt(spread + 1e-6)  # this line
    return centred / scale


def in_numpy(x):
    centred = x - x.mean(-1, keepdims=True)
    spread = (centred * centred).mean(-1, keepdims=True)
    scale = np.sqrt(spread + 1e-6)  # this line
    return centred / scale


def unbiased(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(x.var(-1, keepdim=True) + 1e-5)


def drawn():
    return torch.randn(8, 32, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("function", [written, in_numpy])
def test_the_epsilon_is_named_at_its_line_against_a_fused_norm(function):
    b = ds.program(function, framework="numpy" if function is in_numpy else "torch")
    first = ds.compare(fused, b, [drawn()]).first
    assert "1e-06" in first.why
    assert first.verified
    assert "this line" in (first.where.expression or "")


def test_a_fused_norm_with_another_epsilon_is_told_so():
    first = ds.compare(written, fused, [drawn()]).first
    assert first.verified
    assert "eps" in first.fix
    assert "1e-06" in first.fix


def test_no_number_is_named_where_none_makes_them_the_same():
    for a, b in ((fused, unbiased), (unbiased, fused)):
        first = ds.compare(a, b, [drawn()]).first
        assert not first.verified
        assert "its constant" not in first.why


class Blocks(torch.nn.Module):
    """Two perceptrons with what goes by them, a norm before and behind each; GELU by the hyperbolic tangent."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.one, self.two = (torch.nn.LayerNorm(8) for _ in range(3))
        self.up, self.down = (torch.nn.ModuleList(torch.nn.Linear(*s) for _ in range(2)) for s in ((8, 16), (16, 8)))
        with torch.no_grad():
            for p in self.parameters():
                p += 0.1 * torch.randn_like(p)

    def forward(self, x):
        y = self.first(x)
        for up, down, norm in zip(self.up, self.down, (self.one, self.two), strict=True):
            x = x + down(F.gelu(up(y), approximate="tanh"))
            y = norm(x)
        return y


def as_fused(model):
    """What onnxruntime's optimiser for transformers makes of it, whose BiasGelu is the exact function."""
    stored = {name.replace(".", "_"): p.detach() for name, p in model.named_parameters()}
    weights = {n: v.mT.contiguous().numpy() if v.dim() > 1 else v.numpy() for n, v in stored.items()}
    nodes = [helper.make_node("LayerNormalization", ["x", "first_weight", "first_bias"], ["layer_norm"], "norm")]
    for k, (norm, mark, after) in enumerate((("one", "", "_1"), ("two", "_1", "_2"))):
        skip, sums = ("x", ["", "", "sum"]) if k == 0 else ("sum", [])
        nodes += [
            helper.make_node("MatMul", [f"layer_norm{mark}", f"up_{k}_weight"], [f"a{k}"], f"up{k}"),
            helper.make_node(
                "BiasGelu", [f"a{k}", f"up_{k}_bias"], [f"gelu{mark}"], f"gelu{k}", domain="com.microsoft"
            ),
            helper.make_node("MatMul", [f"gelu{mark}", f"down_{k}_weight"], [f"m{k}"], f"down{k}"),
            helper.make_node(
                "SkipLayerNormalization", [skip, f"m{k}", f"{norm}_weight", f"{norm}_bias", f"down_{k}_bias"],
                [f"layer_norm{after}", *sums], f"skip{k}", domain="com.microsoft", epsilon=1e-5,
            ),
        ]  # fmt: skip
    ends = [[helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 5, 8])] for n in ("x", "layer_norm_2")]
    graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(v, n) for n, v in weights.items()])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("named", [True, False])
def test_a_fused_function_is_named_in_every_layer_whatever_is_fused_around_it(named):
    model, x = Blocks().eval(), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(2))
    fused_model = as_fused(model)
    if not named:  # names that say nothing of the other program
        for node in fused_model.graph.node:
            for names in (node.input, node.output):
                names[:] = [n.replace("layer_norm", "y").replace("gelu", "g") for n in names]
        fused_model.graph.output[0].name = "y_2"
    c = ds.compare(model, fused_model, [x])
    found = [f for f in c.findings if f.code == "N001"]
    assert c.first.where.node == "gelu0"
    assert c.first.verified
    assert all("approximate is 'none' here and 'tanh' in A" in f.why for f in found)
    assert "gelu1" in " ".join(f"{f.where.node} {f.what}" for f in found)
