"""What float64 says about two programs: their lifts, their floors, their constants reconciled.

This is the measuring half of a comparison; :mod:`driftscope.comparison.judge` decides on what is gathered here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.comparison.measuring.spread import Ratio
from driftscope.comparison.thresholds import THRESHOLDS, Thresholds
from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.lift.finer.ends import Lost
from driftscope.lift.noise.floor import (
    Allows,
    Watch,
)
from driftscope.lift.onnx.graph import LiftedOnnx
from driftscope.lift.optimised import certified_by_node, changes_of, optimisers_show
from driftscope.lift.outline import Outline, remember_outline
from driftscope.lift.reconcile.affine import watched_for_pieces
from driftscope.lift.reconcile.certify import reconcile
from driftscope.lift.reconcile.drifts import OutputPairing, Reconciled, is_disputed, measure, within
from driftscope.lift.reconcile.exact import repairs_before_a_run
from driftscope.lift.reconcile.matching import moves
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.side_lift import SideLift, add_noise, attempt, floor64_of, lift_side
from driftscope.lift.sources import lift_source
from driftscope.lift.steps import Lifted, LiftedOutput, Step
from driftscope.lift.widened import widened_drift, widened_outputs
from driftscope.programs.protocol import Bound, OnnxSource
from driftscope.records.finding import Where

Progress = Callable[[str], None]


@dataclass(slots=True)
class Evidence:
    """Everything the float64 runs said about a pair of programs; see :func:`gather`.

    Parameters
    ----------
    a, b : SideLift
    pairs : list of (int, int)
        Which output of A belongs to which of B.
    reconciled : Reconciled or None
        None unless both sides were lifted.
    optimized : Reconciled or None
        B's file against the graph its runtime really ran; None when there is none or it is the same.
    optimized_graph : Lifted or None
        That graph, where it was held against the file as a whole.
    optimized_source : OnnxSource or None
        What it is lifted from.
    optimized_reason : str
        Why the optimised graph could not be lifted; empty otherwise.
    places : dict of str to Where
        Places that the explaining steps found, by the code of the finding they belong to.
    replays : dict of str to dict
        What was run again to explain an output, by its path: correlation with the native drift, what is left.
    floor64 : list of Tensor or None
        Per output of the lifted side: its float64 noise, where the other has no graph and was run on float64 inputs.
    undone : Evidence or None
        The same pair, where a side is quantised and differs by more than that, with its quantisation undone; where
        rounding turns choices and it differs by more than that, with all of them made in float64.
    without : str
        Of such a pair, what was taken from it: ``"without the quantisation of B"``.
    exact : bool
        Whether it is one whose choices are made in float64.
    """

    a: SideLift
    b: SideLift
    pairs: list[tuple[int, int]]
    reconciled: Reconciled | None = None
    optimized: Reconciled | None = None
    optimized_graph: Lifted | None = None
    optimized_source: OnnxSource | None = None
    optimized_reason: str = ""
    places: dict[str, Where] = field(default_factory=dict)
    replays: dict[str, dict[str, Any]] = field(default_factory=dict)
    floor64: list[torch.Tensor | None] = field(default_factory=list)
    undone: Evidence | None = None
    without: str = ""
    exact: bool = False

    def graph_that_ran(self) -> Lifted | None:
        """The graph that B's runtime made of its file, where it was held against the file."""
        if self.optimized is None:
            return None
        if self.optimized_graph is None and self.optimized_source is not None:
            self.optimized_graph = lift_source(self.optimized_source)
        return self.optimized_graph

    def with_side(self, side: str, graph: Lifted, without: str = "") -> Evidence:
        """The same pair with another graph on one side, its constants reconciled anew; no noise is known of it."""
        lifted = SideLift(graph, clean=graph.run())
        a, b = (lifted, self.b) if side == "A" else (self.a, lifted)
        found = Evidence(a, b, self.pairs, without=without)
        if a.graph is not None and b.graph is not None:
            pairing = OutputPairing(self.pairs, [None] * len(self.pairs))
            found.reconciled = reconcile(a.graph, b.graph, (a.clean, b.clean), pairing)
        return found

    @classmethod
    def none(cls) -> Evidence:
        """No evidence: a program did not run."""
        return cls(SideLift(reason="it did not run"), SideLift(reason="it did not run"), [])

    def to_dict(self) -> dict[str, Any]:
        """What was measured, as plain data for a record."""
        found: dict[str, Any] = {
            name: {"lifted": side.graph is not None, "kind": side.graph.kind if side.graph else "", "why": side.reason}
            for name, side in (("a", self.a), ("b", self.b))
        }
        for name, pair in (("reconciled", self.reconciled), ("optimized", self.optimized)):
            if pair is not None:
                found[name] = {
                    "same_function": pair.same_function,
                    "before": [r.value for r in pair.before],
                    "after": [r.value for r in pair.drifts],
                    "limits": [r.limit for r in pair.drifts],
                    "finer": {str(k): dict(v) for k, v in pair.finer.items()},
                    "repairs_a": [f"{r.name} = {r.partner}" for r in pair.repairs_a],
                    "repairs_b": [f"{r.name} = {r.partner}" for r in pair.repairs_b],
                }
        if self.replays:
            found["replays"] = self.replays
        if self.optimized_reason:
            found["optimized"] = {"why": self.optimized_reason}
        return found

    def delta(self, pair: int) -> Ratio | None:
        """Lifted drift of one pair, through B's file and through the graph its runtime ran: the worse."""
        if self.reconciled is None:
            return self._widened_delta(pair)
        worst = self.reconciled.drifts[pair]
        if self.optimized is not None:
            j = self.pairs[pair][1]
            through = self.optimized.drifts[j]
            if through.value / through.limit > worst.value / worst.limit:
                return through
        return worst

    def lost(self, pair: int) -> tuple[Lost | None, Lost | None]:
        """Of A and B, the step where float64 itself leaves its range on the way to this output, where balls show it."""
        return (None, None) if self.reconciled is None else self.reconciled.lost.get(pair, (None, None))

    def _widened_delta(self, pair: int) -> Ratio | None:
        """The lifted side against the other's own code in float64, whichever of the two has no graph."""
        i, j = self.pairs[pair]
        expected, widened, k, own = self.lifted_a(pair), self.b.widened, j, i
        if expected is None:
            expected, widened, k, own = self.lifted_b(pair), self.a.widened, i, j
        if k >= len(widened) or (got := widened[k]) is None or expected is None:
            return None
        floor64 = self.floor64[own] if self.floor64 else None
        return widened_drift(expected, got, self.noise_a(pair) or self.noise_b(pair), floor64)

    def noise_a(self, pair: int) -> list[torch.Tensor]:
        """Noise samples of A at this pair, all scaled so that their squares add up to one floor squared.

        What rounding A's stored constants did is the last of them.
        """
        moved = self.moved_a(pair)
        return [*samples_at(self.a.noises, self.pairs[pair][0]), *([] if moved is None else [moved])]

    def noise_b(self, pair: int) -> list[torch.Tensor]:
        """The same of B."""
        moved = self.moved_b(pair)
        return [*samples_at(self.b.noises, self.pairs[pair][1]), *([] if moved is None else [moved])]

    def moved_a(self, pair: int) -> torch.Tensor | None:
        """What rounding A's stored constants did to this output; None when none is known to be rounded."""
        known, i = self.reconciled, self.pairs[pair][0]
        return known.plain_a[i].less(known.outputs_a[i]) if known is not None and known.repairs_a else None

    def moved_b(self, pair: int) -> torch.Tensor | None:
        """The same of B."""
        known, j = self.reconciled, self.pairs[pair][1]
        return known.plain_b[j].less(known.outputs_b[j]) if known is not None and known.repairs_b else None

    def lifted_a(self, pair: int) -> torch.Tensor | None:
        """A's lifted value, constants as A stores them."""
        return self.a.clean[self.pairs[pair][0]].value if self.a.graph is not None else None

    def lifted_b(self, pair: int) -> torch.Tensor | None:
        """B's lifted value, constants as B stores them."""
        return self.b.clean[self.pairs[pair][1]].value if self.b.graph is not None else None


