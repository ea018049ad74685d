"""Which graph optimiser of onnxruntime moved the result: one session without each that fired, and what that changes.

The session's own log says which graph transformers changed the graph. Rewrite rules share one line of that log, so
those whose operators the graph has are tried too. If no single one explains the drift, all of them are left out, and
those that take their place (a fusion registered at two levels fires at the second one), and delta debugging keeps the
smallest part that still explains it.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx

from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.blame.smallest_sets import Counted, smallest_set
from driftscope.explain.locate.targets import Distance, Target, largest_gap, same_bits
from driftscope.programs.loading.onnx_files import OnnxModel
from driftscope.programs.protocol import Bound, OnnxSource, Optimised, Program
from driftscope.records.kinds.left_out import Blame, Suspect
from driftscope.records.words import floors

#: Operators at which each rewrite rule of onnxruntime 1.31 starts (``core/optimizer/*.h``, ``TargetOpTypes``).
RULES: Mapping[str, frozenset[str]] = {
    "CastElimination": frozenset({"Cast"}),
    "ClipQuantRewrite": frozenset({"Clip"}),
    "ConvAddFusion": frozenset({"Conv"}),
    "ConvBNFusion": frozenset({"Conv"}),
    "ConvMulFusion": frozenset({"Conv"}),
    "DivMulFusion": frozenset({"Div"}),
    "EliminateDropout": frozenset({"Dropout"}),
    "EliminateIdentity": frozenset({"Identity"}),
    "EliminateSlice": frozenset({"Slice"}),
    "ExpandElimination": frozenset({"Expand"}),
    "FuseReluClip": frozenset({"Relu"}),
    "GemmSumFusion": frozenset({"Gemm"}),
    "GemmTransposeFusion": frozenset({"Gemm"}),
    "LabelEncoderFusion": frozenset({"LabelEncoder"}),
    "MatMul_BatchNormalization_Fusion": frozenset({"MatMul"}),
    "NoopElimination": frozenset({"Add", "Sub", "Mul", "Div"}),
    "NotWhereFusion": frozenset({"Where"}),
    "Pad_Fusion": frozenset({"Pad"}),
    "PreShapeNodeElimination": frozenset({"Shape"}),
    "ReluQuantRewrite": frozenset({"Relu"}),
    "UnsqueezeElimination": frozenset({"Unsqueeze"}),
}
# A conv rule needs the operator it folds away; without one it cannot have fired.
_PARTNERS = {
    "ConvBNFusion": "BatchNormalization", "MatMul_BatchNormalization_Fusion": "BatchNormalization",
    "ConvAddFusion": "Add", "ConvMulFusion": "Mul", "DivMulFusion": "Mul", "FuseReluClip": "Clip",
    "GemmSumFusion": "Sum", "GemmTransposeFusion": "Transpose", "NotWhereFusion": "Not",
    "ReluQuantRewrite": "QuantizeLinear", "ClipQuantRewrite": "QuantizeLinear",
}  # fmt: skip
# What ``ds.onnx`` sets where nothing is said.
_USUAL: dict[str, Any] = {"level": "all", "threads": None, "provider": "cpu", "config": {}}


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """How much a search may cost, in sessions or compilations. Counted, not timed: it ends at the same place again."""

    runs: int = 64


@dataclass(slots=True)
class _Session:
    """One session: what it gave, the operators it ran, what fired, how far it is from the target."""

    outputs: list[Any]
    operators: collections.Counter[str] | None
    found: Optimised
    distance: Distance
    seconds: float


@dataclass(slots=True)
class _SessionSearch:
    """Sessions without one thing or another, each made once."""

    bound: Bound
    program: Program
    model: OnnxModel
    target: Target
    budget: SearchBudget
    in_question: bool = True
    start: float = field(default_factory=time.perf_counter)
    made: dict[tuple[str, ...], _Session | RuntimeRefused] = field(default_factory=dict)

    def without(self, names: Sequence[str]) -> _Session | RuntimeRefused:
        """The session without these, and without what the program leaves out already."""
        key = tuple(sorted(set(names)))
        if key not in self.made:
            begin = time.perf_counter()
            try:
                self.made[key] = self._create(key, begin)
            except RuntimeRefused as refusal:
                self.made[key] = refusal
        return self.made[key]

    def _create(self, names: tuple[str, ...], begin: float) -> _Session:
        program = self.program.variant(disabled=(*self.program.settings["disabled"], *names))
        found = program.examine()
        graph = found.graph
        bound = program.bind(self.bound.inputs if self.bound.inputs is not None else self.bound.feeds)
        outputs = list(program(bound).values())
        source = None
        if graph is not None and self.in_question:
            source = OnnxSource(graph, dict(bound.feeds), self.model.directory)
        distance = self.target.distance(outputs, source)
        if not names:
            # One lifted run settles whether the optimised graph is the file's function; if it is, no other is lifted.
            self.in_question = distance.lifted is not None and distance.lifted.value > distance.lifted.limit
        found = replace(found, graph=None)  # it holds the weights: see operators_of
        return _Session(outputs, operators_of(graph), found, distance, time.perf_counter() - begin)

    def explains(self, names: Sequence[str]) -> bool:
        """Whether the result is right without these."""
        found = self.without(names)
        return isinstance(found, _Session) and found.distance.fine

    @property
    def spent(self) -> bool:
        """Whether the budget forbids another session."""
        return len(self.made) >= self.budget.runs


def blame_optimizers(bound: Bound, target: Target, budget: SearchBudget | None = None) -> Blame:
    """Name the graph optimisers of an onnxruntime session without which its result is right.

    Parameters
    ----------
    bound : Bound
        A program whose runtime says what graph optimisation it did (:meth:`Program.examine`), with its inputs.
    target : Target
        What its outputs should be.
    budget : SearchBudget or None
        None for no limit but the number of optimisers.

    Returns
    -------
    Blame

    Raises
    ------
    RuntimeRefused
        If onnxruntime does not run the program as it stands.
    """
    program = bound.program
    if program.onnx_model is None:
        raise CannotLift(f"{program.name} runs on {program.runtime}, which has no graph optimisers to leave out")
    search = _SessionSearch(bound, program, program.onnx_model, target, budget or SearchBudget())
    base = search.without(())
    if isinstance(base, RuntimeRefused):
        raise base
    suspects = []
    for name, kind in _candidates(search, base):
        if search.spent:
            break
        suspects.append(_suspect(search, base, name, kind))
    guilty, complete = _guilty(search, base, suspects)
    return _record(search, base, suspects, guilty, complete)


def _candidates(search: _SessionSearch, base: _Session) -> list[tuple[str, str]]:
    """What fired, in order; for a set of rewrite rules, those whose operators the file has."""
    operators = {node.op_type for node in search.model.proto.graph.node}
    found: dict[str, str] = {}
    for name in base.found.fired:
        if name not in base.found.sets:
            found[name] = "transformer"
            continue
        for rule, roots in RULES.items():
            if roots & operators and _PARTNERS.get(rule, "") in operators | {""}:
                found.setdefault(rule, "rule")
    return [(name, kind) for name, kind in found.items() if name not in search.program.settings["disabled"]]


def _suspect(search: _SessionSearch, base: _Session, name: str, kind: str) -> Suspect:
    found = search.without((name,))
    if isinstance(found, RuntimeRefused):
        return Suspect(name, kind, refused=found.words, same_bits=False)
    lifted = found.distance.lifted
    return Suspect(
        name, kind, operator_delta(base.operators, found.operators),
        same_bits=same_bits(base.outputs, found.outputs),
        moved=largest_gap(base.outputs, found.outputs),
        floors=found.distance.floors,
        lifted=None if lifted is None else lifted.overall,
        explains=found.distance.fine and not base.distance.fine,
        seconds=found.seconds,
    )  # fmt: skip


def operators_of(graph: onnx.ModelProto | None) -> collections.Counter[str] | None:
    """Count a graph's operators; None where it was not kept."""
    # The graph itself holds the weights: a search over twenty sessions must not keep twenty copies of them.
    return None if graph is None else collections.Counter(node.op_type for node in graph.graph.node)


