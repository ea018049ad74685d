"""torch's own operator database as functions whose honest answer is known: whatever the plain program says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Operator:
    """One operator on one sample: ``function(x)`` with the sample's other arguments bound, and a batch of ``x``."""

    name: str
    function: Callable[..., Any]
    batch: torch.Tensor


def operators(step: int = 1, only: Collection[str] = ()) -> Iterator[Operator]:
    """Yield every ``step``-th entry of torch's operator database that takes a tensor first, on its first sample."""
    from torch.testing._internal.common_methods_invocations import op_db

    for entry in op_db[::step]:
        if only and _name(entry) not in only:
            continue
        if "cpu" not in (entry.device_type if hasattr(entry, "device_type") else "cpu"):
            continue
        dtypes = entry.supported_dtypes("cpu")
        dtype = torch.float64 if torch.float64 in dtypes else torch.float32 if torch.float32 in dtypes else None
        if dtype is None:
            dtype = next(iter(sorted(dtypes, key=str)), None)
        if dtype is None:
            continue
        torch.manual_seed(5)
        try:
            sample = next(iter(entry.sample_inputs("cpu", dtype)))
        except (StopIteration, RuntimeError, NotImplementedError):
            continue
        if isinstance(sample.input, torch.Tensor) and sample.input.layout == torch.strided:
            yield _bound(entry, sample)


def _name(entry: Any) -> str:
    return str(entry.name + (f".{entry.variant_test_name}" if entry.variant_test_name else ""))


def _bound(entry: Any, sample: Any) -> Operator:
    def function(x: torch.Tensor) -> Any:
        return entry.op(x, *sample.args, **sample.kwargs)

    x = sample.input.detach()
    factors = (1.0, 0.875, 0.75) if x.is_floating_point() and x.element_size() > 1 else (1, 1, 1)
    return Operator(_name(entry), function, torch.stack([(x * f).to(x.dtype) if f != 1 else x for f in factors]))
