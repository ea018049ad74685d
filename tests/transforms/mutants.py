"""Seeded defects: one defect of the catalogue put before or behind a real operator, its cause and line known."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from transforms.operators import Operator

Defect = Callable[[Any], Callable[[torch.Tensor], torch.Tensor]]


@dataclass(frozen=True)
class Mutant:
    """A function with one defect; ``cause`` is to be found under vmap, on a line of ``defect``."""

    name: str
    function: Callable[[torch.Tensor], Any]
    batch: torch.Tensor
    cause: str
    lines: range


def branches(_: Any) -> Any:
    def defect(x):
        if x.sum() > 0:
            return x * 1
        return x + 0

    return defect


def loops(_: Any) -> Any:
    def defect(x):
        bound = x.abs().sum() + 1
        while bound > 2:
            bound = bound / 2
        return x * 1

    return defect


def asserts(_: Any) -> Any:
    def defect(x):
        assert not torch.isnan(x).all()
        return x * 1

    return defect


def takes_item(_: Any) -> Any:
    def defect(x):
        size = x.abs().max().item()
        return x * 1 if size < 0 else x + 0

    return defect


def takes_root(_: Any) -> Any:
    def defect(x):
        return x * (1 + 0 * math.sqrt(x.pow(2).sum()))

    return defect


def lists(_: Any) -> Any:
    def defect(x):
        return x * (len(x.reshape(-1).tolist()) > 0)

    return defect


def goes_to_numpy(_: Any) -> Any:
    def defect(x):
        return x + float(np.zeros(1)[0]) * x.detach().numpy().size

    return defect


def fills_factory(_: Any) -> Any:
    def defect(x):
        room = torch.zeros(x.shape, dtype=x.dtype)
        room.copy_(x)
        return room

    return defect


def sums_into_factory(_: Any) -> Any:
    def defect(x):
        total = torch.zeros((), dtype=x.dtype)
        total += x.sum()
        return x + 0 * total

    return defect


def writes_out(_: Any) -> Any:
    def defect(x):
        room = torch.empty_like(x)
        torch.mul(x, 1, out=room)
        return room

    return defect


def writes_outside(x: torch.Tensor) -> Any:
    shared = torch.zeros(x.shape[1:], dtype=x.dtype)

    def defect(x):
        shared.add_(x)
        return x * 1

    return defect


def masks(_: Any) -> Any:
    def defect(x):
        kept = x[x > 0]
        return x + 0 * kept.sum()

    return defect


def counts_nonzero(_: Any) -> Any:
    def defect(x):
        found = torch.nonzero(x)
        return x + 0 * found.shape[1]

    return defect


def differentiates(_: Any) -> Any:
    def defect(x):
        y = x.detach().clone().requires_grad_()
        return x + 0 * y.detach()

    return defect


def draws(_: Any) -> Any:
    def defect(x):
        return x + 0.1 * torch.rand(x.shape, dtype=x.dtype)

    return defect


def draws_in_numpy(_: Any) -> Any:
    def defect(x):
        return x * (1 + np.random.uniform(0.1, 0.2))

    return defect


def draws_in_python(_: Any) -> Any:
    def defect(x):
        return x * (1 + random.uniform(0.1, 0.2))

    return defect


def keeps(_: Any) -> Any:
    kept = []

    def defect(x):
        kept.append(x * 2)
        return x * 1

    return defect


def keeps_by_name(_: Any) -> Any:
    last = None

    def defect(x):
        nonlocal last
        last = x * 2
        return x * 1

    return defect


def pops(_: Any) -> Any:
    stack = [1, 2, 3, 4, 5, 6]

    def defect(x):
        stack.pop()
        return x * 1

    return defect


def counts(_: Any) -> Any:
    state = {"n": 0}

    def defect(x):
        state["n"] += 1
        return x * state["n"]

    return defect


def prints(_: Any) -> Any:
    def defect(x):
        print("here")
        return x * 1

    return defect


def swallows(_: Any) -> Any:
    def defect(x):
        try:
            factor = 1 + abs(float(x.sum()))
        except RuntimeError:
            factor = 0.5
        return x * factor

    return defect


def asks_offset(_: Any) -> Any:
    def defect(x):
        return x * (1 + (x.storage_offset() > 0))

    return defect


# defect, the cause, and whether it works on the operator's input alone (a result is no view of the batch)
DEFECTS: tuple[tuple[Defect, str, bool], ...] = (
    (branches, "T009", False), (loops, "T009", False), (asserts, "T009", False), (takes_item, "T010", False),
    (takes_root, "T010", False), (lists, "T010", False), (goes_to_numpy, "T010", False), (fills_factory, "T006", False),
    (sums_into_factory, "T006", False), (writes_out, "T008", False), (writes_outside, "T007", True),
    (masks, "T011", False),
    (counts_nonzero, "T011", False), (differentiates, "T012", False), (draws, "T005", False),
    (draws_in_numpy, "T004", False), (draws_in_python, "T004", False), (keeps, "T001", False),
    (keeps_by_name, "T001", False), (pops, "T002", False), (counts, "T002", False), (prints, "T003", False),
    (swallows, "T021", False), (asks_offset, "T022", True),
)  # fmt: skip


def mutants(originals: list[Operator], seed: int) -> Iterator[Mutant]:
    """Yield every defect in a random operator, before or behind it."""
    chosen = random.Random(seed)
    for make, cause, before_only in DEFECTS:
        original = chosen.choice(originals)
        defect = make(original.batch)
        before = before_only or chosen.random() < 0.5
        code = defect.__code__
        last = max(line for _, _, line in code.co_lines() if line is not None)
        yield Mutant(
            f"{make.__name__} {'before' if before else 'behind'} {original.name}",
            functools.partial(_composed, original.function, defect, before),
            original.batch,
            cause,
            range(code.co_firstlineno, last + 1),
        )


def _composed(function: Any, defect: Any, before: bool, x: torch.Tensor) -> Any:
    if before:
        return function(defect(x))
    result = function(x)
    if isinstance(result, torch.Tensor):
        return defect(result)
    return (defect(result[0]), *result[1:])


def takes_defects(operator: Operator) -> bool:
    """Whether an operator is fit: a floating example in, a floating tensor or a tuple with one in front out."""
    if not operator.batch.is_floating_point() or operator.batch.numel() < 6:
        return False
    result = operator.function(operator.batch[0].clone())
    first = result[0] if isinstance(result, tuple) and result else result
    is_fit = isinstance(first, torch.Tensor) and first.is_floating_point() and first.numel() > 0
    return is_fit and bool(torch.isfinite(first).all()) and bool((first != 0).any())
