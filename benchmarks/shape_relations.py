"""What reading the relations of an export costs beside the export itself, and how many are left of those recorded.

Run with ``python -m benchmarks shape_relations``.
"""

from __future__ import annotations

import statistics
import time

import torch
import torch.nn.functional as F
from torch.export import Dim

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.capture.reading import relations_of
from driftscope.shapes.probe.axes import arguments_of

ROUNDS = 5
#: Relations are read in at most this part of the time of the export they belong to (measured: 0.01 to 0.05).
PROMISED_RATIO = 0.10
PROMISED_MILLISECONDS = 10.0


def padded(x):
    """A length rounded up to a multiple of 8."""
    return F.pad(x, (0, (-x.shape[1]) % 8)).reshape(x.shape[0], -1, 8).sum(2)


def windowed(x):
    """Pads only where it must, then makes windows of four."""
    if x.shape[1] % 4:
        x = F.pad(x, (0, 0, 0, 4 - x.shape[1] % 4))
    return x.reshape(x.shape[0], -1, 4, x.shape[2]).amax(2)


def joined(x, y, z):
    """A length that is the sum of two others."""
    return torch.cat((x, y), 1) + z[:, ::2]


def attended(q, k, mask):
    """Attention with a past."""
    weights = (q @ k.mT).masked_fill(mask[:, None, :] == 0, -1e4)
    return weights.softmax(-1) @ k


MODELS = {
    "padded": (padded, (torch.randn(2, 11),)),
    "windowed": (windowed, (torch.randn(2, 6, 3),)),
    "joined": (joined, (torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 16))),
    "attended": (attended, (torch.randn(2, 3, 4), torch.randn(2, 8, 4), torch.ones(2, 8))),
}


def exported(name: str) -> Capture:
    """Export one model, every axis left to torch."""
    model, inputs = MODELS[name]
    arguments = arguments_of(model, inputs)
    made = capture(model, arguments, Attempt(Mode.AUTO, (Dim.AUTO,) * len(arguments.axes)))
    if not isinstance(made, Capture):
        raise SystemExit(f"{name} was refused: {made.words}")
    return made


def main() -> int:
    """Print expected and measured; return the number of broken promises."""
    exported("joined")  # the first export of a process pays for torch's own start
    ratios, milliseconds = [], []
    for name in MODELS:
        export_seconds, read_seconds = [], []
        for _ in range(ROUNDS):
            started = time.process_time()
            made = exported(name)
            between = time.process_time()
            relations_of(made.exported, made.arguments)
            read_seconds.append(time.process_time() - between)
            export_seconds.append(between - started)
        read, whole = statistics.median(read_seconds), statistics.median(export_seconds)
        ratios.append(read / whole)
        milliseconds.append(1000 * read)
        checked = sum(c.enforced for c in made.relations.recorded)
        shown = sum(c.enforced for c in made.relations)
        cost = f"{1000 * read:.1f} ms, {read / whole:.3f} of the export"
        print(f"{name:10} {checked:3} conditions checked, {shown} shown; {cost}")
    ratio, middle = statistics.median(ratios), statistics.median(milliseconds)
    print(f"median {middle:.1f} ms (expected <= {PROMISED_MILLISECONDS})")
    print(f"ratio {ratio:.3f} (expected <= {PROMISED_RATIO})")
    return (ratio > PROMISED_RATIO) + (middle > PROMISED_MILLISECONDS)


if __name__ == "__main__":
    raise SystemExit(main())
