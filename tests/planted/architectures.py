"""Eight small programs whose exports hold what real exports hold, and one batch of inputs for each.

Sizes are small so that an export takes about a second; widths are chosen so that scalars do not become exact
by luck (a head of 8 has the scale 8**-0.5, which no binary format stores). Layers never share equal weights: the
exporter merges equal initializers, and a bug planted in one layer would then sit in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention with separate projections; ``mask`` is added to or selects the scores."""

    def __init__(self, width: int, heads: int, fused: bool = True):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            if mask is not None:
                scores = scores + mask if mask.is_floating_point() else scores.masked_fill(~mask, -math.inf)
            y = torch.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).reshape(x.shape))


class EncoderLayer(nn.Module):
    """Pre-norm transformer layer with a GELU that uses erf."""

    def __init__(self, width: int, heads: int, fused: bool):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, fused)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Encoder(nn.Module):
    """Two encoder layers over float features, a final norm and a classifier."""

    def __init__(self, fused: bool = True, width: int = 32):
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(width, 4, fused) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1))


class Mlp(nn.Module):
    """Square residual layers with several activations, a scaled branch and a tempered softmax."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(width, width) for _ in range(3))
        self.gate = nn.Linear(width, width)
        self.head = nn.Linear(width, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * F.leaky_relu(self.first(x), 0.2)
        x = x - F.elu(self.second(x), 0.7) * torch.sigmoid(self.gate(x))
        x = F.hardswish(self.third(x)) + x
        return torch.softmax(self.head(x) / 0.7, dim=-1)


class ConvNet(nn.Module):
    """Convolutions whose BatchNorms the exporter folds away, pooling and a classifier."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(12, eps=1e-3)
        self.conv3 = nn.Conv2d(12, 12, 3, dilation=2, padding=2)
        self.head = nn.Linear(12, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)
        x = F.leaky_relu(self.bn2(self.conv2(x)), 0.1)
        x = F.max_pool2d(F.silu(self.conv3(x)), 2)
        return self.head(x.mean(dim=(2, 3)))


class Rms(nn.Module):
    """Root-mean-square norm, written out as language models write it: in float32, then cast back."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class DecoderLayer(nn.Module):
    """RMSNorm, rotary attention under a causal mask, SwiGLU."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = Rms(width), Rms(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        q, k = q * cos + _half_turn(q) * sin, k * cos + _half_turn(k) * sin
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def _half_turn(x: Tensor) -> Tensor:
    low, high = x.chunk(2, dim=-1)
    return torch.cat((-high, low), dim=-1)


