"""The main job: run two programs, gather the evidence in order, judge, say where they part, keep the record."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.comparison.judge import OutputEvidence, judge
from driftscope.comparison.leaves import compare_leaves
from driftscope.comparison.overall import overall_reason, overall_verdict
from driftscope.comparison.recording import output_record
from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.elsewhere import where_asked
from driftscope.errors import InputError, ends_us
from driftscope.explain import reasons
from driftscope.explain.causes import differing, integers, unreached
from driftscope.explain.domain_ends import Ends
from driftscope.explain.follow_up import JudgedPair, look_again
from driftscope.explain.judging import judge_outputs
from driftscope.explain.locate import reproducing
from driftscope.explain.locate.node_chart import node_records
from driftscope.explain.measured import Results
from driftscope.explain.native import accumulations, nonfinite
from driftscope.explain.native.kernels_alone import KernelLooks
from driftscope.explain.native_runs import LIFT, Case, Progress, judged_by_values, run_natively
from driftscope.explain.weight_files import both_weights, compare_weights, reason_of
from driftscope.lift.counting import counting
from driftscope.lift.evidence import Evidence, gather
from driftscope.lift.kept import sharing_runs
from driftscope.programs.budget import NO_MEMORY, Budget, BudgetSpent
from driftscope.programs.feeding.feeds import make_inputs
from driftscope.programs.feeding.pairing import pair_inputs
from driftscope.programs.isolation.breadcrumbs import tell
from driftscope.programs.isolation.choice import watched
from driftscope.programs.isolation.failures import ran_out_of_memory
from driftscope.programs.loading.callables import in_their_libraries
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Bound, InputsLike, Program, ProgramLike
from driftscope.programs.state.garbage import spared
from driftscope.programs.state.process import state_kept
from driftscope.programs.value_trees import flatten
from driftscope.records.environment import capture
from driftscope.records.finding import Finding
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.matrix import DriftMatrix
from driftscope.records.kinds.output import OutputRecord, Outputs
from driftscope.records.verdict import Verdict


@spared(tidy=True)
@state_kept()
@where_asked
@unreached.drawn_again
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
    budget_seconds: float | None = None,
    budget_memory: float | None = None,
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
        A new folder for the smallest piece that shows a difference: inputs, a README, a script without driftscope.
    seed : int
        Seed of drawn inputs and of the noise.
    isolate : bool or None
        Run what can take this process down in another one, so that a crash is a finding. None: native runtimes
        (onnxruntime); a module or function in memory runs here, and the record says so (``["isolated"]`` of its
        program). True: the whole comparison, whose programs and inputs must be files, names or picklable. False:
        nothing.
    budget_seconds : float or None
        Wall-clock time the comparison should take. What is not expected to fit is left out, in the order explain,
        nodes, repeated noise runs, and a note (O022) says so; the verdict is from what was measured, INCONCLUSIVE
        where that does not decide.
    budget_memory : float or None
        GiB that this process should hold, likewise.
    progress : callable or None
        Told in a few words what happens next; its method ``count(done, total)``, if any, the nodes evaluated so far.
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
    budget = Budget(budget_seconds, budget_memory)
    wanted = _Wanted(explain, blame, nodes, None if reproduce is None else reproducing.check_folder(reproduce))
    say("Loading both programs")
    program_a, program_b = _loaded("A", a), _loaded("B", b)
    if both_weights(program_a, program_b):
        return _weights(program_a, program_b, command)
    made = None if inputs is None else make_inputs(inputs, seed=seed)
    program_a, program_b = in_their_libraries(program_a, program_b, made)
    tell(stage="bind")
    bound_a, bound_b, notes = pair_inputs(program_a, program_b, made, seed=seed)
    findings = [*notes, *_checked("A", bound_a), *_checked("B", bound_b)]
    case = Case(bound_a, bound_b, seed, say, findings, budget)
    release = [program for given, program in ((a, program_a), (b, program_b)) if given is not program]
    try:
        with counting(case.counter(getattr(progress, "count", None))), sharing_runs():
            refused = _inquire(case, wanted, release)
    except (KeyboardInterrupt, MemoryError, RuntimeError) as error:
        # Somebody who watches this process wants to know what is known; anybody else wants the exception.
        if not (ran_out_of_memory(error) or (ends_us(error) and watched())):
            raise
        refused = None
        case.budget.left_out[case.stage or "comparing"] = NO_MEMORY if ran_out_of_memory(error) else "interrupted"
    if refused is not None:
        return _record(case, Verdict.INCONCLUSIVE, refused.what, command, [refused])
    if case.judged is None:
        why = "; ".join(f"{step}: {words}" for step, words in case.budget.left_out.items())
        case.judged = judged_by_values(case.leaves, why)
        if not case.leaves:
            return _record(case, Verdict.INCONCLUSIVE, why, command, _left_out(case))
    verdict = overall_verdict(case.outputs)
    reason = overall_reason(case.outputs, verdict) + unreached.in_words(case.found)
    return _record(case, verdict, reason, command, [*case.found, *_left_out(case)])


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What was asked for beside the verdict."""

    explain: bool
    blame: bool | None
    nodes: bool
    folder: Path | None


