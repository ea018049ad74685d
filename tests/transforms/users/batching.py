"""``ds.vmap`` of the user-like functions over fresh batches, held against the plain loop: values and derivatives.

``python -m transforms.users.batching [names]`` in ``tests/`` prints what is silently wrong, and the counts.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import driftscope as ds
from driftscope.errors import DriftscopeError
from transforms.users.cases import UserCase
from transforms.users.measuring import agree, copied, every_case, plain, quietly

SEEDS = 3


@dataclass
class Batches:
    """Counts of batches; ``wrong`` says which were other than the loop without a word."""

    run: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.run} batches, {self.refused} refused in our words, {len(self.wrong)} silently wrong"


def variants(case: UserCase, seed: int) -> list[tuple[Any, ...]]:
    """Return a batch, one whose rows are alike, and one with zeros: rows that decide together, and rows that do not."""
    batch = case.batch(seed)
    alike, zeros = list(batch), list(batch)
    for i, (argument, dim) in enumerate(zip(batch, case.in_dims, strict=True)):
        if dim is None or not argument.is_floating_point():
            continue
        alike[i] = argument[:1].expand_as(argument).clone()
        zeros[i] = argument.clone()
        zeros[i][seed % len(argument)] = 0
    return [batch, tuple(alike), tuple(zeros)]


def hold(case: UserCase, counted: Batches) -> None:
    """Run one function on every variant of every seed, with and without derivatives."""
    mapped = ds.vmap(case.function, case.in_dims, randomness=case.randomness)
    for seed in range(SEEDS):
        for number, batch in enumerate(variants(case, seed)):
            for wants in (False, True):
                counted.run += 1
                told = _one(case, mapped, batch, counted, wants=wants)
                if told:
                    counted.wrong.append(f"{case.name} seed {seed} variant {number} wants {wants}: {told}"[:300])


def _one(case: UserCase, mapped: Any, batch: tuple[Any, ...], counted: Batches, *, wants: bool) -> str:
    one, two = _given(batch, wants=wants), _given(batch, wants=wants)
    expected = quietly(lambda: plain(case.function, "vmap", one, case))
    got = quietly(lambda: mapped(*two))
    if isinstance(got, DriftscopeError):
        counted.refused += 1
        return ""
    if isinstance(expected, Exception):
        return "" if isinstance(got, Exception) else f"the loop raises {expected!r:.120}, ds.vmap answers"
    if isinstance(got, Exception):
        return f"{got!r:.150}, which the loop does not raise"
    if not agree(expected, got):
        return f"{expected!r:.100} is {got!r:.100}"
    slopes = [quietly(lambda t=tree, g=given: _slopes(t, g)) for tree, given in ((expected, one), (got, two))]
    if isinstance(slopes[0], Exception):
        return ""
    return (
        ""
        if not isinstance(slopes[1], Exception) and agree(*slopes)
        else f"slopes {slopes[0]!r:.90}, {slopes[1]!r:.90}"
    )


def _given(batch: tuple[Any, ...], *, wants: bool) -> tuple[Any, ...]:
    given = copied(batch)
    return tuple(a.requires_grad_(wants) if a.is_floating_point() else a for a in given)


def _slopes(tree: Any, given: tuple[Any, ...]) -> list[torch.Tensor]:
    floats = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    inputs = [leaf for leaf in given if leaf.requires_grad]
    if not floats or not inputs:
        return [torch.tensor(float(len(floats)))]
    total = sum((leaf.real * torch.arange(1.0, leaf.numel() + 1).reshape(leaf.shape)).sum() for leaf in floats)
    return list(torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True))


def main(names: list[str]) -> Batches:
    """Hold the functions named, or all."""
    counted = Batches()
    for case in every_case():
        if not names or case.name in names:
            before = len(counted.wrong)
            hold(case, counted)
            for words in counted.wrong[before:]:
                print(words, flush=True)
    print(counted)
    return counted


if __name__ == "__main__":
    main(sys.argv[1:])
