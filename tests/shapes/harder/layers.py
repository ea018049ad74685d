"""Layers as networks have them: pixel shuffles, paddings to a multiple, resizing, masks, caches, windows, towers."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from shapes.harder.small import Case, values


class SubPixel(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 12, 3, padding=1)

    def forward(self, image):
        return F.pixel_shuffle(self.conv(image).relu(), 2)


class PaddedToFour(nn.Module):
    """What encoders with strides do: pad, halve twice, double twice, crop."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(2, 3, 4, stride=4), nn.ConvTranspose2d(3, 2, 4, stride=4)

    def forward(self, image):
        h, w = image.shape[-2:]
        padded = F.pad(image, (0, -w % 4, 0, -h % 4))
        return self.up(self.down(padded))[..., :h, :w] + image


class OneAndAHalf(nn.Module):
    def forward(self, image):
        return F.interpolate(image, scale_factor=1.5, mode="nearest")


class Thumbnail(nn.Module):
    def forward(self, image):
        return F.interpolate(image, size=(8, 5), mode="nearest").mean(1)


class Columns(nn.Module):
    def forward(self, image):
        return F.unfold(image, 3, stride=2).softmax(1)


class Rearranged(nn.Module):
    """b (h p) w c -> b h w (p c)."""

    def forward(self, x):
        b, h, w, c = x.shape
        return x.view(b, h // 2, 2, w, c).permute(0, 1, 3, 2, 4).reshape(b, h // 2, w, 2 * c)


class Contrasted(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Conv2d(1, 4, 3, padding=1), nn.Embedding(20, 4)

    def forward(self, pixels, tokens):
        a = F.normalize(self.image(pixels).amax((2, 3)), dim=-1)
        b = F.normalize(self.text(tokens).mean(1), dim=-1)
        return a @ b.T


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, memory, mask):
        b, s, _ = x.shape
        q = self.q(x).view(b, s, 2, 4).transpose(1, 2)
        k = self.k(memory).view(b, memory.shape[1], 2, 4).transpose(1, 2)
        return (
            F.scaled_dot_product_attention(q, k, k, attn_mask=mask[:, None, None, :]).transpose(1, 2).reshape(b, s, 8)
        )


class Stepping(nn.Module):
    """A decode step: rotary angles by position, the cache handed in and out."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x, past):
        keys, found = past
        start = keys.shape[1]
        q, k, v = self.qkv(x).chunk(3, -1)
        angles = torch.arange(start, start + x.shape[1])[:, None] * torch.tensor([1.0, 0.1, 0.01, 0.001])
        keys, found = torch.cat([keys, k * angles.cos()], 1), torch.cat([found, v], 1)
        places = torch.arange(keys.shape[1])
        seen = places[None, :] <= torch.arange(start, start + x.shape[1])[:, None]
        scores = ((q * angles.cos()) @ keys.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ found, (keys, found)


class RolledWindows(nn.Module):
    def forward(self, x):
        b, h, w, c = x.shape
        x = x.roll((-1, -1), (1, 2))
        windows = x.view(b, h // 3, 3, w // 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, c)
        mixed = windows - windows.mean(1, keepdim=True)
        back = mixed.view(b, h // 3, w // 3, 3, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        return back.roll((1, 1), (1, 2))


class ThreeChunks(nn.Module):
    def forward(self, x):
        return torch.cat(x.chunk(3, dim=1)[::-1], dim=1)


class TopQuarter(nn.Module):
    def forward(self, x):
        return x.topk(max(1, x.shape[1] // 4), dim=1).values.sum(1)


class Compacted(nn.Module):
    def forward(self, x, keep):
        return x[keep] * 2


class Batch(NamedTuple):
    tokens: torch.Tensor
    mask: torch.Tensor | None = None


class OfBatch(nn.Module):
    def forward(self, batch):
        x = batch.tokens.float().unsqueeze(-1)
        return x.mean(1) if batch.mask is None else (x * batch.mask.unsqueeze(-1)).sum(1)


class KeywordOnly(nn.Module):
    def forward(self, x, *, mask=None, bias=None):
        x = x if mask is None else x.masked_fill(~mask, 0.0)
        return x.cumsum(1) if bias is None else x + bias


class Averaging(nn.Module):
    """Writes into one of its inputs."""

    def forward(self, x, average):
        average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x - average


class Positioned(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(2, 4, 2, stride=2)
        self.table = nn.Parameter(torch.randn(1, 4, 3, 3))

    def forward(self, image):
        x = self.patch(image)
        places = F.interpolate(self.table, size=x.shape[-2:], mode="bilinear", align_corners=True)
        return (x + places).flatten(2).transpose(1, 2)


class Dilated(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.mix = nn.Conv1d(3, 3, 3, dilation=3, groups=3), nn.Conv1d(3, 2, 1)

    def forward(self, x):
        return self.mix(F.gelu(self.wide(F.pad(x, (6, 0))))).amax(-1)


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3, stride=2, padding=1)

    def forward(self, image):
        small = self.conv(image)
        return torch.cat([image, F.interpolate(small, size=image.shape[-2:], mode="nearest")], 1)


class Relative(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Embedding(9, 1)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        distance = (places[None] - places[:, None]).clamp(-4, 4) + 4
        return (x @ x.transpose(1, 2) + self.bias(distance)[..., 0]).softmax(-1) @ x


class Causal(nn.Module):
    def forward(self, x):
        s = x.shape[1]
        hidden = torch.triu(torch.full((s, s), float("-inf")), diagonal=1)
        return (x @ x.transpose(1, 2) / x.shape[-1] ** 0.5 + hidden).softmax(-1)


class BothWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 2, batch_first=True, bidirectional=True)

    def forward(self, x):
        out, last = self.gru(x)
        return out.mean(1), last


class Shorter(nn.Module):
    def forward(self, x, y):
        if x.shape[1] > y.shape[1]:
            x = x[:, : y.shape[1]]
        return x.sum(1) + y.amax(1)


class MaybeExtra(nn.Module):
    def forward(self, x):
        found = {"mean": x.mean(1)}
        if x.shape[1] >= 4:
            found["lag"] = x[:, 3:] - x[:, :-3]
        return found


class LastByLength(nn.Module):
    def forward(self, x, lengths):
        places = (lengths - 1).view(-1, 1, 1).expand(-1, 1, x.shape[2])
        return x.gather(1, places).squeeze(1)


class ThreeTowers(nn.Module):
    def forward(self, a, b, c):
        return a[:, None, None] + b[None, :, None] * c[None, None, :]


class Ranks(nn.Module):
    def forward(self, x):
        return x.argsort(1).argsort(1).to(torch.int32), (x > 0).cumsum(1)


class Heads(nn.Module):
    def forward(self, x):
        b, s, d = x.shape
        heads = x.view(b, s, 2, d // 2).transpose(1, 2)
        return (heads @ heads.transpose(2, 3)).softmax(-1).matmul(heads).transpose(1, 2).flatten(2)


class Overlapped(nn.Module):
    """Unfolded and folded again: overlapping windows are added."""

    def forward(self, image):
        cut = F.unfold(image, 2, stride=1)
        return F.fold(cut, image.shape[-2:], 2, stride=1)


class Framed(nn.Module):
    def forward(self, wave):
        return wave.unfold(-1, 4, 2).mul(torch.hann_window(4)).square().sum(-1)


class HalfTurned(nn.Module):
    def forward(self, x):
        return x.roll(x.shape[1] // 2, 1) - x


class Sampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.theta = nn.Parameter(torch.tensor([[[1.0, 0.1, 0.0], [0.0, 0.9, 0.1]]]))

    def forward(self, image):
        grid = F.affine_grid(self.theta.expand(image.shape[0], 2, 3), list(image.shape), align_corners=False)
        return F.grid_sample(image, grid, align_corners=False)


class Alternating(nn.Module):
    def forward(self, x):
        if x.shape[1] % 2:
            x = F.pad(x, (0, 1))
        return x.view(x.shape[0], -1, 2).sum(-1)


IMAGE = {"b": (1, 2, 3), "h": (1, 2, 3, 4, 5, 8, 12, 28), "w": (1, 2, 4, 5, 6, 9)}
ONE = {"b": 2, "h": 6, "w": 8}


def picture(b: int, h: int, w: int) -> tuple[torch.Tensor]:
    return (values(b, 2, h, w),)


def last(b: int, h: int, w: int) -> tuple[torch.Tensor]:
    return (values(b, h, w, 2),)


BS = {"b": 3, "s": 8}

CASES = (
    Case("sub-pixel", SubPixel, picture, ONE, IMAGE),
    Case("padded-to-four", PaddedToFour, picture, {"b": 2, "h": 6, "w": 9}, IMAGE),
    Case("one-and-a-half", OneAndAHalf, picture, ONE, IMAGE),
    Case("thumbnail", Thumbnail, picture, ONE,
         {"b": (1, 2, 3), "h": (4, 7, 8, 12, 13, 16, 28, 32, 40), "w": (5, 6, 7, 10, 15, 17)}),
    Case("columns", Columns, picture, ONE, IMAGE),
    Case("rearranged", Rearranged, last, {"b": 2, "h": 6, "w": 5}, IMAGE),
    Case("contrasted", Contrasted, lambda n, h, w, m, s: (values(n, 1, h, w), torch.randint(0, 20, (m, s))),
         {"n": 3, "h": 5, "w": 6, "m": 4, "s": 7},
         {"n": (1, 3, 5), "h": (1, 3, 5), "w": (1, 2, 6), "m": (1, 3, 4), "s": (1, 3, 7)}),
    Case("attending", Attending,
         lambda b, s, t, m: (values(b, s, 8), values(b, t, 8), torch.arange(t).expand(m, t) < 3),
         {"b": 2, "s": 4, "t": 5, "m": 2}, {"b": (1, 2, 3), "s": (1, 2, 4, 7), "t": (1, 2, 5, 9), "m": (1, 2, 3)}),
    Case("stepping", Stepping, lambda b, s, p: (values(b, s, 4), (values(b, p, 4), values(b, p, 4))),
         {"b": 2, "s": 3, "p": 5}, {"b": (1, 2, 3), "s": (1, 2, 3, 6), "p": (0, 1, 2, 4, 5, 9)}),
    Case("rolled-windows", RolledWindows, last, {"b": 2, "h": 6, "w": 9},
         {"b": (1, 2, 3), "h": (3, 4, 6, 9, 12), "w": (3, 6, 7, 9, 15)}),
    Case("three-chunks", ThreeChunks, lambda b, s: (values(b, s),), {"b": 3, "s": 9}),
    Case("top-quarter", TopQuarter, lambda b, s: (values(b, s),), BS),
    Case("compacted", Compacted, lambda n, s: (values(n, s), torch.arange(n) % 3 > 0), {"n": 6, "s": 3}),
    Case("of-batch", OfBatch, lambda b, s, m: (Batch(torch.randint(0, 9, (b, s)), torch.ones(m, s)),),
         {"b": 3, "s": 5, "m": 3}, {"b": (1, 2, 3, 5), "s": (1, 2, 5, 8), "m": (1, 2, 3, 5)}),
    Case("keyword-only", KeywordOnly, lambda b, s, m: {"x": values(b, s), "mask": torch.arange(s).expand(m, s) < 4},
         {"b": 3, "s": 6, "m": 3}, {"b": (1, 2, 3, 5), "s": (1, 2, 6, 8), "m": (1, 2, 3, 5)}),
    Case("averaging", Averaging, lambda b, s: (values(b, s), values(s)), BS),
    Case("positioned", Positioned, picture, ONE, IMAGE | {"h": (2, 3, 4, 6, 9, 16)}),
    Case("dilated", Dilated, lambda b, s: (values(b, 3, s),), BS),
    Case("pyramid", Pyramid, picture, ONE, IMAGE),
    Case("relative", Relative, lambda b, s: (values(b, s, 3),), BS),
    Case("causal", Causal, lambda b, s, d: (values(b, s, d),), {"b": 2, "s": 5, "d": 4},
         {"b": (1, 2, 3), "s": (1, 2, 3, 5, 8), "d": (1, 2, 4, 9)}),
    Case("both-ways", BothWays, lambda b, s: (values(b, s, 3),), BS),
    Case("shorter", Shorter, lambda b, s, t: (values(b, s), values(b, t)), {"b": 2, "s": 6, "t": 4},
         {"b": (1, 2, 3), "s": (1, 3, 4, 6, 9), "t": (1, 2, 4, 6, 11)}),
    Case("maybe-extra", MaybeExtra, lambda b, s: (values(b, s),), BS),
    Case("last-by-length", LastByLength, lambda b, s: (values(b, s, 2), torch.arange(b) % max(s, 1) + 1), BS),
    Case("three-towers", ThreeTowers, lambda a, b, c: (values(a), values(b), values(c)), {"a": 3, "b": 4, "c": 5},
         {"a": (1, 2, 3, 5), "b": (1, 3, 4), "c": (1, 4, 5, 7)}),
    Case("ranks", Ranks, lambda b, s: (values(b, s),), BS),
    Case("heads", Heads, lambda b, s, d: (values(b, s, d),), {"b": 2, "s": 5, "d": 6},
         {"b": (1, 2, 3), "s": (1, 2, 5, 7), "d": (2, 3, 4, 6, 8)}),
    Case("overlapped", Overlapped, picture, {"b": 2, "h": 4, "w": 5}, IMAGE),
    Case("framed", Framed, lambda b, s: (values(b, s),), {"b": 2, "s": 12}),
    Case("half-turned", HalfTurned, lambda b, s: (values(b, s),), BS),
    Case("sampled", Sampled, picture, {"b": 2, "h": 4, "w": 5}, IMAGE),
    Case("alternating", Alternating, lambda b, s: (values(b, s),), BS),
)  # fmt: skip
