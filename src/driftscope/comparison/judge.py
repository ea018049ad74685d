"""The judge: a verdict for one output, from evidence alone. DESIGN section 2, in its order.

Nothing here measures or runs anything. Each rule returns a :class:`Judgement` or None, and the first that answers
decides; a rule's sentence carries the numbers it decided by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from driftscope.comparison.leaves import LeafComparison
from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS, Thresholds
from driftscope.records.verdict import Verdict
from driftscope.records.words import floors


@dataclass(slots=True)
class OutputEvidence:
    """Everything known about one output when it is judged.

    Parameters
    ----------
    kind : str
        The most serious native difference: ``same``, ``value``, ``nan``, ``dtype``, ``shape``, ``structure``,
        ``kind``, ``opaque``; ``width`` where integers of another width are the same numbers.
    detail : str
        That difference in words.
    floating : bool
        Whether both sides are floats (or complex); everything else is compared exactly.
    same_bits : bool
        Whether both sides have the same format and the same bits.
    all_nan : bool
        Whether every element is NaN on both sides.
    overflow : str
        In words where a side left the range of its format while its lift did not; empty when none did.
    tie : bool
        For outputs chosen from floats: every mismatch is a choice that ordinary rounding can turn.
    delta : Ratio or None
        Lifted drift with its limit; None when a side could not be lifted.
    rho : Ratio or None
        Native drift in floors; None without a floor.
    ill : float
        floor / rms(y).
    cannot_a, cannot_b : str
        Why a side could not be lifted; empty when it was.
    cheaper : str
        What explains the drift, reproduced by a replay; empty when nothing does or nothing was needed.
    replay : mapping
        That replay: correlation with the native drift, and what it leaves in floors.
    kernels : str
        The kernel that, run alone, is off by what makes the drift; empty when none does.
    within : bool
        Whether every kernel of both sides, run alone, is within its own rounding, or is one of ``beside``.
    faithful : bool
        Whether both sides are within their own rounding of what their graphs give in float64.
    beside : str
        Kernels that are further off by an approximation or a cancellation of their own, which is not all of the drift.
    quantised : str
        In words where one side is the other with its weights quantised, and nothing else; empty otherwise.
    quantised_code : str
        The finding that it amounts to: W013, or W007 where numbers were rounded in place.
    turned : str
        In words where both sides are one function once they make their choices in float64; empty otherwise.
    turned_narrow : bool
        Whether one of them rounds to a narrower format than the other.
    consistent : str
        A declared narrower format in which B rounds, which fits in size but whose replay does not predict the drift.
    chained : str
        Sums in an order that is not known, which round by as much in the longest chain; empty otherwise.
    random : str
        Why A does not repeat itself beyond rounding; empty when it does.
    formats : tuple of two str
        Format in which each side computes: its output's, or a narrower one that it passes through.
    """

    kind: str
    detail: str = ""
    floating: bool = True
    same_bits: bool = False
    all_nan: bool = False
    overflow: str = ""
    tie: bool = False
    delta: Ratio | None = None
    rho: Ratio | None = None
    ill: float = 0.0
    cannot_a: str = ""
    cannot_b: str = ""
    cheaper: str = ""
    replay: dict[str, Any] = field(default_factory=dict)
    kernels: str = ""
    within: bool = False
    faithful: bool = False
    beside: str = ""
    quantised: str = ""
    quantised_code: str = "W013"
    turned: str = ""
    turned_narrow: bool = False
    consistent: str = ""
    chained: str = ""
    random: str = ""
    formats: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, leaf: LeafComparison, /, **known: Any) -> Self:
        """What a native comparison says of an output, and what else is known."""
        formats = (leaf.a_dtype or "", leaf.b_dtype or "")
        seen = {"kind": leaf.kind, "detail": leaf.detail, "floating": leaf.floating, "formats": formats}
        if leaf.kind == "dtype" and leaf.drift is not None and all(_INTEGER.fullmatch(name) for name in formats):
            # An index is the same number in int32 and in int64: its width is told, and is no value.
            seen["kind"] = "width" if leaf.drift.same_values else "value"
        return cls(**{**seen, "same_bits": leaf.same_bits, "all_nan": leaf.all_nan, **known})


_INTEGER = re.compile(r"u?int\d+")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, its reason in one sentence, and the code of the finding it amounts to ("" for none)."""

    verdict: Verdict
    reason: str
    code: str = ""


Rule = Callable[[OutputEvidence, Thresholds], Judgement | None]


