"""
From a drift to the line that causes it
=======================================

A model that a converter got wrong in one place. The verdict says that it is another program; the first finding says
which node, which module and which line, why, and what to change.
"""

# %%
# A small residual network, exported.

# sphinx_gallery_thumbnail_path = 'docs/images/comparison-light.png'
import copy

import torch
import torch.nn.functional as F
from onnx import ModelProto, helper, numpy_helper
from torch import nn

import driftscope as ds


class Block(nn.Module):
    """A normalised feed-forward layer with a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(24), nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), Block(), nn.Linear(24, 24)).eval()
x = torch.randn(4, 10, 24, generator=torch.Generator().manual_seed(1))
clean = torch.onnx.export(model, (x,), verbose=False).model_proto

# %%
# Four mistakes, each in a copy of its own.


def with_attribute(model: ModelProto, node: str, name: str, value: object) -> ModelProto:
    """Return a copy in which a node has another attribute."""
    broken = copy.deepcopy(model)
    found = next(n for n in broken.graph.node if n.name == node)
    kept = [a for a in found.attribute if a.name != name]
    del found.attribute[:]
    found.attribute.extend([*kept, helper.make_attribute(name, value)])
    return broken


def with_weight(model: ModelProto, operator: str, index: int, edit) -> ModelProto:  # type: ignore[no-untyped-def]
    """Return a copy in which the weight of a node is edited."""
    broken = copy.deepcopy(model)
    held = {i.name: i for i in broken.graph.initializer}
    nodes = [n for n in broken.graph.node if n.op_type == operator and n.input[1] in held]
    stored = held[nodes[index].input[1]]
    stored.CopyFrom(numpy_helper.from_array(edit(numpy_helper.to_array(stored)).copy(), stored.name))
    return broken


def without_residual(model: ModelProto) -> ModelProto:
    """Return a copy in which one addition keeps only the branch."""
    broken = copy.deepcopy(model)
    found = next(n for n in broken.graph.node if n.name == "node_add_1")
    branch = found.input[1]
    del found.input[:]
    found.input.append(branch)
    found.op_type = "Identity"
    return broken


broken = {
    "another epsilon": with_attribute(clean, "node_layer_norm_1", "epsilon", 1e-3),
    "Gelu approximated": with_attribute(clean, "node_gelu_2", "approximate", "tanh"),
    "weight transposed": with_weight(clean, "MatMul", -1, lambda w: w.T),
    "residual lost": without_residual(clean),
}

# %%
# One line each: the code, the node, the module and the reason.

for name, file in broken.items():
    comparison = ds.compare(model, file, x)
    first = comparison.first
    print(f"{name:<18} {first.code} {first.where.node:<20} {first.where.module:<8} {first.fix or first.why}")

# %%
# And the clean export is the same program: no finding at all.

comparison = ds.compare(model, clean, x)
print(comparison.verdict, [f.code for f in comparison.findings if not f.note])

# %%
# Related: `Compare an export <compare_export.html>`__, `Which optimiser did it? <which_optimiser_did_it.html>`__.
