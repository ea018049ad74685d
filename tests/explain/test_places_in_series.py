"""Changes one behind another are each named, where a value is only seen through a view and where a result ends."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftscope as ds
from driftscope.explain.locate.fingerprints import sketch
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


class Pooled(nn.Module):
    """Padded attention with a pooler, which is returned or not; unmasked, it looks at the padding too."""

    def __init__(self, padding: int, masked: bool = True, returned: bool = False) -> None:
        super().__init__()
        self.words, self.query, self.pooler = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.padding, self.masked, self.returned = padding, masked, returned

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = self.words(F.pad(ids, (0, self.padding)))
        scores = self.query(h) @ h.mT
        if self.masked:
            seen = F.pad(torch.ones_like(ids), (0, self.padding)).bool()
            scores = scores.masked_fill(~seen[:, None], -1e30)
        h = F.layer_norm(scores.softmax(-1) @ h, (8,))
        pooled = self.pooler(h[:, 0]).tanh()
        h = h[:, : ids.shape[1]]
        return (h, pooled) if self.returned else (h,)


@pytest.mark.parametrize("back", [False, True], ids=["b", "a"])
@pytest.mark.parametrize("returned", [False, True])
def test_what_no_output_is_computed_from_is_no_place(returned: bool, back: bool) -> None:
    torch.manual_seed(0)
    a = Pooled(0, returned=returned)
    right, wrong = (Pooled(3, masked, returned) for masked in (True, False))
    right.load_state_dict(a.state_dict())
    wrong.load_state_dict(a.state_dict())
    ids = torch.tensor([[3, 5, 7, 8, 9, 11], [2, 4, 6, 8, 1, 3]])
    assert ds.compare(a, right, ids).verdict in ("IDENTICAL", "ROUNDING")
    found = ds.compare(*((wrong, a) if back else (a, wrong)), ids)
    assert found.verdict == "DIFFERENT"
    places = [str(f.evidence.get("piece", ())) + str(f.where.node) for f in found.findings if not f.note]
    assert any("select" in place for place in places) <= returned, found.findings


class Masked(nn.Module):
    """Layers of attention under a mask of large numbers; what one layer hands on may be clamped."""

    def __init__(self, limit: float | None = None, mask: float = -1e9) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(4))
        self.parts = nn.ModuleList(nn.ModuleList(nn.Linear(16, 16) for _ in range(4)) for _ in range(4))
        self.limit, self.mask = limit, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = ~torch.ones(6, 6).tril().bool()
        for k, (norm, (*parts, out)) in enumerate(zip(self.norms, self.parts, strict=True)):
            h = norm(x)
            q, key, v = (part(h).view(2, 6, 4, 4).transpose(1, 2) for part in parts)
            scores = (q @ key.mT).masked_fill(hidden, self.mask)
            x = x + out((scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 16))
            x = x.clamp(-self.limit, self.limit) if k == 1 and self.limit is not None else x
        return x


@pytest.mark.parametrize("back", [False, True], ids=["b", "a"])
@pytest.mark.parametrize("mask", [-1e9, -3e7, float("-inf")])
def test_large_numbers_of_a_mask_do_not_hide_the_scores_beside_them(mask: float, back: bool) -> None:
    torch.manual_seed(0)
    a, x = Masked(mask=mask), torch.randn(2, 6, 16)
    idle, clamped = Masked(1e4, mask), Masked(1.0, mask)
    idle.load_state_dict(a.state_dict())
    clamped.load_state_dict(a.state_dict())
    assert ds.compare(a, idle, x).verdict == "IDENTICAL"
    found = ds.compare(*((clamped, a) if back else (a, clamped)), x)
    assert found.verdict == "DIFFERENT"
    assert "clamp" in found.first.why, found.first
    assert found.first.verified


def test_beside_a_mask_scores_are_told_apart_and_large_numbers_are_no_mask() -> None:
    scores = torch.randn(4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    hidden = ~torch.ones(6, 6).tril().bool()
    one, other = (sketch((scores * factor).masked_fill(hidden, -1e9)) for factor in (1.0, 1.0 + 1e-6))
    assert one.same(one)
    assert not one.agrees(other)
    assert one.same(sketch((scores).masked_fill(hidden, -1e8)))  # whatever number is written for it
    assert sketch(scores * 1e12).holes == (0, 0.0)
