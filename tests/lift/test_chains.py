"""Chains of affine steps: told by names which values a map may come through, so that the rest needs none."""

from __future__ import annotations

import torch
from torch import nn

from driftscope.lift import constant_cache
from driftscope.lift.outline import Chains
from driftscope.lift.reconcile.affine import AffinePieces
from driftscope.lift.steps import Step
from driftscope.lift.torch.tape import TorchTape, lift_torch


class Gated(nn.Module):
    """Two layers that meet in a product, a fold behind them, and the sum with what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(8, 8) for _ in range(3))
        self.scale = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.gate(x) * self.up(x)) * self.scale


def lifted() -> TorchTape:
    torch.manual_seed(0)
    module = Gated().eval()
    return lift_torch(module, (torch.randn(3, 8),), {}, module=module)


def test_a_chain_ends_where_two_values_are_multiplied() -> None:
    graph, chains, steps = lifted(), Chains(), []
    graph.run(observe=lambda step: (steps.append((step.operator, step.output_names[0])), chains(step))[0])
    products = [name for operator, name in steps if "addmm" in operator or "linear" in operator]
    assert len(products) == 3
    path = chains.leading_to(steps[-1][1])
    assert products[2] in path  # the layer whose result is scaled
    assert not {products[0], products[1]} & path  # those behind the gate


def test_maps_of_the_chain_alone_are_those_of_all_steps() -> None:
    graph, chains, names = lifted(), Chains(), []
    graph.run(observe=lambda step: (names.append(step.output_names[0]), chains(step))[1])
    for name in names:
        path, every, some = chains.leading_to(name), AffinePieces(), AffinePieces()

        def follow(step: Step, path: frozenset[str] = path, some: AffinePieces = some) -> None:
            if path.intersection(step.output_names):
                some(step)

        graph.run(observe=every)
        graph.run(observe=follow)
        wanted, found = every.maps.get(name, []), some.maps.get(name, [])
        assert [m.steps for m in found] == [m.steps for m in wanted]
        assert all(torch.equal(m.weight, w.weight) for m, w in zip(found, wanted, strict=True))
    assert len(every.maps) > len(some.maps) > 1


class Folded(nn.Module):
    """A norm into a layer into a factor: chains whose maps are products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer, self.next = nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 5)
        self.scale = nn.Parameter(torch.rand(5) + 0.5)
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.next(self.layer(self.norm(x))) * self.scale


def test_maps_of_a_large_program_hold_its_tensors_as_they_are_stored(monkeypatch) -> None:
    torch.manual_seed(0)
    module = Folded().eval()
    graph = lift_torch(module, (torch.randn(3, 8),), {}, module=module)
    kept = AffinePieces.of(graph.constants())
    monkeypatch.setattr(constant_cache, "WHOLE_BYTES", 0)
    lean = AffinePieces.of(graph.constants())
    for pieces in (kept, lean):
        graph.run(observe=pieces)
    assert [m.steps for m in kept.folded] == [m.steps for m in lean.folded]
    for one, other in zip(kept.folded, lean.folded, strict=True):
        assert all(map(torch.equal, (one.weight, one.size, one.bias), (other.weight, other.size, other.bias)))
    single = {c.value.data_ptr() for c in graph.constants()}
    layers = [m for m in (found for maps in lean.maps.values() for found in maps) if len(m.steps) == 1 and m.ndim == 2]
    assert len(layers) == 2
    assert all(m.product.value.data_ptr() in single for m in layers)
    assert not any(m.product.value.data_ptr() in single for maps in kept.maps.values() for m in maps)
