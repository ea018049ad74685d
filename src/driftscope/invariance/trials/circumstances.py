"""The same call again: repeated, on other threads, with inputs that lie elsewhere in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch

from driftscope.invariance.running import Laid, Runner
from driftscope.invariance.trials.trial import AxisPlan, AxisTrial, RunVariant, Setting
from driftscope.invariance.wrapping import copied
from driftscope.programs.protocol import Program

_REPEATS = 2
#: The trial in which a module keeps what a call left in it.
AFTER_ITSELF = "a second call of the same module"
#: Bytes by which inputs are moved from where an allocator puts them: the widths of one float, SSE and AVX-512.
_OFFSETS = (4, 16, 64)
_ALIGNED = 128


def repeat(runner: Runner, base: RunVariant) -> AxisPlan:
    """Call again."""
    names = [f"run {k + 2}" for k in range(_REPEATS)]
    trials = [AxisTrial("repeat", name, base, RunVariant(again=True), _outputs(runner)) for name in names]
    if runner.program.kind == "torch":
        # Between the runs of a check modules are put back; a user who calls twice does not do that.
        follows = RunVariant(calling=_second_call)
        trials.append(AxisTrial("repeat", AFTER_ITSELF, base, follows, _outputs(runner), ways="state"))
    return AxisPlan("repeat", trials)


def _second_call(function: Any, *args: Any, **kwargs: Any) -> Any:
    own_args, own_kwargs = copied((args, kwargs))
    function(*own_args, **own_kwargs)
    return function(*args, **kwargs)


def threads(runner: Runner, base: RunVariant) -> AxisPlan:
    """Run on 1, 2 and as many threads as there are processors."""
    counts = sorted({1, 2, os.cpu_count() or 1})
    return AxisPlan(
        "threads",
        [
            AxisTrial("threads", f"{n} thread{'s' * (n > 1)}", base, RunVariant(setting=_on(n), threads=n),
                      _outputs(runner))
            for n in counts
        ],
    )  # fmt: skip


def _on(count: int) -> Setting:
    def enter(program: Program) -> contextlib.AbstractContextManager[Program]:
        return program.on_threads(count)

    return enter


def denormals(runner: Runner, base: RunVariant) -> AxisPlan:
    """Take denormal numbers as zero, on one thread: the mode belongs to the thread."""
    if runner.program.flushing_denormals() is None:
        return AxisPlan("denormals", reason="this runtime cannot be set to take denormal numbers as zero")

    @contextlib.contextmanager
    def flushing(program: Program) -> Iterator[Program]:
        yield program.flushing_denormals() or program

    usual, flushed = RunVariant(setting=_on(1)), RunVariant(setting=flushing)
    return AxisPlan(
        "denormals", [AxisTrial("denormals", "denormal numbers taken as zero", usual, flushed, _outputs(runner))]
    )


def layout(runner: Runner, base: RunVariant) -> AxisPlan:
    """Let the inputs lie otherwise in memory."""
    ways = runner.program.layouts
    if not ways:
        return AxisPlan("layout", reason="this runtime copies its inputs to memory of its own")
    laid: dict[str, Laid] = {}
    if "strides" in ways:
        if any(x.dim() >= 2 for x in runner.tensors):
            laid["last two axes exchanged in memory"] = _exchanged
        if any(x.dim() == 4 for x in runner.tensors):
            laid["channels last"] = _channels_last
        laid["every second element of a larger tensor"] = _spread
    for offset in _OFFSETS:
        laid[f"moved by {offset} bytes"] = _moved(offset)
    return AxisPlan(
        "layout",
        [AxisTrial("layout", name, base, RunVariant(laid=way), _outputs(runner)) for name, way in laid.items()],
    )


def _outputs(runner: Runner) -> tuple[int, ...]:
    return tuple(range(len(runner.base.leaves)))


def _plain(x: torch.Tensor) -> bool:
    return x.layout is torch.strided and not x.is_quantized and x.numel() > 0


def _exchanged(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2) if _plain(x) and x.dim() >= 2 else x.clone()


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if _plain(x) and x.dim() == 4 else x.clone()


def _spread(x: torch.Tensor) -> torch.Tensor:
    if not _plain(x) or not x.dim():
        return x.clone()
    wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
    wide[..., ::2] = x
    return wide[..., ::2]


def _moved(offset: int) -> Laid:
    def move(x: torch.Tensor) -> torch.Tensor:
        size = x.element_size()
        if not _plain(x) or offset % size or x.device.type != "cpu":
            return x.clone()
        room = x.new_empty(x.numel() + (offset + _ALIGNED) // size)
        start = (-room.data_ptr() % _ALIGNED + offset) // size
        there = room[start : start + x.numel()].view(x.shape)
        return there.copy_(x)

    return move
