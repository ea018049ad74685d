"""More families with one hard behaviour of sizes each: what users bring that is neither a toy nor a transformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from shapes.harder.small import Box, Case, values


class ShiftedWindows(nn.Module):
    """Pads to whole windows, rolls them, and crops what was padded."""

    def forward(self, x):
        b, h, w, c = x.shape
        x = F.pad(x, (0, 0, 0, -w % 2, 0, -h % 2)).roll((-1, -1), (1, 2))
        height, width = x.shape[1], x.shape[2]
        x = x.reshape(b, height // 2, 2, width // 2, 2, c).transpose(2, 3).softmax(-1)
        x = x.transpose(2, 3).reshape(b, height, width, c).roll((1, 1), (1, 2))
        return x[:, :h, :w]


class InterpolatedGrid(nn.Module):
    """A learnt table of 3 x 3 positions that is stretched to the image."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 2, 3, 3))

    def forward(self, x):
        return x + F.interpolate(self.table, size=x.shape[-2:], mode="bilinear", align_corners=False)


class RotaryTable(nn.Module):
    """A table for at most 12 positions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("angles", torch.arange(12.0)[:, None] * torch.tensor([1.0, 0.1]))

    def forward(self, x, past):
        begin = past.shape[1]
        angles = self.angles[begin : begin + x.shape[1]]
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([past, torch.cat([even * angles.cos() - odd * angles.sin(), even + odd], -1)], 1)


class SlidingCache(nn.Module):
    """Keeps the last 6 keys."""

    def forward(self, x, past):
        keys = torch.cat([past, x], 1)[:, -6:]
        return x @ keys.transpose(1, 2), keys


class HeadMask(nn.Module):
    """A mask with one entry for every head of every row: its first size is twice the batch."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x, mask):
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Recurrent(nn.Module):
    """The state's batch is its second axis."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(3, 4, num_layers=2, batch_first=True)

    def forward(self, x, state):
        out, last = self.cell(x, state)
        return out[:, -1], last


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.text, self.image = nn.Linear(3, 4), nn.Conv2d(1, 4, 2)

    def forward(self, text, image):
        a = F.normalize(self.text(text).mean(1), dim=-1)
        b = F.normalize(self.image(image).amax((2, 3)), dim=-1)
        return a @ b.T


class Flattened(nn.Module):
    """Rows and steps are joined, and come apart again."""

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        return (flat - flat.mean(0)).reshape(x.shape[0], -1)


class Messages(nn.Module):
    """Edges point at nodes: values that must fit a size."""

    def forward(self, nodes, edges):
        sums = torch.zeros_like(nodes)
        return sums.index_add(0, edges[1], nodes[edges[0]])


class AtMostThree(nn.Module):
    def forward(self, x):
        return x.topk(min(3, x.shape[1]), dim=1).values


class Distances(nn.Module):
    def forward(self, a, b):
        return torch.cdist(a, b).argmin(-1), (a[:, None] - b[None]).square().sum(-1).sqrt().mean()


class Blended(nn.Module):
    """Three axes of one broadcast each way, and a fourth that all share."""

    def forward(self, a, b, c):
        return torch.einsum("id,jd,kd->ijk", a, b, c) + a[:, None, None, 0]


class Masked(nn.Module):
    """Writes into what it is given."""

    def forward(self, scores, mask):
        scores.masked_fill_(mask, -1e4)
        return scores.softmax(-1)


class Crossing(nn.Module):
    """A named tuple inside of a dict, and a keyword that may be left out."""

    def forward(self, parts, *, shift=None):
        box = parts["box"]
        size = (box.high - box.low).clamp(min=0)
        return size if shift is None else size + shift


class Decoder(nn.Module):
    """The skip connection must have the size that the transposed convolution gives."""

    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(2, 2, 3, stride=2, padding=1)

    def forward(self, x, skip):
        return self.up(x, output_size=skip.shape[-2:]) + skip


class Bucketed(nn.Module):
    """Distances of positions, as T5 and Swin look them up."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(9, 1)

    def forward(self, x):
        at = torch.arange(x.shape[1])
        near = (at[None] - at[:, None]).clamp(-4, 4) + 4
        return (x @ x.transpose(1, 2)) + self.bias(near).squeeze(-1)


