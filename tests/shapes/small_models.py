"""Small models with one shape behaviour each, and the inputs they are exported with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class PoolAndAdd(nn.Module):
    """Every other row of ``long`` is added to two pieces put together."""

    def forward(self, left, right, long):
        return torch.cat([left, right], dim=0) - long[::2]


class OneAndAHalf(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode

    def forward(self, image):
        return nn.functional.interpolate(image, scale_factor=1.5, mode=self.mode)


class CenterUnlessAlone(nn.Module):
    def forward(self, batch):
        if batch.shape[0] == 1:
            return batch
        return batch - batch.mean(dim=0, keepdim=True)


class CenterAlways(nn.Module):
    def forward(self, batch):
        return batch - batch.mean(dim=0, keepdim=True)


class DampLong(nn.Module):
    def forward(self, x):
        return x / 2 if x.shape[1] > 5 else x


class Doubled(nn.Module):
    """The rows twice, one apart, on top of a longer table."""

    def forward(self, rows, longer):
        return torch.cat([rows, longer[:1], rows]) + longer


class Folded(nn.Module):
    """Rows of six as rows of threes: the length must be a multiple of 3."""

    def forward(self, x):
        return x.reshape(x.shape[0], -1, 3).amax(dim=-1)


class PadToFive(nn.Module):
    def forward(self, x):
        return F.pad(x, (0, (-x.shape[1]) % 5)).reshape(x.shape[0], -1, 5).mean(dim=2)


class Halved(nn.Module):
    """``int(n / 2)`` is a number to the tracer, ``n // 2`` a size."""

    def forward(self, x):
        return x[: int(x.shape[0] / 2)]


class HalvedAsSize(nn.Module):
    def forward(self, x):
        return x[: x.shape[0] // 2]


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x, gate):
        return self.inner(x) * gate


class FirstOf(nn.Module):
    """A Python integer says how many columns to take."""

    def forward(self, x, count: int):
        return x[:, :count].sum(dim=1) + count


class Looped(nn.Module):
    def forward(self, x):
        total = torch.zeros_like(x[0])
        for row in range(x.shape[0]):
            total = total + x[row] * (row + 1)
        return total


class Buckets(nn.Module):
    def forward(self, x):
        return torch.ones(math.ceil(x.shape[0] / 4), x.shape[1]) * x.mean()


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class OfPair(nn.Module):
    def forward(self, pair, scale):
        return pair.left @ pair.right * scale["by"]


class ByValue(nn.Module):
    """Decides by a value: nothing can export it."""

    def forward(self, x):
        return x + 1 if float(x.sum()) > 0 else x - 1


def seeded(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pool_inputs(batch: int = 3, left: int = 2, right: int = 4) -> tuple[torch.Tensor, ...]:
    return seeded(left, batch), seeded(right, batch), seeded(2 * (left + right), batch)
