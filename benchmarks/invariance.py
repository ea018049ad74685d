"""What makes results invariant, and what that costs: switches of today's runtimes beside ``ds.reproducible()``.

An encoder of images under ``ds.check_invariance`` along four axes: plain; with torch's deterministic algorithms; on
onnxruntime without and with its deterministic compute; inside ``ds.reproducible()``. Then the cost of
``ds.reproducible()``: ratios of CPU time on one thread, interleaved so that a busy machine slows both sides alike.

Run: ``OMP_NUM_THREADS=1 python -m benchmarks invariance``
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import driftscope as ds

AXES = ("batch", "order", "threads", "layout")
REPEATS = 15


class Reproducible(nn.Module):
    """A module that runs inside ``ds.reproducible()``."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with ds.reproducible():
            return self.inner(x)


class Encoder(nn.Module):
    """Blocks of attention and two products, in plain operators."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.width = width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        for k, qkv in enumerate(self.qkv):
            parts = qkv(self.norms[2 * k](x)).view(rows, length, 3, -1, 32).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
            x = x + self.out[k](y.transpose(1, 2).reshape(rows, length, width))
            x = x + self.down[k](functional.gelu(self.up[k](self.norms[2 * k + 1](x))))
        return x


class Images(nn.Module):
    """Patches of an image through the encoder, and scores of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.encoder, self.head = nn.Conv2d(3, 96, 8, 8), Encoder(96, 2), nn.Linear(96, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """torch's deterministic algorithms, put back afterwards."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def ways(folder: Path) -> Iterator[tuple[str, Any, contextlib.AbstractContextManager[Any]]]:
    """Yield each way to run the encoder: its name, the program, and what is switched on around it."""
    torch.manual_seed(0)
    model, none = Images().eval(), contextlib.nullcontext()
    yield "torch", model, none
    yield "torch, deterministic algorithms", model, deterministic()
    path = folder / "encoder.onnx"
    example, free = torch.zeros(2, 3, 32, 32), torch.export.Dim.DYNAMIC
    with contextlib.redirect_stdout(None):
        torch.onnx.export(model, (example,), path, dynamo=True, dynamic_shapes={"x": {0: free}}, verbose=False)
    yield "onnxruntime", ds.onnx(path), none
    yield "onnxruntime, deterministic compute", ds.onnx(path, config={"session.use_deterministic_compute": "1"}), none
    yield "ds.reproducible()", Reproducible(model), none


def table() -> int:
    """Print the outcome of each way along each axis; return 1 unless ``ds.reproducible()`` is the same along all."""
    inputs = {"x": torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))}
    print(f"| way | {' | '.join(AXES)} |\n|---|{'---|' * len(AXES)}")
    outcomes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, program, switched in ways(Path(folder)):
            with switched:
                report = ds.check_invariance(program, inputs, axes=AXES, explain=False)
            outcomes = [report.outcomes[axis] for axis in AXES]
            print(f"| {name} | {' | '.join(o.replace('not-applicable', '') for o in outcomes)} |", flush=True)
    return int(set(outcomes) != {"same"})


def costs() -> int:
    """Print what each operator costs inside the context; return how many cost more than promised."""
    torch.manual_seed(0)
    x, w = torch.randn(256, 512), torch.randn(512, 512)
    q = torch.randn(4, 8, 128, 64)
    encoder, batch = Encoder(256, 12).eval(), torch.randn(4, 64, 256)
    rows: list[tuple[str, float, Callable[[], Any]]] = [
        ("matmul 256x512x512", 1.3, lambda: x @ w),
        ("linear 256x512x512", 1.3, lambda: functional.linear(x, w)),
        ("bmm 32x128x64x128", 1.3, lambda: q @ q.transpose(-1, -2)),
        ("attention 4x8x128x64", 2.0, lambda: functional.scaled_dot_product_attention(q, q, q)),
        ("layer_norm 256x512", 2.0, lambda: functional.layer_norm(x, (512,))),
        ("softmax 256x512", 2.0, lambda: x.softmax(-1)),
        ("gelu 256x512", 2.0, lambda: functional.gelu(x)),
        ("encoder, 12 layers of 256", 1.5, lambda: encoder(batch)),
    ]
    print(f"\n{'inside ds.reproducible()':28} {'promised':>9} {'measured':>9}")
    above = 0
    for name, promised, call in rows:
        ratio = statistics.median(_seconds(call, fixed=True) / _seconds(call) for _ in range(REPEATS))
        above += ratio > promised
        print(f"{name:28} {f'<= {promised}':>9} {ratio:9.2f}{'   above' * (ratio > promised)}", flush=True)
    return above


class Texts(nn.Module):
    """Tokens under a mask through an encoder of about 160 operators, every forward timed."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.embedding, self.head = nn.Embedding(99, 64), nn.Linear(64, 10)
        self.encoder = nn.TransformerEncoder(layer, 9, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        start = time.process_time()
        y = self.encoder(self.embedding(ids), src_key_padding_mask=attention_mask == 0)
        y = self.head((y * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))
        COUNTED.append(time.process_time() - start)
        return y


#: Seconds of every forward of :class:`Texts`; outside of it, because a check puts back what a module keeps.
COUNTED: list[float] = []


def texts() -> tuple[Texts, dict[str, torch.Tensor]]:
    """Return the encoder of texts and its inputs."""
    torch.manual_seed(0)
    ids = torch.randint(99, (4, 12), generator=torch.Generator().manual_seed(0))
    return Texts().eval(), {"ids": ids, "attention_mask": torch.ones(4, 12)}


def one_check() -> int:
    """Print what one check along every axis costs; return whether it is more than promised."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # which would be one operator for each layer
    try:
        model, inputs = texts()
        for _ in range(2):  # the first imports what it needs
            COUNTED.clear()
            start = time.process_time()
            ds.check_invariance(model, inputs)
            beside = time.process_time() - start - sum(COUNTED)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    forwards = len(COUNTED)
    print(f"\none check of about 160 operators along every axis: {forwards} forwards (<= 60) and {beside:.1f} s (<= 2)")
    return int(forwards > 60) + int(beside > 2.0)


def _seconds(call: Callable[[], Any], *, fixed: bool = False) -> float:
    with ds.reproducible() if fixed else contextlib.nullcontext():
        call()
        calls, start = 0, time.process_time()
        while time.process_time() - start < 0.01:
            call()
            calls += 1
        return (time.process_time() - start) / calls


def main() -> int:
    """Print both tables; return how many promises are broken."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with torch.no_grad():
        return table() + costs() + one_check()


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