class Decoder(nn.Module):
    """A small language model; the rotary tables are computed from positions, as exporters meet them."""

    def __init__(self, width: int = 32, heads: int = 4, vocabulary: int = 50):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(2))
        self.norm = Rms(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        self.register_buffer("frequency", 10000.0 ** -(torch.arange(0, size, 2) / size), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        position = torch.arange(ids.shape[1], device=ids.device).float()
        angle = position[:, None] * self.frequency.float()[None, :]
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """A GRU, then an LSTM, then a classifier on the last state."""

    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(10, 16, batch_first=True)
        self.lstm = nn.LSTM(16, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        y, _ = self.gru(x)
        y, _ = self.lstm(y)
        return self.head(y[:, -1])


class Padded(nn.Module):
    """Embedding, sinusoidal positions, attention under a padding mask, pooling over what is not padding."""

    def __init__(self, width: int = 32, vocabulary: int = 40):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.attention = Attention(width, 4, fused=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 5)

    def forward(self, ids: Tensor) -> Tensor:
        keep = ids != 0
        x = self.embedding(ids) * math.sqrt(self.embedding.embedding_dim)
        x = x + sinusoids(ids.shape[1], x.shape[2]).to(x.dtype)
        x = self.norm(x + self.attention(x, keep[:, None, None, :]))
        weight = keep.to(x.dtype)[:, :, None]
        return self.head((x * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1.0))


def sinusoids(length: int, width: int) -> Tensor:
    """Return the fixed positions of the first transformer, float32, shape (length, width)."""
    position = torch.arange(length, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, width, 2, dtype=torch.float32) * (-math.log(10000.0) / width))
    return torch.stack((torch.sin(position * rate), torch.cos(position * rate)), dim=-1).flatten(1)


class GroupNet(nn.Module):
    """Group and instance norms, an upsampling and a transposed convolution, as image generators use them."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.norm1 = nn.GroupNorm(4, 16, eps=1e-6)
        self.middle = nn.Conv2d(16, 16, 3, padding=1)
        self.norm2 = nn.GroupNorm(8, 16)
        self.up = nn.ConvTranspose2d(16, 3, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm1(self.down(x)))
        y = y + self.middle(F.silu(self.norm2(y)))
        coarse = F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.tanh(self.up(y)) + coarse


class RelativeBias(nn.Module):
    """T5's attention: no scale, a learned bias by bucketed distance, a norm without a mean, ReLU."""

    def __init__(self, width: int = 32, heads: int = 4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = Rms(width), Rms(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.bias = nn.Embedding(8, heads)
        self.wi, self.wo = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (p(h).view(batch, length, self.heads, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        position = torch.arange(length, device=x.device)
        distance = (position[None, :] - position[:, None]).abs()
        near = distance < 4
        far = 4 + (torch.log(distance.clamp(min=1).float() / 4) / math.log(4) * 3).long().clamp(0, 3)
        bias = self.bias(torch.where(near, distance, far)).permute(2, 0, 1)
        y = torch.softmax((q @ k.transpose(-1, -2) + bias).float(), dim=-1).to(x.dtype) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.wo(F.relu(self.wi(self.norm2(x))))


@dataclass(frozen=True)
class Architecture:
    """How to build one program and its inputs."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[torch.Generator], tuple[Tensor, ...]]

    def module(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        """Build it with weights of its own: seeded, perturbed per layer, in eval mode."""
        torch.manual_seed(7)
        module = self.make()
        generator = torch.Generator().manual_seed(11)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
                if name.endswith("embedding.weight"):
                    parameter.mul_(0.5)
            for name, buffer in module.named_buffers():
                if name.endswith("running_mean"):
                    buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
                elif name.endswith("running_var"):
                    buffer.copy_(0.5 + torch.rand(buffer.shape, generator=generator))
        return module.to(dtype).eval()

    def example(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Return one batch; floats in ``dtype``."""
        made = self.inputs(torch.Generator().manual_seed(3))
        return tuple(t.to(dtype) if t.is_floating_point() else t for t in made)


def _floats(*shape: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda generator: (torch.randn(shape, generator=generator),)


def _ids(vocabulary: int, *shape: int) -> Callable[[torch.Generator], tuple[Tensor, ...]]:
    return lambda generator: (torch.randint(1, vocabulary, shape, generator=generator),)


def _padded_ids(generator: torch.Generator) -> tuple[Tensor, ...]:
    ids = torch.randint(1, 40, (3, 9), generator=generator)
    ids[1, 6:] = 0
    ids[2, 4:] = 0
    return (ids,)


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture("encoder", Encoder, _floats(3, 10, 32)),
        Architecture("encoder-manual", lambda: Encoder(fused=False), _floats(3, 10, 32)),
        Architecture("mlp", Mlp, _floats(16, 48)),
        Architecture("convnet", ConvNet, _floats(2, 3, 16, 16)),
        Architecture("decoder", Decoder, _ids(50, 2, 9)),
        Architecture("recurrent", Recurrent, _floats(2, 7, 10)),
        Architecture("padded", Padded, _padded_ids),
        Architecture("groupnet", GroupNet, _floats(2, 3, 12, 12)),
        Architecture("relative", RelativeBias, _floats(2, 11, 32)),
    )
}
