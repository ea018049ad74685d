"""Asking in passing: a sum that a comparison met, within a budget, and never twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.revealing.refusal import RevealError
from driftscope.accumulation.revealing.reveal_kernel import accumulation_of
from driftscope.errors import InputError, ProgramError, RuntimeRefused
from driftscope.programs.state.threads import thread_count

#: Answers kept; the oldest go first.
_KEPT = 256
_answers: OrderedDict[Hashable, Accumulation | str] = OrderedDict()


def ask_once(
    key: Hashable,
    opened: Callable[[Meter], Kernel],
    *,
    threads: int | None = None,
    max_calls: int = 400,
) -> Accumulation | str:
    """Reveal a sum, or return what was found when it was asked before.

    Parameters
    ----------
    key : hashable
        Everything that the order may depend on: runtime, operator, shapes, dtype, threads.
    opened : callable
        Makes the kernel.
    threads, max_calls
        As for :func:`driftscope.accumulation.revealing.reveal_kernel.reveal_sum`. Nothing ends by the clock: a busy
        machine finds what an idle one finds.

    Returns
    -------
    Accumulation or str
        Or why there is none.
    """
    if key in _answers:
        _answers.move_to_end(key)
        return _answers[key]
    try:
        with thread_count(threads):
            answer: Accumulation | str = accumulation_of(opened(Meter(max_calls)), threads)
    except (RevealError, InputError, ProgramError, RuntimeRefused) as error:
        answer = str(error)
    _answers[key] = answer
    while len(_answers) > _KEPT:
        _answers.popitem(last=False)
    return answer


def forget() -> None:
    """Forget every answer."""
    _answers.clear()
