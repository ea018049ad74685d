"""The demo's model: a small transformer that reads the 8x8 handwritten digits of scikit-learn.

Weights and test digits lie beside this file, so running the demo needs neither a network nor scikit-learn;
:mod:`driftscope.demo.train` made both.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

WEIGHTS = Path(__file__).with_name("digits.safetensors")
TEST_DIGITS = Path(__file__).with_name("test_digits.safetensors")

SIDE = 8  # pixels along one side of an image
PATCH = 2  # pixels along one side of a patch
TOKENS = (SIDE // PATCH) ** 2
LARGEST_PIXEL = 16.0
CLASSES = 10


class Attention(nn.Module):
    """Multi-head self-attention over ``(batch, tokens, width)``."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        z: Tensor = self.out(y.transpose(1, 2).reshape(batch, tokens, width))
        return z


class Block(nn.Module):
    """A pre-norm transformer block; its GELU is the one with erf."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return y


class DigitClassifier(nn.Module):
    """Ten logits for each 8x8 image, shape ``(batch, 8, 8)`` with pixels from 0 to 1."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 3):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, width)
        self.position = nn.Parameter(0.3 * torch.randn(1, TOKENS, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        along = SIDE // PATCH
        patches = images.view(-1, along, PATCH, along, PATCH).transpose(2, 3)
        x = self.embed(patches.reshape(-1, TOKENS, PATCH * PATCH)) + self.position
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def classifier() -> DigitClassifier:
    """Return the trained classifier in eval mode, float32 on CPU."""
    model = DigitClassifier()
    model.load_state_dict(load_file(str(WEIGHTS)))
    return model.eval()


def digits(count: int | None = None) -> tuple[Tensor, Tensor]:
    """Return digits that were not used in training.

    Parameters
    ----------
    count : int or None
        How many, from the first; None for all 360.

    Returns
    -------
    images : Tensor, float32, shape (count, 8, 8)
        Pixels from 0 (paper) to 1 (ink).
    labels : Tensor, int64, shape (count,)
    """
    stored = load_file(str(TEST_DIGITS))
    images = stored["images"].to(torch.float32) / LARGEST_PIXEL
    return images[:count], stored["labels"].to(torch.int64)[:count]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the fraction of rows of ``logits`` whose largest entry is the label."""
    return float((logits.argmax(dim=-1) == labels).float().mean())
