"""The small programs on the pictures of the documentation."""

from __future__ import annotations

import torch


class Net(torch.nn.Module):
    """Two perceptrons, each behind a normalisation and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(64) for _ in range(2))
        self.up = torch.nn.ModuleList(torch.nn.Linear(64, 128) for _ in range(2))
        self.down = torch.nn.ModuleList(torch.nn.Linear(128, 64) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(torch.nn.functional.gelu(up(norm(x))))
        return x


class Pool(torch.nn.Module):
    """Average over what the mask keeps; a batch of one is squeezed."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        mean = (x * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        return mean.squeeze(0) if x.shape[0] == 1 else mean


def clip(x: torch.Tensor) -> torch.Tensor:
    """Scale a vector down when it is long."""
    norm = x.norm()
    if norm > 3:
        return x * (3 / norm)
    return x
