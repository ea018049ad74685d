"""What it costs to name the guilty piece: in time and memory, over four depths of a decoder, and on an encoder.

Run with ``python -m benchmarks localisation``; each depth has a process of its own, so that its memory is its own.
Models are built and exported here, which is not timed. ``--plot FILE`` draws the two lines.
"""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.comparison import encoder

#: Layers of the decoder; the deepest has the 1,500 nodes of the promise.
DEPTHS = (4, 7, 14, 29)
PROMISED_DECODER, PROMISED_ENCODER = 15.0, 1.0
#: Seconds per node may grow by this factor from the smallest to the largest depth and still be called linear.
LINEAR = 2.0
WIDTH, HEADS = 128, 4


class Layer(nn.Module):
    """RMSNorm, rotary attention written out under a causal mask, SwiGLU: 52 nodes of ONNX."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, eps=1e-6), nn.RMSNorm(WIDTH, eps=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (p(h).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        q, k = q * cos + half_turn(q) * sin, k * cos + half_turn(k) * sin
        scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5 + mask
        y = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(y)
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def half_turn(x: Tensor) -> Tensor:
    """Turn pairs by a quarter: rotary positions."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


class Decoder(nn.Module):
    """Layers and a norm; embeddings and the head would only add weights."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(depth))
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        size = WIDTH // HEADS
        frequency = 10000.0 ** -(torch.arange(0, size, 2) / size)
        angle = torch.arange(x.shape[1])[:, None] * frequency[None, :]
        angle = torch.cat((angle, angle), -1)
        mask = torch.full((x.shape[1], x.shape[1]), -1e4).triu(1).to(x.dtype)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.norm(x)


def broken(module: nn.Module, x: Tensor, operator: str, share: float) -> tuple[Any, str]:
    """Export, then break the operator of that type that is some share into the graph; also return its name."""
    from onnx import helper

    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    model = torch.onnx.export(module, (x,), dynamo=True, verbose=False).model_proto
    nodes = [n for n in model.graph.node if n.op_type == operator]
    node = nodes[int(share * len(nodes))]
    if operator == "LayerNormalization":
        kept = [a for a in node.attribute if a.name != "epsilon"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("epsilon", 1e-3)])
    else:
        node.op_type = "Tanh"
    return model, node.name


def row(kind: str, depth: int) -> dict[str, Any]:
    """Measure one model: nodes, seconds for the place alone and for all, and memory."""
    import driftscope as ds

    torch.set_num_threads(1)
    module = (encoder(depth) if kind == "encoder" else Decoder(depth)).eval()
    x = torch.randn(2, 32, 128, generator=torch.Generator().manual_seed(0))
    model, guilty = broken(module, x, "LayerNormalization" if kind == "encoder" else "Sigmoid", 0.6)
    ds.compare(module, model, (x,), explain=False)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    plain = ds.compare(module, model, (x,), explain=False)
    middle = time.process_time()
    found = ds.compare(module, model, (x,))
    taken = time.process_time() - middle
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    right = found.first is not None and found.first.where.node == guilty
    return {"nodes": len(model.graph.node), "place": taken - (middle - start), "whole": taken, "mb": memory,
            "right": right, "verdict": str(plain.verdict)}  # fmt: skip


def measured(kind: str, depth: int) -> dict[str, Any]:
    """One row, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.localisation", "--row", kind, str(depth)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw time and memory over nodes."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    nodes = [r["nodes"] for r in rows]
    left.plot(nodes, [r["place"] for r in rows], marker="o")
    left.set(xlabel="nodes", ylabel="seconds", title="to name the guilty node", xlim=0, ylim=0)
    right.plot(nodes, [r["mb"] for r in rows], marker="o")
    right.set(xlabel="nodes", ylabel="MB", title="of memory more than without", xlim=0, ylim=0)
    figure.savefig(path)


def main() -> int:
    """Print the table; return the number of promises that were not kept."""
    if "--row" in sys.argv:
        kind, depth = sys.argv[sys.argv.index("--row") + 1 :][:2]
        print(json.dumps(row(kind, int(depth))))
        return 0
    rows = [measured("decoder", depth) for depth in DEPTHS]
    small = measured("encoder", 4)
    print(f"{'model':<14}{'nodes':>7}{'place s':>10}{'ms/node':>9}{'whole s':>9}{'more MB':>9}  node")
    for name, r in [(f"decoder {d}", r) for d, r in zip(DEPTHS, rows, strict=True)] + [("encoder 4", small)]:
        each = 1e3 * r["place"] / r["nodes"]
        print(f"{name:<14}{r['nodes']:>7}{r['place']:>10.2f}{each:>9.2f}{r['whole']:>9.2f}{r['mb']:>9.0f}  "
              f"{'right' if r['right'] else 'WRONG'}")  # fmt: skip
    growth = (rows[-1]["place"] / rows[-1]["nodes"]) / (rows[0]["place"] / rows[0]["nodes"])
    print(f"seconds per node grow by {growth:.2f} over {rows[-1]['nodes'] / rows[0]['nodes']:.1f} times the nodes")
    if "--plot" in sys.argv:
        draw(rows, sys.argv[sys.argv.index("--plot") + 1])
    broken_promises = [
        rows[-1]["place"] > PROMISED_DECODER, small["place"] > PROMISED_ENCODER, growth > LINEAR,
        not all(r["right"] for r in [*rows, small]),
    ]  # fmt: skip
    return sum(broken_promises)


if __name__ == "__main__":
    raise SystemExit(main())
