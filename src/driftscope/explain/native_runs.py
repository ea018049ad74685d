"""A comparison under way, and its first step: both programs run twice, as their runtimes run them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from driftscope.comparison.judge import Judgement, OutputEvidence, judge
from driftscope.comparison.leaves import LeafComparison
from driftscope.comparison.pairing import pair_leaves
from driftscope.comparison.recording import output_record
from driftscope.errors import RuntimeRefused
from driftscope.explain import reasons, refusals
from driftscope.lift.counting import Count
from driftscope.lift.evidence import Evidence
from driftscope.programs.budget import Budget
from driftscope.programs.complex_pairs import as_pair, in_pairs, is_pair_of
from driftscope.programs.isolation.breadcrumbs import tell
from driftscope.programs.protocol import Bound, Program
from driftscope.programs.state.effects import Effects, advance_generators, finding_of, generator_states, witnessed
from driftscope.programs.value_trees import flatten
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.comparison import NodeRecord
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.paths import Path

Progress = Callable[[str], None]
LIFT = "float64 evaluation"
# What is left out where the budget ends inside a step.
_ENDED = {"lift": LIFT, "sums": "explain", "explain": "explain", "nodes": "nodes"}


@dataclass(slots=True)
class Case:
    """One comparison under way: what is known so far, so that it can be told at any time.

    Parameters
    ----------
    a, b : Bound
    seed : int
    say : callable
        Told what happens next.
    findings : list of Finding
    budget : Budget
    stage : str
        The step under way, in words.
    times : dict of str to float
        Seconds per step.
    results : list of leaves
        Of A, A again, B, B again.
    leaves : list of LeafComparison
    slots : dict of int to int
        For each leaf that both sides have, its pair in the evidence.
    evidence : Evidence or None
    judged : list of (OutputRecord, Judgement) or None
    found : list of Finding
        From the evidence, beside ``findings`` from the programs themselves.
    nodes : tuple of NodeRecord
    """

    a: Bound
    b: Bound
    seed: int
    say: Progress
    findings: list[Finding]
    budget: Budget = field(default_factory=Budget)
    stage: str = ""
    running: str = ""
    times: dict[str, float] = field(default_factory=dict)
    results: list[list[Any]] = field(default_factory=list)
    leaves: list[LeafComparison] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    evidence: Evidence | None = None
    judged: list[tuple[OutputRecord, Judgement]] | None = None
    found: list[Finding] = field(default_factory=list)
    nodes: tuple[NodeRecord, ...] = ()

    @contextmanager
    def step(self, name: str, words: str) -> Iterator[None]:
        """Say what begins, and take its time."""
        self.say(words)
        tell(stage=name, step=words)
        self.stage, self.running = words, name
        start = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - start

    def counter(self, told: Count | None) -> Count | None:
        """What the float64 runs tell how far they are: it also ends what they belong to when the budget is spent."""
        if self.budget.seconds is None:
            return told

        def count(done: int, total: int) -> None:
            if self.running in _ENDED:
                self.budget.check(_ENDED[self.running])
            if told is not None:
                told(done, total)

        return count

    @property
    def outputs(self) -> list[OutputRecord]:
        """The outputs as judged."""
        return [record for record, _ in self.judged or ()]

    @property
    def codes(self) -> list[str]:
        """The code behind each output's verdict."""
        return [judgement.code for _, judgement in self.judged or ()]


def judged_by_values(leaves: Sequence[LeafComparison], why: str) -> list[tuple[OutputRecord, Judgement]]:
    """Judge outputs of which only native values are known: what is the same or cannot be compared is decided.

    Parameters
    ----------
    leaves : sequence of LeafComparison
    why : str
        Why nothing else is known.
    """
    judged = []
    for leaf in leaves:
        evidence = OutputEvidence.of(leaf, cannot_a=why)
        if leaf.kind == "value" and not leaf.same_bits:
            evidence.kind, evidence.detail = "opaque", f"{leaf.detail}; {why}"
        judgement = judge(evidence)
        judged.append((output_record(leaf, evidence, judgement), judgement))
    return judged


def run_natively(case: Case, release: Sequence[Program] = ()) -> Finding | None:
    """Run each side twice; what a runtime refuses becomes a finding, unless the program cannot be used at all.

    Programs in ``release`` give back what they hold for runs, weights above all, before the other side is run.
    """
    case.b.program.keep_optimized()
    for side, bound in (("A", case.a), ("B", case.b)):
        with case.step("run", f"Running {side}: {bound.program.name} on {bound.program.runtime}"):
            effects = Effects()
            tell(stage="run", side=side, program=bound.program.name, runtime=bound.program.runtime)
            try:
                with witnessed(effects):
                    advance_generators()
                    states = [generator_states()]
                    for _ in (1, 2):
                        case.results.append(_leaves(bound.program, bound))
                        states.append(generator_states())
                effects.note_seeds(states)
                if states[0] != states[1]:
                    found = bound.program.check_draws(bound)
                    case.findings += reasons.of_side(found, side, bound.program.name)
                if any(bound.program is program for program in release):
                    bound.program.release()
            except RuntimeRefused as refusal:
                unusable = refusals.unusable(side, bound.program.name, refusal)
                if unusable is not None:
                    raise unusable from refusal
                return refusals.refusal_finding(side, refusal)
            finally:
                case.findings += finding_of(effects, side)
    _as_pairs(case)
    return None


def _as_pairs(case: Case) -> None:
    """Go on with pairs of reals where one side gives complex numbers and the other one such pairs."""
    a, b = case.results[0], case.results[2]
    if not any(isinstance(v, torch.Tensor) and v.is_complex() for _, v in (*a, *b)):
        return
    found = [(p.index_a, p.index_b) for p in pair_leaves(a, b, flat=case.a.program.flat or case.b.program.flat)]
    both = [(i, j) for i, j in found if i is not None and j is not None]
    places = [i for i, j in both if is_pair_of(a[i][1], b[j][1])], [j for i, j in both if is_pair_of(b[j][1], a[i][1])]
    case.a, case.b = (
        replace(bound, program=in_pairs(bound.program, at)) if at else bound
        for bound, at in zip((case.a, case.b), places, strict=True)
    )
    for k, leaves in enumerate(case.results):
        own = places[k // 2]
        case.results[k] = [(p, as_pair(v) if n in own else v) for n, (p, v) in enumerate(leaves)]
    case.findings += [_pairs_note("A", a[i][0]) for i, j in both if i in places[0]]
    case.findings += [_pairs_note("B", a[i][0]) for i, j in both if j in places[1]]


def _pairs_note(side: str, path: Path) -> Finding:
    return Finding(
        "O023",
        f"{side} gives {path} as complex numbers, the other side as pairs of reals along one more axis: compared as"
        " such pairs, the real part first",
        why="exporters to ONNX write the two parts of complex numbers side by side, as torch.view_as_real does",
        where=Where(output=str(path)),
        note=True,
    )


def _leaves(program: Program, bound: Bound) -> list[Any]:
    with torch.no_grad():
        leaves, _ = flatten(program(bound))
    return [(path, v.detach() if isinstance(v, torch.Tensor) else v) for path, v in leaves]
