"""The measured floor at a point, where an answer is farther off than rounding usually is.

Most points agree within what a format loses in an ordinary program, which costs nothing to ask. A program that cancels
(a variance far from zero, a difference of large sums) loses more than that: there the original is lifted at the
point's inputs, and its own rounding decides, as it does in a comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from driftscope.comparison.agreement import agreement
from driftscope.errors import DriftscopeError
from driftscope.lift.evidence import samples_at
from driftscope.lift.side_lift import SideLift, add_noise, lift_side
from driftscope.programs.loading.load import torch_program
from driftscope.programs.protocol import Bound, Program
from driftscope.shapes.probe.judging_runs import Ran, both_leaves

# Points at which the floor is measured in vain before the rest is taken to be wrong, too; and those after which a
# difference no larger than the largest that was explained needs no measurement of its own.
_IN_VAIN = 4
_KNOWN = 16


class Floors:
    """What ordinary rounding does to the original's answers, asked only where an answer differs.

    Parameters
    ----------
    model : callable
        The original.
    inputs : callable
        Builds its arguments at a point.
    """

    def __init__(
        self, model: Callable[..., Any], inputs: Callable[[tuple[int, ...]], tuple[tuple[Any, ...], dict[str, Any]]]
    ):
        self._program = torch_program(model)
        self._inputs = inputs
        self._noises: dict[tuple[int, ...], list[list[torch.Tensor]]] = {}
        self._explained: list[float] = []
        self._in_vain = 0

    def explain(self, point: tuple[int, ...], reference: Any, other: Ran) -> bool:
        """Whether rounding explains how far an answer is from the original's at a point.

        Parameters
        ----------
        point : tuple of int
        reference : tree
            What the original returned.
        other : Ran
            An answer that is farther off than rounding usually is.
        """
        a, b = both_leaves(reference, other)
        if not a or len(a) != len(b):
            return False
        pairs = [(x, y) for (_, x), (_, y) in zip(a, b, strict=True)]
        plain = [agreement(x, y, flat=other.flat) for x, y in pairs]
        if any(not p.agrees and (p.kind != "value" or not _floats(x)) for p, (x, _) in zip(plain, pairs, strict=True)):
            return False
        excess = max(p.excess for p in plain)
        if len(self._explained) >= _KNOWN and excess <= max(self._explained):
            return True
        if self._in_vain >= _IN_VAIN and not self._explained:
            return False
        noises = self._measured(point, len(pairs))
        judged = (
            p.agrees or (bool(noises[k]) and agreement(x, y, noises=noises[k], flat=other.flat).agrees)
            for k, (p, (x, y)) in enumerate(zip(plain, pairs, strict=True))
        )
        explained = bool(noises) and all(judged)
        self._in_vain += not explained
        self._explained += [excess] if explained else []
        return explained

    def _measured(self, point: tuple[int, ...], outputs: int) -> list[list[torch.Tensor]]:
        """Noise samples per output at a point; empty where the original cannot be lifted there."""
        if point not in self._noises:
            side = _lifted(self._program, *self._inputs(point))
            # Both answers are rounded alike, so the samples count once for each.
            found = [2 * samples_at(side.noises, k) for k in range(len(side.clean))]
            self._noises[point] = found if len(found) == outputs else []
        return self._noises[point]


def _lifted(program: Program, args: tuple[Any, ...], kwargs: dict[str, Any]) -> SideLift:
    side = SideLift(reason="not asked")
    try:
        side = lift_side(Bound(program, args, kwargs, {}, {}))
        add_noise(side, seed=0)
    except DriftscopeError as error:
        side.reason = str(error)
    return side


def _floats(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
