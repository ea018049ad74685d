"""The two orders in which the first operator whose bits change adds its terms, asked of the kernels themselves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.contrast import difference
from driftscope.accumulation.in_passing import ask_once
from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.kernel_factory import FORMATS_TAKEN
from driftscope.accumulation.kernels.onnx_calls import OPERATORS, NodeCall, node_kernel
from driftscope.accumulation.kernels.torch_calls import PRODUCTS, REDUCTIONS, torch_call
from driftscope.errors import InputError

Sizes = tuple[int, ...]

#: Terms, and multiplications, up to which a kernel is asked in passing.
_TERMS, _WORK, _CALLS = 16384, 1.5e9, 400
_WITH_BIAS_FIRST = ("addmm", "baddbmm")


@dataclass(frozen=True, slots=True)
class SumCall:
    """One call of an operator that adds.

    Parameters
    ----------
    operator : str
        ``"addmm"``, ``"MatMul"``.
    shapes : tuple of tuple of int
        Of its operands.
    dtype : str
    attributes : mapping
        As :func:`~driftscope.accumulation.kernels.torch_calls.torch_call` takes them.
    node : onnx.NodeProto or None
    opsets : sequence
        Of the graph it stands in.
    constant : bool
        Whether the second operand is a constant of the graph.
    """

    operator: str
    shapes: tuple[Sizes, ...]
    dtype: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    node: Any = None
    opsets: Sequence[Any] = ()
    constant: bool = False

    @property
    def terms(self) -> int:
        """How many numbers one result is the sum of; 0 where that is not known."""
        given = self.shapes[1:] if self.operator in _WITH_BIAS_FIRST else self.shapes
        if not given or not given[0]:
            return 0
        if self.operator in ("convolution", "Conv"):
            return math.prod(given[1][1:])
        if len(given) > 1:
            return given[0][-1]
        dims = self.attributes.get("dim")
        axes = range(len(given[0])) if dims in (None, []) else [dims] if isinstance(dims, int) else dims
        return math.prod(given[0][d] for d in axes)

    @property
    def _work(self) -> float:
        given = self.shapes[1:] if self.operator in _WITH_BIAS_FIRST else self.shapes
        each = math.prod(given[0]) * (math.prod(given[1]) / self.terms if len(given) > 1 else 1)
        rows = max(math.prod(given[0]) // self.terms, 1)
        return each * (1.3 * self.terms / rows + 310 / rows + 20)

    def order(self, runtime: str, threads: int | None = None) -> Accumulation | str:
        """Ask the kernel in this shape for its order, or say why there is none."""
        if self.dtype not in FORMATS_TAKEN or not 2 < self.terms <= _TERMS or self._work > _WORK:
            return "too long to ask in passing"
        facts = repr(sorted(self.attributes.items())) + ("" if self.node is None else str(self.node.attribute))
        key = (runtime, self.operator, self.shapes, self.dtype, threads, facts, self.constant)

        def opened(meter: Meter) -> Kernel:
            shapes = list(self.shapes)
            if self.node is None:
                return torch_call(self.operator, shapes, self.attributes, self.dtype, meter)
            if self.operator not in OPERATORS or len(self.node.input) != len(shapes):
                raise InputError(f"{self.operator}: its order cannot be revealed")
            call = NodeCall(self.node, self.opsets, shapes, None, self.constant, threads)
            return node_kernel(self.operator, call, self.dtype, meter)

        return ask_once(key, opened, threads=threads if self.node is None else None, max_calls=_CALLS)


def sum_call(name: str, schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SumCall | None:
    """Note a call of an ATen operator, where it is one whose order can be asked.

    Parameters
    ----------
    name : str
        ``"aten.addmm"``.
    schema : torch.FunctionSchema
    args, kwargs
        What it was called with.
    """
    operator = name.removeprefix("aten.")
    if operator not in (*PRODUCTS, *REDUCTIONS, "convolution"):
        return None
    given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | dict(kwargs)
    tensors = [x for x in given.values() if isinstance(x, torch.Tensor)]
    if not tensors or any(x.device.type != "cpu" for x in tensors):
        return None
    attributes: dict[str, Any] = {k: _plain(v) for k, v in given.items() if not isinstance(v, torch.Tensor)}
    if operator in ("mm", "addmm"):
        factor = tensors[-1]
        attributes["transposed_b"] = factor.dim() == 2 and factor.stride(0) == 1 and factor.stride(1) != 1
    shapes = tuple(tuple(x.shape) for x in tensors)
    return SumCall(operator, shapes, str(tensors[0].dtype).removeprefix("torch."), attributes)


def node_call(graph: Any, node: Any, values: Mapping[str, Any]) -> SumCall | None:
    """Note a node of an ONNX graph, where it is one whose order can be asked.

    Parameters
    ----------
    graph : onnx.ModelProto
    node : onnx.NodeProto
    values : mapping of str to Tensor
        Inputs of the graph and what its nodes returned, as far as they are known.
    """
    attributes = {a.name: a for a in node.attribute}
    if node.op_type not in OPERATORS or node.domain not in ("", "ai.onnx") or "transA" in attributes:
        return None
    stored = {t.name: tuple(t.dims) for t in graph.graph.initializer if t.name in node.input}
    known = {n: tuple(values[n].shape) for n in node.input if isinstance(values.get(n), torch.Tensor)} | stored
    if any(name not in known for name in node.input) or not node.input:
        return None
    first = values.get(node.input[0])
    if not isinstance(first, torch.Tensor):
        return None
    axes = {"dim": list(attributes["axes"].ints)} if "axes" in attributes else {}
    shapes, dtype = tuple(known[name] for name in node.input), str(first.dtype).removeprefix("torch.")
    constant = len(node.input) > 1 and node.input[1] in stored
    return SumCall(node.op_type, shapes, dtype, axes, node, tuple(graph.opset_import), constant)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, slots=True)
class TwoOrders:
    """How one operator adds in two runs.

    Parameters
    ----------
    words : str
        One sentence.
    evidence : mapping
        Both orders.
    """

    words: str
    evidence: Mapping[str, Any]


def two_orders(
    one: SumCall | None, other: SumCall | None, runtime: str, threads: tuple[int | None, int | None] = (None, None)
) -> TwoOrders | None:
    """Ask both kernels; None where one of them cannot be asked, or both add alike.

    Parameters
    ----------
    one, other : SumCall or None
        The same operator in two runs.
    runtime : str
        What runs it; answers are kept by it.
    threads : tuple of int or None
        Of each run, where a trial sets them.
    """
    if one is None or other is None or one.terms != other.terms:
        return None
    a, b = one.order(runtime, threads[0]), other.order(runtime, threads[1])
    if isinstance(a, str) or isinstance(b, str) or difference(a, b) is None:
        return None
    names = [_name(call, count) for call, count in zip((one, other), threads, strict=True)]
    words = f"{names[0]} adds {a.n} terms as {_manner(a)}; {names[1]} as {_manner(b)}"
    return TwoOrders(words, {"n": a.n, "one": _facts(a), "other": _facts(b)})


def _name(call: SumCall, threads: int | None) -> str:
    if threads is not None:
        return f"{call.operator} on {threads} thread{'s' * (threads > 1)}"
    given = call.shapes[1:] if call.operator in _WITH_BIAS_FIRST else call.shapes
    return f"{call.operator} of {' and '.join('x'.join(map(str, shape)) for shape in given[:2])}"


def _manner(a: Accumulation) -> str:
    words = a.family if a.family == a.pattern or len(a.pattern) > 60 else f"{a.family} ({a.pattern})"
    kinds: dict[bool | str | None, str] = {True: ", with FMA", False: ", without FMA", None: ""}
    fma = kinds.get(a.fma, ", partly with FMA")
    several = f", for {a.applies}" if a.others else ""
    return f"{words}{fma}{several}"


def _facts(a: Accumulation) -> dict[str, Any]:
    return {
        "kernel": a.kernel, "shape": list(a.shape or ()), "dtype": a.dtype, "library": a.library, "threads": a.threads,
        "pattern": a.pattern, "family": a.family, "accumulator": a.accumulator, "fma": a.fma, "depth": a.depth,
        "applies": a.applies, "rows_replayed": a.verified.rows,
    }  # fmt: skip
