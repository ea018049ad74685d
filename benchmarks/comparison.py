"""What a whole comparison costs: in processor time, in growth with the graph, and in memory beside its weights.

Run with ``python -m benchmarks.comparison``. Models are exported here, which is not timed.
"""

from __future__ import annotations

import logging
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

#: Layers of the encoder; four of them are the 156 nodes that the promise of two seconds is about.
DEPTHS = (2, 4, 8, 16)
PROMISED_SECONDS = 2.0
ROUNDS = 5
#: Width and layers of the model whose memory is measured: half a gigabyte of weights.
WIDE, LAYERS = 2560, 20
PROMISED_WEIGHTS = 3.0


def encoder(depth: int) -> nn.Module:
    """An encoder whose layers do not share weights (an exporter merges equal initialisers)."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, activation="gelu", batch_first=True, norm_first=True, dropout=0.0)
    module = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return module


class Wide(nn.Module):
    """Linear layers with normalisation and residuals: weights of half a gigabyte, activations of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDE, WIDE) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDE) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.nn.functional.gelu(layer(norm(x)))
        return x


def export(module: nn.Module, x: torch.Tensor, path: Path | None = None):  # type: ignore[no-untyped-def]
    """Export to ONNX; to a file with external data when a path is given."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    program = torch.onnx.export(module, (x,), dynamo=True, opset_version=20, verbose=False)
    if path is not None:
        program.save(str(path), external_data=True)
    return program.model_proto if path is None else None


def time_row(depth: int) -> tuple[int, float, float]:
    """Nodes, median processor seconds of a comparison, and native forwards that the same time would buy."""
    import driftscope as ds

    module, x = encoder(depth), torch.randn(2, 32, 128)
    model = export(module, x)
    ds.compare(module, model, (x,))
    taken, forward = [], []
    for _ in range(ROUNDS):
        start = time.process_time()
        with torch.no_grad():
            module(x)
        middle = time.process_time()
        ds.compare(module, model, (x,))
        forward.append(middle - start)
        taken.append(time.process_time() - middle)
    return len(model.graph.node), statistics.median(taken), statistics.median(taken) / statistics.median(forward)


def peak_over_weights(folder: str) -> float:
    """Peak resident memory of comparing the wide model with its export, the module included, over its weights."""
    import onnxruntime  # noqa: F401 - imported before the baseline is read

    import driftscope as ds
    import driftscope.inquiry
    import driftscope.lift.onnx.graph
    import driftscope.lift.torch.tape

    # What is resident now, not the peak so far: imports allocate and free.
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    baseline = pages * resource.getpagesize() / 1024
    torch.manual_seed(0)
    module = Wide().eval()
    weights = sum(p.numel() * p.element_size() for p in module.parameters()) / 1024
    ds.compare(module, Path(folder) / "wide.onnx", (torch.randn(8, WIDE),))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - baseline) / weights


def main() -> int:
    """Print expected and measured; return the number of broken promises."""
    torch.set_num_threads(1)
    broken = 0
    print(f"compare(encoder, its export), processor time on one thread, median of {ROUNDS}")
    print(f"{'nodes':>6s} {'seconds':>8s} {'forwards':>9s} {'ms/node':>8s}  expected")
    for depth in DEPTHS:
        nodes, taken, forwards = time_row(depth)
        promise = f"<= {PROMISED_SECONDS:g} s" if depth == 4 else "linear in nodes"
        broken += depth == 4 and taken > PROMISED_SECONDS
        print(f"{nodes:6d} {taken:8.2f} {forwards:9.0f} {1e3 * taken / nodes:8.2f}  {promise}")
    with tempfile.TemporaryDirectory(prefix="driftscope-bench-") as folder:
        for step in ("export", "peak"):  # processes of their own: a peak is for ever
            code = f"from benchmarks.comparison import {step}_step; {step}_step({folder!r})"
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        peak = float(run.stdout.split()[-1])
    broken += peak > PROMISED_WEIGHTS
    print(f"peak memory, 500 MB of weights, module included: {peak:.2f} x weights  (expected <= {PROMISED_WEIGHTS:g})")
    return broken


def export_step(folder: str) -> None:
    """Write the wide model's export into ``folder``."""
    torch.manual_seed(0)
    export(Wide().eval(), torch.randn(8, WIDE), Path(folder) / "wide.onnx")


def peak_step(folder: str) -> None:
    """Print the peak of one comparison."""
    print(peak_over_weights(folder))


if __name__ == "__main__":
    raise SystemExit(main())
