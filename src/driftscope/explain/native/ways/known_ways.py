"""Ways to compute that a runtime may take: cheaper formats, other orders of additions, numbers rounded first."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from driftscope.explain.native.cheap_products import Changed, rounding_to
from driftscope.explain.native.chirps import Chirped
from driftscope.lift.steps import Kind
from driftscope.numerics.formats import format_of


@dataclass(frozen=True, slots=True)
class Way:
    """A way to compute that may be what a runtime does.

    Parameters
    ----------
    name : str
        For people: "TF32 multiplication".
    factors : str or None
        Format of the factors of products.
    ties : str
        How factors are rounded, see :func:`~driftscope.explain.native.cheap_products.rounding_to`.
    total : str or None
        Format of running sums.
    products : bool
        Whether each product is rounded to that format before it is added.
    results : str or None
        Format to which the result of every operator is rounded; ``""`` for the formats that the graph declares.
    weights : str or None
        Format in which weights are stored.
    matrices : bool
        Whether that holds for those of two or more axes alone.
    stacks : bool
        Whether products of stacks of matrices are computed so too, or those of two matrices alone.
    kind : str
        ``"format"`` for a cheaper format, ``"order"`` for another order of additions in the declared one.
    chirps : bool
        Whether Fourier transforms are computed by a chirp with angles in float32.
    flushes : bool
        Whether results, and what is given, become zero below the smallest normal number of their format.
    numbers : str or None
        Format in which kernels read the numbers that a program was written with; ``""`` for that of their results.
    lanes : int
        In how many interleaved running sums values that are no products are added; more than one where products are
        added as usual.
    """

    name: str
    factors: str | None = None
    ties: str = "even"
    total: str | None = None
    products: bool = False
    results: str | None = None
    weights: str | None = None
    matrices: bool = False
    stacks: bool = True
    kind: str = "format"
    chirps: bool = False
    flushes: bool = False
    numbers: str | None = None
    lanes: int = 1

    def acts_on(
        self, kinds: Container[Kind], weights: bool = True, subnormal: bool = True, numbers: bool = True
    ) -> bool:
        """Whether anything changes in a graph with such steps, stored weights, subnormal results, written numbers."""
        if self.flushes or self.numbers is not None:
            return subnormal if self.flushes else numbers
        dots = Kind.DOT in kinds and self.lanes == 1
        sums = self.total is not None and (dots or (Kind.SUM in kinds and self.factors is None))
        factors = self.factors is not None and Kind.DOT in kinds
        if self.results is None:
            return self.chirps or sums or factors or (self.weights is not None and weights)
        return self.weights is None or weights

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Compute products and sums this way inside the block."""
        if self.factors is None and self.total is None:
            with Chirped() if self.chirps else contextlib.nullcontext():
                yield
            return
        factors = None if self.factors is None else rounding_to(self.factors, self.ties)
        total = None if self.total is None else rounding_to(self.total)
        # A norm keeps wide sums where the products of a layer do not.
        sums = self.lanes if self.kind == "order" or self.factors is None else 0
        with Changed(factors, total, total if self.products else None, self.stacks, sums, self.lanes == 1):
            yield


def _narrow(name: str) -> list[Way]:
    return [
        Way(f"{name} multiplication", factors=name),
        Way(f"{name} storage", results=name, weights=name),
        Way(f"{name} storage", results=name, weights=name, matrices=True),
        Way(f"{name} storage", results=name),
        Way(f"{name} accumulation", factors=name, total=name),
        Way(f"{name} accumulation", factors=name, total=name, products=True),
        Way(f"{name} weights", weights=name),
    ]


# Numbers in a register: a compiler keeps as many running sums.
_LANES = (4, 8, 16)
#: Of one operator alone: what onnxruntime does with lengths that are no power of two.
CHIRP = Way("a transform by a chirp whose angles are float32", chirps=True)

#: What is tried, the likelier first.
WAYS: tuple[Way, ...] = (
    Way("subnormal numbers taken as zero", flushes=True),
    Way("the rounding of its numbers to float32", numbers="float32", kind="storage"),
    Way("the rounding of its numbers to the format of each result", numbers="", kind="storage"),
    Way("TF32 multiplication", factors="tf32"),
    Way("TF32 multiplication", factors="tf32", ties="away"),
    Way("TF32 multiplication", factors="tf32", ties="cut"),
    *_narrow("bfloat16"),
    Way("bfloat16 multiplication", factors="bfloat16", ties="away"),
    Way("bfloat16 multiplication", factors="bfloat16", ties="cut"),
    *_narrow("float16"),
    Way("float32 sums added one term after the other", total="float32", products=True, kind="order"),
    Way("float32 sums added one term after the other", total="float32", kind="order"),
    *(Way(f"float32 sums added in {k} lanes", None, "even", "float32", True, kind="order", lanes=k) for k in _LANES),
)
DECLARED = Way("the formats that it declares", results="")


def either(names: Sequence[str]) -> str:
    """Join the names of ways in a few words: ``"TF32 or float16 multiplication"``."""
    first, _, last = names[0].rpartition(" ")
    if first and all(name.endswith(f" {last}") for name in names):
        return f"{' or '.join(name.removesuffix(f' {last}') for name in names)} {last}"
    return " or ".join(names)


def same_bits(one: Way, other: Way) -> bool:
    """Whether two ways differ in how ties are rounded and in the range of formats alone.

    Where both explain an error, which one leaves less of it is a matter of a few ties, and of the processor.
    """

    def bits(way: Way) -> tuple[object, ...]:
        formats = [format_of(name) for name in (way.factors, way.total, way.results, way.weights) if name]
        return (*(f.p if f else None for f in formats), way.factors is None, way.total is None, way.results is None,
                way.weights is None, way.products, way.matrices, way.kind, way.lanes, way.numbers)  # fmt: skip

    return bits(one) == bits(other)
