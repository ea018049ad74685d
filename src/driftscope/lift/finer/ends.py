"""Where float64 itself leaves its range, or its last digit: the step whose exact value it makes infinite or zero.

Of ``log(sigmoid(-1000))`` float64 makes minus infinity, because 5e-435 is zero there. A ball has exponents enough.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from driftscope.lift.steps import Step, plain_name
from driftscope.records.finding import Where

if TYPE_CHECKING:
    from driftscope.lift.finer.given import Balls

# Powers of two between which float64 has numbers, with fewer digits below the middle one, and what it may be off by,
# relative, where nothing was lost.
_TOP, _FEWER, _BOTTOM, _NEAR = 1024, -1022, -1075, 2.0**-20

# What makes zero of equal numbers, however far the exponents reach.
_CANCELS = ("add", "sub", "rsub")


@dataclass(frozen=True, slots=True)
class Lost:
    """A step whose exact result, in some elements of an output, even float64 makes infinite or zero.

    Parameters
    ----------
    where : Where
    exact : str
        That result where it is furthest out, in three digits.
    kind : str
        ``"overflow"``, ``"underflow"``, or ``"rounding"`` where equal numbers cancel: ``1 - sigmoid(100)`` is zero.
    format : torch.dtype or None
        In which the program declares it.
    then : str
        The step that makes infinity or NaN of it; empty where that is no other.
    elements : Tensor of bool
        Elements of the output that float64 has wrong on account of such steps.
    """

    where: Where
    exact: str
    kind: str
    format: torch.dtype | None
    then: str
    elements: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a step gave in float64 and in balls."""

    step: Step
    balls: Balls
    values: torch.Tensor
    off: torch.Tensor


@dataclass(slots=True)
class Loosened:
    """Steps some of whose float64 results are not what the balls say, by the names of their results."""

    seen: dict[str, _Seen] = field(default_factory=dict)

    def keep(self, step: Step, found: Balls, value: torch.Tensor) -> None:
        """Remember a step where float64 and the balls part; where nothing before did, only its ends can."""
        before = any(name in self.seen for name in step.input_names)
        ends = ~torch.isfinite(value) | (value == 0.0)
        if not before and not bool(ends.any()):
            return
        flat = zip(found.reshape(-1), value.reshape(-1).tolist(), strict=True)
        off = torch.tensor([_parted(ball, wanted) for ball, wanted in flat], dtype=torch.bool).reshape(value.shape)
        if bool(off.any()):
            self.seen[step.output_names[0]] = _Seen(step, found, value.cpu(), off)

    def behind(self, name: str) -> Lost | None:
        """The step that the elements of a result which float64 has wrong come from; None where a kernel is that."""
        first = self.seen.get(name)
        if first is None:
            return None
        broken = first.off & ~torch.isfinite(first.values)
        one, mask, then = first, broken if bool(broken.any()) else first.off, ""
        while (further := self._before(one, mask)) is not None:
            if not bool(torch.isfinite(one.values[mask]).all()):
                then = f"{one.step.name} ({one.step.operator})"
            one, mask = further
        furthest = max(one.balls.reshape(-1)[mask.reshape(-1).numpy()], key=lambda ball: abs(_exponent(ball)))
        exponent = _exponent(furthest)
        kind = "overflow" if exponent > _TOP else "underflow" if exponent < _BOTTOM else "rounding"
        kind = "rounding" if plain_name(one.step.operator) in _CANCELS else kind
        if kind == "rounding" and not (
            then and not _BOTTOM <= exponent <= _FEWER and bool((one.values[mask] == 0.0).any())
        ):
            return None
        where = dataclasses.replace(one.step.where, node=one.step.name, operator=one.step.operator)
        fmt = next((f for f in one.step.formats if f is not None), None)
        return Lost(where, str(furthest.mid().str(3, radius=False)), kind, fmt, then, first.off)

    def _before(self, one: _Seen, mask: torch.Tensor) -> tuple[_Seen, torch.Tensor] | None:
        """The operand that float64 has wrong, infinite ones first, and where."""
        known = [self.seen[name] for name in one.step.input_names if name in self.seen]
        found = [(each, spread(mask, each.off.shape) & each.off) for each in known]
        broken = [(each, given & ~torch.isfinite(each.values)) for each, given in found]
        return next(((each, given) for each, given in (*broken, *found) if bool(given.any())), None)


def _parted(ball: Any, wanted: float) -> bool:
    """Whether float64 has another number than a ball that is known well."""
    if not ball.is_finite():
        return False
    if not math.isfinite(wanted):
        return True
    exact = ball.mid()
    return bool(abs(exact - wanted) > _NEAR * abs(exact))


def _exponent(ball: Any) -> int:
    """The power of two of a ball's middle; that of one for zero."""
    _man, exponent = ball.mid().man_exp()
    return int(exponent) + int(_man).bit_length() if _man else 0


def spread(mask: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The elements of an operand that those of a result may be computed from: all of them where shapes do not tell."""
    with contextlib.suppress(RuntimeError):
        return mask.double().sum_to_size(tuple(shape)) > 0
    with contextlib.suppress(RuntimeError):
        return mask.expand(tuple(shape))
    return mask.new_ones(tuple(shape))
