"""What a noise floor costs: one noise run against one native float32 forward of a transformer encoder, in one run.

Run with ``python -m benchmarks.noise_floor``; ratios are the medians over rounds in which both were timed in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

#: (layers, width, batch, tokens, promised noise run over native forward); on a forward of some milliseconds the
#: bookkeeping of steps dominates, so nothing is promised there.
SHAPES = ((2, 128, 4, 64, None), (4, 256, 8, 64, 8.0), (6, 384, 4, 128, 8.0))
ROUNDS = 7


def encoder(layers: int, width: int) -> nn.Module:
    """Build torch's own encoder, in eval mode."""
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()


def seconds(run: Callable[[], object]) -> float:
    # Processor time on one thread: the ratio then holds on a machine that has other work to do.
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(layers: int, width: int, batch: int, tokens: int) -> dict[str, float]:
    """Time a native forward, a clean lifted run and a noise run side by side.

    Returns
    -------
    dict
        ``native_ms``, and ``lifted`` and ``noise``: medians of their time over the native time of the same round.
    """
    from driftscope.lift.noise.floor import noisy_run
    from driftscope.lift.torch.tape import lift_torch

    torch.manual_seed(0)
    module, x = encoder(layers, width), torch.randn(batch, tokens, width)
    with torch.no_grad():
        lifted = lift_torch(module, (x,), {}, module=module)
        native, clean, noise = [], [], []
        for _ in range(ROUNDS):
            # Three forwards, so that a short one is not timed cold.
            native.append(min(seconds(lambda: module(x)) for _ in range(3)))
            clean.append(seconds(lifted.run))
            noise.append(seconds(lambda: noisy_run(lifted)))
    return {
        "native_ms": 1e3 * statistics.median(native),
        "lifted": statistics.median(c / n for c, n in zip(clean, native, strict=True)),
        "noise": statistics.median(c / n for c, n in zip(noise, native, strict=True)),
    }


def main() -> int:
    """Print one line per shape; return the number of broken promises."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread, processor time / that of one native float32 forward")
    print(f"{'encoder':28s} {'native':>10s} {'lifted run':>11s} {'noise run':>10s} {'promised':>9s}")
    broken = 0
    for layers, width, batch, tokens, promised in SHAPES:
        row = measure(layers, width, batch, tokens)
        name = f"{layers} x {width}, {batch} x {tokens} tokens"
        limit = f"{promised:8.1f}x" if promised else ""
        print(f"{name:28s} {row['native_ms']:7.1f} ms {row['lifted']:10.1f}x {row['noise']:9.1f}x {limit:>9s}")
        broken += promised is not None and row["noise"] > promised
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
