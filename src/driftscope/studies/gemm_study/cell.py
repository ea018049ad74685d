"""One cell of the gemm study: one data set, dtype and device; every variant, every pair of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import InputError, RuntimeRefused
from driftscope.lift.noise.arithmetics import ARITHMETICS, ORDINARY, Arithmetic
from driftscope.numerics.error_model import Units, dot
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.groupings import ROUNDING_RMS, sequential
from driftscope.numerics.seeds import seed_of
from driftscope.programs.torch_devices import device_of
from driftscope.studies import pairwise
from driftscope.studies.gemm_study.orders import Order, orders_of
from driftscope.studies.gemm_study.variants import Computed, Variant, compute, variants_of

NOT_AVAILABLE = "not available"
BIAS_TOP = 16.0  # the largest element of the bias in the data set "bias"


@dataclass(frozen=True, slots=True)
class _Squares:
    """Mean squares of the exact result and of the bias, and the mean sum of squared products of one element."""

    result: float
    bias: float
    terms: float


@dataclass(frozen=True, slots=True)
class _Problem:
    """The operands in the dtype under study, and what is known of the exact result."""

    dtype: str
    a: torch.Tensor
    x: torch.Tensor
    b: torch.Tensor
    exact: torch.Tensor
    threads: int
    squares: _Squares
    floors: dict[tuple[str, bool, str], float] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        """The largest element of the exact result: the scale of its units in the last place."""
        low, high = torch.aminmax(self.exact)
        return max(-float(low), float(high))

    def floor(self, variant: Variant, arithmetic: Arithmetic = ORDINARY) -> float:
        """Root-mean-square error that rounding causes in a variant.

        The sum of squared products is taken for rows and columns apart, ``|a_i|^2 |x_j|^2 / K``: within 3 % of the
        element by element one for data of one scale.
        """
        key = (variant.kind, variant.rounds_product, arithmetic.name)
        if key not in self.floors:
            self.floors[key] = self._floor(variant, arithmetic)
        return self.floors[key]

    def _floor(self, variant: Variant, arithmetic: Arithmetic) -> float:
        result = self.squares.result
        if variant.kind == "exact":  # rounded once, on storing
            return ROUNDING_RMS * FORMATS[self.dtype].unit_roundoff * math.sqrt(result)
        single = FORMATS["float32"].unit_roundoff
        stored = FORMATS[arithmetic.storage or self.dtype].unit_roundoff
        storage = max(stored, FORMATS[self.dtype].unit_roundoff)
        added = FORMATS[arithmetic.accumulator].unit_roundoff if arithmetic.accumulator else single
        factor = FORMATS[arithmetic.product].unit_roundoff if arithmetic.product else 0.0
        units = Units(storage, added if arithmetic.accumulator else min(storage, added), factor)
        inner = self.a.shape[1]
        folds = sequential(inner) if arithmetic.accumulator else variant.kernels.dot(inner)
        spread = dot(units, folds)
        variance = spread.value**2 * result + spread.terms**2 * self.squares.terms
        # The bias is one more addition; the product is stored in between by variants in two steps.
        variance += (ROUNDING_RMS * units.accumulator) ** 2 * result
        if variant.rounds_product and storage > units.accumulator:
            variance += (ROUNDING_RMS * storage) ** 2 * max(result - self.squares.bias, self.squares.terms)
        return math.sqrt(variance)


def gemm_cell(
    data: str, dtype: str, device: str, *, size: str, variants: str, levels: str, threads: int, data_seed: int,
    reveal_with: str,
) -> list[dict[str, Any]]:  # fmt: skip
    """Compute ``A @ X + B`` in every way and set the results side by side.

    Parameters
    ----------
    data : str
        ``"normal"``: all standard normal; ``"bias"``: A and X scaled to at most 1 and a bias that climbs to 16.
    dtype, device : str
    size : str
        ``"MxKxN"``.
    variants, levels : str
        Names separated by ``|``; every onnxruntime variant is run at every level.
    threads : int
        Threads inside an operator.
    data_seed : int
    reveal_with : str
        The data set with which the orders of addition are revealed too, ``""`` for none: they do not depend on it.

    Returns
    -------
    list of dict
        Rows of kind ``variant`` (errors against float64, class of equal bits, what the runtime changed, order of
        addition), ``pair`` (distances, floors, verdict) and ``columns`` (the bias of each column).
    """
    shape = shape_of(size)
    names, at = tuple(variants.split("|")), tuple(levels.split("|"))
    a, x, b = operands(data, shape, dtype, data_seed)
    wanted = variants_of(names, at)
    try:
        where = device_of(device)
    except RuntimeRefused as refused:
        return [
            {"kind": "variant", "variant": v.name, "other": "", "verdict": NOT_AVAILABLE, "gap": str(refused)}
            for v in wanted
        ]
    exact = a.double() @ x.double() + b.double()
    problem = _Problem(dtype, a, x, b, exact, threads, _squares(a, x, b, exact))
    on_device = [t.to(where) for t in (a, x, b)]
    computed = _without_repeats(
        {variant: compute(variant, on_device[0], on_device[1], on_device[2], threads) for variant in wanted}
    )
    wanted = list(computed)
    there = {variant.name: c.y for variant, c in computed.items() if c.y is not None}
    classes = pairwise.bit_classes(there)
    orders = orders_of(wanted, dtype, shape, threads) if data == reveal_with and device == "cpu" else {}
    rows = _variant_rows(problem, computed, classes, orders)
    rows += _pair_rows(problem, [v for v in wanted if v.name in there], there, classes)
    return [*rows, {"kind": "columns", "variant": "", "other": "", "bias": b.float().tolist()}]


def _squares(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor, exact: torch.Tensor) -> _Squares:
    norm_a, norm_x, norm_b, norm = (float(torch.linalg.vector_norm(t, dtype=torch.float64)) for t in (a, x, b, exact))
    # |a_i|^2 |x_j|^2 / K on average over rows and columns.
    terms = norm_a**2 / len(a) * norm_x**2 / x.shape[1] / a.shape[1]
    return _Squares(norm**2 / exact.numel(), norm_b**2 / b.numel(), terms)


def _without_repeats(computed: dict[Variant, Computed]) -> dict[Variant, Computed]:
    """Leave out a level at which onnxruntime runs the same graph as at the first one."""
    graphs: dict[str, set[tuple[str, ...]]] = {}
    kept = {}
    for variant, c in computed.items():
        run = c.changes.run if c.changes else (c.gap,)
        if not variant.level or run not in graphs.setdefault(variant.kind, set()):
            kept[variant] = c
            graphs.setdefault(variant.kind, set()).add(run)
    return kept


def shape_of(size: str) -> tuple[int, int, int]:
    """Return (M, K, N) of ``"MxKxN"``."""
    parts = size.lower().split("x")
    if len(parts) not in (1, 3) or not all(p.isdecimal() and int(p) for p in parts):
        raise InputError(f"a size is a whole number or MxKxN, as 1280x256x256, not {size!r}")
    m, k, n = (int(p) for p in (parts * 3 if len(parts) == 1 else parts))
    return m, k, n


def operands(
    data: str, shape: tuple[int, int, int], dtype: str, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw A, X and B.

    Returns
    -------
    tensors of ``dtype``, shapes ``(M, K)``, ``(K, N)`` and ``(N,)``
        The same numbers for every dtype, rounded to it.
    """
    m, k, n = shape
    generator = torch.Generator().manual_seed(seed_of("gemm", seed))
    a, x = torch.randn((m, k), generator=generator), torch.randn((k, n), generator=generator)
    b = torch.randn(n, generator=generator)
    if data == "bias":
        a, x = a / a.max(), x / x.max()
        b = (torch.arange(n, dtype=torch.float32) + 1) / n * BIAS_TOP
    elif data != "normal":
        raise InputError(f"there is no data set {data!r}; there are normal and bias")
    kind: torch.dtype = getattr(torch, dtype)
    return a.to(kind), x.to(kind), b.to(kind)


