"""What both kinds of lifted graph have in common: constants, steps, and the observer that sees each step.

A lifted graph evaluates a program's own operators in float64. Two evaluators exist, one for torch (a tape of
ATen calls) and one for ONNX; everything that looks *at* a lifted run (noise injection, alignment, localisation)
is an :class:`Observer` and does not know which of the two it watches.

Rules both evaluators keep:

* **Floats are float64, and each value remembers its native format.** A cast between float formats does not round;
  it only changes the format remembered.
* **Decisions are made in the native format.** Casts to integers, comparisons, argmax, top-k, rounding and
  quantisation see the float64 value rounded to its native format, so that index arithmetic picks what the
  native program picks.
* **Constants are evaluated natively.** A step that depends on no input *value* (weights, literals, shapes only)
  runs in its native formats, as exporters and the runtime itself fold it; its result is up-cast where the rest
  of the graph uses it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from driftscope.records.finding import Where
from driftscope.records.paths import Path


class Origin(enum.StrEnum):
    """Where a constant comes from."""

    WEIGHT = "weight"  # a parameter, buffer or initializer
    LITERAL = "literal"  # a Python number in torch code, exact in float64
    ATTRIBUTE = "attribute"  # a float attribute of an ONNX node, stored in float32 (or its schema default)
    COMPUTED = "computed"  # the result of a constant subgraph, evaluated natively


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that a lifted graph uses.

    Parameters
    ----------
    name : str
        Unique in its graph: an initializer's or value's name, or ``"node.attribute"``.
    value : torch.Tensor
        Its native bits, in its native format and shape; 0-dim float64 for literals.
    origin : Origin
    where : Where
        The node that uses it first.
    frontier : bool
        Whether a step that depends on the inputs uses it (and so replacing it changes the result).
    readers : tuple of str
        The steps that use it, through views too, where these do not say so themselves: calls of torch.
    """

    name: str
    value: torch.Tensor
    origin: Origin
    where: Where
    frontier: bool = True
    readers: tuple[str, ...] = ()


_READ_BY = " read by "


def use_of(constant: str, step: str) -> str:
    """Name what one step reads of a stored constant, to replace it there alone."""
    return f"{constant}{_READ_BY}{step}"


def constant_of(name: str) -> str:
    """Name the constant of such a use; any other name is a constant's own."""
    return name.split(_READ_BY, 1)[0]


def plain_name(operator: str) -> str:
    """The plain name of an operator: ``"add"`` of ``aten.add_.Tensor`` and of ``Add``."""
    return operator.rsplit("::", 1)[-1].removeprefix("aten.").split(".")[0].lower().strip("_")


class Kind(enum.StrEnum):
    """How ordinary rounding enters a step."""

    EXACT = "exact"  # moves, selects or compares values: views, gathers, min, max, relu, where, negation
    ROUND = "round"  # one rounding of an elementwise result: +, -, *, /, sqrt
    FUNCTION = "function"  # a transcendental: one rounding and the error of the approximation
    SUM = "sum"  # a reduction of the values themselves: sum, mean, cumsum, average pooling
    DOT = "dot"  # sums of products: matmul, convolution, einsum, attention's matmuls
    NORM = "norm"  # layer, instance, group, batch and RMS normalisation
    SOFTMAX = "softmax"  # softmax, log-softmax, logsumexp


class StableKernel(Protocol):
    """A kernel whose rounding is that of operands that are moved a little (see ``formulas.linear_algebra``)."""

    def run(self, moved: float, generator: torch.Generator) -> Sequence[torch.Tensor | None] | None:
        """Run it on operands moved by a share of each number; None where it refuses them."""

    def growth(self) -> float:
        """By how many unit roundoffs its operands are to be moved."""


@dataclass(slots=True)
class Rounding:
    """How ordinary rounding enters one step.

    Parameters
    ----------
    kind : Kind
    length : int
        Number of terms added for one output element (SUM, DOT, NORM, SOFTMAX); 1 otherwise.
    squares : callable or None
        For SUM and DOT: returns the sum of the squared terms of each output element, broadcastable to the
        output. Called only when noise is injected. None lets the model assume terms of equal size.
    parts : callable or None
        For ROUND and FUNCTION: returns the size of what a kernel cancels on the way to each output element, as the
        ones of ``1 + erf`` are. A kernel rounds those too; the formula of the lift need not.
    errors : callable or None
        For FUNCTION: returns for a format the errors that the kernel was measured to make, where it is not torch's
        (see :func:`driftscope.lift.noise.measured.errors_of`).
    moved : StableKernel or None
        For FUNCTION: a kernel of linear algebra, whose rounding is that of operands that are moved a little.
    running : bool
        For SUM and DOT: the kernel is known to add all terms one after the other.
    stored : bool
        For SUM and DOT: that running sum is kept in the format of the result; for ROUND what is made on the way is.
    narrows : bool
        A cast to a narrower format: lifted it is the value itself, which the arithmetic of the lift does not round.
    bits : Tensor or None
        What the program itself makes of the value by its bits, where it rounds by hand to a narrower format.
    """

    kind: Kind = Kind.EXACT
    length: int = 1
    squares: Callable[[], torch.Tensor] | None = None
    parts: Callable[[], torch.Tensor] | None = None
    errors: Callable[[torch.dtype], torch.Tensor] | None = None
    moved: StableKernel | None = None
    running: bool = False
    stored: bool = False
    narrows: bool = False
    bits: torch.Tensor | None = None


