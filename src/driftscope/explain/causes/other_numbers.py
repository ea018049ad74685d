"""A number that one program alone writes, in the place of one that the other alone writes: a base, an epsilon, a scale."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.lift.reconcile.matching import uniform
from driftscope.lift.steps import Constant, Lifted

# Numbers of each side that are tried.
_MOST = 6


@dataclass(frozen=True, slots=True)
class OtherNumber:
    """Constants of B that hold one number, and the number of A's with which B is the same function."""

    constants: Sequence[Constant]
    held: float
    number: float


def other_number(
    constants: tuple[Sequence[Constant], Sequence[Constant]],
    graph: Lifted | None,
    whole: Callable[[Mapping[str, torch.Tensor]], bool],
) -> OtherNumber | None:
    """Find the number that only B writes and that makes B the same function when it is one that only A writes.

    Parameters
    ----------
    constants : pair of sequences of Constant
        A's and B's.
    graph : Lifted or None
        B; where it computes a table from such a number, the table follows.
    whole : callable
        Whether B's outputs are A's with constants replaced.
    """
    ours, own = ({c.name: n for c in side if (n := uniform(c)) is not None} for side in constants)
    missing = [n for n in dict.fromkeys(ours.values()) if n not in own.values()][:_MOST]
    strange = [n for n in dict.fromkeys(own.values()) if n not in ours.values()][:_MOST]
    for held, number in itertools.product(strange, missing):
        concerned = [c for c in constants[1] if own.get(c.name) == held]
        if whole(_made_with(concerned, number, constants[1], graph)):
            return OtherNumber(concerned, held, number)
    return None


def _made_with(
    concerned: Sequence[Constant], number: float, constants: Sequence[Constant], graph: Lifted | None
) -> dict[str, torch.Tensor]:
    given = {c.name: torch.full(c.value.shape, number, dtype=torch.float64) for c in concerned}
    if graph is None or all(c.frontier for c in concerned):
        return given
    with contextlib.suppress(CannotLift, DriftscopeError, RuntimeError):
        made = {**graph.constant_values(replace=given), **given}
        return {c.name: made[c.name] for c in constants if c.frontier and c.name in made}
    return {}
