"""What it costs to find the guilty optimiser, to read every value of a session, and to try a half format.

On an encoder of 161 ONNX nodes (4 layers, width 128), float32 and float16, one thread. Users bisect
``disabled_optimizers`` by hand; torch's verifier with ``compare_intermediates=True`` needs one session per node.

Expected, in processor time (other load does not count; 0.021 to 0.048 s per transformer were measured on a quiet core):

* at most 0.1 s per graph transformer that fired, and at most 4 plain session starts;
* all values of the optimised graph, with the check that reading them changed nothing, in at most 8 session starts;
* every kernel judged on its native inputs in at most 2 s.

Run with ``python -m benchmarks optimisers``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import onnx
import torch
from torch import nn

import driftscope as ds
from driftscope.explain.blame.blaming import standalone_target
from driftscope.explain.blame.optimisers import blame_optimizers
from driftscope.explain.native.observation import observe
from driftscope.explain.native.program_kernels import native_pieces_of

PROMISED_PER_TRANSFORMER = 0.1
PROMISED_STARTS_EACH = 4.0
PROMISED_STARTS = 8.0
PROMISED_KERNELS = 2.0
ROUNDS = 3


class Encoder(nn.Module):
    """Token and position embeddings, four pre-norm layers with unequal weights, a norm and a classifier."""

    def __init__(self, width: int = 128, layers: int = 4):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(1000, width)
        self.positions = nn.Parameter(0.02 * torch.randn(32, width))
        options = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, **options) for _ in range(layers)
        )  # fmt: skip
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def exported(dtype: torch.dtype, ids: torch.Tensor) -> onnx.ModelProto:
    """Export the encoder in one dtype, quietly."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    made = torch.onnx.export(Encoder().eval().to(dtype), (ids,), dynamo=True, opset_version=20, verbose=False)
    return made.model_proto


def best(run: Callable[[], object]) -> float:
    """Least processor time of a few runs."""
    times = []
    for _ in range(ROUNDS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def main() -> int:
    """Print expected and measured; return the number of broken promises."""
    ids = torch.randint(0, 1000, (4, 32), generator=torch.Generator().manual_seed(0))
    return sum(_measure(dtype, ids) for dtype in (torch.float32, torch.float16))


def _measure(dtype: torch.dtype, ids: torch.Tensor) -> int:
    model = exported(dtype, ids)
    program = ds.onnx(model, threads=1)
    bound = program.bind(ds.inputs([ids]))
    reference = ds.recorded(ds.onnx(model, level="disable", threads=1)(ds.inputs([ids])))
    start = best(lambda: ds.onnx(model, threads=1)(ds.inputs([ids])))
    target = standalone_target(reference.bind(None), bound, "the file", 0)
    found = blame_optimizers(bound, target)
    each = best(lambda: blame_optimizers(bound, target)) / found.runs
    read = best(lambda: list(observe(bound).values()))
    kernels = best(lambda: native_pieces_of(bound))
    half = best(lambda: ds.check_half(program, [ids]))
    print(f"{dtype}: {len(model.graph.node)} nodes; a session and a run take {start:.3f} s")
    print(
        f"  {found.runs} sessions for {len(found.suspects)} transformers: {each:.3f} s, {each / start:.1f} starts each"
    )
    print(f"    (expected <= {PROMISED_PER_TRANSFORMER} s and <= {PROMISED_STARTS_EACH} starts)")
    print(f"  every value read: {read:.3f} s, {read / start:.1f} starts (expected <= {PROMISED_STARTS})")
    print(f"  every kernel judged: {kernels:.2f} s (expected <= {PROMISED_KERNELS} s)")
    print(f"  half format tried, operator by operator: {half:.2f} s")
    slow = each > PROMISED_PER_TRANSFORMER or each > PROMISED_STARTS_EACH * start
    return slow + (read > PROMISED_STARTS * start) + (kernels > PROMISED_KERNELS)


if __name__ == "__main__":
    raise SystemExit(main())
