"""Two results of one program: the same bits, rounding in measured floors, or different."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from driftscope.comparison.agreement import Agreement, agreement
from driftscope.comparison.measuring.spread import rms
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, DriftscopeError
from driftscope.invariance.rows import same_bits
from driftscope.invariance.running import Leaves, Runner
from driftscope.invariance.wrapping import Calling, called_by
from driftscope.lift.noise.floor import noisy_run
from driftscope.lift.side_lift import SideLift, add_noise, lift_side
from driftscope.lift.sources import lift_bound
from driftscope.lift.steps import Lifted, LiftedOutput, Origin
from driftscope.numerics.formats import format_of
from driftscope.programs.arrays import dtype_name
from driftscope.programs.protocol import Bound
from driftscope.records.kinds.invariance_report import OUTCOMES, InvarianceTrial
from driftscope.records.words import counted, floors

#: Floors, in units of the limit of ordinary rounding, up to which a difference that float64 does not have is still
#: rounding: kernels for one row and for many may differ in how they accumulate, by up to a factor of 4.
UNUSUAL = 4.0
#: Noisy runs in which an integer must flip to pass for a choice that rounding makes.
_DRAWS = 4
_FLOAT64_UNIT = 2.0**-53

#: What a lifted program returned.
Outputs = Sequence[LiftedOutput]
#: Inputs that a run replaces.
Changed = Mapping[int, torch.Tensor]
#: Selects from one output (by its position) what two results are compared in.
Select = Callable[[int, torch.Tensor], torch.Tensor]
#: Evaluates a program on pieces of a sequence.
Pieces = Callable[[Callable[[Lifted], Outputs]], Outputs]


@dataclass(frozen=True, slots=True)
class HowAlike:
    """How two results compare; see :class:`~driftscope.records.kinds.invariance_report.InvarianceTrial`."""

    outcome: str
    reason: str = ""
    floors: float | None = None
    max_abs: float | None = None
    path: str | None = None
    worst: tuple[str, str] | None = None

    def trial(self, axis: str, name: str) -> InvarianceTrial:
        """Return the row of a record."""
        return InvarianceTrial(axis, name, self.outcome, self.reason, self.floors, self.max_abs, self.path, self.worst)


def worst_of(answers: Sequence[HowAlike]) -> HowAlike:
    """Return the most serious answer; of equally serious ones that with the largest difference in floors."""
    order = list(OUTCOMES)
    return max(
        answers,
        key=lambda a: (order.index(a.outcome), a.floors or 0.0, a.max_abs or 0.0),
        default=HowAlike("not-applicable"),
    )


class Judge:
    """Compares results of one program; measures its noise floor when bits first differ.

    Parameters
    ----------
    runner : Runner
    seed : int
        Names the noise.
    """

    def __init__(self, runner: Runner, seed: int = 0):
        self.runner, self.seed = runner, seed
        self._side: SideLift | None = None

    @property
    def side(self) -> SideLift:
        """The program in float64 on the inputs as given, with its noise."""
        if self._side is None:
            self._side = lift_side(self.runner.bound)
            add_noise(self._side, self.seed)
            if len(self._side.clean) != len(self.runner.base.leaves):
                self._side = SideLift(reason="the program in float64 has other outputs")
        return self._side

    def bits(self, expected: Leaves, actual: Leaves) -> HowAlike:
        """Compare where no rounding is excused."""
        found = [_bits(x, y, str(path)) for (path, x), (_, y) in _pairs(expected, actual)]
        return worst_of(found) if found else HowAlike("different", "the outputs have another structure")

    def values(
        self, expected: Leaves, actual: Leaves, *, positions: Sequence[int] | None = None, select: Select | None = None
    ) -> HowAlike:
        """Compare where rounding is excused, up to the noise floor.

        Parameters
        ----------
        expected, actual : list of (Path, leaf)
        positions : sequence of int or None
            Which outputs of the program these are; None for all, in order.
        select : callable or None
            What of an output they hold: takes its position and a tensor of the shape it has on the inputs as given.
        """
        if len(expected) != len(actual):
            return HowAlike("different", f"{counted(len(expected), 'output')}, and {len(actual)}")
        places = range(len(expected)) if positions is None else positions
        answers = []
        for k, (path, x), (_, y) in zip(places, expected, actual, strict=True):
            known = _bits(x, y, str(path))
            answers.append(known if known.outcome == "same" else self._value(k, x, y, str(path), select))
        return worst_of(answers) if answers else HowAlike("not-applicable", "there are no outputs to compare")

    def _value(self, k: int, x: object, y: object, path: str, select: Select | None) -> HowAlike:
        noises = self.noises(k, select, x)
        judged = agreement(x, y, noises=noises)
        if judged.kind == "same":
            return HowAlike("same", "the same values; zeros of another sign", path=path)
        whole = isinstance(x, torch.Tensor) and not x.is_floating_point() and not x.is_complex()
        if whole and not judged.agrees and isinstance(x, torch.Tensor) and self._tie(k, x, y, select):
            return HowAlike("rounding", "a choice between values that are equal up to rounding", path=path)
        return _answer(judged, x, y, path, measured=bool(noises))

    def noises(self, k: int, select: Select | None, like: object) -> list[torch.Tensor]:
        """Return the noise samples of both results at one output; none where no floor was measured."""
        samples = [run[k] for run in self.side.noises if k < len(run)]
        found = []
        for sample in samples:
            if sample is None or not isinstance(like, torch.Tensor):
                return []
            chosen = sample if select is None else select(k, sample)
            if chosen.shape != like.shape:
                return []
            found.append(chosen * len(samples) ** -0.5)
        # Both results are rounded alike, so the samples count once for each.
        return found * 2

    def _tie(self, k: int, x: torch.Tensor, y: object, select: Select | None) -> bool:
        """Whether the noise of rounding turns each integer that differs."""
        if self.side.graph is None or not isinstance(y, torch.Tensor) or x.shape != y.shape or x.dtype != y.dtype:
            return False
        differs, turned = x != y, torch.zeros_like(x, dtype=torch.bool)
        for draw in range(_DRAWS):
            noisy = noisy_run(self.side.graph, seed=self.seed + draw, scale=THRESHOLDS.tie)[k].value
            clean = self.side.clean[k].value
            if noisy is None or clean is None:
                return False
            moved = noisy != clean
            turned |= moved if select is None else select(k, moved)
        return bool((turned | ~differs).all())

    # --- in float64 ---------------------------------------------------------------------------------------------------

    def lifted(
        self, changed: tuple[Changed, Changed], positions: Sequence[int], mine: Select, theirs: Select,
        calling: Calling | None = None, pieces: Pieces | None = None,
    ) -> float | None:  # fmt: skip
        """Return how far the program's own formula, in float64, gives something else on changed inputs.

        Parameters
        ----------
        changed : pair of mappings of int to Tensor
            As for :meth:`Runner.run`: of the first run, nothing for the inputs as given, and of the other one.
        positions : sequence of int
            The outputs to compare.
        mine, theirs : callable
            What of an output of the first run, and of one of the other, is compared.
        calling : callable or None
            Calls the program in a way of its own, in the other run.
        pieces : callable or None
            Evaluates it on one piece after the other instead, given how each is evaluated.

        Returns
        -------
        float or None
            The largest relative difference, in units of what float64's own rounding explains; None where the program
            cannot be evaluated in float64, or amplifies rounding beyond telling.
        """
        if self.side.graph is None:
            return None
        try:
            if pieces is None:
                graph = lift_bound(self._bound(changed[1], calling))
            outputs = pieces if pieces is not None else lambda evaluate: evaluate(graph)
            first = lift_bound(self._bound(changed[0], None)) if changed[0] else self.side.graph
            clean = first.run() if changed[0] else self.side.clean
            share = self._worst(clean, outputs(lambda g: g.run()), positions, mine, theirs)
            if share is not None and share > 1.0:
                # Tables that are computed from sizes (of sines, of positions) keep the rounding they were made with,
                # and another size makes other ones: only where they are real numbers too does the function differ.
                share = self._worst(_really(first), outputs(_really), positions, mine, theirs)
            return share
        except (CannotLift, DriftscopeError, RuntimeError, ValueError, TypeError, LookupError, AttributeError):
            return None

    def _worst(
        self, one: Outputs, other: Outputs, positions: Sequence[int], mine: Select, theirs: Select
    ) -> float | None:
        shares = [self._share(k, one, other, mine, theirs) for k in positions]
        return None if any(s is None for s in shares) else max((s for s in shares if s is not None), default=0.0)

    def _bound(self, changed: Changed, calling: Calling | None) -> Bound:
        if calling is None:
            return self.runner.binding(changed)
        program = called_by(self.runner.program, calling)
        if program is None:
            raise CannotLift("it is not a function of torch")
        return program.bind(self.runner.inputs)

    def _share(self, k: int, ours: Outputs, outputs: Outputs, mine: Select, theirs: Select) -> float | None:
        one, other = ours[k].value, outputs[k].value if k < len(outputs) else None
        if one is None or other is None or not one.is_floating_point():
            return 0.0
        one, other = mine(k, one), theirs(k, other)
        if one.shape != other.shape:
            return math.inf
        gap = torch.where(torch.isfinite(other - one), other - one, 0.0)
        size = rms(torch.where(torch.isfinite(one), one, 0.0)) or 1.0
        limit = max(THRESHOLDS.lifted, THRESHOLDS.lifted_floor64 * self._floor64(k) / size)
        return None if limit > THRESHOLDS.chaotic else float(rms(gap) / size / limit)

    def _floor64(self, k: int) -> float:
        """The floor of an output in float64: its native floor, scaled by the unit roundoffs."""
        stored = self.side.clean[k].format
        native = None if stored is None else format_of(str(dtype_name(stored)))
        samples = [run[k] for run in self.side.noises]
        if native is None or not samples or samples[0] is None:
            return 0.0
        return rms(samples[0]) * _FLOAT64_UNIT / native.unit_roundoff


def _really(graph: Lifted) -> Outputs:
    """Evaluate a program with the tables it computes from no input in float64 as well."""
    meant = graph.constant_values()
    tables = [c for c in graph.constants() if c.origin is Origin.COMPUTED and c.frontier and c.name in meant]
    return graph.run(replace={c.name: meant[c.name].reshape(c.value.shape) for c in tables})


def with_lifted(answer: HowAlike, share: float | None) -> HowAlike:
    """Let float64 decide: a difference that it has too is no rounding, one that it has not is hardly anything else."""
    if share is None or answer.outcome not in ("rounding", "different"):
        return answer
    if share > 1.0:
        what = "in float64 the two still differ, so this is not rounding"
        return replace(answer, outcome="different", reason=f"{answer.reason}; {what}" if answer.reason else what)
    if answer.outcome == "different" and answer.floors is not None:
        if answer.floors <= UNUSUAL * THRESHOLDS.large:
            what = f"{noise_floors(answer.floors)}, unusually large; in float64 there is no difference"
            return replace(answer, outcome="rounding", reason=what)
        what = "in float64 there is no difference: one of the two is computed or kept in a coarser format"
        return replace(answer, reason=f"{answer.reason}; {what}")
    return answer


def _pairs(expected: Leaves, actual: Leaves) -> list[tuple[tuple[object, object], tuple[object, object]]]:
    return list(zip(expected, actual, strict=True)) if len(expected) == len(actual) else []


def _bits(x: object, y: object, path: str) -> HowAlike:
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        # An object that only equals itself (a layer of a cache, say) tells nothing.
        same = type(x) is type(y) and (type(x).__eq__ is object.__eq__ or bool(x == y))
        return HowAlike("same" if same else "different", "" if same else f"{x!r:.40} and {y!r:.40}", path=path)
    if same_bits(x, y):
        return HowAlike("same", path=path)
    if x.shape != y.shape or x.dtype != y.dtype:
        return HowAlike("different", f"{path} is {_kind(x)}, and {_kind(y)}", path=path)
    return _differs(x, y, path)


def _differs(x: torch.Tensor, y: torch.Tensor, path: str) -> HowAlike:
    if x.is_quantized or x.is_complex() or x.layout is not torch.strided:
        return HowAlike("different", f"{path} differs", path=path)
    a, b = x.detach().double(), y.detach().double()
    gap = (b - a).abs()
    wrong = (a != b) & ~(a.isnan() & b.isnan())
    # NaN against a number is the worst there is.
    flat = torch.where(gap.isnan() & wrong, math.inf, gap.nan_to_num(0.0, math.inf))
    at = int(flat.reshape(-1).argmax())
    pair = (f"{x.reshape(-1)[at].item():.9g}", f"{y.reshape(-1)[at].item():.9g}")
    count = int(wrong.sum())
    if not count:
        return HowAlike("same", "the same values; zeros of another sign", path=path)
    words = f"{count} of {counted(x.numel(), 'element')} of {path} differ, the worst {pair[0]} and {pair[1]}"
    return HowAlike("different", words, None, float(flat.max()), path, pair)


def _answer(judged: Agreement, x: object, y: object, path: str, *, measured: bool) -> HowAlike:
    floors = judged.rho.value if judged.rho is not None else None
    known = _bits(x, y, path)
    if judged.agrees:
        words = noise_floors(floors) if floors is not None else "within what rounding may do; no floor measured"
        return HowAlike("rounding", words, floors, judged.max_abs, path, known.worst)
    words = known.reason
    if floors is not None and math.isfinite(floors):
        words = f"{words}: {noise_floors(floors, 3)}, {THRESHOLDS.large:g} are rounding"
    elif measured is False and judged.kind == "value":
        words = f"{words}: {judged.excess:.2g} times what rounding may do"
    return HowAlike("different", words, floors, judged.max_abs, path, known.worst)


def noise_floors(value: float, digits: int = 2) -> str:
    """Write a change in noise floors: ``"1 noise floor"``."""
    return floors(value, digits).replace("floor", "noise floor")


def _kind(x: torch.Tensor) -> str:
    return f"{'x'.join(map(str, x.shape)) or 'a scalar'} {dtype_name(x.dtype)}"
