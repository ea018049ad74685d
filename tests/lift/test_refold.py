"""A fold that changes no bit of a weight is still a fold; a weight that was left unfolded is a bug."""

import numpy as np
import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.records.verdict import Verdict


class Folded(nn.Module):
    def __init__(self, source: nn.Sequential, scale: float):
        super().__init__()
        conv, norm = source
        self.conv = nn.Conv2d(3, 4, 3)
        factor = scale * norm.weight / torch.sqrt(norm.running_var + norm.eps)
        with torch.no_grad():
            self.conv.weight.copy_(conv.weight * factor.reshape(-1, 1, 1, 1))
            self.conv.bias.copy_((conv.bias - norm.running_mean) * factor + norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x)


SAME = {Verdict.IDENTICAL, Verdict.ROUNDING}


@pytest.mark.parametrize(("scale", "verdicts"), [(1.0, SAME), (1.01, {Verdict.DIFFERENT})])
def test_a_fold_with_default_statistics_in_float16(scale: float, verdicts: set[Verdict]) -> None:
    torch.manual_seed(0)
    source = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval().half()
    folded = Folded(source, scale).eval().half()
    if scale == 1.0:
        assert torch.equal(folded.conv.weight, source[0].weight)  # 1 / sqrt(1 + 1e-5) rounds to 1 in float16
    assert ds.compare(source, folded, (torch.randn(2, 3, 8, 8).half(),)).verdict in verdicts


class Pooled(nn.Module):
    """A learned query: the scale of its attention can be multiplied in ahead of time, in the format of the file."""

    def __init__(self, query: torch.Tensor, scale: float | None = None):
        super().__init__()
        self.query = nn.Parameter(query if scale is None else (query * scale).half())
        self.register_buffer("scale", None if scale is None else torch.tensor(scale).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            return nn.functional.scaled_dot_product_attention(self.query, x, x)
        return torch.softmax(self.query.float() @ (x * self.scale.float()).transpose(-1, -2), -1) @ x


@pytest.mark.parametrize(("off", "verdict"), [(1.0, Verdict.PRECISION), (1.001, Verdict.DIFFERENT)])
@pytest.mark.parametrize("backwards", [False, True])
def test_a_scale_inside_a_kernel_is_multiplied_into_a_stored_half(
    off: float, verdict: Verdict, backwards: bool
) -> None:
    torch.manual_seed(0)
    query, x = torch.randn(1, 4, 1, 8), torch.randn(1, 4, 16, 8)
    folded = Pooled(query, 8**-0.25)
    folded.query.data = (query * 8**-0.25 * off).half()
    pair = (Pooled(query), folded)
    assert ds.compare(*(pair[::-1] if backwards else pair), (x,)).verdict is verdict


class Recurrent(nn.Module):
    """A recurrent step by hand: two layers of different values, each with its bias."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.cell = nn.RNN(6, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cell, h, seen = self.cell, x.new_zeros(x.shape[0], 8), []
        for k in range(x.shape[1]):
            given = nn.functional.linear(x[:, k], cell.weight_ih_l0, cell.bias_ih_l0)
            h = torch.tanh(given + nn.functional.linear(h, cell.weight_hh_l0, cell.bias_hh_l0))
            seen.append(h)
        return torch.stack(seen, 1)


class Fused(nn.RNN):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)[0]


@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("off", "verdicts"), [(0.0, SAME), (1e-4, {Verdict.DIFFERENT})])
@pytest.mark.sampled(3)
def test_biases_of_two_values_that_are_stored_as_one(by_hand, swapped, off, verdicts) -> None:
    model = Recurrent()
    rnn = model.cell
    fused = Fused(6, 8, batch_first=True)
    fused.load_state_dict(rnn.state_dict())
    held = {name: value.detach().numpy() for name, value in rnn.named_parameters()}
    bias = held["bias_ih_l0"] + held["bias_hh_l0"]
    bias[3] += off

    def stored(x):
        h, seen = np.zeros((x.shape[0], 8), x.dtype), []
        for k in range(x.shape[1]):
            h = np.tanh(x[:, k] @ held["weight_ih_l0"].T + h @ held["weight_hh_l0"].T + bias)
            seen.append(h)
        return np.stack(seen, 1)

    pair = [model if by_hand else fused, ds.program(stored, framework="numpy")]
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1))
    assert ds.compare(*(pair[::-1] if swapped else pair), (x,), isolate=False).verdict in verdicts
