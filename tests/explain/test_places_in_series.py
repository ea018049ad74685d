"""Changes one behind another are each named, where a value is only seen through a view and where a result ends."""

import torch
import torch.nn.functional as F
from torch import nn

import driftscope as ds
from driftscope.records.verdict import Verdict

RATE, EPSILON, SHRINK, MIXED = 0.5, 1e-5, 0.2, 0.3


class Fused(nn.Module):
    """Numbers of three places, and how the mixing and the shrinking are written."""

    def __init__(self, rate: float = RATE, epsilon: float = EPSILON, shrink: float = SHRINK, mixed: float = MIXED):
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(8, 8))
        self.rate, self.epsilon, self.shrink, self.mixed = rate, epsilon, shrink, mixed

    def mix(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.lerp(x, y, self.mixed)

    def end(self, x: torch.Tensor) -> torch.Tensor:
        return F.softshrink(x, self.shrink)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.exp(x * -self.rate) + x
        z = self.mix(torch.sqrt(y.square() + 0.3), y)
        z = F.layer_norm(F.linear(z.reshape(-1, 8), self.weight), (8,), eps=self.epsilon)
        return self.end(z @ self.weight)


class Apart(Fused):
    """The same, operator by operator."""

    def mix(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        gap = y - x
        return x + gap * self.mixed

    def end(self, x: torch.Tensor) -> torch.Tensor:
        size = x.abs()
        return torch.where(size > self.shrink, torch.sign(x) * (size - self.shrink), torch.zeros_like(x))


def _causes(a: nn.Module, b: nn.Module) -> list[str]:
    torch.manual_seed(1)
    found = ds.compare(a.eval(), b.eval(), (torch.randn(2, 6, 8),))
    assert found.verdict is Verdict.DIFFERENT
    return [str(f.evidence.get("cause")) for f in found.findings if not f.note]


def _told(causes: list[str], *words: str) -> bool:
    """Whether there are as many causes as words, and each is in one."""
    return len(causes) == len(words) and all(any(w in c for c in causes) for w in words)


def test_a_change_behind_another_is_named_where_only_a_view_of_its_value_is_read() -> None:
    causes = _causes(Apart(rate=0.75, mixed=0.27), Fused())
    assert _told(causes, "-0.5 here and -0.75 in A", "lerp.weight is 0.3, in A 0.27")


def test_a_change_in_the_last_step_is_named_beside_one_before_it() -> None:
    causes = _causes(Apart(epsilon=1e-2, shrink=0.18), Fused())
    assert _told(causes, "epsilon is 1e-05 here and 0.01 in A", "lambd is 0.2, in A 0.18")


def test_three_changes_in_series_are_all_named() -> None:
    causes = _causes(Apart(rate=0.75, epsilon=1e-2, shrink=0.18), Fused())
    assert _told(causes, "-0.5 here and -0.75 in A", "epsilon is 1e-05 here and 0.01 in A", "lambd is 0.2, in A 0.18")


def test_one_change_is_one_finding() -> None:
    for given in ({"rate": 0.75}, {"mixed": 0.27}, {"epsilon": 1e-2}, {"shrink": 0.18}):
        assert len(_causes(Apart(**given), Fused())) == 1
        assert len(_causes(Fused(**given), Apart())) == 1


def _by_hand(layer: nn.Conv2d, left: int, more: bool = False):
    """A convolution that pads and adds its bias in steps of their own."""

    def run(x):
        padded = F.pad(x, (left, 2 - left, 1, 1))
        made = F.conv2d(padded, layer.weight).permute(0, 2, 3, 1) + layer.bias
        return (made + layer.bias if more else made).permute(0, 3, 1, 2)

    return run


def test_a_step_that_does_what_a_fused_one_does_there_is_not_one_too_many():
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, padding=1).eval()
    x = torch.randn(2, 3, 6, 6)
    assert ds.compare(layer, _by_hand(layer, 1), (x,)).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
    shifted = ds.compare(layer, _by_hand(layer, 2), (x,))
    assert shifted.verdict == Verdict.DIFFERENT
    (found,) = [f for f in shifted.findings if f.code == "N001"]
    assert "constant_pad_nd" in str(found.where)
    assert "A has no such step" not in found.why
    twice = ds.compare(layer, _by_hand(layer, 1, more=True), (x,))
    assert "A has no such step: without add_1" in twice.first.why