def samples_at(noises: Sequence[Sequence[torch.Tensor | None]], index: int) -> list[torch.Tensor]:
    """Return the noise of one output in every run, weighted so that their squares add up to one side's floor."""
    found = [run[index] for run in noises]
    weight = max(len(found), 1) ** -0.5
    return [n * weight for n in found if n is not None]


def gather(
    a: Bound,
    b: Bound,
    pairs: Sequence[tuple[int, int]],
    *,
    seed: int = 0,
    thresholds: Thresholds = THRESHOLDS,
    progress: Progress = lambda _text: None,
    watch: tuple[Watch, Watch] | None = None,
    allows: Allows = lambda _step, _seconds: True,
) -> Evidence:
    """Lift both sides, measure their floors, reconcile their constants.

    Parameters
    ----------
    a, b : Bound
        Both programs with their inputs; ``a`` is the reference.
    pairs : sequence of (int, int)
        Output leaves that belong together, as indices into each side's flattened outputs.
    seed : int
        Names the noise.
    thresholds : Thresholds
    progress : callable
        Told what happens next.
    watch : pair of callables or None
        Each sees every step of its side once, in a run that is made anyway; the values carry noise.
    allows : callable
        ``allows(step, seconds)``: whether repeated noise runs, expected to take so long, may be made.
    """
    watch_a, watch_b = watch or (None, None)
    progress("Lifting A to float64")
    side_a = lift_side(a)
    progress("Lifting B to float64")
    reason, made, changes = "", None, None
    try:
        made, changes = changes_of(b)
    except (CannotLift, RuntimeRefused) as error:
        reason = str(error)
    side_b = lift_side(b, () if changes is None else changes.values)
    found = Evidence(side_a, side_b, list(pairs), optimized_source=made, optimized_reason=reason)
    progress("Measuring the noise floor")
    outlines = Outline(), Outline()
    with watched_for_pieces(side_a.graph, side_b.graph) as (pieces_a, pieces_b):
        add_noise(side_a, seed, watch=_all_of(watch_a, pieces_a, outlines[0]), allows=allows)
        add_noise(side_b, seed + 1000, watch=_all_of(watch_b, pieces_b, outlines[1]), allows=allows)
    for side, outline in zip((side_a, side_b), outlines, strict=True):
        remember_outline(side.graph, outline)
    if side_a.graph is not None and side_b.graph is not None:
        progress("Reconciling constants")
        pairing = pairing_of(side_a, side_b, found.pairs, seed)
        found.reconciled = reconcile(side_a.graph, side_b.graph, (side_a.clean, side_b.clean), pairing, thresholds)
    elif side_a.graph is not None:
        side_b.widened = widened_outputs(b, seed)
        found.floor64 = floor64_of(side_a, seed) if side_b.widened else []
    elif side_b.graph is not None:
        side_a.widened = widened_outputs(a, seed)
        found.floor64 = floor64_of(side_b, seed + 1000) if side_a.widened else []
    if made is not None:
        found.optimized = None if changes is None else certified_by_node(side_b, made, changes, thresholds)
        side_b.asked.clear()
        if found.optimized is None:
            _check_optimized(found, b, made, seed, thresholds, progress)
    return found


