"""``ds.check_half``: what float16 or bfloat16 does to a program on a device that computes as declared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from driftscope.comparison.measuring.spread import finite
from driftscope.errors import InputError
from driftscope.explain.half.keeping import HalfRuns, Kept, operator_costs, smallest_keep
from driftscope.explain.half.simulation import HALVES, Incident
from driftscope.explain.native.wide_kernels import computed_wide, wide_finding
from driftscope.lift.sources import lift_bound, lift_source
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Bound, OnnxSource
from driftscope.programs.state.process import state_kept
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.half_precision import CANCELLED, Failure, HalfPrecision, error_words
from driftscope.records.words import counted

_FORMATS = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# Names of operators in a line to paste; beyond this the types are the better list.
# Relative error of what would be kept in float32 from which on keeping it is no advice.
_USELESS = 0.1
_NAMED = 24


@state_kept()
def check_half(
    program: Any,
    inputs: Any = None,
    *,
    dtype: str = "",
    costs: bool = False,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> HalfPrecision:
    """Say what a half format does to a program on a device that computes as declared, before one is asked.

    Parameters
    ----------
    program : anything ``ds.program`` accepts
        A program in float16 or bfloat16, or one in float32 whose conversion is to be tried.
    inputs : anything ``ds.inputs`` accepts
    dtype : str
        ``"float16"`` or ``"bfloat16"``: what float32 is converted to. Left out, the program is taken as it is, or,
        if it has no half format anywhere, converted to float16.
    costs : bool
        Also measure what each type of operator costs (one run in float64 for each).
    seed : int
        Seed of drawn inputs.
    progress : callable or None

    Returns
    -------
    HalfPrecision
        ``failures`` name every operator whose result does not fit, ``keep`` is the smallest set found of operators to
        keep in float32, ``paste`` says so as float16 conversion tools take it.

    Raises
    ------
    InputError
        If ``dtype`` is no half format.
    DriftscopeError
        If the program cannot be loaded, the inputs do not fit, or it cannot be evaluated in float64.
    """
    say = progress or (lambda _text: None)
    if dtype and dtype not in _FORMATS:
        raise InputError(f"dtype={dtype!r} is not a half format; choose float16 or bfloat16")
    loaded = load_program(program)
    from driftscope.programs.feeding.feeds import make_inputs

    bound = loaded.bind(make_inputs(inputs, seed=seed) if inputs is not None else None)
    say("Evaluating in float64, operator by operator")
    runs = _runs(bound, dtype)
    return examine_half(runs, bound, costs=costs, say=say)


def _runs(bound: Bound, dtype: str) -> HalfRuns:
    runs = HalfRuns(lift_bound(bound))
    if not dtype and runs.anatomy.halves:
        return runs
    return HalfRuns(_lift_narrow(bound, _FORMATS[dtype or "float16"]), _FORMATS[dtype or "float16"])


def _lift_narrow(bound: Bound, narrow: torch.dtype) -> Any:
    """Lift a program with its float32 inputs rounded, as a converted one receives them."""
    source = bound.program.lift_source(bound)
    if isinstance(source, OnnxSource):
        feeds = {
            name: value.to(narrow).to(value.dtype) if value.dtype == torch.float32 else value
            for name, value in source.feeds.items()
        }
        return lift_source(OnnxSource(source.model, feeds, source.directory))
    return lift_source(source)


def examine_half(
    runs: HalfRuns, bound: Bound, *, costs: bool = False, say: Callable[[str], None] = lambda _t: None
) -> HalfPrecision:
    """Simulate, and where a format fails, look for the smallest set of operators to keep in float32."""
    first = runs.simulate()
    word = _format_word(runs)
    error = runs.error(first)
    kept = Kept()
    if first.incidents:
        say("Looking for the operators to keep in float32")
        kept = smallest_keep(runs, first)
    wide = computed_wide(bound)
    names = (bound.program.name, bound.program.runtime)
    paste = paste_lines(kept, runs.graph.kind)
    findings = [wide_finding(wide, names[0], word)] if wide is not None else []
    beyond = "" if kept.names else _outputs_beyond(runs, word)
    findings += incident_findings(first.incidents[:1], kept, paste, runtime=names[1] if wide else "", beyond=beyond)
    say("Measuring what each type of operator costs") if costs else None
    left = error if kept.error is None else kept.error
    table = operator_costs(runs, left, kept.names, say) if costs else ()
    return HalfPrecision(
        answer=_answer(first.incidents, kept, error, word, beyond),
        program=names[0],
        format=word,
        failures=tuple(
            Failure(i.kind, i.where, i.magnitude, i.largest, i.count, i.total) for i in first.incidents[:50]
        ),
        error=error,
        error_kept=kept.error,
        keep=kept.names,
        keep_operators=kept.operators,
        error_types=kept.error_types,
        by_operator=table,
        paste=paste,
        computed_wide=None if wide is None else (wide.wide, wide.total),
        findings=tuple(findings),
        runs=runs.runs,
    )


def _format_word(runs: HalfRuns) -> str:
    if runs.narrow is not None:
        return str(runs.narrow).removeprefix("torch.")
    formats = {o.format for o in runs.clean if o.format in HALVES}
    return str(next(iter(formats), torch.float16)).removeprefix("torch.")


def paste_lines(kept: Kept, kind: str) -> tuple[str, ...]:
    """The set as float16 conversion tools take it; of a torch program, its places."""
    if not kept.names:
        return ()
    if kind != "onnx":
        return (f"keep in float32: {', '.join(kept.names[:_NAMED])}",)
    lines = [f"node_block_list={list(kept.names)}"] if len(kept.names) <= _NAMED or kept.error_types is None else []
    if kept.error_types is not None:
        # The tools' own list is replaced, not extended, by an argument.
        lines.append(f"op_block_list=[*DEFAULT_OP_BLOCK_LIST, {', '.join(map(repr, kept.operators))}]")
    return tuple(lines)


def incident_findings(
    incidents: Sequence[Incident], kept: Kept, paste: Sequence[str], *, runtime: str, beyond: str = ""
) -> list[Finding]:
    """Name where a declared format fails, with what to keep in float32.

    Parameters
    ----------
    incidents : sequence of Incident
        The first is named.
    kept : Kept
    paste : sequence of str
    runtime : str
        The runtime that computed in a wider format and so did not meet it; empty when none did.
    beyond : str
        What is to be said of outputs that the format does not hold.
    """
    if not incidents:
        return []
    first = incidents[0]
    it = "what leads to it" if first.led else "it"
    hidden = f"; this run did not, because {runtime} computed {it} in float32" if runtime else ""
    place = f"{first.where.node} ({first.where.operator})"
    if first.kind == "overflow":
        what = (
            f"a device that computes in {first.format} overflows at {place}: {first.magnitude:.3g} exceeds the "
            f"largest {first.format}, {first.largest:.5g} ({first.count} of {counted(first.total, 'element')}){hidden}"
        )
        code, why = "N026", f"The value is larger than {first.format} can hold; float64 has it finite."
    else:
        what = (
            f"a device that computes in {first.format} gives NaN or infinity at {place} "
            f"({first.count} of {counted(first.total, 'element')}){hidden}"
        )
        code, why = "N027", f"A value that it is computed from is zero in {first.format}."
    fix, verified = beyond[:1].upper() + beyond[1:], None
    if kept.names and (kept.error is None or not kept.error > _USELESS):
        after = "finite" if kept.error is None else error_words(kept.error)
        count = len(kept.names)
        fix = f"Keep {counted(count, 'operator')} in float32, which leaves {after}: {' or '.join(paste)}"
        verified = kept.error is not None and math.isfinite(kept.error)
    evidence = {
        "format": first.format, "magnitude": first.magnitude, "largest": first.largest, "keep": list(kept.names),
        "error": kept.error,
    }  # fmt: skip
    return [Finding(code, what, why, fix, first.where or Where(), evidence, verified=verified)]


def _outputs_beyond(runs: HalfRuns, word: str) -> str:
    """Say which output no format of this size holds, whatever is computed before it; empty where all fit."""
    for output in runs.clean:
        value = output.value
        if value is None or not value.is_floating_point() or not value.numel():
            continue
        top, most = float(finite(value).abs().max()), torch.finfo(_FORMATS[word]).max
        if top > most:
            reach = f"it reaches {top:.3g} and {word} ends at {most:.5g}"
            return f"give the output {output.name} in float32, or scale it: {reach}"
    return ""


def _answer(incidents: Sequence[Incident], kept: Kept, error: float, word: str, beyond: str) -> str:
    if not incidents:
        # Where all values are numbers, an infinite relative error is one of a result that is exactly zero.
        left = error_words(error) if math.isfinite(error) else CANCELLED
        return f"everything fits {word}: rounding every operator's result leaves {left}"
    failed = f"{word} fails at {counted(len(incidents), 'place')}, first: {incidents[0]}"
    if beyond:
        return f"{failed}; {beyond}"
    if not kept.names:
        return f"{failed}; no set of operators kept in float32 was found that mends it"
    return f"{failed}; with {counted(len(kept.names), 'operator')} in float32 there is {error_words(kept.error)}"
