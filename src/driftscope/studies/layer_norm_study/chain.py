"""LayerNormalization, MatMul, Add: each operator by torch or by onnxruntime, one by one or as a whole graph."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
import onnx.helper as oh
import torch

from driftscope.errors import RuntimeRefused
from driftscope.programs.loading.load import onnx_program
from driftscope.programs.protocol import Program
from driftscope.studies.layer_norm_study.implementations import EPSILON
from driftscope.studies.onnx_graphs import Changes, changes_between, rounding_operators

OPERATORS = ("LayerNormalization", "MatMul", "Add")
WHOLE = ("onnxruntime whole", "onnxruntime whole [all]")

_ITYPE = {
    "float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16, "bfloat16": onnx.TensorProto.BFLOAT16,
}  # fmt: skip
#: operator -> inputs and output in the chain
_WIRES = {
    "LayerNormalization": (("x", "scale", "shift"), "n"),
    "MatMul": (("n", "W"), "m"),
    "Add": (("m", "B"), "y"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainRun:
    """One way to run the chain.

    Parameters
    ----------
    name : str
        One letter for each operator, ``t`` or ``o``; or one of :data:`WHOLE`.
    y : torch.Tensor or None
        On the CPU; None where a runtime lacks something.
    rounding : tuple of str
        The operators whose result is rounded to the narrow format: each one, or where the runtime casts.
    gap : str
    changes : Changes or None
        What onnxruntime made of the whole graph.
    """

    name: str
    y: torch.Tensor | None
    rounding: tuple[str, ...] = OPERATORS
    gap: str = ""
    changes: Changes | None = None


def mixtures() -> list[str]:
    """Return the names of all mixtures, ``"ttt"`` first."""
    return ["".join(letters) for letters in itertools.product("to", repeat=len(OPERATORS))]


class ChainKernels:
    """The operators in both runtimes, for operands of one dtype and device.

    Parameters
    ----------
    operands : mapping of name to torch.Tensor
        ``x``, ``scale``, ``shift``, ``W``, ``B``.
    threads : int
    """

    def __init__(self, operands: Mapping[str, torch.Tensor], threads: int):
        self.operands, self.threads = dict(operands), threads
        self.dtype = str(operands["x"].dtype).removeprefix("torch.")
        self._sessions: dict[str, Any] = {}
        self._known: dict[str, torch.Tensor] = {}

    def run(self, mixture: str) -> torch.Tensor:
        """Run a mixture, or the beginning of one, node by node; what several have in common is run once.

        Raises
        ------
        RuntimeRefused
            If onnxruntime has no kernel for an operator.
        """
        values = dict(self.operands)
        for operator, letter in zip(OPERATORS, mixture, strict=False):
            done = mixture[: OPERATORS.index(operator) + 1]
            inputs, output = _WIRES[operator]
            if done not in self._known:
                self._known[done] = self.one(operator, letter, [values[name] for name in inputs])
            values[output] = self._known[done]
        return self._known[mixture]

    def normalised(self, runtime: str) -> torch.Tensor:
        """Return what LayerNormalization alone gives in one runtime, ``"t"`` or ``"o"``."""
        return self.run(runtime)

    def one(self, operator: str, runtime: str, inputs: list[torch.Tensor]) -> torch.Tensor:
        """Run one operator in one runtime, ``"t"`` or ``"o"``."""
        if runtime == "t":
            return _in_torch(operator, inputs)
        names, output = _WIRES[operator]
        if operator not in self._sessions:
            model = chain_model((operator,), self.dtype, dict(zip(names, inputs, strict=True)))
            self._sessions[operator] = self._program(model, "disable")
        y: torch.Tensor = self._sessions[operator](dict(zip(names, inputs, strict=True)))[output]
        return y

    def whole(self, name: str) -> ChainRun:
        """Run the whole graph in onnxruntime and look at what it made of it."""
        model = chain_model(OPERATORS, self.dtype, self.operands)
        program = self._program(model, "all" if name.endswith("[all]") else "disable")
        try:
            graph = program.examine().graph
            y = program(dict(self.operands))["y"].cpu()
        except RuntimeRefused as error:
            return ChainRun(name, None, (), " ".join(str(error).split())[:300])
        if graph is None:
            return ChainRun(name, y)
        return ChainRun(name, y, rounding_operators(graph, self.dtype), changes=changes_between(model, graph))

    def _program(self, model: onnx.ModelProto, level: str) -> Program:
        provider = "cuda" if self.operands["x"].is_cuda else "cpu"
        return onnx_program(model, level=level, threads=self.threads, provider=provider, name="layer_norm")


def run_chain(kernels: ChainKernels, name: str) -> ChainRun:
    """Run the chain one way; what a runtime lacks becomes a gap in its own words."""
    if name in WHOLE:
        return kernels.whole(name)
    try:
        return ChainRun(name, kernels.run(name).cpu())
    except RuntimeRefused as error:
        return ChainRun(name, None, (), " ".join(str(error).split())[:300])


def chain_model(operators: tuple[str, ...], dtype: str, operands: Mapping[str, torch.Tensor]) -> onnx.ModelProto:
    """Make an ONNX model of some consecutive operators of the chain."""
    itype = _ITYPE[dtype]
    nodes, made = [], set()
    for operator in operators:
        inputs, output = _WIRES[operator]
        attributes: dict[str, Any] = {"axis": -1, "epsilon": EPSILON} if operator == "LayerNormalization" else {}
        nodes.append(oh.make_node(operator, list(inputs), [output], name=operator, **attributes))
        made.add(output)
    wanted = [name for operator in operators for name in _WIRES[operator][0] if name not in made]
    given = [oh.make_tensor_value_info(name, itype, list(operands[name].shape)) for name in wanted]
    last = _WIRES[operators[-1]][1]
    graph = oh.make_graph(nodes, "layer_norm", given, [oh.make_tensor_value_info(last, itype, None)])
    return oh.make_model(graph, opset_imports=[oh.make_opsetid("", 22)], ir_version=10)


def _in_torch(operator: str, inputs: list[torch.Tensor]) -> torch.Tensor:
    if operator == "LayerNormalization":
        x, scale, shift = inputs
        return torch.nn.functional.layer_norm(x, x.shape[-1:], scale, shift, EPSILON)
    first, second = inputs
    return first @ second if operator == "MatMul" else first + second
