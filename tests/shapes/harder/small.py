"""Models with one hard behaviour of sizes each: where the truth is what the model itself does at every point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    """A model, and its inputs as a function of the sizes that vary.

    ``inputs(**sizes)`` returns a tuple of positional inputs, or a dict by name. ``tried`` are the sizes that each
    name takes; ``tensors_of`` is fed fresh values at every point.
    """

    name: str
    model: Callable[[], Any]
    inputs: Callable[..., Any]
    example: dict[str, int]
    tried: dict[str, tuple[int, ...]] = field(default_factory=dict)
    dynamic: Any = "all"


SMALL = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 17, 32)


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


# --- broadcasting --------------------------------------------------------------------------------------------------


class ThreeWay(nn.Module):
    def forward(self, a, b, c):
        return torch.where(c > 0, a + b, a * c)


class OuterTable(nn.Module):
    def forward(self, rows, columns):
        return rows[:, None, :] - columns[None, :, :]


class WeightedByCount(nn.Module):
    """A size is used as a number as well."""

    def forward(self, x, weight):
        return (x * weight).sum(1) / x.shape[1]


class MaskedScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask):
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        return scores.masked_fill(mask == 0, -1e9).softmax(-1)


# --- divisibility and windows --------------------------------------------------------------------------------------


class Patches(nn.Module):
    def forward(self, image):
        b, c, h, w = image.shape
        cut = image.reshape(b, c, h // 3, 3, w // 3, 3)
        return cut.mean(dim=(3, 5))


class Unshuffled(nn.Module):
    def forward(self, image):
        return F.pixel_unshuffle(image, 2).mean(1)


class Halves(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        return a + b


class Thirds(nn.Module):
    def forward(self, x):
        return torch.stack(x.split(x.shape[1] // 3, dim=1)[:3]).amax(0)


class PaddedWindows(nn.Module):
    def forward(self, x):
        short = (4 - x.shape[1] % 4) % 4
        x = F.pad(x, (0, 0, 0, short))
        return x.reshape(x.shape[0], x.shape[1] // 4, 4, x.shape[2]).amax(2)


class GroupNormed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, image):
        return self.norm(self.conv(image)).mean((2, 3))


class PooledTo(nn.Module):
    """Adaptive pooling: the converter fixes the windows."""

    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, image):
        return F.adaptive_avg_pool2d(image, self.size).flatten(1)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv1d(2, 3, 2, stride=2), nn.ConvTranspose1d(3, 2, 2, stride=2)

    def forward(self, x):
        return x + self.up(self.down(x).relu())


# --- sizes that become numbers --------------------------------------------------------------------------------------


class Positions(nn.Module):
    def forward(self, x):
        return x + torch.linspace(0, 1, steps=x.shape[1]).unsqueeze(-1)


class UpperTriangle(nn.Module):
    def forward(self, x):
        scores = x @ x.transpose(1, 2)
        rows, columns = torch.triu_indices(scores.shape[1], scores.shape[2], offset=1)
        return scores[:, rows, columns]


class LoopOverRows(nn.Module):
    def forward(self, x):
        total = torch.zeros(x.shape[1])
        for row in range(x.shape[0]):
            total = torch.tanh(total + x[row])
        return total


class HalfByFloat(nn.Module):
    def forward(self, x):
        return x[:, : int(x.shape[1] * 0.5)]


class RootOfSize(nn.Module):
    def forward(self, q):
        return (q @ q.transpose(1, 2)) / q.shape[1] ** 0.5


class MeanOfRest(nn.Module):
    def forward(self, x):
        return (x.sum(1) - x[:, 0]) / max(x.shape[1] - 1, 1)


class LongOrShort(nn.Module):
    def forward(self, x):
        return x.cumsum(1) if x.shape[1] > 6 else x.flip(1)


class OneRowIsSpecial(nn.Module):
    def forward(self, x):
        return x if x.shape[0] == 1 else x - x.mean(0)


class LastOnly(nn.Module):
    def forward(self, x):
        return x[:, -1:] if x.shape[1] > 1 else x * 2


# --- sizes that depend on values ------------------------------------------------------------------------------------


class KeptRows(nn.Module):
    def forward(self, x):
        return x[x[:, 0] > 0].sum(0)


class Scattered(nn.Module):
    def forward(self, x, mask, source):
        return x.masked_scatter(mask, source)


class Lengths(nn.Module):
    def forward(self, x, lengths):
        seen = torch.arange(x.shape[1])[None, :] < lengths[:, None]
        return (x * seen.unsqueeze(-1)).sum(1) / lengths.clamp(min=1)[:, None]


class NonZeroed(nn.Module):
    def forward(self, x):
        return torch.nonzero(x > 0).float().mean()


# --- inputs of other kinds --------------------------------------------------------------------------------------------


class Box(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


class Sizes(nn.Module):
    def forward(self, box):
        return Box(box.high - box.low, (box.high + box.low) / 2)


class OptionalBias(nn.Module):
    def forward(self, x, bias=None, *, scale=1.0):
        return (x if bias is None else x + bias) * scale


class InPlace(nn.Module):
    def forward(self, x, into):
        into.add_(x.sum(0))
        return into * 2


class Grouped(nn.Module):
    def forward(self, parts):
        return torch.cat([parts["left"], *parts["rest"]], dim=1).softmax(1)


class Ragged(nn.Module):
    def forward(self, x, y):
        assert y.shape[1] >= x.shape[1], "y is the longer one"
        return x + y[:, : x.shape[1]]


class CountOf(nn.Module):
    def forward(self, x, k: int):
        return x.topk(k, dim=1).values


class WithPast(nn.Module):
    """mask = past + step, batch throughout."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, mask, past):
        keys = torch.cat([past[0], self.k(x)], 1)
        found = torch.cat([past[1], self.v(x)], 1)
        scores = self.q(x) @ keys.transpose(1, 2) + (1.0 - mask[:, None, :]) * -1e4
        return scores.softmax(-1) @ found, (keys, found)


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x, dim=-1)


