"""Models of real sizes, in plain torch with random weights: what is timed is their shape."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def settled(module: nn.Module) -> nn.Module:
    """Give normalisations statistics of their own, so that folding them changes weights."""
    torch.manual_seed(0)
    for name, buffer in module.named_buffers():
        if "running_mean" in name:
            buffer.copy_(0.1 * torch.randn_like(buffer))
        elif "running_var" in name:
            buffer.copy_(torch.rand_like(buffer) + 0.5)
    return module.eval()


def _conv(given: int, made: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    filtered = nn.Conv2d(given, made, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(filtered, nn.BatchNorm2d(made))


class Basic(nn.Module):
    """A block of two convolutions beside a shortcut."""

    def __init__(self, given: int, made: int, stride: int):
        super().__init__()
        self.one, self.two = _conv(given, made, 3, stride), _conv(made, made, 3)
        self.beside = _conv(given, made, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.two(F.relu(self.one(x))) + self.beside(x))


class Resnet18(nn.Module):
    """He et al. 2015, 11.7 million weights."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        widths = [(64, 64), (64, 128), (128, 256), (256, 512)]
        blocks = [(Basic(a, b, 1 if a == b else 2), Basic(b, b, 1)) for a, b in widths]
        self.blocks = nn.Sequential(*(block for pair in blocks for block in pair))
        self.head = nn.Linear(512, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Dense(nn.Module):
    """A layer that sees everything before it."""

    def __init__(self, given: int, growth: int = 32):
        super().__init__()
        self.before, self.narrow = nn.BatchNorm2d(given), nn.Conv2d(given, 4 * growth, 1, bias=False)
        self.between, self.wide = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.wide(F.relu(self.between(self.narrow(F.relu(self.before(x))))))], 1)


class Densenet(nn.Module):
    """Huang et al. 2016, the one of 121 layers: 8 million weights."""

    def __init__(self, growth: int = 32):
        super().__init__()
        width, parts = 64, [_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for number, layers in enumerate((6, 12, 24, 16)):
            parts += [Dense(width + growth * k, growth) for k in range(layers)]
            width += growth * layers
            if number < 3:
                parts += [
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                    nn.Conv2d(width, width // 2, 1, bias=False),
                    nn.AvgPool2d(2),
                ]
                width //= 2
        self.parts = nn.Sequential(*parts, nn.BatchNorm2d(width), nn.ReLU())
        self.head = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.parts(x).mean((2, 3)))


class Inverted(nn.Module):
    """A mobile block with squeeze and excitation."""

    def __init__(self, given: int, made: int, size: int, stride: int, factor: int):
        super().__init__()
        inner = given * factor
        first = [_conv(given, inner, 1), nn.SiLU()] if factor > 1 else []
        self.inner = nn.Sequential(*first, _conv(inner, inner, size, stride, inner), nn.SiLU())
        self.squeeze, self.excite = nn.Conv2d(inner, max(1, given // 4), 1), nn.Conv2d(max(1, given // 4), inner, 1)
        self.last, self.adds = _conv(inner, made, 1), stride == 1 and given == made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        y = self.last(y * torch.sigmoid(self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))))
        return x + y if self.adds else y


class Efficientnet(nn.Module):
    """Tan and Le 2019, b0: 5.3 million weights."""

    def __init__(self) -> None:
        super().__init__()
        width, parts = 32, [_conv(3, 32, 3, 2), nn.SiLU()]
        plan = [(1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3),
                (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)]  # fmt: skip
        for factor, size, stride, made, layers in plan:
            for layer in range(layers):
                parts.append(Inverted(width, made, size, stride if layer == 0 else 1, factor))
                width = made
        self.parts = nn.Sequential(*parts, _conv(width, 1280, 1), nn.SiLU())
        self.head = nn.Linear(1280, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.parts(x).mean((2, 3)))


class LlamaLayer(nn.Module):
    """Attention and a gated perceptron, each behind an RMS norm."""

    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, 1e-5) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, 8 * width // 3, bias=False) for _ in range(2))
        self.down = nn.Linear(8 * width // 3, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (p(y).unflatten(-1, (8, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A decoder as Touvron et al. 2023, without rotary embeddings: 1,000 tokens are known."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.layers = nn.ModuleList(LlamaLayer(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width, 1e-5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)