class Strided(nn.Module):
    def forward(self, x):
        framed = x.unfold(1, 4, 2)
        return framed.mean(-1), x[:, :: max(x.shape[1] // 4, 1)]


CASES = (
    Case("shifted-windows", ShiftedWindows, lambda b, h, w: (values(b, h, w, 3),), {"b": 2, "h": 6, "w": 5},
         {"b": (1, 2, 3), "h": (1, 2, 3, 6, 9), "w": (1, 2, 4, 5, 8)}),
    Case("interpolated-grid", InterpolatedGrid, lambda b, h, w: (values(b, 2, h, w),), {"b": 2, "h": 6, "w": 5},
         {"b": (1, 2, 5), "h": (1, 2, 3, 6, 9), "w": (1, 3, 5, 8)}),
    Case("rotary-table", RotaryTable, lambda b, s, p: (values(b, s, 4), values(b, p, 4)), {"b": 2, "s": 3, "p": 4},
         {"b": (1, 2, 3), "s": (1, 2, 3, 5, 12), "p": (1, 2, 4, 9, 11)}),
    Case("sliding-cache", SlidingCache, lambda b, s, p: (values(b, s, 4), values(b, p, 4)), {"b": 2, "s": 3, "p": 8},
         {"b": (1, 2, 3), "s": (1, 2, 3, 5, 8), "p": (1, 2, 4, 5, 8)}),
    Case("head-mask", HeadMask, lambda b, s, m: (values(b, s, 4), torch.zeros(m, s, s)), {"b": 2, "s": 5, "m": 4},
         {"b": (1, 2, 3, 4), "s": (1, 2, 3, 5), "m": (2, 4, 6, 8)}),
    Case("recurrent", Recurrent, lambda b, s, m: (values(b, s, 3), values(2, m, 4)), {"b": 3, "s": 5, "m": 3},
         {"b": (1, 2, 3, 5), "s": (1, 2, 5, 7), "m": (1, 2, 3, 5)}),
    Case("two-towers", TwoTowers, lambda b, s, n, h: (values(b, s, 3), values(n, 1, h, 4)),
         {"b": 3, "s": 5, "n": 2, "h": 6}, {"b": (1, 2, 3), "s": (1, 2, 5), "n": (1, 2, 3), "h": (1, 2, 3, 6)}),
    Case("flattened", Flattened, lambda b, s: (values(b, s, 3),), {"b": 3, "s": 8}),
    Case("messages", Messages, lambda n, e: (values(n, 3), torch.randint(0, max(n, 1), (2, e))), {"n": 5, "e": 9}),
    Case("at-most-three", AtMostThree, lambda b, s: (values(b, s),), {"b": 3, "s": 5}),
    Case("distances", Distances, lambda n, m, d: (values(n, d), values(m, d)), {"n": 4, "m": 6, "d": 3},
         {"n": (1, 2, 4, 9), "m": (1, 2, 6, 7), "d": (1, 3, 4)}),
    Case("blended", Blended, lambda a, b, c, d: (values(a, d), values(b, d), values(c, d)),
         {"a": 2, "b": 3, "c": 4, "d": 5}, {"a": (1, 2, 6), "b": (1, 3, 6), "c": (1, 4, 6), "d": (1, 2, 5)}),
    Case("masked", Masked, lambda b, s, m: (values(b, s), torch.rand(m, s) > 0.5), {"b": 3, "s": 6, "m": 3},
         {"b": (1, 2, 3, 5), "s": (1, 2, 6, 9), "m": (1, 2, 3, 5)}),
    Case("crossing", Crossing, lambda n, s, t: {"parts": {"box": Box(values(n, s), values(n, s))}, "shift": values(t)},
         {"n": 4, "s": 3, "t": 3}, {"n": (1, 2, 4, 7), "s": (1, 2, 3, 6), "t": (1, 2, 3, 6)}),
    Case("decoder", Decoder, lambda b, h, s: (values(b, 2, h, 3), values(b, 2, s, 6)), {"b": 2, "h": 4, "s": 8},
         {"b": (1, 2, 3), "h": (1, 2, 3, 4, 5), "s": (1, 2, 4, 5, 7, 8, 9, 10)}),
    Case("bucketed", Bucketed, lambda b, s: (values(b, s, 2),), {"b": 2, "s": 6}),
    Case("strided", Strided, lambda b, s: (values(b, s),), {"b": 2, "s": 12},
         {"b": (1, 2, 3), "s": (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 15, 16, 17, 23, 32)}),
)  # fmt: skip