class Magnitudes(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x, dim=-1).abs()


class Upsampled(nn.Module):
    def forward(self, x, like):
        return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False) * like


class Chosen(nn.Module):
    """Integers come out."""

    def forward(self, x):
        return x.argmax(-1), (x > 0).sum(-1)


class Shrinks(nn.Module):
    def __init__(self):
        super().__init__()
        self.window = 4

    def forward(self, x):
        self.window = min(self.window, x.shape[1])
        return x.unfold(1, self.window, self.window).sum(-1)


def mask_like(b: int, s: int) -> torch.Tensor:
    return torch.ones(b, s)


BSE = {"b": 3, "s": 8}

CASES = (
    Case("three-way", ThreeWay, lambda a, b, c: (values(a, 5), values(b, 5), values(c, 5)), {"a": 4, "b": 4, "c": 4},
         {"a": (1, 2, 3, 4, 7), "b": (1, 2, 4, 7), "c": (1, 4, 7)}),
    Case("outer-table", OuterTable, lambda a, b: (values(a, 3), values(b, 3)), {"a": 4, "b": 6}),
    Case("weighted-by-count", WeightedByCount, lambda b, s, t: (values(b, s), values(t)), {"b": 3, "s": 5, "t": 5},
         {"b": (1, 2, 5), "s": (1, 2, 3, 5, 8), "t": (1, 2, 3, 5, 8)}),
    Case("masked-scores", MaskedScores, lambda b, s, m: (values(b, s, 4), torch.ones(m, s, s).tril()),
         {"b": 3, "s": 5, "m": 3}, {"b": (1, 2, 3, 5), "s": (1, 2, 3, 5, 8), "m": (1, 2, 3, 5)}),
    Case("patches", Patches, lambda b, h, w: (values(b, 2, h, w),), {"b": 2, "h": 6, "w": 9},
         {"b": (1, 2, 4), "h": (3, 4, 6, 9, 12), "w": (3, 6, 7, 9, 15)}),
    Case("pixel-unshuffle", Unshuffled, lambda b, h, w: (values(b, 2, h, w),), {"b": 2, "h": 4, "w": 6},
         {"b": (0, 1, 2, 4), "h": (2, 3, 4, 8), "w": (2, 4, 5, 10)}),
    Case("halves", Halves, lambda b, s: (values(b, s),), {"b": 3, "s": 8}),
    Case("thirds", Thirds, lambda b, s: (values(b, s),), {"b": 3, "s": 9}),
    Case("padded-windows", PaddedWindows, lambda b, s: (values(b, s, 2),), {"b": 2, "s": 7}),
    Case("group-normed", GroupNormed, lambda b, h, w: (values(b, 2, h, w),), {"b": 2, "h": 6, "w": 7},
         {"b": (1, 2, 5), "h": (1, 2, 3, 6, 9), "w": (1, 4, 7, 8)}),
    Case("pooled-to-2", lambda: PooledTo(2), lambda b, h, w: (values(b, 2, h, w),), {"b": 2, "h": 6, "w": 8},
         {"b": (1, 2, 5), "h": (2, 3, 4, 6, 8, 16, 33), "w": (2, 5, 6, 8, 24)}),
    Case("pooled-to-1", lambda: PooledTo(1), lambda b, h, w: (values(b, 2, h, w),), {"b": 2, "h": 6, "w": 8},
         {"b": (1, 2, 5), "h": (1, 2, 3, 6), "w": (1, 5, 8, 24)}),
    Case("unet", UNet, lambda b, s: (values(b, 2, s),), {"b": 2, "s": 8}),
    Case("positions", Positions, lambda b, s: (values(b, s, 2),), BSE),
    Case("upper-triangle", UpperTriangle, lambda b, s: (values(b, s, 3),), {"b": 2, "s": 5}),
    Case("loop-over-rows", LoopOverRows, lambda n, s: (values(n, s),), {"n": 4, "s": 3}),
    Case("half-by-float", HalfByFloat, lambda b, s: (values(b, s),), {"b": 3, "s": 8}),
    Case("root-of-size", RootOfSize, lambda b, s: (values(b, s, 4),), BSE),
    Case("mean-of-rest", MeanOfRest, lambda b, s: (values(b, s),), BSE),
    Case("long-or-short", LongOrShort, lambda b, s: (values(b, s),), {"b": 3, "s": 5}),
    Case("one-row", OneRowIsSpecial, lambda b, s: (values(b, s),), {"b": 3, "s": 5}),
    Case("last-only", LastOnly, lambda b, s: (values(b, s),), {"b": 3, "s": 5}),
    Case("kept-rows", KeptRows, lambda n, s: (values(n, s),), {"n": 6, "s": 3}),
    Case("scattered", Scattered, lambda n, s: (values(n, s), torch.rand(n, s) > 0.5, values(n * s)), {"n": 4, "s": 3}),
    Case("lengths", Lengths, lambda b, s: (values(b, s, 2), torch.randint(1, max(s, 1) + 1, (b,))), {"b": 3, "s": 6}),
    Case("nonzero", NonZeroed, lambda n, s: (values(n, s),), {"n": 6, "s": 3}),
    Case("named-tuple", Sizes, lambda n, s: (Box(values(n, s), values(n, s)),), {"n": 4, "s": 2}),
    Case("optional-left-out", OptionalBias, lambda b, s: (values(b, s),), BSE),
    Case("keyword", OptionalBias, lambda b, s, t: {"x": values(b, s), "bias": values(t), "scale": 2.0},
         {"b": 3, "s": 5, "t": 5}, {"b": (1, 2, 3, 7), "s": (1, 2, 5, 9), "t": (1, 2, 5, 9)}),
    Case("in-place", InPlace, lambda b, s: (values(b, s), values(s)), BSE),
    Case("nested", Grouped, lambda b, s, t: ({"left": values(b, s), "rest": [values(b, t), values(b, 2)]},),
         {"b": 3, "s": 4, "t": 5}, {"b": (1, 2, 3, 6), "s": (1, 2, 4, 7), "t": (1, 3, 5, 8)}),
    Case("ragged", Ragged, lambda b, s, t: (values(b, s), values(b, t)), {"b": 3, "s": 4, "t": 6},
         {"b": (1, 2, 5), "s": (1, 2, 4, 6, 9), "t": (1, 4, 6, 9, 12)}),
    Case("count-of", CountOf, lambda b, s: (values(b, s), 3), {"b": 3, "s": 6}),
    Case("with-past", WithPast,
         lambda b, s, p, m: (values(b, s, 4), mask_like(b, m), (values(b, p, 4), values(b, p, 4))),
         {"b": 2, "s": 3, "p": 4, "m": 7}, {"b": (1, 2, 3), "s": (1, 2, 3, 5), "p": (1, 2, 4, 6), "m": (3, 5, 7, 9)}),
    Case("spectrum", Spectrum, lambda b, s: (values(b, s),), BSE),
    Case("magnitudes", Magnitudes, lambda b, s: (values(b, s),), BSE),
    Case("upsampled", Upsampled, lambda b, h, w, k: (values(b, 2, h, 4), values(b, 2, k, w)),
         {"b": 2, "h": 3, "w": 6, "k": 5}, {"b": (1, 2, 3), "h": (1, 3, 5), "w": (1, 4, 6), "k": (1, 5, 7)}),
    Case("chosen", Chosen, lambda b, s: (values(b, s),), BSE),
    Case("shrinks", Shrinks, lambda b, s: (values(b, s),), BSE),
)  # fmt: skip
