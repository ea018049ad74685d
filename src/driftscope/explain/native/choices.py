"""Choices inside a program that rounding turns: a top-k, a comparison or a cast to integers that falls otherwise.

The proof is a replay: with all choices of both sides made in float64, before anything is rounded, the two are the same
function. Then all that differs is which of two close values was taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.judge import in_float64
from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift
from driftscope.explain.locate.narrowing import first_narrowing
from driftscope.lift.choices import exact_choices
from driftscope.lift.evidence import Evidence, pairing_of
from driftscope.lift.kept import look
from driftscope.lift.outline import has_step
from driftscope.lift.reconcile.certify import reconcile
from driftscope.lift.reconcile.drifts import Reconciled
from driftscope.lift.reconcile.matching import Repair
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.reconcile.uses import divisors_read_in
from driftscope.lift.side_lift import SideLift
from driftscope.lift.steps import Lifted, Step, plain_name


@dataclass(frozen=True, slots=True)
class Turned:
    """One pair of outputs that is one function once both sides choose in float64.

    Parameters
    ----------
    words : str
        What is said of it.
    narrow : bool
        Whether one side rounds to a narrower format than the other.
    chosen : pair of sequences of Tensor or None
        Of each side: what it gives with other choices than those of its lift.
    """

    words: str
    narrow: bool
    chosen: tuple[Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]]


def turned_choices(evidence: Evidence) -> dict[int, Turned]:
    """Find the outputs that are one function once both sides choose in float64, by their pairs.

    The place of the choice is added to the evidence.
    """
    a, b = evidence.a.graph, evidence.b.graph
    if a is None or b is None:
        return {}
    try:
        known = evidence.reconciled
        meant = (known.repairs_b, known.repairs_a) if known is not None else ((), ())
        first = {side: _first_turned(graph, m) for side, graph, m in zip("BA", (b, a), meant, strict=True)}
        turned = {side: step for side, step in first.items() if step is not None}
        if not turned:
            return {}
        chosen_so, exactly = _chosen_exactly(a, b, evidence.pairs)
        same = {p: drift for p, drift in enumerate(exactly.drifts) if _is_same(drift)}
        if len(same) < len(exactly.drifts):
            evidence.undone = evidence.undone or chosen_so
        elsewhere = _rounds_elsewhere(b, evidence) if same else {}
        same = {p: drift for p, drift in same.items() if elsewhere.get(evidence.pairs[p][1], True)}
        if not same:
            return {}
        narrowing = {side: n for side, pair in (("B", (a, b)), ("A", (b, a))) if (n := first_narrowing(*pair))}
    except (CannotLift, RuntimeError):
        return {}
    side = next(iter([s for s in turned if s in narrowing] or turned))
    evidence.places["N011"] = turned[side].where
    words = f"rounding turns a choice at {turned[side].name} ({turned[side].operator}) in {side}"
    words += f", which rounds to {narrowing[side].format}" if side in narrowing else ""
    words += "; the graph that its runtime optimised rounds elsewhere" if elsewhere and side == "B" else ""
    found, ran = {}, evidence.graph_that_ran()
    made = [] if ran is None else ran.run()
    for p, drift in same.items():
        i, j = evidence.pairs[p]
        optimised = made[j].value if made else None
        chosen = [exactly.plain_a[i].value, *_as_read(a, i)], [exactly.plain_b[j].value, optimised, *_as_read(b, j)]
        said = f"same function with every choice made in float64 ({in_float64(drift)}): {words}"
        found[p] = Turned(said, bool(narrowing), chosen)
    return found


def _as_read(graph: Lifted, output: int) -> list[torch.Tensor | None]:
    """What a program gives with the divisors of its remainders rounded as it natively reads them."""
    side = ReconciledSide(graph, graph.run())
    read = divisors_read_in((torch.float32, *side.narrow), side, ())
    return [graph.run(replace={r.name: r.value for r in read})[output].value] if read else []


def _rounds_elsewhere(b: Lifted, evidence: Evidence) -> dict[int, bool]:
    """By output of B: whether the graph its runtime optimised is its file once both choose in float64.

    Empty where the two are one function as they stand.
    """
    optimized, known = evidence.optimized_graph, evidence.optimized
    if optimized is None or known is None or known.same_function:
        return {}
    places = range(len(known.drifts))
    return {
        k: _is_same(drift) for k, drift in enumerate(_chosen_exactly(b, optimized, [(k, k) for k in places])[1].drifts)
    }


def _is_same(drift: Ratio) -> bool:
    """Whether two programs are one function: where rounding turns choices in float64 too, by its very bits."""
    return drift.value == 0.0 or drift.value <= drift.limit <= THRESHOLDS.chaotic


def _chosen_exactly(a: Lifted, b: Lifted, pairs: Sequence[tuple[int, int]]) -> tuple[Evidence, Reconciled]:
    """Two programs, reconciled, with their choices made in float64."""
    with exact_choices():
        one, other = SideLift(a, clean=a.run()), SideLift(b, clean=b.run())
        known = reconcile(a, b, (one.clean, other.clean), pairing_of(one, other, pairs), THRESHOLDS)
    said = "with every choice made in float64"
    return Evidence(one, other, list(pairs), known, without=said, exact=True), known


def _first_turned(graph: Lifted, meant: Sequence[Repair]) -> Step | None:
    """The first step whose integers or comparisons fall otherwise in float64, with the constants that are meant."""
    if not has_step(graph, _may_choose):
        return None
    chosen = _NotedChoices()
    look(graph, chosen)
    if not chosen.from_floats:
        return None
    watch = _Turned(chosen.by_step)
    with exact_choices():
        graph.run(observe=watch, replace={r.name: r.value for r in meant})
    return watch.first


@dataclass(slots=True)
class _NotedChoices:
    """Notes what the steps of a run choose."""

    by_step: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    from_floats: bool = False

    def __call__(self, step: Step) -> None:
        made = _whole(step)
        if made:
            self.by_step[step.name] = [v.clone() for v in made]
            self.from_floats |= _from_floats(step)


@dataclass(slots=True)
class _Turned:
    """Finds the first step that chooses otherwise than in an earlier run."""

    earlier: Mapping[str, list[torch.Tensor]]
    first: Step | None = None

    def __call__(self, step: Step) -> None:
        if self.first is None:
            pairs = zip(_whole(step), self.earlier.get(step.name, ()), strict=False)
            if any(not torch.equal(one, other) for one, other in pairs):
                self.first = step


def chooses(step: Step) -> bool:
    """Whether a step chooses by floats that another arithmetic may move to the other side: by more than their bits."""
    return plain_name(step.operator) not in _BITS and bool(_whole(step)) and _from_floats(step)


def _may_choose(step: Step) -> bool:
    """Whether a step may choose by floats, as far as its operator and the dtypes of its values tell."""
    made = [v for v in step.outputs if v is not None]
    whole = any(not v.is_floating_point() for v in made) and _from_floats(step)
    return whole or plain_name(step.operator) in _CUTTING | _REMAINDERS or _rounds(step)


def _rounds(step: Step) -> bool:
    return plain_name(step.operator) in _ROUNDING or step.attributes.get("rounding_mode") is not None


def _from_floats(step: Step) -> bool:
    """Of integers alone nothing else is chosen: there is a choice before, or a step inside this one."""
    return not step.inputs or any(v is None or v.is_floating_point() for v in step.inputs)


def _whole(step: Step) -> list[torch.Tensor]:
    """The outputs of a step that hold choices: integers, comparisons, and floats that were rounded to whole numbers."""
    made = [v for v in step.outputs if v is not None]
    name = plain_name(step.operator)
    if name in _CUTTING and made and step.inputs[0] is not None:
        return [made[0] == step.inputs[0]]
    if name in _REMAINDERS and made and made[0].is_floating_point():
        return [_quotient(step, made[0])]
    rounds = _rounds(step)
    return [v for v in made if rounds or not v.is_floating_point()]


def _quotient(step: Step, left: torch.Tensor) -> torch.Tensor:
    """The whole number of divisors that a remainder leaves out."""
    dividend, *others = step.inputs
    divisor = others[0] if others and others[0] is not None else step.attributes.get("other", 1.0)
    if dividend is None or not isinstance(divisor, torch.Tensor | float | int):
        return left
    return torch.round((dividend - left) / divisor)


_BITS = frozenset({"view", "view_dtype", "bitcast"})
_REMAINDERS = frozenset({"fmod", "remainder", "mod", "frac"})
_CUTTING = frozenset({"hardshrink", "threshold", "shrink", "thresholdedrelu"})  # a value, or another from there on
_ROUNDING = frozenset({"round", "floor", "ceil", "trunc", "sign", "fix", "floor_divide"})