def operator_delta(
    with_it: collections.Counter[str] | None, without: collections.Counter[str] | None
) -> dict[str, int]:
    """Count the operators of one graph minus those of another; empty when one of them is not known."""
    if with_it is None or without is None:
        return {}
    return {name: n for name in sorted({*with_it, *without}) if (n := with_it[name] - without[name])}


def _guilty(search: _SessionSearch, base: _Session, suspects: Sequence[Suspect]) -> tuple[tuple[str, ...], bool]:
    """The optimisers to leave out, and whether the search came to its end."""
    if base.distance.fine:
        return (), not search.spent
    single = [s for s in suspects if s.explains]
    if single:
        # What another one feeds explains the drift too. The one that acts last and changes least is the nearest.
        order = {s.name: k for k, s in enumerate(suspects)}
        nearest = min(single, key=lambda s: (sum(map(abs, s.operators.values())), -order[s.name]))
        return (nearest.name,), True
    everything = _closure(search, base)
    if everything is None:
        return (), False
    if not search.explains(everything):
        return (), True
    counted: Counted[str] = Counted(search.explains, max(search.budget.runs - len(search.made), 0))
    counted.asked[tuple(everything)] = True
    kept = smallest_set(everything, lambda names: not search.spent and counted(names))
    return kept, not (search.spent or counted.exhausted)


