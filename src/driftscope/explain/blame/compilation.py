"""Which part of ``torch.compile`` moved the result: a stage, a setting, a fused kernel.

The stages are run one by one, from the capture alone to the full compiler, and the first whose result is wrong is to
blame. Where that is inductor's code generation, its settings are tried, those the caller gave first, and the fused
kernels that it wrote are listed with the operators each one computes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.blame.inductor_kernels import FusedKernel, compile_listening, guilty_lowering
from driftscope.explain.blame.optimisers import SearchBudget, in_words
from driftscope.explain.locate.targets import Distance, Target, largest_gap, same_bits
from driftscope.programs.protocol import Bound, Program
from driftscope.programs.value_trees import flatten
from driftscope.records.kinds.left_out import Blame, Suspect
from driftscope.records.words import floors

# backend -> what it adds to the one before it
_STAGES = (
    ("eager", "capture by TorchDynamo"),
    ("aot_eager", "AOTAutograd's functional graph"),
    ("aot_eager_decomp_partition", "inductor's decompositions"),
)
# Settings of inductor that decide how numbers are rounded or what is fused, in the order in which they are tried.
_SETTINGS: tuple[tuple[str, Any], ...] = (
    ("emulate_precision_casts", True),
    ("epilogue_fusion", False),
    ("pattern_matcher", False),
    ("max_fusion_size", 1),
)
# Share of a drift below which a setting took nearly all of it away.
_MOSTLY = 0.1
# Compilations that finding the operator inside a kernel must be allowed.
_PATIENT = 32


@dataclass(frozen=True, slots=True)
class _Compiled:
    """One compilation: what it gave, its kernels, how far it is from the target."""

    outputs: list[Any]
    kernels: tuple[FusedKernel, ...]
    distance: Distance
    seconds: float


@dataclass(slots=True)
class _CompilerSearch:
    bound: Bound
    program: Program
    target: Target
    budget: SearchBudget
    start: float = field(default_factory=time.perf_counter)
    runs: int = 0

    @property
    def spent(self) -> bool:
        return self.runs >= self.budget.runs

    @property
    def backend(self) -> str:
        return str(self.program.describe()["compile"]["backend"])

    def compiled(self, settings: Mapping[str, Any]) -> _Compiled | RuntimeRefused:
        """Compile anew with these settings and run once."""
        self.runs += 1
        begin = time.perf_counter()
        again = self.program.variant(**settings)
        try:
            tree, kernels = compile_listening(lambda: again(self.bound))
        except RuntimeRefused as refusal:
            return refusal
        outputs = [value for _, value in flatten(tree)[0]]
        return _Compiled(outputs, kernels, self.target.distance(outputs), time.perf_counter() - begin)


def blame_stages(bound: Bound, target: Target, budget: SearchBudget | None = None) -> Blame:
    """Name the stage, and where possible the setting and the fused kernel, that moved a compiled program's result.

    Parameters
    ----------
    bound : Bound
        A program of kind ``"compiled"`` with its inputs.
    target : Target
        What its outputs should be.
    budget : SearchBudget or None

    Raises
    ------
    RuntimeRefused
        If it does not compile as it stands.
    """
    program = bound.program
    if program.kind != "compiled":
        raise CannotLift(f"{program.name} runs on {program.runtime}, which compiles nothing")
    search = _CompilerSearch(bound, program, target, budget or SearchBudget())
    base = search.compiled(program.settings)
    if isinstance(base, RuntimeRefused):
        raise base
    suspects, guilty = _stages(search, base)
    found, settings = list(suspects), dict(program.settings)
    if search.backend == "inductor" and (guilty in ("", "inductor") or base.distance.fine):
        more, better = _settings(search, base)
        found += more
        if better is not None and not base.distance.fine:
            guilty, settings = better
    elif guilty:
        settings = {"backend": _before(guilty)}
    kernel = _kernel(search, base) if guilty == "inductor" else ""
    return _record(search, base, found, (guilty, settings, kernel))


def _stages(search: _CompilerSearch, base: _Compiled) -> tuple[list[Suspect], str]:
    """Run the stages below the program's own backend; the first that is wrong, or the backend itself, is guilty."""
    suspects: list[Suspect] = []
    guilty, right = "", True
    names = [name for name, _ in _STAGES]
    below = _STAGES[: names.index(search.backend)] if search.backend in names else _STAGES
    for name, words in below:
        if search.spent:
            return suspects, ""
        found = search.compiled({"backend": name})
        suspect = _suspect(f"{name}", "stage", base, found)
        suspects.append(suspect)
        fine = isinstance(found, _Compiled) and found.distance.fine
        if right and not fine and not base.distance.fine:
            guilty, right = f"{name} ({words})", False
    if not base.distance.fine and not guilty:
        guilty = search.backend
    return suspects, guilty


def _before(guilty: str) -> str:
    names = [name for name, _ in _STAGES]
    stage = guilty.split(" ", 1)[0]
    position = names.index(stage) if stage in names else len(names)
    return names[position - 1] if position else "eager"


