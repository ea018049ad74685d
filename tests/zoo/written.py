"""Small models written out here, of mechanisms that no configuration of transformers has: filters, graphs, times."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F


class Denoiser(nn.Module):
    """A small UNet of a diffusion model: time embedding, group norms, attention in the middle, skips."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, 32), nn.SiLU(), nn.Linear(32, width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))
        self.mix = nn.MultiheadAttention(width, 4, batch_first=True)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)
        frequencies = torch.exp(torch.arange(width // 2) * (-math.log(1e4) / (width // 2)))
        self.register_buffer("steps", torch.tensor([[3.0], [40.0]]) * frequencies)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time = self.time(torch.cat([self.steps.sin(), self.steps.cos()], -1))[:, :, None, None]
        skip = self.enter(x)
        x = self.down(F.silu(self.norms[0](skip)))
        x = x + self.convs[0](F.silu(self.norms[1](x)) + time)
        tokens = self.norms[2](x).flatten(2).transpose(1, 2)
        x = x + self.mix(tokens, tokens, tokens, need_weights=False)[0].transpose(1, 2).reshape(x.shape)
        x = self.convs[1](F.interpolate(x, scale_factor=2.0, mode="nearest"))
        return self.leave(torch.cat([x, skip], 1))


class AutoEncoder(nn.Module):
    """The autoencoder of latent diffusion: strided and transposed convolutions around a mean and a log variance."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.GroupNorm(4, 16), nn.SiLU(), nn.Conv2d(16, 8, 3, 1, 1)
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 16, 3, 1, 1), nn.InstanceNorm2d(16, affine=True), nn.Mish(), nn.ConvTranspose2d(16, 3, 4, 2, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return torch.tanh(self.decoder(mean * torch.exp(0.5 * log_variance.clamp(-30.0, 20.0))))


class GraphNetwork(nn.Module):
    """Messages along the edges of a fixed graph, weighted by attention, added up where they arrive."""

    def __init__(self) -> None:
        super().__init__()
        ring = torch.arange(12)
        self.register_buffer("source", torch.cat([ring, ring]))
        self.register_buffer("target", torch.cat([(ring + 1) % 12, (ring * 5 + 2) % 12]))
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))
        self.scores = nn.ModuleList(nn.Linear(32, 1) for _ in range(2))
        self.read = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, score in zip(self.layers, self.scores, strict=True):
            value = layer(x)
            ends = torch.cat([value[self.source], value[self.target]], -1)
            weight = torch.sigmoid(F.leaky_relu(score(ends), 0.2))
            received = torch.zeros_like(value).index_add(0, self.target, weight * value[self.source])
            x = x + F.elu(received)
        return F.log_softmax(self.read(x), -1)


class Dilated(nn.Module):
    """A WaveNet: causal dilated convolutions with gates, residuals and skips."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(3))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.leave = nn.Conv1d(width, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.enter(x), 0.0
        for k, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            one, two = gate(F.pad(x, (2**k, 0))).chunk(2, 1)
            out = skip(torch.tanh(one) * torch.sigmoid(two))
            x, total = x + out, total + out
        return self.leave(F.relu(total))


class Selective(nn.Module):
    """A diagonal state space run as a scan over time, with steps that depend on the input."""

    def __init__(self, width: int = 16, states: int = 4) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.step, self.both = nn.Linear(width, width), nn.Linear(width, 2 * states)
        self.logs = nn.Parameter(torch.log(torch.arange(1.0, states + 1)).repeat(width, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, gate = self.enter(x).chunk(2, -1)
        step = F.softplus(self.step(x))
        b, c = self.both(x).chunk(2, -1)
        state, found = torch.zeros(x.shape[0], x.shape[2], self.logs.shape[1]), []
        for t in range(x.shape[1]):
            decay = torch.exp(-step[:, t, :, None] * torch.exp(self.logs))
            state = decay * state + (step[:, t] * x[:, t])[:, :, None] * b[:, t, None]
            found.append((state * c[:, t, None]).sum(-1))
        return self.leave(torch.stack(found, 1) * F.silu(gate))


class Experts(nn.Module):
    """Every token through its two best experts of four, weighted by the renormalised gate."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.up, self.down = nn.Parameter(torch.randn(4, width, 32) / 4), nn.Parameter(torch.randn(4, 32, width) / 6)
        self.norm = nn.RMSNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        best, which = torch.softmax(self.gate(y), -1).topk(2, -1)
        share = torch.zeros(*x.shape[:-1], 4).scatter(-1, which, best / best.sum(-1, keepdim=True))
        every = torch.einsum("bteh,ehd->bted", F.gelu(torch.einsum("btd,edh->bteh", y, self.up)), self.down)
        return x + torch.einsum("bte,bted->btd", share, every)


class Ranking(nn.Module):
    """Features crossed with tables, as recommenders do; a deep part beside a product of pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(20, 8) for _ in range(4))
        self.deep = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.PReLU(), nn.Linear(16, 1))
        self.wide = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.stack([table(x[:, k]) for k, table in enumerate(self.tables)], 1)
        pairs = found @ found.transpose(1, 2)
        one, two = torch.triu_indices(4, 4, 1)
        return torch.sigmoid(self.deep(found.flatten(1)) + self.wide(pairs[:, one, two]))


class Field(nn.Module):
    """A radiance field: coordinates as sines and cosines of many frequencies, densities added up along a ray."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 2.0 ** torch.arange(4) * math.pi)
        self.body = nn.Sequential(nn.Linear(27, 32), nn.ReLU(), nn.Linear(32, 32), nn.Softplus(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        waves = (x[..., None] * self.frequencies).flatten(-2)
        found = self.body(torch.cat([x, waves.sin(), waves.cos()], -1))
        opaque = 1 - torch.exp(-F.relu(found[..., 3:]) * 0.1)
        left = torch.cumprod(1 - opaque + 1e-6, 1)
        return (torch.sigmoid(found[..., :3]) * opaque * left).sum(1)


class Pyramid(nn.Module):
    """A detection neck and head: features of three sizes joined, boxes from a softmax over distances."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stages = nn.ModuleList(nn.Conv2d(3 if k == 0 else width, width, 3, 2, 1, bias=False) for k in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.sides = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))
        self.head = nn.Conv2d(width, 4 * 8 + 5, 3, padding=1)
        self.register_buffer("bins", torch.arange(8.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = []
        for stage, norm in zip(self.stages, self.norms, strict=True):
            x = F.silu(norm(stage(x)))
            features.append(x)
        found, above = [], None
        for side, feature in zip(reversed(self.sides), reversed(features), strict=True):
            above = (
                side(feature)
                if above is None
                else side(feature) + F.interpolate(above, scale_factor=2.0, mode="bilinear")
            )
            boxes, classes = self.head(above).flatten(2).split([32, 5], 1)
            boxes = (boxes.unflatten(1, (4, 8)).softmax(2) * self.bins[:, None]).sum(2)
            found.append(torch.cat([boxes, classes.sigmoid()], 1))
        return torch.cat(found, 2)


class Spectral(nn.Module):
    """A mixer in a cosine basis: a fixed transform, a learned filter, the transform back, and a circular shift."""

    def __init__(self, length: int = 16, width: int = 8) -> None:
        super().__init__()
        k, n = torch.arange(length)[:, None], torch.arange(length)
        basis = torch.cos(math.pi / length * (n + 0.5) * k) * math.sqrt(2 / length)
        basis[0] /= math.sqrt(2)
        self.register_buffer("basis", basis)
        self.filter = nn.Parameter(torch.rand(length, width) + 0.5)
        self.mix, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.basis.T @ (self.filter * (self.basis @ self.norm(x)))
        return x + F.hardswish(self.mix(torch.roll(y, 3, 1)))


class Cells(nn.Module):
    """A convolutional LSTM, unrolled over four frames."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(3 + width, 4 * width, 3, padding=1)
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = cell = torch.zeros(x.shape[0], self.width, *x.shape[3:])
        for t in range(x.shape[1]):
            i, f, o, g = self.gates(torch.cat([x[:, t], hidden], 1)).chunk(4, 1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
        return self.leave(hidden)


class Flow(nn.Module):
    """A normalising flow: scales, a product of triangular matrices, a coupling, a permutation, and its density."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.shift, self.logs = nn.Parameter(torch.randn(width) * 0.1), nn.Parameter(torch.randn(width) * 0.1)
        self.lower, self.upper = (nn.Parameter(torch.randn(width, width) * 0.2) for _ in range(2))
        self.inner = nn.Sequential(nn.Linear(width // 2, 16), nn.Tanh(), nn.Linear(16, width))
        self.register_buffer("order", torch.arange(width).flip(0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        unit = torch.eye(x.shape[1]).to(x)
        x = (x + self.shift) * torch.exp(self.logs) @ ((self.lower.tril(-1) + unit) @ (self.upper.triu(1) + unit))
        kept, moved = x.chunk(2, -1)
        logs, shift = self.inner(kept).chunk(2, -1)
        x = torch.cat([kept, moved * torch.exp(torch.tanh(logs)) + shift], -1)[:, self.order]
        return x, self.logs.sum() + torch.tanh(logs).sum(-1) - 0.5 * x.square().sum(-1)


class Decoder(nn.Module):
    """Attention with interleaved rotary positions, shared keys and a mask of infinities cut from a full tensor."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, size = heads, width // heads
        self.words, self.query = nn.Embedding(40, width), nn.Linear(width, width, bias=False)
        self.both, self.leave = nn.Linear(width, width, bias=False), nn.Linear(width, 40)
        self.register_buffer("turns", 1e4 ** (-torch.arange(0, size, 2) / size))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate neighbouring numbers by their position."""
        angles = torch.arange(x.shape[2]).to(self.turns)[:, None] * self.turns
        cos, sin, one, two = angles.cos(), angles.sin(), x[..., 0::2], x[..., 1::2]
        return torch.stack([one * cos - two * sin, one * sin + two * cos], -1).flatten(-2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.transpose(1, 2) for t in self.both(x).unflatten(-1, (self.heads, -1)).chunk(2, 2))
        k, v = (t.repeat_interleave(2, 1) for t in (self.turned(k), v))
        mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1).to(x)
        scores = torch.softmax(self.turned(q) @ k.mT * q.shape[-1] ** -0.5 + mask, -1)
        return self.leave(x + (scores @ v).transpose(1, 2).flatten(2))
