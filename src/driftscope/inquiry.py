"""The main job: run two programs, gather the evidence in order, judge, say where they part, keep the record."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from driftscope.comparison.judge import OutputEvidence, judge
from driftscope.comparison.leaves import compare_leaves
from driftscope.comparison.recording import output_record
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.elsewhere import where_asked
from driftscope.errors import InputError, RuntimeRefused
from driftscope.explain import reasons, refusals
from driftscope.explain.causes import differing
from driftscope.explain.follow_up import Scene, look_again
from driftscope.explain.judging import judge_outputs
from driftscope.explain.locate.node_chart import node_records
from driftscope.explain.locate.reproducing import check_folder
from driftscope.explain.locate.reproducing import reproduce as write_reproducer
from driftscope.explain.measured import Results
from driftscope.explain.native import accumulations, nonfinite
from driftscope.explain.native.kernels_alone import KernelLooks
from driftscope.lift.evidence import Evidence, gather
from driftscope.programs.feeding.feeds import make_inputs
from driftscope.programs.feeding.pairing import pair_inputs
from driftscope.programs.isolation.breadcrumbs import tell
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Bound, InputsLike, Program, ProgramLike
from driftscope.programs.state.effects import Effects, advance_generators, finding_of, generator_states, witnessed
from driftscope.programs.state.process import state_kept
from driftscope.programs.value_trees import flatten
from driftscope.records.environment import capture
from driftscope.records.finding import Finding
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.matrix import DriftMatrix
from driftscope.records.kinds.nodes import NodeRecord
from driftscope.records.kinds.output import OutputRecord, Outputs
from driftscope.records.verdict import Verdict, worst

Progress = Callable[[str], None]


@dataclass(slots=True)
class _Case:
    """One comparison under way."""

    a: Bound
    b: Bound
    seed: int
    say: Progress
    findings: list[Finding]
    times: dict[str, float] = field(default_factory=dict)
    results: list[list[Any]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str, words: str) -> Iterator[None]:
        self.say(words)
        tell(stage=name, step=words)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - start


@state_kept()
@where_asked
def compare(
    a: ProgramLike,
    b: ProgramLike,
    inputs: InputsLike | None = None,
    *,
    explain: bool = True,
    blame: bool | None = None,
    nodes: bool = False,
    reproduce: str | Path | None = None,
    seed: int = 0,
    isolate: bool | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> Comparison:
    """Say whether two tensor programs are the same program, with the evidence.

    Parameters
    ----------
    a, b : anything ``ds.program`` accepts
        ``a`` is the reference.
    inputs : anything ``ds.inputs`` accepts
        Positional inputs are the flattened tree in ``a``'s order, a dict goes by name; None takes the inputs
        that came with ``a`` (or ``b``), or makes them from declared shapes.
    explain : bool
        Also say where the programs part (one more lifted run of each when they are not the same function).
    blame : bool or None
        Search for the optimiser that moved the result, as ``ds.blame`` does: None when the verdict asks for it and
        ``explain`` is on (two dozen sessions at most), True whatever the verdict, False never.
    nodes : bool
        Also measure every value on the way: ``.nodes``, the chart and the table of the page.
    reproduce : path or None
        A new folder: where the programs are not the same, the smallest piece that shows it is written there with its
        inputs, a README and a script that does not need driftscope.
    seed : int
        Seed of drawn inputs and of the noise.
    isolate : bool or None
        Run what can take this process down in another one, so that a crash is a finding. None: native runtimes
        (onnxruntime); a module or function in memory runs here, and the record says so (``["isolated"]`` of its
        program). True: the whole comparison, whose programs and inputs must be files, names or picklable. False:
        nothing.
    progress : callable or None
        Told in a few words what happens next.
    command : str
        The command line to print for reproduction.

    Returns
    -------
    Comparison
        ``verdict``, ``reason``, ``outputs``, ``findings`` (most important first), and everything measured.

    Raises
    ------
    DriftscopeError
        When a program cannot be loaded or the inputs do not fit it. What a *runtime* refuses is a finding.
    """
    del isolate  # read by the decorator
    say = progress or (lambda _text: None)
    folder = None if reproduce is None else check_folder(reproduce)
    say("Loading both programs")
    program_a, program_b = _loaded("A", a), _loaded("B", b)
    made = None if inputs is None else make_inputs(inputs, seed=seed)
    tell(stage="bind")
    bound_a, bound_b, notes = pair_inputs(program_a, program_b, made, seed=seed)
    findings = [*notes, *_checked("A", bound_a), *_checked("B", bound_b)]
    case = _Case(bound_a, bound_b, seed, say, findings)
    refused = _run_natively(case)
    if refused is not None:
        return _record(case, Verdict.INCONCLUSIVE, refused.what, [], Evidence.none(), command, [refused])
    for given, program in ((a, program_a), (b, program_b)):
        if given is not program:  # loaded here: nobody else will run it, and its weights are held twice
            program.release()
    leaves = compare_leaves(case.results[0], case.results[2], flat=program_a.flat or program_b.flat)
    pairs = [(leaf.index_a, leaf.index_b) for leaf in leaves]
    measured = [k for k, (i, j) in enumerate(pairs) if i is not None and j is not None]
    with case.step("lift", "Lifting both programs to float64"):
        evidence = gather(
            bound_a, bound_b, [(pairs[k][0] or 0, pairs[k][1] or 0) for k in measured], seed=seed, progress=say
        )
    slots = {k: n for n, k in enumerate(measured)}
    with case.step("sums", "Asking in which order sums are added"):
        natively = accumulations.Natively(case.results[0], case.results[2], leaves, slots)
        sums = accumulations.ask_sums((bound_a, bound_b), evidence, natively, seed) if explain else accumulations.Sums()
    looks = KernelLooks((bound_a, bound_b), evidence, seed)
    with case.step("judge", "Judging"):
        judged, notes = judge_outputs(
            Results(case.results[0], case.results[1], case.results[2], case.results[3], seed, say, looks),
            evidence,
            leaves,
            slots,
        )
        case.findings.extend(notes)
    with case.step("explain", "Looking for the place"):
        outputs = [record for record, _ in judged]
        case.findings.extend(sums.explaining(outputs, slots))
        codes = [j.code for _, j in judged]
        findings = _findings(evidence, outputs, codes, explain)
        if explain or blame:
            values = [v for _, v in case.results[0]], [v for _, v in case.results[2]]
            findings += nonfinite.origin_findings(evidence, leaves, values)
            scene = Scene(bound_a, bound_b, values, evidence, outputs, codes, seed, say, looks)
            findings += look_again(scene, blame)
    if folder is not None and any(o.verdict in (Verdict.PRECISION, Verdict.DIFFERENT) for o in outputs):
        with case.step("reproduce", "Writing a reproducer"):
            expected = [value for _, value in case.results[0]]
            ranked = reasons.ordered([*findings, *case.findings])
            findings.append(write_reproducer(bound_a, bound_b, evidence, ranked, expected, folder))
    way: tuple[NodeRecord, ...] = ()
    if nodes:
        with case.step("nodes", "Measuring every value on the way"):
            way = node_records(bound_a, bound_b, evidence, seed)
    verdict = _verdict(outputs)
    record = _record(case, verdict, _reason(outputs, verdict), outputs, evidence, command, findings)
    return replace(record, nodes=way) if way else record


@state_kept()
def compare_all(programs: Mapping[str, ProgramLike], inputs: InputsLike | None = None, **options: Any) -> DriftMatrix:
    """Compare several programs pairwise on the same inputs.

    Parameters
    ----------
    programs : mapping of name to anything ``ds.program`` accepts
        At least two; the earlier one of a pair is its reference.
    inputs : anything ``ds.inputs`` accepts
    options
        As for :func:`compare`.

    Returns
    -------
    DriftMatrix
        ``.classes`` are the groups whose results have the same bits.

    Raises
    ------
    InputError
        If there are fewer than two programs or they have no names; and as :func:`compare`.
    """
    if not isinstance(programs, Mapping) or len(programs) < 2:
        raise InputError("compare_all takes two or more programs by name: {'eager': model, 'onnx': 'model.onnx'}")
    loaded = {name: load_program(program) for name, program in programs.items()}
    if inputs is None:
        inputs = next((p.default_inputs for p in loaded.values() if p.default_inputs is not None), None)
    pairs = {
        (one, two): compare(loaded[one], loaded[two], inputs, **options)
        for one, two in itertools.combinations(loaded, 2)
    }
    refused = {
        name: str(finding.evidence["words"])
        for (one, two), c in pairs.items()
        for finding in c.findings
        if finding.code in ("R001", "R002")
        for name in [one if finding.evidence.get("side") == "A" else two]
    }
    return DriftMatrix(tuple(loaded), pairs, _classes(tuple(loaded), pairs, refused), refused)


def compare_values(a: Any, b: Any) -> Comparison:
    """Compare results already at hand: trees of tensors or arrays, without programs, lift or floor.

    Parameters
    ----------
    a, b : tree of tensors or arrays
        ``a`` is the reference.

    Returns
    -------
    Comparison
        IDENTICAL, DIFFERENT (structure, shapes, integers, NaN) or, for floats that differ, INCONCLUSIVE: from
        values alone rounding cannot be told from a bug.
    """
    leaves = compare_leaves(flatten(a)[0], flatten(b)[0], flat=False)
    outputs = []
    for leaf in leaves:
        evidence = OutputEvidence(
            leaf.kind, leaf.detail, leaf.floating, leaf.same_bits, leaf.all_nan,
            cannot_a="only its results were given", formats=(leaf.a_dtype or "", leaf.b_dtype or ""),
        )  # fmt: skip
        outputs.append(output_record(leaf, evidence, judge(evidence), ((), ()), (None, None)))
    verdict = _verdict(outputs)
    return Comparison(
        verdict, _reason(outputs, verdict), Outputs(outputs), environment=capture(), thresholds=THRESHOLDS.to_dict()
    )


def _loaded(side: str, given: Any) -> Program:
    name = str(given) if isinstance(given, (str, Path)) else getattr(given, "name", type(given).__name__)
    tell(stage="load", side=side, program=name)
    return load_program(given)


def _checked(side: str, bound: Bound) -> list[Finding]:
    tell(stage="run", side=side, program=bound.program.name, runtime=bound.program.runtime)
    return bound.program.check(bound)


# --- native runs -----------------------------------------------------------------------------------------------


def _run_natively(case: _Case) -> Finding | None:
    """Run each side twice; what a runtime refuses becomes a finding, unless the program cannot be used at all."""
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
            except RuntimeRefused as refusal:
                unusable = refusals.unusable(side, bound.program.name, refusal)
                if unusable is not None:
                    raise unusable from refusal
                return refusals.refusal_finding(side, refusal)
            finally:
                case.findings += finding_of(effects, side)
    return None


def _leaves(program: Program, bound: Bound) -> list[Any]:
    with torch.no_grad():
        leaves, _ = flatten(program(bound))
    return [(path, v.detach() if isinstance(v, torch.Tensor) else v) for path, v in leaves]


# --- the record ------------------------------------------------------------------------------------------------


def _findings(
    evidence: Evidence, outputs: Sequence[OutputRecord], codes: Sequence[str], explain: bool
) -> list[Finding]:
    found = differing.function_findings(evidence, outputs, explain)
    found += reasons.output_findings(outputs, codes, evidence)
    found += reasons.lift_notes(evidence)
    if evidence.reconciled is not None:
        found += reasons.repair_notes(evidence.reconciled.repairs_b, "B")
        found += reasons.repair_notes(evidence.reconciled.repairs_a, "A")
    return found


def _verdict(outputs: Sequence[OutputRecord]) -> Verdict:
    return Verdict.INCONCLUSIVE if _nothing(outputs) else worst(o.verdict for o in outputs)


def _nothing(outputs: Sequence[OutputRecord]) -> bool:
    """Whether there is nothing to compare: no output at all, or None alone on both sides."""
    return all(o.verdict is Verdict.IDENTICAL and o.a is not None and o.a.dtype == "None" for o in outputs)


def _reason(outputs: Sequence[OutputRecord], verdict: Verdict) -> str:
    """The sentence of the worst output; with its path when there are several."""
    if _nothing(outputs):
        return "neither program returns anything: nothing was compared"
    alike_first = [o for o in outputs if o.verdict is verdict]
    # The same bits from another function are told before the same bits from the same one.
    first = next((o for o in alike_first if _function_differs(o)), alike_first[0])
    if len(outputs) == 1:
        return first.reason
    alike = sum(o.verdict is verdict for o in outputs)
    return f"{first.path}: {first.reason} ({alike} of {len(outputs)} outputs {verdict})"


def _function_differs(output: OutputRecord) -> bool:
    return output.lifted is not None and output.lifted > (output.lifted_threshold or 0.0)


def _record(
    case: _Case,
    verdict: Verdict,
    reason: str,
    outputs: Sequence[OutputRecord],
    evidence: Evidence,
    command: str,
    findings: Sequence[Finding],
) -> Comparison:
    return Comparison(
        verdict=verdict,
        reason=reason,
        outputs=Outputs(outputs),
        findings=reasons.ordered([*findings, *case.findings]),
        programs={"a": case.a.program.describe(), "b": case.b.program.describe()},
        inputs=case.a.inputs.recipe if case.a.inputs is not None else {},
        environment=capture(),
        thresholds=THRESHOLDS.to_dict(),
        evidence=evidence.to_dict(),
        times={k: round(v, 4) for k, v in case.times.items()},
        command=command,
    )


def _classes(
    names: tuple[str, ...], pairs: Mapping[tuple[str, str], Comparison], refused: Mapping[str, str]
) -> tuple[tuple[str, ...], ...]:
    """Group programs whose results have the same bits (an equivalence, so one representative is enough)."""
    groups: list[list[str]] = []
    for name in names:
        if name in refused:
            continue
        for group in groups:
            if pairs[group[0], name].verdict is Verdict.IDENTICAL:
                group.append(name)
                break
        else:
            groups.append([name])
    return tuple(tuple(g) for g in groups)