def _inquire(case: Case, wanted: _Wanted, release: Sequence[Program]) -> Finding | None:
    """Gather the evidence in order and judge; what is known is in the case at any time."""
    refused = run_natively(case, release)  # what was loaded here nobody else will run
    if refused is not None:
        return refused
    case.leaves = compare_leaves(case.results[0], case.results[2], flat=case.a.program.flat or case.b.program.flat)
    if not case.budget.allows(LIFT, 4.0 * case.times["run"]):
        return None
    try:
        sums = _measure(case, wanted)
    except BudgetSpent:
        return None
    evidence = case.evidence or Evidence.none()
    looks = KernelLooks((case.a, case.b), evidence, case.seed)
    with case.step("judge", "Judging"):
        a, a_again, b, b_again = case.results
        results = Results(a, a_again, b, b_again, case.seed, case.say, looks)
        case.judged, notes = judge_outputs(results, evidence, case.leaves, case.slots)
        case.findings.extend(notes)
        case.findings.extend(sums.explaining(case.outputs, case.slots))
    _explain(case, wanted, looks)
    if wanted.nodes and case.budget.allows("nodes", case.times["lift"]):
        with contextlib.suppress(BudgetSpent), case.step("nodes", "Measuring every value on the way"):
            case.nodes = node_records(case.a, case.b, evidence, case.seed)
    return None


def _measure(case: Case, wanted: _Wanted) -> accumulations.Sums:
    """Evaluate both programs in float64, and ask in which order sums are added."""
    pairs = [(leaf.index_a, leaf.index_b) for leaf in case.leaves]
    measured = [k for k, (i, j) in enumerate(pairs) if i is not None and j is not None]
    case.slots = {k: n for n, k in enumerate(measured)}
    differ = any(leaf.floating and not leaf.same_bits for leaf in case.leaves)  # else one run tells the floor
    seen = accumulations.sums_seen((case.a, case.b)) if differ and wanted.explain else None
    with case.step("lift", "Lifting both programs to float64"):
        case.evidence = gather(
            case.a, case.b, [(pairs[k][0] or 0, pairs[k][1] or 0) for k in measured],
            seed=case.seed, progress=case.say, watch=seen, allows=case.budget.allows if differ else lambda *_: False,
        )  # fmt: skip
    if seen is not None and case.budget.allows("explain", case.times["lift"]):
        with contextlib.suppress(BudgetSpent), case.step("sums", "Asking in which order sums are added"):
            natively = accumulations.Natively(case.results[0], case.results[2], case.leaves, case.slots)
            return accumulations.ask_sums(seen, case.evidence, natively, case.seed)
    return accumulations.Sums()


def _explain(case: Case, wanted: _Wanted, looks: KernelLooks) -> None:
    """Say where the programs part and why, as far as the budget goes."""
    evidence = case.evidence or Evidence.none()
    reserved = case.times["lift"] if wanted.nodes else 0.0
    explain = wanted.explain and "explain" not in case.budget.left_out
    explain = explain and case.budget.allows("explain", case.times["lift"] + reserved)
    # Where nothing but such a number is wrong there is no other place to look for.
    searched = explain and not any(f.code == "W012" and f.verified for f in case.findings)
    with case.step("explain", "Looking for the place"):
        try:
            case.found = _findings(evidence, case.outputs, case.codes, searched)
        except BudgetSpent:
            case.found, explain = _findings(evidence, case.outputs, case.codes, explain=False), False
        with contextlib.suppress(BudgetSpent):  # it is in the record; what was found stays
            if explain or wanted.blame:
                values = [v for _, v in case.results[0]], [v for _, v in case.results[2]]
                case.found += nonfinite.origin_findings(evidence, case.leaves, values, Ends(evidence, looks))

                def say(text: str) -> None:
                    case.budget.check("explain")
                    case.say(text)

                scene = JudgedPair(case.a, case.b, values, evidence, case.outputs, case.codes, case.seed, say, looks)
                case.found += look_again(scene, wanted.blame)
    if wanted.folder is not None and any(o.verdict in (Verdict.PRECISION, Verdict.DIFFERENT) for o in case.outputs):
        with case.step("reproduce", "Writing a reproducer"):
            expected = [value for _, value in case.results[0]]
            ranked = reasons.ordered([*case.found, *case.findings])
            case.found.append(reproducing.reproduce(case.a, case.b, evidence, ranked, expected, wanted.folder))


