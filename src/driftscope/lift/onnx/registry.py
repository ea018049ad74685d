"""The table of ONNX operators, and what an operator's evaluation is given.

An operator is a function of torch tensors, written once for every dtype: it runs in float64 where the graph
is lifted and in the native dtype where a constant subgraph is folded::

    @operator("Gemm", since=7)
    def gemm(node: Node, a: Tensor, b: Tensor, c: Tensor | None = None) -> Result: ...

An input left out arrives as None. A bare tensor (or a tuple of them) is a result whose rounding is the
``kind`` given to :func:`operator` and whose formats follow :func:`Result`'s rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from driftscope.errors import CannotLift
from driftscope.lift.choices import choices_are_exact
from driftscope.lift.formulas.terms import Number
from driftscope.lift.onnx.element_types import Format, array_to_tensor, is_float, round_to
from driftscope.lift.steps import Kind, Rounding


@dataclass(slots=True)
class Value:
    """One value of the graph.

    Parameters
    ----------
    data : torch.Tensor, list of Value, ndarray of objects, or None
        A tensor in its storage dtype; a sequence; strings; an empty optional.
    format : torch.dtype or None
        Native format; of a sequence, that of its elements; None for strings.
    constant : bool
        Whether it depends on no input value. A constant float is in its native storage, not in float64.
    """

    data: Any
    format: Format = None
    constant: bool = False


@dataclass(slots=True)
class Result:
    """What an operator returns.

    Parameters
    ----------
    outputs : torch.Tensor, ndarray, None, or a tuple of them
        In the order of the schema; trailing outputs may be left out.
    rounding : Rounding
        Of the first output, and of all others.
    formats : sequence of torch.dtype or None, or None
        Native format of each output. Where it is None (or has None for an output) a float output takes the
        format of the first float input, an integer output that of the first integer input whose storage it
        has, else its own dtype.
    """

    outputs: Any
    rounding: Rounding = field(default_factory=Rounding)
    formats: Sequence[Format] | None = None


class Evaluation(Protocol):
    """What a node asks of the evaluation it is part of (implemented by the interpreter)."""

    device: torch.device
    observed: bool

    def attribute(self, node: Node, name: str, stored: float, *, exact: bool = False) -> Number: ...

    def inner(self, node: Node, operator: str, step: InnerStep) -> torch.Tensor: ...

    def evaluate(self, node: Node, attribute: str, arguments: Sequence[Value]) -> list[Value]: ...

    def lift(self, value: Value, name: str, reader: Any = None) -> Value: ...

    def captured(self, node: Node) -> list[Value]: ...


@dataclass(slots=True)
class InnerStep:
    """One step inside a fused operator, shown to the observer like a node of its own."""

    output: torch.Tensor
    rounding: Rounding
    inputs: Sequence[torch.Tensor | None]
    format: Format


class Node:
    """One evaluation of one node: its attributes, formats and surroundings.

    Attributes
    ----------
    op_type, domain, name : str
        ``name`` is unique in the graph.
    version : int
        Opset version of the node's domain.
    attributes : mapping of str to object
        Attributes present on the node, as Python values (TensorProto and GraphProto stay what they are).
    formats : sequence of torch.dtype or None
        Native format of each input.
    lifted : bool
        True when floats are float64; False while a constant subgraph is evaluated natively.
    output_names : sequence of str
        "" for an output nobody asked for.
    device : torch.device
    """

    __slots__ = (
        "attributes", "defaults", "device", "domain", "evaluation", "formats", "lifted", "name", "op_type",
        "output_names", "plan", "version",
    )  # fmt: skip

    def __init__(self, plan: Any, evaluation: Evaluation, formats: Sequence[Format], lifted: bool):
        self.op_type: str = plan.op_type
        self.domain: str = plan.domain
        self.name: str = plan.name
        self.version: int = plan.version
        self.attributes: Mapping[str, Any] = plan.attributes
        self.defaults: Mapping[str, Any] = plan.defaults
        self.output_names: Sequence[str] = plan.outputs
        self.plan = plan
        self.evaluation = evaluation
        # Constants are folded in host memory, whatever the device of the inputs.
        self.device = evaluation.device if lifted else torch.device("cpu")
        self.formats = formats
        self.lifted = lifted

    # -- attributes ---------------------------------------------------------------------------------------

    def has(self, name: str) -> bool:
        """Whether the attribute is present on the node (a schema default does not count)."""
        return name in self.attributes

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as it is: the node's, else ``default``, else the schema's default, else None."""
        value = self.attributes.get(name)
        if value is None:
            value = default if default is not None else self.defaults.get(name)
        return value

    def _required(self, name: str, default: Any) -> Any:
        value = self.attribute(name, default)
        if value is None:
            raise CannotLift(f"{self} has no attribute {name!r}, which its operator needs")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute."""
        return int(self._required(name, default))

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """A list of integers."""
        return [int(v) for v in self._required(name, default)]

    def number(self, name: str, default: float | None = None) -> Number:
        """A float attribute that enters the formula.

        It is a constant of the graph named ``"<node name>.<attribute>"``, stored in float32, and may have
        been replaced by a 0-dim float64 tensor that carries a gradient: use it in arithmetic, never through
        float().
        """
        stored = float(self._required(name, default))
        return self.evaluation.attribute(self, name, stored)

    def hidden(self, name: str, exact: float) -> Number:
        """A number that the operator stands for and no file holds: a constant like those of :meth:`number`, exact."""
        return self.evaluation.attribute(self, name, exact, exact=True)

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        """A list of floats that only configures the operator (never a constant of the graph)."""
        return [float(v) for v in self._required(name, default)]

    def setting(self, name: str, default: float | None = None) -> float:
        """A float attribute that selects behaviour (a threshold, a seed): no constant of the graph."""
        return float(self._required(name, default))

    def text(self, name: str, default: str | None = None) -> str:
        """A string attribute."""
        value = self._required(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def texts(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        """A list of strings."""
        return [v.decode() if isinstance(v, bytes) else str(v) for v in self._required(name, default)]

    # -- formats ------------------------------------------------------------------------------------------

    def format(self, index: int = 0) -> Format:
        """Native format of an input; None for strings and for inputs left out."""
        return self.formats[index] if index < len(self.formats) else None

    def float_format(self) -> Format:
        """Native format of the first float input."""
        return next((f for f in self.formats if is_float(f)), None)

    def rounded(self, tensor: torch.Tensor, index: int = 0) -> torch.Tensor:
        """A lifted input rounded to its native format, for decisions; the dtype stays float64."""
        if choices_are_exact():
            return tensor
        return round_to(tensor, self.format(index), saturate=False) if self.lifted else tensor

    # -- surroundings -------------------------------------------------------------------------------------

    def wants(self, index: int) -> bool:
        """Whether the graph names this output."""
        return index < len(self.output_names) and self.output_names[index] != ""

    def inner(
        self,
        operator: str,
        output: torch.Tensor,
        rounding: Rounding,
        inputs: Sequence[torch.Tensor | None] = (),
        *,
        stored: bool = True,
        format: Format = None,
    ) -> torch.Tensor:
        """Show one step inside a fused operator to the observer and go on with what it returns.

        Serves formulas as their :class:`~driftscope.lift.formulas.terms.Show`. What a kernel keeps wide (``stored``
        false) is taken to be rounded like the rest: onnxruntime's kernels for narrow formats differ in it.

        A fused operator that ends in such a step reports itself with ``Rounding(Kind.EXACT)``, else its last
        rounding would be counted twice. ``format`` is that of the first float input where it is None.
        """
        if not self.lifted or not self.evaluation.observed:
            return output
        step = InnerStep(output, rounding, inputs, format if format is not None else self.float_format())
        return self.evaluation.inner(self, operator, step)

    def evaluate(self, attribute: str, arguments: Sequence[Value] = ()) -> list[Value]:
        """Evaluate a subgraph attribute with the given values for its inputs."""
        return self.evaluation.evaluate(self, attribute, arguments)

    def lift(self, index: int, value: Value) -> Value:
        """An input value with its floats in float64, as it enters a part of the graph that is lifted."""
        return self.evaluation.lift(value, self.plan.inputs[index], self.plan)

    def captured(self) -> list[Value]:
        """The outer values that the node's subgraphs read."""
        return self.evaluation.captured(self)

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor attribute, in its storage dtype on the node's device."""
        from onnx import numpy_helper

        return array_to_tensor(numpy_helper.to_array(self._required(name, None))).to(self.device)

    def refuse(self, why: str) -> CannotLift:
        """The error to raise for a node that is known but not covered."""
        return CannotLift(f"{self} cannot be evaluated in float64: {why}")

    def __str__(self) -> str:
        domain = f"{self.domain}::" if self.domain else ""
        return f"node {self.name!r} ({domain}{self.op_type}, opset {self.version})"


Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the table.

    Parameters
    ----------
    function : callable
        ``function(node, *inputs)``; with ``values`` it takes and returns :class:`Value` objects.
    kind : Kind
        Rounding of a bare result.
    since : int
        First opset version with this meaning.
    host : tuple of int
        Inputs that configure the operator (shapes, axes, pads): delivered in host memory.
    values : bool
        Whether it works on Value objects (control flow, sequences).
    constant : bool or None
        True: the result depends on shapes only. False: never constant (random). None: as its inputs are.
    """

    function: Function
    kind: Kind = Kind.EXACT
    since: int = 1
    host: tuple[int, ...] = ()
    values: bool = False
    constant: bool | None = None


_TABLE: dict[tuple[str, str], list[Operator]] = {}


def operator(
    *names: str,
    domain: str = "",
    since: int = 1,
    kind: Kind = Kind.EXACT,
    host: tuple[int, ...] = (),
    values: bool = False,
    constant: bool | None = None,
) -> Callable[[Function], Function]:
    """Enter a function in the table under one or more operator names.

    Of several entries for one name the one with the greatest ``since`` not above the node's opset is used.
    """

    def enter(function: Function) -> Function:
        entry = Operator(function, kind, since, host, values, constant)
        for name in names:
            entries = _TABLE.setdefault((domain, name), [])
            entries.append(entry)
            entries.sort(key=lambda e: e.since, reverse=True)
        return function

    return enter


def find_operator(domain: str, name: str, version: int) -> Operator | None:
    """The table's entry for an operator at an opset version, or None."""
    entries = _TABLE.get(("" if domain == "ai.onnx" else domain, name), ())
    for entry in entries:
        if entry.since <= version:
            return entry
    return None


def integers_of(tensor: torch.Tensor | None) -> list[int] | None:
    """The elements of a small integer tensor as Python ints; None for an input left out."""
    if tensor is None:
        return None
    return list(map(int, tensor.reshape(-1).tolist()))


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis."""
    return axis + rank if axis < 0 else axis


def strings(array: Any) -> np.ndarray[Any, Any]:
    """An object array of Python strings."""
    return np.asarray(array, dtype=object)