def _variant_rows(
    problem: _Problem, computed: Mapping[Variant, Computed], classes: Mapping[str, int], orders: Mapping[str, Order]
) -> list[dict[str, Any]]:
    errors: dict[int, pairwise.Gap] = {}
    rows = []
    for variant, c in computed.items():
        row: dict[str, Any] = {"kind": "variant", "variant": variant.name, "other": "", "level": variant.level}
        if c.y is None:
            rows.append(row | {"verdict": NOT_AVAILABLE, "gap": c.gap})
            continue
        number = classes[variant.name]
        if number not in errors:
            errors[number] = pairwise.distance(c.y.double(), problem.exact)
        error, floor = errors[number], problem.floor(variant)
        order = orders.get(variant.name)
        rows.append(
            row
            | {
                "bits": number, "max_abs": error.max_abs, "rms": error.rms, "floor": floor,
                "floors": error.rms / floor if floor else 0.0,
                "max_ulp": error.max_abs / pairwise.ulp_at(problem.dtype, problem.largest),
                "verdict": pairwise.verdict_of(error.rms / floor if floor else 0.0),
                "runtime": c.changes.words if c.changes else "", "casts": c.changes.casts if c.changes else 0,
                "order": order.pattern if order else "", "order_words": order.words if order else "",
                "accumulator": order.accumulator if order else "",
            }
        )  # fmt: skip
    return rows