def _left_out(case: Case) -> list[Finding]:
    """Say what the budget, or Ctrl-C, left out."""
    if not case.budget.left_out:
        return []
    named = ", ".join(case.budget.left_out)
    why = "; ".join(f"{step}: {words}" for step, words in case.budget.left_out.items())
    fix = "Give it more time or memory, or none of the limits." if case.budget.set else "Run it again to the end."
    fix = "Give it more memory, or smaller inputs." if NO_MEMORY in case.budget.left_out.values() else fix
    evidence = {"left_out": dict(case.budget.left_out)}
    return [Finding("O022", f"left out: {named}", why, fix, evidence=evidence, note=True)]


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
        evidence = OutputEvidence.of(leaf, cannot_a="only its results were given")
        outputs.append(output_record(leaf, evidence, judge(evidence)))
    verdict = overall_verdict(outputs)
    return Comparison(
        verdict, overall_reason(outputs, verdict), Outputs(outputs), environment=capture(),
        thresholds=THRESHOLDS.to_dict(),
    )  # fmt: skip


def _weights(a: Program, b: Program, command: str) -> Comparison:
    outputs, findings = compare_weights(a, b)
    verdict = overall_verdict(outputs)
    return Comparison(
        verdict, reason_of(outputs, findings), Outputs(outputs), tuple(findings),
        programs={"a": a.describe(), "b": b.describe()}, environment=capture(), thresholds=THRESHOLDS.to_dict(),
        command=command,
    )  # fmt: skip


def _loaded(side: str, given: Any) -> Program:
    name = str(given) if isinstance(given, (str, Path)) else getattr(given, "name", type(given).__name__)
    tell(stage="load", side=side, program=name)
    return load_program(given)


def _checked(side: str, bound: Bound) -> list[Finding]:
    tell(stage="run", side=side, program=bound.program.name, runtime=bound.program.runtime)
    return reasons.of_side(bound.program.check(bound), side, bound.program.name)


# --- the record ------------------------------------------------------------------------------------------------


def _findings(
    evidence: Evidence, outputs: Sequence[OutputRecord], codes: Sequence[str], explain: bool
) -> list[Finding]:
    found = differing.function_findings(evidence, outputs, explain)
    placed = _exact_places(evidence, outputs, codes) if explain and not found else {}
    said = {f.what for f in found}  # where nobody knows a place, another function is told by what it leads to
    told = (f for f in reasons.output_findings(outputs, codes, evidence) if f.code != "N006" or f.what not in said)
    found += [placed.get(f.where.output or "", f) if f.code == "N010" else f for f in told]
    found += unreached.unreached_weights(evidence, outputs) if explain else []
    found += reasons.lift_notes(evidence)
    if evidence.reconciled is not None:
        found += reasons.repair_notes(evidence.reconciled.repairs_b, "B")
        found += reasons.repair_notes(evidence.reconciled.repairs_a, "A")
    return found


def _exact_places(evidence: Evidence, outputs: Sequence[OutputRecord], codes: Sequence[str]) -> dict[str, Finding]:
    """Where exact outputs part, by their paths; nothing is asked where a float already says where."""
    found = {o.path: integers.integer_finding(evidence, o) for o, code in zip(outputs, codes, strict=True)
             if code == "N010"}  # fmt: skip
    return {path: finding for path, finding in found.items() if finding is not None}


def _record(case: Case, verdict: Verdict, reason: str, command: str, findings: Sequence[Finding]) -> Comparison:
    return Comparison(
        verdict=verdict,
        reason=reason,
        outputs=Outputs(case.outputs),
        findings=reasons.ordered([*findings, *case.findings]),
        programs={"a": case.a.program.describe(), "b": case.b.program.describe()},
        inputs=case.a.inputs.recipe if case.a.inputs is not None else {},
        environment=capture(),
        thresholds=THRESHOLDS.to_dict(),
        evidence=(case.evidence or Evidence.none()).to_dict(),
        times={k: round(v, 4) for k, v in case.times.items()},
        command=command,
        nodes=case.nodes,
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
