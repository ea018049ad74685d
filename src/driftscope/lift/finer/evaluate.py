"""A lifted program evaluated again in balls: an observer that keeps, beside each float64 value, its ball.

What shrinks with the arithmetic is rounding, what stays is another function. Here the arithmetic gets 2**-159 times
finer and every value carries a proven bound, so no noise has to be modelled. It costs microseconds an operation: it
is asked only where float64 cannot decide, and only of programs small enough.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from driftscope.errors import CannotLift
from driftscope.lift.finer.ends import Loosened, Lost
from driftscope.lift.finer.written import Written
from driftscope.lift.kept import remembered
from driftscope.lift.outline import Outline
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.steps import Lifted, LiftedOutput, Step, plain_name
from driftscope.records.finding import Where

if TYPE_CHECKING:
    from driftscope.lift.finer.given import Balls, Given

BITS = 212
# Where these do not tell a number from zero, more may: beside a mask of 3e38, and `1 - sigmoid(x)` up to 5600. How much
# dearer these are.
_MORE = ((BITS, 1), (512, 1), (8192, 32))
_UNIT = 2.0**-53
# Proven relative error below which an evaluation says anything about float64's last digits.
PROVEN = 2.0**-60
# Scalar operations that one evaluation may take, about two microseconds each.
MOST = 1_000_000
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    **{name: getattr(operator, name) for name in ("gt", "lt", "ge", "le", "eq", "ne")},
    "greater": operator.gt, "less": operator.lt, "greaterorequal": operator.ge, "lessorequal": operator.le,
    "equal": operator.eq,
}  # fmt: skip
# What float64 may lose in one step, relative to the result and to the operands; a rule that is further off misreads it.
_NEAR, _LOST = 2.0**-30, 2.0**-40


@dataclass(frozen=True, slots=True)
class Fine:
    """One output, finer than float64.

    Parameters
    ----------
    value : torch.Tensor
        Rounded to float64 once; what float64 has no number for where no ball tells more.
    bound : float
        Largest proven error relative to the largest value.
    loss : Loss or None
        Where float64 loses most of its digits, in the whole program.
    lost : Lost or None
        Where float64 leaves its range on the way, or makes zero of what is none.
    open : bool
        Whether elements are left that float64 has no number for and the balls do not know, or the bound is too wide.
    bits : int
    """

    value: torch.Tensor
    bound: float
    loss: Loss | None = None
    lost: Lost | None = None
    open: bool = False
    bits: int = BITS


@dataclass(frozen=True, slots=True)
class Loss:
    """The step at which float64 loses most digits.

    Parameters
    ----------
    where : Where
    digits : float
        Decimal digits of its result that are wrong and of its operands were not.
    subtracts : bool
        Whether it adds or subtracts: then nearly equal numbers cancel.
    """

    where: Where
    digits: float
    subtracts: bool


def evaluate(
    graph: Lifted, repairs: Sequence[Repair], work: int = MOST, plain: Sequence[LiftedOutput] = ()
) -> list[Fine | None]:
    """Evaluate a lifted program in balls, with repaired constants and at most ``work`` scalar operations.

    Returns
    -------
    list of Fine or None
        Per output; None where an operator has no ball rule, or it takes too long. Nothing where that is known of all
        of its ``plain`` outputs before anything is evaluated.
    """
    try:
        import flint
    except ImportError:
        return []
    if plain and not _reached(graph, {output.name for output in plain}):
        return []
    before, found = flint.ctx.prec, list[Fine | None]()
    try:
        replace = {r.name: r.value for r in repairs}
        for bits, dear in _MORE:
            flint.ctx.prec = bits
            run = _BallRun({r.name: float(r.value) for r in repairs if r.value.numel() == 1}, most=work // dear)
            outputs = graph.run(observe=run, replace=replace)
            found = [run.fine(output.name, output.value, bits) for output in outputs]
            if not any(one is not None and one.open for one in found):
                break
    except (_TooLong, CannotLift):
        return found
    finally:
        flint.ctx.prec = before
    return found


def _reached(graph: Lifted, names: set[str]) -> bool:
    """Whether balls may come as far as one of these values."""
    lost: set[str] = set()
    known = remembered(graph, Outline)
    for step in () if known is None else known.steps:
        if _is_followed(step) and (_rule_of(step) is None or not lost.isdisjoint(step.input_names)):
            lost.update(filter(None, step.output_names))
    return not names <= lost


def _is_followed(step: Step) -> bool:
    """Whether a step gives a float of named values: constants have no error, insides are part of a whole."""
    output = step.outputs[0] if step.outputs else None
    floating = output is not None and output.is_floating_point()
    return floating and not step.constant and any(step.input_names)


def _rule_of(step: Step) -> Callable[[Given], Any] | None:
    from driftscope.lift.finer import balls

    return balls.RULES.get(plain_name(step.operator))


class _TooLong(Exception):
    """The evaluation would take too many operations."""


@dataclass(slots=True)
class _BallRun:
    """The observer."""

    numbers: Mapping[str, float]
    most: int = MOST
    values: dict[str, Balls] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    decided: set[str] = field(default_factory=set)
    work: int = 0
    errors: dict[str, float] = field(default_factory=dict)
    loss: Loss | None = None
    ends: Loosened = field(default_factory=Loosened)
    written: Written = field(default_factory=Written)

    def __call__(self, step: Step) -> None:
        from driftscope.lift.finer import balls
        from driftscope.lift.finer.given import Given, NoRule

        output = step.outputs[0] if step.outputs else None
        if output is None or not _is_followed(step):
            self._decide(step)
            self.written.write(step)
            return
        name, rule = plain_name(step.operator), _rule_of(step)
        if rule is None or any(n in self.lost for n in step.input_names):
            self._lose(step)
            return
        self._spend(balls.operations(name, step))
        try:
            inputs = [self._balls(n, v) for n, v in zip(step.input_names, step.inputs, strict=False)]
            given = Given(step, inputs, tuple(output.shape), dict(self.numbers))
            with np.errstate(invalid="ignore"):  # numpy looks at what a rule asked of a ball that may be any number
                made = rule(given)
            parts = [balls.as_balls(part) for part in (made if isinstance(made, tuple) else (made,))]
        except (NoRule, ValueError, ZeroDivisionError, IndexError, OverflowError):
            self._lose(step)
            return
        found = parts[0]
        if found.shape != tuple(output.shape) or not self._reads(step, rule, found, output):
            self._lose(step)
            return
        self.values.update(zip(step.output_names, parts, strict=False))
        self.written.write(step, found)
        self.ends.keep(step, found, output)
        if step.output_names[0] not in self.ends.seen:  # what leaves its range is no matter of digits
            self._weigh(step, name, found, output)
        before = max((self.errors.get(n, 0.0) for n in step.input_names), default=0.0)
        self.errors.update(dict.fromkeys(step.output_names[1 : len(parts)], before))  # parts are moved alone
        self.lost.update(n for n in step.output_names[len(parts) :] if n)

    def _spend(self, operations: int) -> None:
        self.work += operations
        if self.work > self.most:
            raise _TooLong

    def _decide(self, step: Step) -> None:
        """Remember a comparison whose every element the balls decide as float64 does: its truth is a number then."""
        from driftscope.lift.finer.given import NoRule

        compare, output = _COMPARISONS.get(plain_name(step.operator)), step.outputs[0] if step.outputs else None
        if compare is None or output is None or step.constant or any(n in self.lost for n in step.input_names):
            return
        self._spend(output.numel())
        try:
            sides = [self._balls(n, v) for n, v in zip(step.input_names, step.inputs, strict=False)]
        except NoRule:
            return
        number = step.attributes.get("other")
        sides += [np.asarray(float(number))] if len(sides) == 1 and isinstance(number, int | float) else []
        if len(sides) != 2 or sides[0] is None or sides[1] is None:
            return
        gap = np.asarray(sides[0] - sides[1], dtype=object).reshape(-1)
        told = output.reshape(-1).tolist()
        if all((g > 0 or g < 0 or g == 0) and bool(compare(g, 0)) is t for g, t in zip(gap, told, strict=True)):
            self.decided.add(step.output_names[0])

    def _reads(self, step: Step, rule: Callable[[Given], Any], found: Balls, output: torch.Tensor) -> bool:
        """Whether a rule gives what the step gave: of the balls, or, as float64 may have lost some, of its operands.

        A rule that leaves out an attribute (a threshold, a rounding mode) may come close to the step and is another
        function all the same.
        """
        from driftscope.lift.finer import balls
        from driftscope.lift.finer.given import Given

        beside = _beside(found, output, step.inputs)
        if all(beside):
            return True
        floats = [balls.ball_array(v) if v is not None and v.is_floating_point() else None for v in step.inputs]
        again = rule(Given(step, floats, tuple(output.shape), dict(self.numbers)))
        again = balls.as_balls(again[0] if isinstance(again, tuple) else again)
        return all(map(operator.or_, beside, _beside(again, output, step.inputs)))

    def _weigh(self, step: Step, name: str, found: Balls, value: torch.Tensor) -> None:
        """Remember the step whose float64 result is relatively further off than anything it was made of."""
        from driftscope.lift.finer.moves import MOVES

        flat, wanted = found.reshape(-1), value.reshape(-1)
        worst = 0.0
        for k in _places(len(flat)):
            exact, held = flat[k].mid(), float(wanted[k])
            worst = max(worst, float(abs((exact - held) / exact))) if exact.is_finite() and exact else worst
        self.errors[step.output_names[0]] = worst
        before = max((self.errors.get(n, 0.0) for n in step.input_names), default=0.0)
        digits = min(math.log10(worst / max(before, _UNIT)), 16.0) if worst > _UNIT else 0.0
        if self.loss is None or (digits > self.loss.digits and name not in MOVES):  # a view looks at other elements
            where = dataclasses.replace(step.where, node=step.name, operator=step.operator)
            self.loss = Loss(where, digits, name in ("add", "sub", "rsub"))

    def _lose(self, step: Step) -> None:
        """Forget the floats of a step; places that it picks stay what they are."""
        made = zip(step.output_names, step.outputs, strict=False)
        self.lost.update(n for n, value in made if n and (value is None or value.is_floating_point()))
        self.written.write(step)

    def _balls(self, name: str, value: torch.Tensor | None) -> Balls | None:
        from driftscope.lift.finer import balls

        if name in self.decided and value is not None:
            return balls.ball_array(value.to(torch.float64))
        found = self.values.get(name)
        if value is None or not value.is_floating_point():
            return found
        found = balls.ball_array(value) if found is None else found
        return self.written.read(value, found) if self.written.knows(value) else found

    def fine(self, name: str, value: torch.Tensor | None, bits: int) -> Fine | None:
        """Round an output's balls to float64."""
        from driftscope.lift.finer.given import NoRule

        if value is None or name in self.lost or not (name in self.values or self.written.knows(value)):
            return None
        try:
            found = self._balls(name, value)
        except NoRule:
            return None
        if found is None:
            return None
        flat, held = list(found.reshape(-1)), value.reshape(-1).tolist()
        known = [ball.is_finite() for ball in flat]
        # Where float64 has no number and the ball does not know one either, both programs are left with what they have.
        numbers = [float(ball.mid()) if k else number for ball, number, k in zip(flat, held, known, strict=True)]
        rounded = torch.tensor(numbers, dtype=torch.float64).reshape(value.shape)
        largest = _largest(rounded)
        told = [
            (ball.rad() if k else math.inf) for ball, n, k in zip(flat, numbers, known, strict=True) if math.isfinite(n)
        ]
        widest = max(map(float, told), default=0.0)  # infinite where a number is only float64's
        bound = widest / largest if largest else math.inf if widest else 0.0
        return Fine(rounded, bound, self.loss, self.ends.behind(name), not all(known) or bound > PROVEN, bits)


def _beside(found: Balls, value: torch.Tensor, inputs: Sequence[torch.Tensor | None]) -> list[bool]:
    """Whether balls are the float64 values beside them, up to the rounding and the range of float64.

    Where the result is small beside what it was made of, float64 may have lost all of it: `log(1 + 1e-38)`.
    """
    given = max((_largest(v) for v in inputs if v is not None and v.is_floating_point()), default=0.0)
    apart = _NEAR * _largest(value) + _LOST * given + 1e-300
    held = zip(found.reshape(-1), value.reshape(-1).tolist(), strict=True)
    return [
        abs(float(ball.mid()) - wanted) <= apart if math.isfinite(wanted) else not math.isfinite(float(ball.mid()))
        for ball, wanted in held
    ]


def _largest(value: torch.Tensor) -> float:
    """The largest finite magnitude."""
    kept = value[torch.isfinite(value)]
    return float(kept.abs().max()) if kept.numel() else 0.0


def _places(count: int) -> Sequence[int]:
    """Some places of a value, all of a small one."""
    return range(count) if count <= 16 else [k * (count - 1) // 15 for k in range(16)]
