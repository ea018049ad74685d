"""The same modules written out by hand, as people write them before they know the library has them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ManualNorm(nn.Module):
    """LayerNorm as mean, variance and square root."""

    def __init__(self, norm: nn.LayerNorm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = centred.pow(2).mean(dim=-1, keepdim=True)
        return centred / torch.sqrt(variance + self.eps) * self.weight + self.bias


class ManualRecurrent(nn.Module):
    """The recurrent classifier with its GRU and LSTM as loops over time."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.gru, self.lstm, self.head = module.gru, module.lstm, module.head

    def forward(self, x: Tensor) -> Tensor:
        y = self._gru(x)
        forward = self._lstm(y, "")[-1]
        backward = self._lstm(y.flip(1), "_reverse")[0]
        return self.head(torch.cat((forward, backward), dim=-1))

    def _gru(self, x: Tensor) -> Tensor:
        weights = self.gru
        h = x.new_zeros(x.shape[0], weights.hidden_size)
        states = []
        for step in x.unbind(1):
            ri, zi, ni = F.linear(step, weights.weight_ih_l0, weights.bias_ih_l0).chunk(3, dim=-1)
            rh, zh, nh = F.linear(h, weights.weight_hh_l0, weights.bias_hh_l0).chunk(3, dim=-1)
            r, z = torch.sigmoid(ri + rh), torch.sigmoid(zi + zh)
            h = (1 - z) * torch.tanh(ni + r * nh) + z * h
            states.append(h)
        return torch.stack(states, dim=1)

    def _lstm(self, x: Tensor, suffix: str) -> list[Tensor]:
        w_ih, w_hh, b_ih, b_hh = (
            getattr(self.lstm, f"{name}_l0{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        h = c = x.new_zeros(x.shape[0], self.lstm.hidden_size)
        states = []
        for step in x.unbind(1):
            i, f, g, o = (F.linear(step, w_ih, b_ih) + F.linear(h, w_hh, b_hh)).chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return states
