"""Where two programs part, and why: read off the graphs, tried where it can be."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import driftscope as ds
from driftscope.explain.causes.counterparts import attributes_of
from driftscope.explain.causes.pieces import cause_of
from driftscope.explain.causes.rewiring import Reason, Trials
from driftscope.explain.locate.divergence import piece_of
from driftscope.explain.locate.fingerprints import Trail
from driftscope.explain.locate.locating import Search, TriedPlace
from driftscope.lift.steps import Lifted
from driftscope.lift.torch.tape import lift_torch


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


def search_of(a: Lifted, b: Lifted) -> Search:
    expected = a.run()[0].value
    return Search(a, b, lambda got: bool(torch.allclose(got[0].value, expected, rtol=0, atol=1e-12)))


def explained(a: Lifted, b: Lifted) -> tuple[list[TriedPlace], Reason | None]:
    search = search_of(a, b)
    places = search.places()
    if not places:
        return [], None
    first = places[0]
    theirs = piece_of(search.view, first.parting.counterpart)
    trials = Trials(
        lambda replace: search.piece_heals(first, replace, {}),
        lambda name, source: search.piece_heals(first, {}, {name: search.runs_b.values((source,), {})[source]}),
        tried=first.tried,
    )
    return places, cause_of(first.parting, theirs, (a.constants(), b.constants()), trials)


def test_nothing_parts_where_the_functions_are_equal():
    assert explained(lifted(Net()), lifted(Net())) == ([], None)


def test_epsilon_is_named_with_both_values_and_tried():
    places, cause = explained(lifted(Net()), lifted(Net(eps=1e-3)))
    assert "layer_norm" in places[0].parting.step.operator
    assert cause is not None
    assert "epsilon is 0.001 here and 1e-05 in A" in cause.why
    assert cause.fix.endswith("to 1e-05.")


def test_an_attribute_left_at_its_default_is_compared_with_that_default():
    places, cause = explained(lifted(Net()), lifted(Net(approximate="tanh")))
    assert places[0].parting.step.operator == "aten.gelu"
    assert cause is not None
    assert "approximate is 'tanh' here and 'none' in A" in cause.why
    assert attributes_of(places[0].parting.counterpart)["approximate"] == "none"


def test_a_wire_from_elsewhere_is_named_at_both_ends():
    places, cause = explained(lifted(Net()), lifted(Net(early=True)))
    assert places[0].parting.step.operator == "aten.sub"
    assert cause is not None
    assert "reads" in cause.why


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda w: w * 1.01, "multiplied by 1.01"),
        (lambda w: w.bfloat16().float(), "rounded to bfloat16"),
        (lambda w: w.T, "transposed"),
        (lambda w: w + 0.5, "+0.5 added"),
        (lambda w: w * 0, "set to zero"),
    ],
)
def test_a_changed_weight_is_named_with_what_was_done_to_it(edit, words):
    broken = Net()
    with torch.no_grad():
        broken.second.weight.copy_(edit(broken.second.weight.clone()))
    places, cause = explained(lifted(Net()), lifted(broken))
    assert "mm" in places[0].parting.step.operator
    assert cause is not None
    assert cause.verified
    assert words in cause.why


def test_a_weight_is_not_blamed_when_exchanging_it_mends_nothing():
    broken = Net(approximate="tanh")
    with torch.no_grad():
        broken.second.weight.mul_(1.01)
    a, b = lifted(Net()), lifted(broken)
    places, _ = explained(a, b)
    never = Trials(lambda _replace: False, lambda _name, _source: False)
    cause = cause_of(places[0].parting, [], (a.constants(), b.constants()), never)
    assert cause is None or "constant" not in cause.why


def test_two_bugs_are_two_places_and_what_lies_between_is_none():
    broken = Net(eps=1e-3, approximate="tanh")
    places, _ = explained(lifted(Net()), lifted(broken))
    assert ["gelu" if "gelu" in p.parting.step.operator else "layer_norm" for p in places] == ["gelu", "layer_norm"]
    assert all(p.tried and p.created for p in places)


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
    places, cause = explained(a, b)
    assert cause is not None
    assert cause.step is not None
    assert cause.step is places[0].parting.piece[0]
    assert cause.step.operator == "aten._to_copy"
    assert "without" in cause.why


def test_a_trail_keeps_what_each_step_took():
    trail = Trail(frozenset(c.name for c in lifted(Net()).constants()))
    lifted(Net()).run(observe=trail)
    gelu = next(s for s in trail.steps if s.operator == "aten.gelu")
    linear = next(s for s in trail.steps if gelu.inputs[0] in s.outputs)
    assert gelu.taken[0] == linear.sketches[0]


class Wired(Net):
    """The same net; ``scale`` is a second thing that is wrong at the place where a wire is."""

    def __init__(self, early: bool = False, scale: float = 1.0):
        super().__init__(early=early)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.first(x)
        y = F.gelu(before)
        z = self.scale * torch.tanh(self.second(y))
        return self.norm(z + before if self.early else z + y)


@pytest.mark.parametrize(("scale", "tried"), [(1.0, True), (1.5, False)])
def test_a_wire_is_put_right_before_the_fix_is_called_tried(scale: float, tried: bool):
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    first = ds.compare(Wired().eval(), Wired(early=True, scale=scale).eval(), (x,)).first
    assert first is not None
    assert first.code == "N001"
    if tried:
        assert first.verified is True
        assert first.fix.startswith("Connect ")
    else:
        assert first.verified is not True or not first.fix.startswith("Connect ")