def _all_of(*watches: Watch | None) -> Watch:
    """Let several watch one run."""
    watching = [watch for watch in watches if watch is not None]

    def see(step: Step) -> None:
        for watch in watching:
            watch(step)

    return see


def pairing_of(a: SideLift, b: SideLift, pairs: Sequence[tuple[int, int]], seed: int = 0) -> OutputPairing:
    """Pair the outputs of two lifted programs, with the float64 noise of both."""
    one, other = floor64_of(a, seed), floor64_of(b, seed + 1000)
    return OutputPairing(list(pairs), [_together(one[i], other[j]) for i, j in pairs])


def _together(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    """The float64 noise of two sides as one sample."""
    if one is None or other is None or one.shape != other.shape:
        return one if other is None else other
    return torch.hypot(one.abs(), other.abs().to(one.device))


# Limits beyond which a drift is more than two floors of one function can differ by.
_FAR = 1e4
# The same of what is left once constants are reconciled.
_BEYOND = 1e2
# A drift that results of any format would show.
_SEEN = 1e-2


def _by_repairs(
    file: SideLift, optimised: Lifted, pairing_with: Callable[[Sequence[LiftedOutput]], OutputPairing],
    thresholds: Thresholds,
) -> Reconciled | None:  # fmt: skip
    """Hold a graph against the file it was made of, run once: with what was made of the file's numbers, exact.

    None where nothing was (the scale of an attention, of its halves, was; so was a filter with a batch norm in it), or
    that does not make it the file's function: then it is looked at as it is stored.
    """
    if file.graph is None or not isinstance(optimised, LiftedOnnx):
        return None
    source = ReconciledSide(file.graph, file.clean)
    repairs = repairs_before_a_run(source, optimised, file.clean, thresholds.constant_ulps)
    if not moves([], repairs):
        return None
    outputs = optimised.run(replace={r.name: r.value for r in repairs})
    drifts = measure(file.clean, outputs, pairing_with(outputs), thresholds)
    found = Reconciled(file.clean, outputs, file.clean, outputs, drifts, drifts, repairs_b=repairs)
    return found if found.same_function and not any(map(is_disputed, drifts)) else None


def _check_optimized(
    found: Evidence, b: Bound, source: OnnxSource, seed: int, thresholds: Thresholds, progress: Progress
) -> None:
    """Hold the graph that B's runtime really ran against B's file: an optimiser may have changed the function."""
    if found.b.graph is None:
        return
    progress("Lifting the graph the runtime optimised")
    floor64 = floor64_of(found.b, seed)

    def pairing_with(outputs: Sequence[LiftedOutput]) -> OutputPairing:
        same = [(k, k) for k in range(min(len(found.b.clean), len(outputs)))]
        return OutputPairing(same, [floor64[k] for k, _ in same])

    def first_run(graph: Lifted) -> list[LiftedOutput]:
        found.optimized = _by_repairs(found.b, graph, pairing_with, thresholds)
        return graph.run() if found.optimized is None else found.optimized.outputs_b

    optimized = attempt(lambda: lift_source(source), first_run)
    if optimized.graph is None:
        found.optimized_reason = optimized.reason
        return
    found.optimized_graph = optimized.graph
    if found.optimized is not None:
        return
    pairing, clean = pairing_with(optimized.clean), (found.b.clean, optimized.clean)
    same = pairing.indices
    drifts = measure(*clean, pairing, thresholds)
    if any(d.value > _SEEN for d in drifts) and not optimisers_show(b, *clean):
        return
    # Nearly always the file's own floor is enough, or the drift is no matter of floors: that saves a noisy run.
    near = any(not within(d) and d.value < _FAR * d.limit for d in drifts)
    if not near:
        found.optimized = reconcile(found.b.graph, optimized.graph, clean, pairing, thresholds)
    known = found.optimized
    if known is None or any(not within(d) and d.value < _BEYOND * d.limit for d in known.drifts):
        theirs = floor64_of(optimized, seed + 1000)
        pairing = OutputPairing(same, [_together(floor64[k], theirs[k]) for k, _ in same])
        known = found.optimized = reconcile(found.b.graph, optimized.graph, clean, pairing, thresholds)
    sure = found.reconciled is not None and found.reconciled.same_function
    if not known.same_function and found.a.graph is not None and sure:
        # A constant that the file implies (the 1/6 of HardSwish) and the optimiser writes out is A's, rounded.
        whole = pairing_of(found.a, optimized, [(i, j) for i, j in found.pairs if j < len(optimized.clean)], seed)
        through = reconcile(found.a.graph, optimized.graph, (found.a.clean, optimized.clean), whole, thresholds)
        if through.same_function:
            found.optimized = None
