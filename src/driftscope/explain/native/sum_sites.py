"""The sums inside a lifted program, and how the kernels behind them are asked for their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.accumulation.answer import Accumulation
from driftscope.accumulation.in_passing import ask_once
from driftscope.accumulation.kernels.kernel import Kernel, Meter
from driftscope.accumulation.kernels.kernel_factory import FORMATS_TAKEN
from driftscope.accumulation.kernels.onnx_calls import OPERATORS, NodeCall, node_kernel
from driftscope.accumulation.kernels.torch_calls import PRODUCTS, REDUCTIONS, torch_call
from driftscope.comparison.measuring.spread import rms
from driftscope.lift.formulas.terms import ProductSquares
from driftscope.lift.noise.floor import ORDINARY, kernels_of
from driftscope.lift.noise.spreads import Model
from driftscope.lift.steps import Kind, Step
from driftscope.numerics.groupings import Growth
from driftscope.programs.protocol import Bound, OnnxSource
from driftscope.programs.state.threads import own_threads
from driftscope.records.finding import Where

#: The most terms of a sum that is asked in passing.
_TERMS = 16384
# An order that is none of the known ones takes several attempts; a call has a price whatever its size.
_PATIENCE, _CALLS = 3.0, 400


def has_known_kernels(bound: Bound) -> bool:
    """Whether the kernels of a program are known: not those that a compiler writes, nor those of other providers."""
    program: Any = bound.program
    if program.kind == "onnx":
        return bool(program.provider == "CPUExecutionProvider")
    return program.kind in ("torch", "exported")


@dataclass(frozen=True, slots=True)
class Site:
    """A sum inside a program.

    Parameters
    ----------
    step, operator : str
    where : Where
    kind : Kind
    n : int
        Number of terms.
    shapes : tuple of tuple of int
        Of the operands.
    dtype : str
    sizes : tuple of float
        Root mean squares of what is added or multiplied, ascending.
    attributes : mapping
    outputs : tuple of str
        Names of the values it computes.
    device : str
        Where it runs.
    usual : Growth or None
        How its error was taken to grow; None where the step itself says how it adds.
    coherence : float or None
        Mean square of the results over that of their terms added up: 1 for products of random sign, the number of
        terms for equal ones. None for sums that are no products.
    """

    step: str
    operator: str
    where: Where
    kind: Kind
    n: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    sizes: tuple[float, ...]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    device: str = "cpu"
    usual: Growth | None = None
    coherence: float | None = None

    @property
    def work(self) -> float:
        """Multiplications that asking may take."""
        return self.calls * math.prod(self.shapes[0]) * (math.prod(self.shapes[1]) / self.n if self._multiplies else 1)

    @property
    def calls(self) -> float:
        """Calls that asking may take: about one for every row of probes."""
        rows = max(math.prod(self.shapes[0]) // max(self.n, 1), 1)
        return 1.3 * self.n / rows + 310 / rows + 20

    @property
    def _multiplies(self) -> bool:
        return self.kind is Kind.DOT and len(self.shapes) > 1


class SumsOfProgram:
    """The sums of one program: an observer that notes them as a run passes by.

    Parameters
    ----------
    bound : Bound
    """

    def __init__(self, bound: Bound):
        self._bound = bound
        self._source: OnnxSource | None = None
        self._needs: dict[str, tuple[str, ...]] = {}
        self._made_by: dict[str, str] = {}
        self.sites: list[Site] = []
        program: Any = bound.program
        self._onnx = program.kind == "onnx"
        self._model = Model(kernels_of(program.kind), ORDINARY)
        self.askable = has_known_kernels(bound)

    def __call__(self, step: Step) -> None:
        """Note a step that adds up something."""
        if step.constant:
            return
        needs = tuple(step.input_names)
        for name in step.output_names:
            self._needs[name], self._made_by[name] = needs, step.operator
        operator = step.operator.removeprefix("aten.")
        if operator not in (OPERATORS if self._onnx else (*PRODUCTS, *REDUCTIONS, "convolution")):
            return
        given = [x for x in step.inputs if x is not None]
        if not given:
            return  # inside a fused operator, which shows no operands
        added = given[1:3] if operator in ("addmm", "baddbmm") else given[: 2 if step.rounding.kind is Kind.DOT else 1]
        if len(added) < 2 and (step.rounding.kind is Kind.DOT or operator in ("convolution", "Conv")):
            return  # a convolution in blocked layout, or fused: it shows one operand
        dtype = str(step.formats[0]).removeprefix("torch.")
        n = _terms(step, operator, added)
        if dtype in FORMATS_TAKEN and 2 < n <= _TERMS:
            sizes = tuple(sorted(_sizes(step, added)))
            self.sites.append(
                Site(
                    step.name, step.operator, step.where, step.rounding.kind, n, tuple(tuple(x.shape) for x in given),
                    dtype, sizes, self._facts(step, operator, given), tuple(step.output_names), step.device,
                    None if step.rounding.running else self._model.usual_growth(step), _coherence(step, n, sizes),
                )
            )  # fmt: skip

    def _facts(self, step: Step, operator: str, given: list[torch.Tensor]) -> dict[str, Any]:
        """Return what the order may depend on besides shapes: attributes, axes, layout and constness of the factor."""
        facts = dict(step.attributes)
        if operator in ("mm", "addmm"):
            facts["transposed_b"] = self._made_by_view(step.input_names[len(given) - 1])
        elif operator in ("ReduceSum", "ReduceMean") and len(given) > 1:
            facts["axes"] = tuple(int(axis) for axis in given[1].ravel())
        elif self._onnx and step.rounding.kind is Kind.DOT:
            name = step.input_names[1]
            facts["constant_b"] = name not in self._needs and name not in self._bound.feeds
        return facts

    def _made_by_view(self, name: str) -> bool:
        # Weights are transposed by steps that are constant, and those have no entry.
        return self._made_by.get(name, "aten.t") in ("aten.t", "aten.transpose", "aten.permute", "aten.numpy_T")

    def feeds(self, site: Site, output: str) -> bool:
        """Whether an output, named as the lifted program names it, depends on a sum."""
        stack, seen = [output], set()
        while stack:
            name = stack.pop()
            if name in site.outputs:
                return True
            if name and name not in seen:
                seen.add(name)
                stack += self._needs.get(name, ())
        return False

    @own_threads()
    def ask(self, site: Site) -> Accumulation | str:
        """Reveal a sum as this program runs it, or say why not."""
        program: Any = self._bound.program
        if self._onnx and self._source is None:
            self._source = program.lift_source(self._bound)
        node = self._node(site)
        if self._onnx and node is None:
            return f"{site.step} lies in a subgraph or a function"
        threads = program.settings.get("threads") if self._onnx else torch.get_num_threads()
        spelled = repr(sorted(site.attributes.items())) + ("" if node is None else str(node.attribute))
        key = (program.runtime, site.operator, site.shapes, site.dtype, threads, site.device, spelled)

        def opened(meter: Meter) -> Kernel:
            shapes = list(site.shapes)
            if node is None or self._source is None:
                operator = site.operator.removeprefix("aten.")
                return torch_call(operator, shapes, site.attributes, site.dtype, meter, device=site.device)
            opsets = list(self._source.model.opset_import)
            axes, constant = site.attributes.get("axes"), bool(site.attributes.get("constant_b"))
            call = NodeCall(node, opsets, shapes, axes if len(node.input) > 1 else None, constant, threads)
            return node_kernel(site.operator, call, site.dtype, meter)

        return ask_once(key, opened, max_calls=min(int(_PATIENCE * site.calls), _CALLS))

    def _node(self, site: Site) -> Any:
        nodes = self._source.model.graph.node if self._source is not None else ()
        return next((node for node in nodes if site.outputs[0] in node.output), None)


def _terms(step: Step, operator: str, added: list[torch.Tensor]) -> int:
    if operator in ("convolution", "Conv"):
        return math.prod(added[1].shape[1:])
    if step.rounding.kind is Kind.DOT:
        return added[0].shape[-1] if added[0].dim() else 1
    return step.rounding.length


def _sizes(step: Step, added: list[torch.Tensor]) -> Iterable[float]:
    """Root mean squares of what is added or multiplied; of the factors of a product as its noise needs them too."""
    known = step.rounding.squares
    return known.sizes() if isinstance(known, ProductSquares) else map(rms, added)


def _coherence(step: Step, n: int, sizes: Sequence[float]) -> float | None:
    result = step.outputs[0]
    if step.rounding.kind is not Kind.DOT or len(sizes) != 2 or not math.prod(sizes) or result is None:
        return None
    return rms(result) ** 2 / (n * math.prod(sizes) ** 2)
