"""One verdict and one sentence for a whole comparison, from those of its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.records.kinds.output import OutputRecord
from driftscope.records.verdict import Verdict, worst
from driftscope.records.words import counted


def overall_verdict(outputs: Sequence[OutputRecord]) -> Verdict:
    """The worst verdict of the outputs; INCONCLUSIVE where nothing was compared."""
    return Verdict.INCONCLUSIVE if _nothing(outputs) else worst(o.verdict for o in outputs)


def _nothing(outputs: Sequence[OutputRecord]) -> bool:
    """Whether there is nothing to compare: no output at all, or None alone on both sides."""
    return all(o.verdict is Verdict.IDENTICAL and o.a is not None and o.a.dtype == "None" for o in outputs)


def overall_reason(outputs: Sequence[OutputRecord], verdict: Verdict) -> str:
    """The sentence of the worst output; with its path when there are several."""
    if _nothing(outputs):
        return "neither program returns anything: nothing was compared"
    alike_first = [o for o in outputs if o.verdict is verdict]
    # The same bits from another function are told before the same bits from the same one.
    first = next((o for o in alike_first if _function_differs(o)), alike_first[0])
    if len(outputs) == 1:
        return first.reason
    alike = sum(o.verdict is verdict for o in outputs)
    return f"{first.path}: {first.reason} ({alike} of {counted(len(outputs), 'output')} {verdict})"


def _function_differs(output: OutputRecord) -> bool:
    return output.lifted is not None and output.lifted > (output.lifted_threshold or 0.0)