@dataclass(slots=True)
class Step:
    """One operator of a lifted run, just evaluated.

    Parameters
    ----------
    index : int
        Position in the run, from 0.
    name, operator : str
        Node name (unique in its graph) and operator, e.g. ``"aten.addmm"`` or ``"LayerNormalization"``.
    where : Where
        Module path and source line as far as the graph knows them.
    input_names, output_names : sequence of str
        Value names in the graph ("" for an optional input left out).
    inputs, outputs : sequence of torch.Tensor or None
        Lifted values; floats are float64.
    formats : sequence of torch.dtype or None
        Native format of each output.
    rounding : Rounding
    attributes : mapping
        The node's attributes or keyword literals, for findings.
    constant : bool
        True when the step depends on no input value; such a step was evaluated natively.
    traced : tuple of (str, str)
        Name and target of the node of the exporter's graph that it was made of, as ``("linear_1",
        "aten.linear.default")``; empty strings when nothing says it.
    held : sequence of bool
        Which inputs are constants; empty where nobody said it.
    device : str
        Where it natively runs, as torch names it; its values here lie on the processor.
    """

    index: int
    name: str
    operator: str
    where: Where
    input_names: Sequence[str]
    output_names: Sequence[str]
    inputs: Sequence[torch.Tensor | None]
    outputs: Sequence[torch.Tensor | None]
    formats: Sequence[torch.dtype | None]
    rounding: Rounding
    attributes: Mapping[str, object]
    constant: bool = False
    traced: tuple[str, str] = ("", "")
    held: Sequence[bool] = ()
    device: str = "cpu"


class Observer(Protocol):
    """Sees every step of a lifted run; may replace its outputs (same shapes, float64) by returning them."""

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None: ...


@dataclass(slots=True)
class LiftedOutput:
    """One output leaf of a lifted run: its place, its name in the graph, its float64 value, its native format."""

    path: Path
    name: str
    value: torch.Tensor | None
    format: torch.dtype | None

    def less(self, other: LiftedOutput) -> torch.Tensor | None:
        """Subtract another where both are finite, zero elsewhere; None for outputs that are not floats."""
        x, y = self.value, other.value
        if x is None or y is None or x.shape != y.shape or not (x.dtype.is_floating_point or x.dtype.is_complex):
            return None
        gap = x - y
        return torch.where(torch.isfinite(gap), gap, torch.zeros((), dtype=gap.dtype, device=gap.device))


class Lifted(Protocol):
    """A program ready to be evaluated in float64."""

    kind: str  # "torch" or "onnx"

    @property
    def largest(self) -> int:
        """Elements of the largest tensor that it is known to have before it is run."""
        ...

    def constants(self) -> Sequence[Constant]:
        """Every constant of the graph: stored, literal, attribute and natively computed."""
        ...

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        """Evaluate once in float64 on the inputs the graph was lifted with.

        Parameters
        ----------
        observe : Observer or None
            Called after each step, in order.
        replace : mapping of constant name to float64 tensor
            Values to use instead of the stored constants (same shape as the stored value).

        Raises
        ------
        CannotLift
            Naming the operator that has no float64 evaluation.
        """
        ...

    def with_attribute(self, step: str, name: str, value: object) -> Lifted:
        """Give the same program with another attribute (or literal argument) of one step, to try what that changes.

        Parameters
        ----------
        step : str
            Name of the step.
        name : str
            The attribute's own name in this graph, as :attr:`Step.attributes` has it.
        value : object

        Raises
        ------
        CannotLift
            If the graph has no such step outside subgraphs and fused kernels.
        """
        ...

    def with_inputs(self, step: str, order: Sequence[int]) -> Lifted:
        """Give the same program with the inputs of one step in another order, to try what that changes.

        Parameters
        ----------
        step : str
            Name of the step.
        order : sequence of int
            For each of its first inputs the one that takes its place.

        Raises
        ------
        CannotLift
            If the graph has no such step outside subgraphs and fused kernels.
        """
        ...

    def with_operator(self, step: str, operator: str) -> Lifted:
        """Give the same program with another operator in one step, to try what that changes.

        Parameters
        ----------
        step : str
            Name of the step.
        operator : str
            One of the same inputs and attributes, of the same set of operators.

        Raises
        ------
        CannotLift
            If the graph has no such step outside subgraphs and fused kernels, or no such operator.
        """
        ...

    def with_values(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Lifted:
        """Give the same program on other inputs; what it chose by their values when it was lifted stays chosen.

        Parameters
        ----------
        change : callable
            Makes of every input tensor one of the same shape and dtype.
        """
        ...

    def constant_values(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Evaluate the constant subgraphs alone, in float64 instead of natively.

        What cannot be evaluated so (a random number, memory that others see) is left out.

        Parameters
        ----------
        observe : Observer or None
            Called after each step of them; may replace its outputs, so that noise goes the way of the values.
        replace : mapping of constant name to float64 tensor
            Values to use instead of stored constants, whether or not a step that depends on the inputs uses them.

        Returns
        -------
        dict of value name to float64 (or complex128) tensor
            Every real value that constant steps compute, the frontier's and those on the way to it.
        """
        ...