def _settings(search: _CompilerSearch, base: _Compiled) -> tuple[list[Suspect], tuple[str, dict[str, Any]] | None]:
    """Try inductor's settings: without each that the caller gave, then with each that rounds as eager does."""
    given = dict(search.program.settings.get("options") or {})
    trials = [(name, {k: v for k, v in given.items() if k != name}) for name in given]
    trials += [(f"{k}={v}", {**given, k: v}) for k, v in _SETTINGS if given.get(k) != v]
    suspects: list[Suspect] = []
    for name, options in trials:
        if search.spent:
            break
        settings = {**search.program.settings, "options": options or None}
        settings.pop("mode", None)  # torch takes a mode or options, not both
        found = search.compiled(settings)
        suspect = _suspect(name, "option", base, found)
        suspects.append(suspect)
        if suspect.explains:
            return suspects, (name, settings)
        if base.distance.fine and name.startswith("emulate"):
            break  # nothing is wrong: the setting that people ask about is enough
    return suspects, None


def _suspect(name: str, kind: str, base: _Compiled, found: _Compiled | RuntimeRefused) -> Suspect:
    if isinstance(found, RuntimeRefused):
        return Suspect(name, kind, refused=found.words, same_bits=False)
    return Suspect(
        name, kind,
        same_bits=same_bits(base.outputs, found.outputs),
        moved=largest_gap(base.outputs, found.outputs),
        floors=found.distance.floors,
        explains=found.distance.fine and not base.distance.fine,
        seconds=found.seconds,
    )  # fmt: skip


def _kernel(search: _CompilerSearch, base: _Compiled) -> str:
    """Name the fused kernel: the only one, or the one with the operator whose lowering is to blame."""
    if len(base.kernels) == 1:
        return str(base.kernels[0])
    if search.budget.runs < _PATIENT or not base.kernels:
        return ""

    def right() -> bool:
        found = search.compiled(search.program.settings)
        return isinstance(found, _Compiled) and found.distance.fine

    operator = guilty_lowering(right)
    holding = [k for k in base.kernels if operator and k.holds(operator)]
    if holding:
        return f"{holding[0]}, at {operator}"
    return f"the one with {operator}" if operator else ""


def _record(
    search: _CompilerSearch, base: _Compiled, suspects: Sequence[Suspect], verdict: tuple[str, dict[str, Any], str]
) -> Blame:
    guilty, settings, kernel = verdict
    wrong = not base.distance.fine
    mended = next((s for s in suspects if s.explains and (s.name == guilty or s.name == settings.get("backend"))), None)
    if wrong and guilty and mended is None:
        mended = next((s for s in reversed(suspects) if s.explains), None)
        settings = {"backend": mended.name} if mended is not None and mended.kind == "stage" else settings
    paste = _call(settings) if wrong and guilty and mended is not None else ""
    kept = {k: v for k, v in settings.items() if v is not None}
    return Blame(
        answer=_answer(search, base, suspects, (guilty, kernel), mended),
        guilty=(guilty,) if wrong and guilty else (),
        suspects=tuple(suspects),
        program=f"{search.program.name} on {search.program.runtime}",
        reference=search.target.words,
        wrong=wrong,
        floors=base.distance.floors,
        floors_without=mended.floors if mended is not None else None,
        paste=paste,
        program_line=f"ds.torch(model, compile={kept or True!r})" if paste else "",
        verified=True if paste else None,
        runs=search.runs,
        complete=not search.spent,
        seconds=time.perf_counter() - search.start,
    )


def _casts(base: _Compiled, suspects: Sequence[Suspect]) -> str:
    """Whether the drift is made of the roundings that eager makes between operators and a fused kernel does not."""
    found = next((s for s in suspects if s.name.startswith("emulate_precision_casts") and s.floors is not None), None)
    if found is None or found.floors is None or found.floors > _MOSTLY * base.distance.floors:
        return ""
    why = "eager rounds between operators, a fused kernel does not"
    return f", {found.floors:.2g} with emulate_precision_casts=True: {why}"


def _call(settings: Mapping[str, Any]) -> str:
    words = ", ".join(f"{k}={v!r}" for k, v in settings.items() if v is not None)
    return f"torch.compile(model{', ' if words else ''}{words})"


def _answer(
    search: _CompilerSearch,
    base: _Compiled,
    suspects: Sequence[Suspect],
    found: tuple[str, str],
    mended: Suspect | None,
) -> str:
    guilty, kernel = found
    words = search.target.words
    if base.distance.fine:
        changing = [s.trial for s in suspects if not s.same_bits]
        moved = f"; other bits, within rounding, with: {', '.join(changing)}" if changing else ""
        casts = _casts(base, suspects)
        return f"nothing to blame: {floors(base.distance.floors)} from {words} as compiled{casts}{moved}"
    state = in_words(base.distance)
    if not guilty:
        return f"not found within the budget of {search.runs} compilations: {state} from {words}"
    place = f", in the kernel {kernel}" if kernel else ""
    after = f" ({floors(mended.floors, 3)} without)" if mended is not None and mended.floors is not None else ""
    return f"{guilty} of torch.compile moved the result{place}: {state} from {words}{after}"
