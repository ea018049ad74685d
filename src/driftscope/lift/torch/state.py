"""Leaves a program as it was: random generators, modules' attributes, escapes to numpy noticed."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from driftscope.errors import CannotLift


@contextlib.contextmanager
def generators_kept() -> Iterator[None]:
    """Restore the states of torch's, numpy's and Python's global generators."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextlib.contextmanager
def compilation_off() -> Iterator[None]:
    """Run compiled functions eagerly: the calls inside a compiled kernel are not seen."""
    if "torch._dynamo" not in sys.modules:
        # Nothing can be compiled yet, and asking would import it.
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextlib.contextmanager
def escapes_refused(depends: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Refuse `Tensor.numpy`, `tolist` and DLPack on floats that depend on the inputs: what follows is not seen.

    They are shadowed on the class while a program is recorded; a dispatch mode does not see them, and what came
    back would silently count as a constant.
    """

    def guarded(name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if (self.is_floating_point() or self.is_complex()) and depends(self):
                raise CannotLift(f"Tensor.{name} takes a value that depends on the inputs out of torch's sight.")
            return original(self, *args, **kwargs)

        return method

    own = {name: vars(torch.Tensor).get(name) for name in ("numpy", "tolist", "__dlpack__")}
    for name in own:
        setattr(torch.Tensor, name, guarded(name))
    try:
        yield
    finally:
        for name, original in own.items():
            if original is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)