def _pair_rows(
    problem: _Problem, variants: list[Variant], results: Mapping[str, torch.Tensor], classes: Mapping[str, int]
) -> list[dict[str, Any]]:
    wide = torch.float64 if problem.dtype == "float64" else torch.float32
    leaders: dict[int, torch.Tensor] = {}
    for name, y in results.items():
        if classes[name] not in leaders:
            leaders[classes[name]] = y.to(wide)
    measured: dict[tuple[int, int], pairwise.Gap] = {}
    ulp = pairwise.ulp_at(problem.dtype, problem.largest)
    rows = []
    for one, other in ((p, q) for i, p in enumerate(variants) for q in variants[i + 1 :]):
        key = (min(classes[one.name], classes[other.name]), max(classes[one.name], classes[other.name]))
        row: dict[str, Any] = {"kind": "pair", "variant": one.name, "other": other.name}
        if key[0] == key[1]:
            rows.append(row | {"max_abs": 0.0, "rms": 0.0, "max_ulp": 0.0, "floors": 0.0,
                               "verdict": pairwise.SAME_BITS})  # fmt: skip
            continue
        if key not in measured:
            measured[key] = pairwise.distance(leaders[key[0]], leaders[key[1]])
        far = measured[key]
        floors, verdict, cause = _judged(problem, one, other, far.rms)
        row |= {"max_abs": far.max_abs, "rms": far.rms, "max_ulp": far.max_abs / ulp, "floors": floors}
        row |= {"verdict": verdict, "cause": cause}
        if "Gemm" in (one.kind, other.kind):
            row["by_column"] = far.columns.tolist()
        rows.append(row)
    return rows


def _judged(problem: _Problem, one: Variant, other: Variant, rms: float) -> tuple[float, str, str]:
    """Name a drift: in floors, by its verdict, and by the cheaper arithmetic that explains it where one does."""
    ordinary = math.hypot(problem.floor(one), problem.floor(other))
    floors = rms / ordinary if ordinary else 0.0
    verdict = pairwise.verdict_of(floors)
    if verdict != pairwise.MORE:
        return floors, verdict, ""
    for arithmetic in ARITHMETICS:
        cheaper = math.hypot(problem.floor(one), problem.floor(other, arithmetic))
        if pairwise.verdict_of(rms / cheaper) != pairwise.MORE:
            return floors, "precision", arithmetic.name
    return floors, verdict, ""
