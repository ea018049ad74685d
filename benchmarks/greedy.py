"""How long two greedy generations stay together, measured and as a check of invariance predicts it.

A small decoder is trained on the help texts of Python and continues prompts greedily: with a cache of float32, and
with one that keeps keys and values in float16, bfloat16 or int8. Measured is the number of tokens until the two part,
over 2,048 prompts; ``ds.check_invariance(..., axes="chunking")`` predicts it from the margins of 256 of the texts.
The goal is a factor of 2 where ten generations part or more: of fewer the measurement itself is off by that.

Run: ``OMP_NUM_THREADS=1 python -m benchmarks greedy`` (some minutes)
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pydoc_data.topics import topics

import torch
from torch import nn

import driftscope as ds

WIDTH, LENGTH, PROMPT, STEPS, LETTERS = 64, 64, 8, 1000, 200_000
PROMPTS, ASKED = 2048, 256
#: The most that prediction and measurement may differ by, and how many generations must part for a measurement.
WANTED, ENOUGH = 2.0, 10

State = list[tuple[torch.Tensor, torch.Tensor]]


class Block(nn.Module):
    """Attention over what was seen so far, and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(
        self, x: torch.Tensor, seen: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        rows, count, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, count, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        if seen is not None:
            k, v = torch.cat([seen[0], k], 2), torch.cat([seen[1], v], 2)
        mask = torch.ones(count, k.shape[2], dtype=torch.bool).tril(k.shape[2] - count)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(rows, count, WIDTH))
        return x + self.wide(self.between(x)), (k, v)


class Decoder(nn.Module):
    """Two blocks; ``state`` holds the keys and values of each."""

    def __init__(self, letters: int, kept: Callable[[torch.Tensor], torch.Tensor] = torch.clone) -> None:
        super().__init__()
        self.kept = kept
        self.letters, self.places = nn.Embedding(letters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks, self.norm = nn.ModuleList([Block(), Block()]), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, letters)

    def forward(self, input_ids: torch.Tensor, state: State | None = None) -> tuple[torch.Tensor, State]:
        at = 0 if state is None else state[0][0].shape[2]
        x, kept = self.letters(input_ids) + self.places.weight[at : at + input_ids.shape[1]], []
        for k, block in enumerate(self.blocks):
            x, seen = block(x, None if state is None else state[k])
            kept.append((self.kept(seen[0]), self.kept(seen[1])))
        return self.head(self.norm(x)), kept


def trained() -> tuple[Decoder, torch.Tensor]:
    """Train the decoder, and return it and the text as numbers."""
    torch.manual_seed(0)
    text = "".join(topics[name] for name in sorted(topics))[:LETTERS]
    letters = sorted(set(text))
    known = {letter: k for k, letter in enumerate(letters)}
    ids = torch.tensor([known[letter] for letter in text])
    model = Decoder(len(letters))
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(STEPS):
        at = torch.randint(len(ids) - LENGTH - 1, (16, 1)) + torch.arange(LENGTH)
        loss = nn.functional.cross_entropy(model(ids[at])[0].flatten(0, 1), ids[at + 1].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval(), ids


def in_int8(x: torch.Tensor) -> torch.Tensor:
    """Keep every vector in steps of a 127th of its largest element."""
    step = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (x / step).round() * step


#: What is done to keys and values when they are kept.
CACHES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cache in float16": lambda x: x.half().to(x.dtype),
    "cache in bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "cache in int8": in_int8,
}


def like(model: Decoder, kept: Callable[[torch.Tensor], torch.Tensor]) -> Decoder:
    """Return the decoder with another cache."""
    other = Decoder(model.head.out_features, kept).eval()
    other.load_state_dict(model.state_dict())
    return other


@torch.no_grad()
def generated(model: Decoder, prompts: torch.Tensor) -> torch.Tensor:
    """Continue the prompts greedily."""
    ids, given, state = prompts, prompts, None
    while ids.shape[1] < LENGTH:
        scores, state = model(given, state)
        given = scores[:, -1:].argmax(-1)
        ids = torch.cat([ids, given], 1)
    return ids


def until_parting(one: torch.Tensor, other: torch.Tensor) -> tuple[float, int]:
    """Return tokens per parting, each generation counted until it parts or ends, and the number of partings."""
    apart = one != other
    parted = apart.any(1)
    first = torch.where(parted, apart.float().argmax(1) - PROMPT + 1, LENGTH - PROMPT)
    partings = int(parted.sum())
    return (float(first.sum()) / partings if partings else math.inf), partings


def compared(name: str, model: Decoder, texts: torch.Tensor, other: torch.Tensor) -> bool:
    """Print one row: ``texts`` are those of the reference; return whether the prediction is farther off than wanted."""
    measured, partings = until_parting(texts, other)
    report = ds.check_invariance(
        model, {"input_ids": texts[:: len(texts) // ASKED]}, axes="chunking", batch="input_ids=0",
        sequence="input_ids=1", explain=False,
    )  # fmt: skip
    predicted = float(report.choices["chunking"]["expected_steps"]) if report.choices else math.inf
    ratio = max(measured / predicted, predicted / measured) if partings else math.nan
    few = "" if partings >= ENOUGH else "   few"
    print(f"{name:18} {partings:8} {measured:22.0f} {predicted:10.0f} {ratio:6.2f}{few}", flush=True)
    return ratio > WANTED and partings >= ENOUGH


def main() -> int:
    """Print measured and predicted tokens of each format; return how many predictions are farther off than 2x."""
    torch.set_num_threads(1)
    model, ids = trained()
    at = torch.arange(PROMPTS) * ((len(ids) - PROMPT) // PROMPTS)
    prompts = ids[at[:, None] + torch.arange(PROMPT)]
    print(f"{PROMPTS} prompts of {PROMPT} letters, {LENGTH - PROMPT} generated, torch {torch.__version__}")
    print(f"{'kept':18} {'parted':>8} {'tokens until parting':>22} {'predicted':>10} {'ratio':>6}", flush=True)
    texts, broken = generated(model, prompts), 0
    for name, kept in CACHES.items():
        other = like(model, kept)
        broken += compared(name, other, texts, generated(other, prompts))
    return broken


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
