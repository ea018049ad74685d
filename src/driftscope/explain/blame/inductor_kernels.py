"""The kernels that torch's inductor writes, with the operators each one fuses; private to torch, read in 2.13.

The hook ``torch._inductor.graph.GraphLowering.save_output_code`` is handed every module that inductor generates; each
kernel in it is preceded by comments that say which operators it was made of. ``torch._inductor.compiler_bisector``
lowers only the first n operators, and finds the n at which a result turns wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from driftscope.programs.state.printing import caught

T = TypeVar("T")

_ORIGINAL = re.compile(r"Topologically Sorted Source Nodes: \[(?P<nodes>[^\]]*)\], Original ATen: \[(?P<aten>[^\]]*)\]")
_NAME = re.compile(r"^(?P<name>(?:cpp|triton)_\w*fused\w*) = async_compile", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FusedKernel:
    """A fused kernel: its name, which lists what it was made of, and the operators where comments say them."""

    name: str
    operators: tuple[str, ...] = ()

    def holds(self, operator: str) -> bool:
        """Whether an ATen operator is part of it."""
        return operator in self.operators or f"_{operator}_" in self.name

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(self.operators)})" if self.operators else self.name


def compile_listening(run: Callable[[], T]) -> tuple[T, tuple[FusedKernel, ...]]:
    """Run something that compiles, and return its result with the kernels that inductor wrote for it."""
    import torch._inductor.config as inductor_config
    from torch._inductor.graph import GraphLowering

    written: list[str] = []
    saved = GraphLowering.save_output_code

    def listen(code: str) -> None:
        written.append(code)
        if saved is not None:
            saved(code)

    GraphLowering.save_output_code = staticmethod(listen)
    try:
        # A graph that comes out of a cache is not written again.
        with inductor_config.patch(force_disable_caches=True):
            result = run()
    finally:
        GraphLowering.save_output_code = saved
    return result, tuple(kernel for code in written for kernel in kernels_of(code))


def kernels_of(code: str) -> list[FusedKernel]:
    """List the fused kernels of a generated module."""
    found: list[FusedKernel] = []
    places = list(_NAME.finditer(code))
    end = 0
    for place in places:
        head = code[end : place.start()]
        end = place.end()
        said = list(_ORIGINAL.finditer(head))
        operators = [name.strip().removeprefix("aten.") for match in said[-1:] for name in match["aten"].split(",")]
        found.append(FusedKernel(place["name"], tuple(dict.fromkeys(name for name in operators if name))))
    return found


def guilty_lowering(right: Callable[[], bool]) -> str:
    """Find the ATen operator at whose lowering a result turns wrong; empty when torch cannot say.

    Parameters
    ----------
    right : callable
        Compiles and runs, and says whether the result is right. Called about log2(operators) + 10 times.
    """
    from torch._inductor.compiler_bisector import CompilerBisector

    # It reports each step on standard output, which belongs to the answer.
    with caught():
        found: Any = CompilerBisector.do_bisect(right)
    if found is None or found.subsystem != "lowerings" or not found.debug_info:
        return ""
    match = re.search(r"aten[.:]+(\w+)", str(found.debug_info))
    return match[1] if match else str(found.debug_info)
