"""The order in which each variant's kernel adds, revealed at the very shape of the study."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from driftscope.accumulation.revealing.refusal import RevealError
from driftscope.accumulation.revealing.reveal_kernel import reveal_sum
from driftscope.errors import DriftscopeError
from driftscope.studies.gemm_study.variants import Variant, onnx_model

_SECONDS = 20.0  # that asking one kernel may take

#: variant -> the kernel behind its product: a name, or the value that an ONNX node computes.
_KERNELS = {
    "F.linear": "torch.linear", "a @ x + b": "torch.matmul", "numpy": "numpy.matmul", "Gemm + Add": "onnx:p",
    "Gemm": "onnx:Y", "MatMul + Add": "onnx:p",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """How a kernel adds.

    Parameters
    ----------
    pattern : str
        In the grammar of ``ds.reveal``; what stood in the way where it could not be revealed.
    accumulator : str
    words : str
        The pattern in words.
    """

    pattern: str
    accumulator: str = ""
    words: str = ""


def orders_of(variants: Sequence[Variant], dtype: str, shape: tuple[int, int, int], threads: int) -> dict[str, Order]:
    """Reveal the kernels of the variants that have one to ask, each kernel once."""
    known: dict[str, Order] = {}
    found = {}
    for variant in variants:
        kernel = _KERNELS.get(variant.kind)
        if kernel is None:
            continue
        key = f"{variant.kind} {variant.level}" if kernel.startswith("onnx:") else kernel
        if key not in known:
            known[key] = _revealed(variant, kernel, dtype, shape, threads)
        found[variant.name] = known[key]
    return found


def _revealed(variant: Variant, kernel: str, dtype: str, shape: tuple[int, int, int], threads: int) -> Order:
    with tempfile.TemporaryDirectory(prefix="driftscope-") as folder:
        if kernel.startswith("onnx:"):
            path = Path(folder) / "gemm.onnx"
            onnx.save(onnx_model(variant.kind, dtype, shape), str(path))
            kernel = f"{path}:{kernel.partition(':')[2]}"
        try:
            found: Any = reveal_sum(kernel, shape[1], dtype=dtype, shape=shape, threads=threads, max_seconds=_SECONDS)
        except (RevealError, DriftscopeError) as error:
            return Order(f"not revealed: {' '.join(str(error).split())[:160]}")
    several = f" (and {len(found.others)} more in other elements)" if found.others else ""
    return Order(found.pattern, str(found.accumulator), f"{found.family}{several}")