def _closure(search: _SessionSearch, base: _Session) -> list[str] | None:
    """Every optimiser that fires, and those that fire once those are gone; None when the budget ends it."""
    names = [name for name, _ in _candidates(search, base)]
    while True:
        if search.spent:
            return None
        found = search.without(names)
        if isinstance(found, RuntimeRefused):
            return names
        more = [name for name, _ in _candidates(search, found) if name not in names]
        if not more:
            return names
        names += more


def _record(
    search: _SessionSearch, base: _Session, suspects: Sequence[Suspect], guilty: tuple[str, ...], complete: bool
) -> Blame:
    after = search.without(guilty) if guilty else None
    mended = after if isinstance(after, _Session) else None
    disabled = [*search.program.settings["disabled"], *guilty]
    lifted = [d.distance.lifted if d is not None else None for d in (base, mended)]
    return Blame(
        answer=_answer(search, base, suspects, guilty, complete),
        guilty=guilty,
        suspects=tuple(suspects),
        program=f"{search.program.name} on {search.program.runtime}",
        reference=search.target.words,
        wrong=not base.distance.fine,
        floors=base.distance.floors,
        lifted=None if lifted[0] is None else lifted[0].overall,
        floors_without=mended.distance.floors if mended is not None else None,
        lifted_without=None if lifted[1] is None else lifted[1].overall,
        paste=f"disabled_optimizers={disabled}" if guilty else "",
        program_line=_program_line(search, disabled) if guilty else "",
        verified=mended.distance.fine if mended is not None else None,
        runs=len(search.made),
        complete=complete,
        seconds=time.perf_counter() - search.start,
    )


def _program_line(search: _SessionSearch, disabled: Sequence[str]) -> str:
    words = ["model" if search.model.path is None else repr(search.model.given or str(search.model.path))]
    words += [f"{k}={v!r}" for k, v in search.program.settings.items() if k != "disabled" and v != _USUAL.get(k)]
    return f"ds.onnx({', '.join([*words, f'disabled={list(disabled)}'])})"


def _answer(
    search: _SessionSearch, base: _Session, suspects: Sequence[Suspect], guilty: tuple[str, ...], complete: bool
) -> str:
    fired = sum(s.kind == "transformer" for s in suspects)
    rules = len(suspects) - fired
    ran = f"{fired} graph transformer{'s' if fired != 1 else ''} fired"
    ran += f", and rewrite rules of which {rules} were tried" if rules else ""
    if base.distance.fine:
        changing = [s.name for s in suspects if not s.same_bits]
        if not changing:
            return f"no optimiser to blame: {ran}, and leaving any of them out changes no bit"
        moved = f"leaving out {', '.join(changing)} changes bits, within rounding"
        return f"no optimiser to blame: {ran}; {moved}"
    state = in_words(base.distance)
    if guilty:
        found = search.without(guilty)
        after = f" ({in_words(found.distance)} without)" if isinstance(found, _Session) else ""
        names = guilty[0] if len(guilty) == 1 else f"{', '.join(guilty[:-1])} and {guilty[-1]} together"
        return f"{names} moved the result: {state} from {search.target.words}{after}"
    if not complete:
        return f"not found within the budget of {len(search.made)} sessions: {state} from {search.target.words}"
    return (
        f"no optimiser is to blame: {state} from {search.target.words}, and it stays so with every optimiser that "
        f"fired left out"
    )


def in_words(distance: Distance) -> str:
    """How far a run is from its target, in a few words."""
    if distance.lifted is not None and distance.lifted.value > distance.lifted.limit:
        return f"another function (lifted drift {distance.lifted.overall:.1e})"
    return "NaN or infinity elsewhere" if distance.floors == float("inf") else floors(distance.floors, 3)
