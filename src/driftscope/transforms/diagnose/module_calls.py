"""What a user's functional_call is given: keys that the module does not know, lacks, or has in another shape."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.utils import stateless

from driftscope.transforms.examination import Examination
from driftscope.transforms.subject import Suspicion
from driftscope.transforms.world.places import Place, calling_place
from driftscope.transforms.world.reach import names_in
from driftscope.transforms.world.running import cloned, run_once


@dataclass(frozen=True)
class CallMismatch:
    """What does not fit in one call."""

    place: Place | None
    words: str


def mismatch_suspect(examination: Examination, transform: str) -> Suspicion | None:
    """Run the function once with ``functional_call`` watched; suspect T030 when keys or shapes do not fit."""
    functions = examination.subject.world.functions
    if not any("functional_call" in names_in(f.__code__) for f in functions):
        return None
    found: list[CallMismatch] = []
    arguments = cloned(examination.subject.slices[0])
    with _watched(found):
        run_once(
            examination.subject.world,
            [lambda: examination.subject.function(*arguments)],
            seconds=examination.seconds,
        )
    if not found:
        return None
    what = f"functional_call does not get the module's own keys: {found[0].words}"
    return Suspicion("T030", transform, "", found[0].place, "torch.func.functional_call", what=what)


@contextmanager
def _watched(found: list[CallMismatch]) -> Iterator[None]:
    kept = stateless._functional_call

    def watching(module: torch.nn.Module, values: Any, *args: Any, **kwargs: Any) -> Any:
        words = _misfit(module, values)
        if words:
            found.append(CallMismatch(calling_place(sys._getframe(1)), words))
        return kept(module, values, *args, **kwargs)

    stateless._functional_call = watching  # type: ignore[assignment]
    try:
        yield
    finally:
        stateless._functional_call = kept


def _misfit(module: torch.nn.Module, values: dict[str, Any]) -> str:
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    told = []
    unknown = [key for key in values if key not in own]
    missing = [key for key, _ in module.named_parameters() if key not in values]
    shapes = [k for k, v in values.items() if k in own and isinstance(v, torch.Tensor) and v.shape != own[k].shape]
    if unknown:
        told.append(f"{', '.join(unknown[:3])} is not a key of the module and is ignored")
    if missing and values:
        told.append(f"{', '.join(missing[:3])} is missing, so the module's own value is used")
    if shapes:
        key = shapes[0]
        told.append(f"{key} has shape {tuple(values[key].shape)} instead of {tuple(own[key].shape)}")
    return "; ".join(told)
