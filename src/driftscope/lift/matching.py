"""Which constant of one program is which constant of the other, up to the rounding of its storage format.

Exporters store constants in the model's dtype, fold constant subgraphs natively, transpose and regroup weights.
Before two lifted programs can be compared as functions, constants that are *the same number, rounded* must be
made the same number again. Everything here is an exact test, never a fit: a constant is matched when rounding its
partner to the storage format gives its very bits (scalars, weights), or when both are native results of the same
constant computation and lie within two ulps (tables).

A constant that was rounded to zero or to infinity is never matched: that rounding changed the program.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.steps import Constant, Origin

# Half an ulp, and a little for conversions that pass through float32 on their way to float16.
HALF_ULP = 0.5 * (1.0 + 2.0**-12)

# Numbers that exporters and kernels write without the user having written them.
_UNIVERSAL = {
    "sqrt(2)": math.sqrt(2.0), "1/sqrt(2)": math.sqrt(0.5), "sqrt(2/pi)": math.sqrt(2.0 / math.pi),
    "2/sqrt(pi)": 2.0 / math.sqrt(math.pi), "0.044715": 0.044715, "1.702": 1.702, "pi": math.pi, "1/pi": 1 / math.pi,
    "2*pi": 2 * math.pi, "ln(2)": math.log(2.0), "1/ln(2)": 1 / math.log(2.0), "ln(10)": math.log(10.0),
    "1/ln(10)": 1 / math.log(10.0), "e": math.e, "1/6": 1 / 6, "1/3": 1 / 3, "2/3": 2 / 3, "0.2": 0.2,
    "selu alpha": 1.6732632423543772, "selu gamma": 1.0507009873554805,
    "2/pi": 2 / math.pi, "sqrt(3)": math.sqrt(3.0), "0.01": 0.01,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Repair:
    """A constant of one side that is its partner of the other side, rounded; and the value to use instead.

    Parameters
    ----------
    name : str
        The constant's name in its own graph.
    value : torch.Tensor
        float64, in the constant's stored shape.
    kind : str
        ``"scalar"``, ``"weight"``, ``"table"``, ``"fold"`` or ``"solved"``.
    partner : str
        What it is the rounding of, in words.
    constant : Constant
        The constant as stored.
    sources : tuple of str
        Names of the other side's tensors that the value was taken from.
    """

    name: str
    value: torch.Tensor
    kind: str
    partner: str
    constant: Constant
    sources: tuple[str, ...] = ()


def ulp(values: torch.Tensor, fmt: torch.dtype) -> torch.Tensor:
    """Return the spacing of ``fmt`` at each value (float64 in, float64 out), subnormals included.

    References
    ----------
    Muller et al., *Handbook of Floating-Point Arithmetic*, 2nd ed., section 2.3.2 (Harrison's ulp).
    """
    info = torch.finfo(fmt)
    exact = values.to(torch.float64)
    exponent = torch.frexp(exact)[1] - 1
    spacing = torch.ldexp(torch.full_like(exact, info.eps), exponent)
    return torch.clamp(spacing, min=info.smallest_normal * info.eps)


def narrower(fmt: torch.dtype, other: torch.dtype) -> bool:
    """Whether ``fmt`` has fewer significand bits than ``other``."""
    return torch.finfo(fmt).eps > torch.finfo(other).eps


def uniform(constant: Constant) -> float | None:
    """The one number a float constant holds (0-dim, one element, or all elements equal); None otherwise."""
    value = constant.value
    if not value.dtype.is_floating_point or value.numel() == 0:
        return None
    flat = value.reshape(-1)
    if flat.numel() > 1 and not (flat.numel() <= 1 << 20 and bool((flat == flat[0]).all())):
        return None
    number = float(flat[0])
    return number if math.isfinite(number) else None


# --- scalars -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A number that a program's author meant, exactly, and in words where it comes from."""

    value: float
    words: str
    derived: bool


def numbers(constants: Iterable[Constant]) -> list[Number]:
    """Return the exact numbers a program writes, then those derived from them.

    Derived are reciprocal, square, roots and negation (a division becomes a multiplication, a scale is split
    over query and key), dimensions of weights with the same, and numbers kernels write by themselves.
    """
    direct: dict[float, str] = {}
    sizes: set[int] = set()
    for constant in constants:
        sizes.update(int(n) for n in constant.value.shape if n > 1)
        number = uniform(constant)
        if number is None:
            continue
        if number == int(number) and 1 < abs(number) < 1 << 24:
            sizes.add(int(abs(number)))
        direct.setdefault(number, f"{number!r} ({constant.name})")
    found = [Number(v, w, False) for v, w in direct.items()]
    derived: dict[float, str] = {v: w for w, v in _UNIVERSAL.items()}
    for value in [*direct, *map(float, sizes)]:
        for v, w in _derive(value):
            if v not in direct:
                derived.setdefault(v, w)
    return found + [Number(v, w, True) for v, w in derived.items()]


def _derive(value: float) -> Iterator[tuple[float, str]]:
    yield -value, f"-({value!r})"
    yield value * value, f"{value!r}**2"
    if value == 0.0:
        return
    yield 1.0 / value, f"1/{value!r}"
    yield -1.0 / value, f"-1/{value!r}"
    if value > 0.0:
        yield math.sqrt(value), f"sqrt({value!r})"
        yield 1.0 / math.sqrt(value), f"1/sqrt({value!r})"
        yield value**-0.25, f"{value!r}**-0.25"
        yield value**0.25, f"{value!r}**0.25"


def scalar_candidates(constant: Constant, pool: Sequence[Number]) -> list[Number]:
    """Return the numbers whose rounding to the constant's own format is the constant; [] when it is exact.

    A number written by the other program wins over derived ones. A constant that the other program holds with
    the same value needs no repair.
    """
    number = uniform(constant)
    fmt = constant.value.dtype
    if number is None or number == 0.0 or fmt == torch.float64:
        return []
    spacing = float(ulp(torch.tensor(number, dtype=torch.float64), fmt))
    close = [n for n in pool if n.value != 0.0 and abs(n.value - number) <= HALF_ULP * spacing]
    if any(n.value == number and not n.derived for n in close):
        return []
    direct = [n for n in close if not n.derived]
    if significant_bits(number) <= SIMPLE_BITS:
        return direct
    return direct or _distinct(n for n in close if n.value != number) or _distinct(_replayed(number, fmt, pool))


# A number of this many significant bits or fewer (0.5, 3, 0.125) was meant as it stands.
SIMPLE_BITS = 5


def significant_bits(number: float) -> int:
    """Bits from the first to the last one that is set in a float's significand."""
    mantissa = int(math.frexp(abs(number))[0] * 2**53)
    return 53 - ((mantissa & -mantissa).bit_length() - 1) if mantissa else 0


def _distinct(found: Iterable[Number]) -> list[Number]:
    """Drop numbers that another way of writing them gave already, but for the last bits of float64."""
    kept: list[Number] = []
    for number in found:
        if not any(math.isclose(number.value, k.value, rel_tol=2.0**-50) for k in kept):
            kept.append(number)
    return kept


def _replayed(number: float, fmt: torch.dtype, pool: Sequence[Number]) -> list[Number]:
    """Return quotients and products of numbers that give the very bits when computed natively from rounded ones.

    An optimiser that turns a division into a multiplication, or two scales into one, starts from what is stored:
    its result is off by more than half an ulp, and is exactly this.
    """

    def rounded(value: float) -> float:
        return float(torch.tensor(value, dtype=torch.float64).to(fmt))

    stored = {n.value: (rounded(n.value), n.words) for n in pool if not n.derived and n.value not in (0.0, 1.0, -1.0)}
    found = [
        Number(1.0 / exact, f"1/({words}), computed natively", True)
        for exact, (short, words) in stored.items()
        if short != 0.0 and rounded(1.0 / short) == number
    ]
    for (one, (x, words_x)), (two, (y, words_y)) in itertools.combinations_with_replacement(stored.items(), 2):
        if rounded(x * y) == number and one * two != number:
            found.append(Number(one * two, f"({words_x}) * ({words_y}), computed natively", True))
    return found


def as_stored(constants: Sequence[Constant]) -> list[Constant]:
    """Give computed constants that only widen a stored one the format of the stored one.

    A runtime that computes in float32 casts float16 constants first. Their rounding is that of float16: the
    format in which they are stored.
    """
    narrow = [c for c in constants if c.origin is Origin.WEIGHT and c.value.dtype.is_floating_point]
    found = []
    for constant in constants:
        fmt = constant.value.dtype
        if constant.origin is Origin.COMPUTED and fmt.is_floating_point:
            sources = [c for c in narrow if c.value.numel() == constant.value.numel() and narrower(c.value.dtype, fmt)]
            key = fingerprint(constant.value) if sources else None
            for source in sources:
                if fingerprint(source.value.to(fmt)) == key:
                    constant = dataclasses.replace(constant, value=constant.value.to(source.value.dtype))
                    break
        found.append(constant)
    return found


# --- weights -------------------------------------------------------------------------------------------------


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


# Elements fingerprinted at a time: weights are large, and int64 copies of them twice as large.
_PIECE = 1 << 18
_WORD = (1 << 64) - 1


def fingerprint(value: torch.Tensor) -> tuple[int, int, int]:
    """Return a key of the multiset of a tensor's bits: equal for every permutation of the same elements."""
    plain = mixed = 0
    for piece in torch.split(value.reshape(-1), _PIECE):
        bits = _bits(piece).to(torch.int64)
        plain += int(bits.sum())
        # Wraps modulo 2**64, so any fixed odd multiplier serves.
        mixed += int((bits * 0x9E3779B97F4A7C1 ^ (bits >> 7)).sum())
    return value.numel(), plain & _WORD, mixed & _WORD


def _bits(value: torch.Tensor) -> torch.Tensor:
    """The bits of a float tensor as integers; -0.0 counts as +0.0."""
    plain = (value + 0.0) if value.dtype.is_floating_point and value.dtype.itemsize > 1 else value
    return plain.contiguous().view(_INTEGERS[value.dtype.itemsize])


class WeightIndex:
    """The stored tensors of one program, found by their bits after rounding to a format."""

    def __init__(self, constants: Iterable[Constant]):
        self._weights = [c for c in constants if c.value.dtype.is_floating_point and c.value.numel() > 1]
        self._tables: dict[torch.dtype, dict[tuple[int, int, int], list[Constant]]] = {}

    def holds(self, value: torch.Tensor) -> bool:
        """Whether some tensor holds the same numbers in some order, in the same format or exactly in another."""
        fmt, key = value.dtype, fingerprint(value)
        for c in self._table(fmt).get(key, ()):
            if c.value.dtype == fmt or fingerprint(c.value) == fingerprint(value.to(c.value.dtype)):
                return True
        shorter = [c for c in self._weights if c.value.numel() == value.numel() and narrower(c.value.dtype, fmt)]
        return any(fingerprint(c.value.to(fmt)) == key for c in shorter)

    def rounded_partners(self, value: torch.Tensor) -> list[Constant]:
        """Tensors of a wider format whose rounding to ``value``'s format has the same bits in some order."""
        found = self._table(value.dtype).get(fingerprint(value), ())
        return [c for c in found if narrower(value.dtype, c.value.dtype)]

    def alike(self, value: torch.Tensor) -> list[Constant]:
        """Tensors with the same element count and, axes of size 1 aside, the same sizes in some order.

        A computed tensor may have any shape: the reshape that ends its computation is often folded with it.
        """
        sizes = sorted(n for n in value.shape if n > 1)
        return [
            c for c in self._weights
            if c.value.numel() == value.numel()
            and (c.origin is Origin.COMPUTED or sorted(n for n in c.value.shape if n > 1) == sizes)
        ]  # fmt: skip

    def moved(self, computed: Constant) -> bool:
        """Whether a computed tensor only holds elements of one stored tensor (an embedding looked up, a slice)."""
        elements = computed.value.reshape(-1)
        return any(
            bool(torch.isin(elements, c.value.reshape(-1)).all())
            for c in self._weights
            if c.origin is Origin.WEIGHT and c.value.dtype == elements.dtype
        )

    def _table(self, fmt: torch.dtype) -> dict[tuple[int, int, int], list[Constant]]:
        if fmt not in self._tables:
            table: dict[tuple[int, int, int], list[Constant]] = {}
            for constant in self._weights:
                if constant.value.dtype == fmt or narrower(fmt, constant.value.dtype):
                    table.setdefault(fingerprint(constant.value.to(fmt)), []).append(constant)
            self._tables[fmt] = table
        return self._tables[fmt]


def rearrangements(source: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    """Yield ``source`` in every arrangement an exporter uses to fit ``shape``.

    As it is (reshaped), with its axes permuted, and with its leading axis cut into 3 or 4 gate blocks in another
    order (the recurrent operators of ONNX order their gates differently).
    """
    yield source.reshape(shape)
    if 2 <= source.ndim <= 5:
        for order in itertools.permutations(range(source.ndim)):
            if order != tuple(range(source.ndim)):
                yield source.permute(order).reshape(shape)
    for gates in (3, 4):
        if source.ndim and source.shape[0] % gates == 0:
            blocks = source.chunk(gates, 0)
            for order in itertools.permutations(range(gates)):
                yield torch.cat([blocks[k] for k in order], 0).reshape(shape)


def match_weight(constant: Constant, index: WeightIndex) -> Repair | None:
    """Find the wider weight that ``constant`` stores rounded, in whatever arrangement."""
    for partner in index.rounded_partners(constant.value):
        wanted = constant.value.to(torch.float64)
        for arranged in rearrangements(partner.value, constant.value.shape):
            if torch.equal(arranged.to(constant.value.dtype).to(torch.float64), wanted):
                words = f"{partner.name} rounded to {str(constant.value.dtype).removeprefix('torch.')}"
                return Repair(constant.name, arranged.to(torch.float64), "weight", words, constant, (partner.name,))
    return None


def match_joined(constant: Constant, index: WeightIndex) -> Repair | None:
    """Find the wider weights that ``constant`` stores rounded and joined along one axis (gates, query-key-value)."""
    value = constant.value
    for axis in range(value.ndim):
        for pieces in (2, 3, 4, 6, 8):
            if value.shape[axis] % pieces or value.shape[axis] == pieces == 1:
                continue
            found = [
                match_weight(Constant(constant.name, block, constant.origin, constant.where), index)
                for block in value.chunk(pieces, axis)
            ]
            if all(f is not None for f in found):
                parts = [f for f in found if f is not None]
                words = " + ".join(dict.fromkeys(f.partner for f in parts))
                sources = tuple(s for f in parts for s in f.sources)
                value = torch.cat([f.value for f in parts], axis)
                return Repair(constant.name, value, "weight", words, constant, sources)
    return None


# A single element may be this many times further off than the root mean square may be.
_STRAY = 4.0


def match_table(constant: Constant, index: WeightIndex, ulps: float) -> Repair | None:
    """Find the natively computed tensor that ``constant`` equals within ``ulps`` of its format, root mean square.

    At least one of the two must be the result of a constant subgraph: a *stored* weight one ulp off is another
    weight. Elements near zero are measured at the ulp of the tensor's largest element only when both sides are
    computed (a cosine near its zero has lost its relative precision).
    """
    value = constant.value.to(torch.float64)
    for partner in index.alike(constant.value):
        computed = (constant.origin, partner.origin).count(Origin.COMPUTED)
        own, other = constant.value.dtype, partner.value.dtype
        # Of two computed tensors one may have been computed in a wider format (a provider without float16 kernels).
        if computed == 0 or (own != other and (computed == 1 or not narrower(own, other))):
            continue
        if partner.origin is Origin.COMPUTED and index.moved(partner):
            continue  # nothing was rounded on the way: only the very bits will do
        for arranged in rearrangements(partner.value, constant.value.shape):
            exact = arranged.to(torch.float64)
            finite = torch.isfinite(exact)
            if not torch.equal(finite, torch.isfinite(value)) or not torch.equal(value[~finite], exact[~finite]):
                continue
            size = exact[finite].abs()
            if size.numel() == 0:
                continue
            scale = torch.maximum(size, torch.full_like(size, 2.0**-3 * float(size.max())))
            gaps = (value[finite] - exact[finite]).abs() / ulp(scale, own)
            # A longer computation (a norm, a quotient) strays further in single elements, hardly ever in the mean.
            if float(gaps.square().mean().sqrt()) <= ulps and float(gaps.max()) <= _STRAY * ulps:
                words = f"{partner.name}, computed natively"
                return Repair(constant.name, exact, "table", words, constant, (partner.name,))
    return None
