"""A small transformer as a user writes one, and six broken exports of it: what ``docs/forty_outputs.py`` shows.

Each entry of :data:`BROKEN` makes a file that is not the model any more; none of them fails, and most change the result
by less than a tolerance of 1e-3.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import onnx
import torch
from torch import nn
from torch.nn.functional import gelu


class Block(nn.Module):
    """Attention and a perceptron, each behind a normalisation and beside a residual."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.axis, self.approximate = heads, -1, "none"
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        mixed = torch.softmax(scores, dim=self.axis) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        hidden = self.up(self.norm2(x))
        return x + self.down(gelu(hidden, approximate=self.approximate))


class Encoder(nn.Module):
    """Two blocks, averaged over the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(32, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(tokens.mean(1))


def make() -> tuple[Encoder, tuple[torch.Tensor, ...]]:
    """Return the model and inputs of its own."""
    torch.manual_seed(0)
    return Encoder().eval(), (torch.randn(2, 6, 32),)


def exported(change: Callable[[Encoder], object] = lambda model: None) -> onnx.ModelProto:
    """Export the model after a change of a copy."""
    model, inputs = make()
    changed = copy.deepcopy(model)
    change(changed)
    program = torch.onnx.export(changed, inputs, verbose=False, dynamo=True)
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program.model_proto


def _scaled_row(model: Encoder) -> None:
    with torch.no_grad():
        model.blocks[0].down.weight[3] *= 1.01  # type: ignore[union-attr,operator,index]


def _rewired() -> onnx.ModelProto:
    proto = exported()
    made = {output: node for node in proto.graph.node for output in node.output}
    last = [node for node in proto.graph.node if node.op_type == "Add" and "linear" not in node.name][-1]
    # The last residual takes what came into the block's second half from before the block's attention.
    last.input[0] = made[last.input[0]].input[0]
    return proto


def _inserted_cast() -> onnx.ModelProto:
    proto = exported()
    node = next(n for n in proto.graph.node if n.op_type == "Softmax")
    graph, at = proto.graph, list(proto.graph.node).index(node)
    down = onnx.helper.make_node("Cast", [node.output[0]], ["narrow"], "narrowed", to=onnx.TensorProto.FLOAT16)
    up = onnx.helper.make_node("Cast", ["narrow"], ["widened"], "widened_again", to=onnx.TensorProto.FLOAT)
    for other in graph.node:
        for k, name in enumerate(other.input):
            if name == node.output[0]:
                other.input[k] = "widened"
    graph.node.insert(at + 1, down)
    graph.node.insert(at + 2, up)
    return proto


#: name -> (what was done, how the file is made, words that must stand for place, cause and fix)
BROKEN: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "epsilon": (
        "the epsilon of one LayerNormalization is 1e-3",
        lambda: exported(lambda m: setattr(m.blocks[1].norm2, "eps", 1e-3)),
    ),
    "gelu": (
        "one Gelu is approximated by tanh",
        lambda: exported(lambda m: setattr(m.blocks[0], "approximate", "tanh")),
    ),
    "axis": (
        "one softmax runs along the queries",
        lambda: exported(lambda m: setattr(m.blocks[1], "axis", -2)),
    ),
    "weight": ("one row of a weight is multiplied by 1.01", lambda: exported(_scaled_row)),
    "wiring": ("one residual is taken from before the attention", _rewired),
    "cast": ("the probabilities of one attention pass through float16", _inserted_cast),
}
