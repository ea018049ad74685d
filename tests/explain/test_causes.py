"""Where two programs part, and why: read off the graphs, tried where it can be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from driftscope.explain.causes import Cause, attributes_of, cause_of
from driftscope.explain.divergence import Parting, Trail, find_partings
from driftscope.lift.steps import Lifted
from driftscope.lift.tape import lift_torch


class Net(nn.Module):
    """Two linear layers and a norm, with one thing to get wrong in each."""

    def __init__(self, eps: float = 1e-5, early: bool = False, approximate: str = "none"):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6, eps=eps)
        self.early, self.approximate = early, approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.gelu(self.first(x), approximate=self.approximate)
        z = torch.tanh(self.second(y))
        return self.norm(z - x) if self.early else self.norm(z - y)


def lifted(module: nn.Module) -> Lifted:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    return lift_torch(module.eval(), (x,), {}, module=module)


def explained(a: Lifted, b: Lifted) -> tuple[list[Parting], Cause | None]:
    expected = a.run()[0].value

    def works(replace: dict[str, torch.Tensor]) -> bool:
        got = b.run(replace=replace)[0].value
        return bool(torch.allclose(got, expected, rtol=0, atol=1e-12))

    partings = find_partings(a, b)
    return partings, cause_of(partings[0], (a.constants(), b.constants()), works) if partings else None


def test_nothing_parts_where_the_functions_are_equal():
    assert explained(lifted(Net()), lifted(Net())) == ([], None)


def test_epsilon_is_named_with_both_values_and_tried():
    partings, cause = explained(lifted(Net()), lifted(Net(eps=1e-3)))
    assert "layer_norm" in partings[0].step.operator
    assert cause is not None
    assert "epsilon is 0.001 here and 1e-05 in A" in cause.why
    assert cause.fix.endswith("to 1e-05.")


def test_an_attribute_left_at_its_default_is_compared_with_that_default():
    partings, cause = explained(lifted(Net()), lifted(Net(approximate="tanh")))
    assert partings[0].step.operator == "aten.gelu"
    assert cause is not None
    assert "approximate is 'tanh' here and 'none' in A" in cause.why
    assert attributes_of(partings[0].counterpart)["approximate"] == "none"


def test_a_wire_from_elsewhere_is_named_at_both_ends():
    partings, cause = explained(lifted(Net()), lifted(Net(early=True)))
    assert partings[0].step.operator == "aten.sub"
    assert cause is not None
    assert "reads" in cause.why


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w * 1.01, "multiplied by 1.01"),
        (lambda w: w.bfloat16().float(), "rounded to bfloat16"),
        (lambda w: w.T, "in another order"),
        (lambda w: w + 0.5, "+0.5 added"),
        (lambda w: w * 0, "set to zero"),
    ],
)
def test_a_changed_weight_is_named_with_what_was_done_to_it(edit, words):
    broken = Net()
    with torch.no_grad():
        broken.second.weight.copy_(edit(broken.second.weight.clone()))
    partings, cause = explained(lifted(Net()), lifted(broken))
    assert "mm" in partings[0].step.operator
    assert cause is not None
    assert cause.verified
    assert words in cause.why


def test_a_weight_is_not_blamed_when_exchanging_it_mends_nothing():
    broken = Net(approximate="tanh")
    with torch.no_grad():
        broken.second.weight.mul_(1.01)
    partings, _ = explained(lifted(Net()), lifted(broken))
    never = cause_of(partings[0], (lifted(Net()).constants(), lifted(broken).constants()), lambda _replace: False)
    assert never is None or "constant" not in never.why


def test_an_integer_on_the_way_does_not_hide_the_place():
    class Truncated(nn.Module):
        def __init__(self, truncate: bool):
            super().__init__()
            self.truncate = truncate

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.exp(x)
            return torch.sin(y.to(torch.int32).to(torch.float32) if self.truncate else y)

    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    a, b = (lift_torch(Truncated(t), (x,), {}) for t in (False, True))
    assert [p.step.operator for p in find_partings(a, b)] == ["aten._to_copy"]


def test_a_trail_keeps_what_each_step_took():
    trail = Trail(frozenset(c.name for c in lifted(Net()).constants()))
    lifted(Net()).run(observe=trail)
    gelu = next(s for s in trail.steps if s.operator == "aten.gelu")
    linear = next(s for s in trail.steps if gelu.inputs[0] in s.outputs)
    assert gelu.taken[0] == linear.sketches[0]