def judge(evidence: OutputEvidence, thresholds: Thresholds = THRESHOLDS) -> Judgement:
    """Name the verdict for one output.

    Returns
    -------
    Judgement
        From the first rule that applies, in the order of DESIGN section 2.
    """
    for rule in _RULES:
        found = rule(evidence, thresholds)
        if found is not None:
            return found
    if evidence.rho is None and not (evidence.cannot_a or evidence.cannot_b):
        why = f"it is a number of Python's, which no operator of a graph gives: {evidence.detail}"
        return Judgement(Verdict.INCONCLUSIVE, why, "R005")
    return Judgement(Verdict.INCONCLUSIVE, "nothing measured decides it", "R005")


def _structure(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    codes = {"structure": "N007", "kind": "N007", "shape": "N008"}
    if e.kind in codes:
        return Judgement(Verdict.DIFFERENT, e.detail, codes[e.kind])
    return None


def _randomness(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.random:
        return Judgement(Verdict.INCONCLUSIVE, e.random, "N014")
    return None


def _no_evidence(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.kind == "opaque":
        return Judgement(Verdict.INCONCLUSIVE, e.detail)
    if e.all_nan:
        return Judgement(Verdict.INCONCLUSIVE, "every element is NaN on both sides: nothing was compared", "N005")
    return None


def _exact_kinds(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.floating:
        return None
    if e.same_bits:
        return Judgement(Verdict.IDENTICAL, "the same values exactly")
    if e.kind == "width":
        return Judgement(Verdict.IDENTICAL, f"the same values exactly, {e.detail}", "N009")
    if e.kind == "dtype":
        return Judgement(Verdict.DIFFERENT, e.detail, "N009")
    if e.tie:
        return Judgement(Verdict.ROUNDING, f"{e.detail}; each a tie within {t.tie:g} floors", "N011")
    if e.quantised:
        return Judgement(Verdict.PRECISION, e.quantised, e.quantised_code)
    return Judgement(Verdict.DIFFERENT, e.detail, "N010")


def _special_values(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.kind != "nan":
        return None
    if e.delta is not None and e.delta.value > e.delta.limit and not e.turned:
        there = ", and the two are not the same function" if math.isfinite(e.delta.value) else ", in float64 too"
        there = f": {e.overflow}{there}" if e.overflow and math.isfinite(e.delta.value) else there
        return Judgement(Verdict.DIFFERENT, f"{e.detail}{there}", "N006")
    if e.overflow:
        return Judgement(Verdict.PRECISION, f"{e.detail}: {e.overflow}", "N004")
    return Judgement(Verdict.DIFFERENT, e.detail, "N006")


def _same_bits(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if not e.same_bits:
        return None
    apart = e.delta is not None and e.delta.value > e.delta.limit and e.delta.limit <= t.chaotic
    if e.delta is not None and apart and not e.turned:
        seen = (
            f"the same bits on these inputs, but not the same function: {in_float64(e.delta)} relative, which these "
            "inputs or this format hide"
        )
        return Judgement(Verdict.IDENTICAL, seen, "N016")
    return Judgement(Verdict.IDENTICAL, "the same bits")


def _reference_not_lifted(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.cannot_a and e.delta is None:
        return Judgement(Verdict.INCONCLUSIVE, f"the reference cannot be evaluated in float64: {e.cannot_a}", "R004")
    return None


def _quantisation(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if not e.quantised or e.delta is None or e.delta.value <= e.delta.limit:
        return None
    return Judgement(Verdict.PRECISION, e.quantised, e.quantised_code)


def _turned(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if not e.turned or e.delta is None or e.delta.value <= e.delta.limit:
        return None
    return Judgement(Verdict.PRECISION if e.turned_narrow else Verdict.ROUNDING, e.turned, "N011")


def _function(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.delta is None:
        return None
    drift, limit = e.delta.value, e.delta.limit
    # Beyond the limit, a hundred times the noise that was measured, even a program that amplifies rounding is another.
    # Two that give the same bits in float64 although they amplify its rounding do the same operations.
    if limit > t.chaotic and not drift > limit and drift:
        return Judgement(
            Verdict.INCONCLUSIVE,
            f"the program amplifies float64 rounding itself (limit {limit:.1e}): no function can be certified",
            "N012",
        )
    if drift > limit or math.isnan(drift):
        place = "" if e.delta.place == "tensor" else f" at {e.delta.place}"
        visible = ""
        if e.rho is not None and e.rho.value <= t.rounding:
            visible = "; on these inputs rounding hides it"
        text = f"not the same function: in float64 they still differ by {drift:.1e} relative{place} (limit {limit:.0e})"
        return Judgement(Verdict.DIFFERENT, text + visible, "N001")
    return None


def _floor(e: OutputEvidence, t: Thresholds) -> Judgement | None:
    if e.rho is None:
        return None
    lifted = e.delta is not None
    rho = e.rho.value
    ground = "by floor only" if e.delta is None else f"same function ({in_float64(e.delta)})"
    unlifted = e.cannot_b or e.cannot_a
    if e.delta is not None and unlifted:
        whose = "its" if e.cannot_b else "A's"
        ground = f"{whose} own code, run in float64, gives the same (drift {e.delta.overall:.1e})"
    if rho <= t.rounding:
        return Judgement(Verdict.ROUNDING, f"{ground}, {_floors(e.rho)}: ordinary rounding", "" if lifted else "R005")
    if rho <= t.large:
        return Judgement(Verdict.ROUNDING, f"{ground}, {_floors(e.rho)}: rounding, unusually large", "N013")
    if lifted and e.ill > t.ill_conditioned and not (e.cheaper and _reproduced(e, t)):
        text = f"{ground}; ill-conditioned, rounding alone moves the output by {e.ill:.0%}"
        return Judgement(Verdict.ROUNDING, text, "N012")
    if e.overflow:
        return Judgement(Verdict.PRECISION, f"{ground}, {_floors(e.rho)}: {e.overflow}", "N004")
    found = _caused(e, ground, t)
    if found is not None:
        return found
    if lifted and unlifted:
        return Judgement(Verdict.ROUNDING, f"{ground}, {_grown(e.rho)}: rounding that grows", "N013")
    why = "nothing that was run again reproduces it" if lifted else "B could not be lifted"
    return Judgement(Verdict.DIFFERENT, f"{ground}, but {_floors(e.rho)}: more than rounding, and {why}", "R003")


def _reproduced(e: OutputEvidence, t: Thresholds) -> bool:
    """Whether a replay predicts the native drift: without that nothing is "explained by" anything."""
    correlation, rest = float(e.replay.get("correlation", 0.0)), float(e.replay.get("rest", math.inf))
    return correlation >= t.replay and rest <= t.rounding


def _caused(e: OutputEvidence, ground: str, t: Thresholds) -> Judgement | None:
    """Judge by what was reproduced or run alone, for a drift above the floor."""
    if e.rho is None:
        return None
    measured, grown = f"{ground}, {_floors(e.rho)}", f"{ground}, {_grown(e.rho)}"
    if e.cheaper and not _reproduced(e, t):
        return Judgement(Verdict.PRECISION, f"{measured}: consistent with {e.cheaper}", "N003")
    if e.cheaper:
        if e.replay.get("kind") == "order":
            return Judgement(Verdict.ROUNDING, f"{grown}: rounding, explained by {e.cheaper}", "N013")
        return Judgement(Verdict.PRECISION, f"{measured}: explained by {e.cheaper}", "N003")
    if e.consistent:
        return Judgement(Verdict.PRECISION, f"{measured}: consistent with {e.consistent}", "N003")
    if e.kernels:
        return Judgement(Verdict.DIFFERENT, f"{measured}: {e.kernels}, run alone, is off by that much", "R003")
    if e.chained:
        return Judgement(Verdict.ROUNDING, f"{grown}: rounding, consistent with {e.chained}", "N013")
    if e.faithful:
        text = f"{grown}: rounding that grows; each side is within its own rounding of its float64 run"
        return Judgement(Verdict.ROUNDING, text, "N013")
    if e.within:
        text = f"{grown}: rounding that grows; every kernel, run alone, is within its own"
        text += f" but {e.beside}, which does not account for all of it" if e.beside else ""
        return Judgement(Verdict.ROUNDING, text, "N013")
    return None


def in_float64(drift: Ratio) -> str:
    """Say by how much two programs differ in float64."""
    return f"in float64 they differ by {drift.overall:.1e}" if drift.value else "in float64 they are equal"


def told_floors(rho: Ratio, t: Thresholds = THRESHOLDS) -> float:
    """Return the number that is printed: the plain ratio over the tensor, unless it would contradict the verdict.

    Of few numbers the plain ratio varies by chance; what is judged is the ratio without that.
    """
    chance = any(rho.value <= limit < rho.whole for limit in (t.rounding, t.large))
    return rho.value if rho.place != "tensor" or math.isnan(rho.whole) or chance else rho.whole


def _grown(rho: Ratio) -> str:
    """Say the size of a difference that is rounding all the same: a step turned over that no noise turned."""
    return "a difference that no run with noise made" if math.isinf(rho.value) else _floors(rho)


def _floors(rho: Ratio) -> str:
    if math.isinf(rho.value):
        return "a difference that rounding cannot make"
    told = told_floors(rho)
    place = "" if rho.place == "tensor" else f" ({rho.place})"
    chance = ", without what chance does to so few numbers" if not place and told < rho.whole else ""
    return f"{floors(told)}{place}{chance}"


_RULES: tuple[Rule, ...] = (
    _structure, _no_evidence, _randomness, _same_bits, _exact_kinds, _special_values, _reference_not_lifted,
    _quantisation,
    _turned,
    _function, _floor,
)  # fmt: skip
