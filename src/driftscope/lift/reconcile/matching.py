"""Which constant of one program is which constant of the other, up to the rounding of its storage format.

Exporters store constants in the model's dtype, fold constant subgraphs natively, transpose and regroup weights.
Before two lifted programs can be compared as functions, constants that are *the same number, rounded* must be made
the same number again. Everything here is an exact test, never a fit: a constant is matched when rounding its partner
to the storage format gives its very bits (scalars, weights), or when both are native results of the same constant
computation and lie within two ulps (tables).

A constant that was rounded to zero or to infinity is never matched: that rounding changed the program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.readings import PIECE, Fingerprint, ends_of, fingerprint, is_same, is_transposed, number_of
from driftscope.lift.reconcile.arrangements import rearrangements
from driftscope.lift.reconcile.maps import narrow
from driftscope.lift.steps import Constant, Origin
from driftscope.records.words import counted

_EXPONENT = 0x7FF0 << 48
# Half an ulp, and a little for conversions that pass through float32 on their way to float16.
HALF_ULP = 0.5 * (1.0 + 2.0**-12)


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
        ``"scalar"``, ``"weight"``, ``"table"``, ``"fold"``, ``"solved"``, ``"fitted"`` or ``"shortcut"``.
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

    def is_exact(self) -> bool:
        """Whether the constant holds the very value: ones that are computed natively are not rounded."""
        return torch.equal(self.value, self.constant.value.to(torch.float64))


#: Two ways of writing one number differ by no more, relative.
LAST_BITS = 2.0**-50


def merged(old: Sequence[Repair], new: Sequence[Repair]) -> list[Repair]:
    """Put new repairs in the place of old ones of the same constants."""
    return [*(r for r in old if r.name not in {n.name for n in new}), *new]


def moves(old: Sequence[Repair], new: Sequence[Repair]) -> bool:
    """Whether new repairs replace what is stored, or was in force, by more than the last bits of float64."""
    before = {r.name: r.value for r in old}
    pairs = ((r, before.get(r.name, r.constant.value).to(torch.float64)) for r in new)
    return any(r.kind != "scalar" or not torch.allclose(v, r.value, rtol=LAST_BITS, atol=0.0) for r, v in pairs)


def ulp(values: torch.Tensor, fmt: torch.dtype) -> torch.Tensor:
    """Return the spacing of ``fmt`` at each value (float64 in, float64 out), subnormals included.

    References
    ----------
    Muller et al., *Handbook of Floating-Point Arithmetic*, 2nd ed., section 2.3.2 (Harrison's ulp).
    """
    info = torch.finfo(fmt)
    # The bits of a float64's exponent alone are its power of two; infinities and NaN have no spacing.
    power = (values.to(torch.float64).contiguous().view(torch.int64) & _EXPONENT).view(torch.float64)
    return power.nan_to_num_(posinf=0.0).mul_(info.eps).clamp_(min=info.smallest_normal * info.eps)


def narrower(fmt: torch.dtype, other: torch.dtype) -> bool:
    """Whether ``fmt`` has fewer significand bits than ``other``."""
    return torch.finfo(fmt).eps > torch.finfo(other).eps


def is_narrow_tensor(constant: Constant) -> bool:
    """Whether a constant is a tensor of half precision."""
    return constant.value.numel() > 1 and constant.value.dtype in (torch.float16, torch.bfloat16)


def uniform(constant: Constant) -> float | None:
    """The one number a float constant holds (0-dim, one element, or all elements equal); None otherwise."""
    value = constant.value
    if not value.dtype.is_floating_point or value.numel() == 0:
        return None
    return number_of(value)


def as_stored(constants: Sequence[Constant]) -> list[Constant]:
    """Give computed constants that only widen a stored one the format of the stored one.

    A runtime that computes in float32 casts float16 constants first. Their rounding is that of float16: the
    format in which they are stored.
    """
    stored: dict[int, list[Constant]] = {}
    for c in constants:
        if c.origin is Origin.WEIGHT and c.value.dtype.is_floating_point:
            stored.setdefault(c.value.numel(), []).append(c)
    found = []
    for constant in constants:
        fmt = constant.value.dtype
        if constant.origin is Origin.COMPUTED and fmt.is_floating_point:
            sources = [c for c in stored.get(constant.value.numel(), ()) if narrower(c.value.dtype, fmt)]
            key = fingerprint(constant.value) if sources else None
            for source in sources:
                if fingerprint(source.value.to(fmt)) == key:
                    constant = dataclasses.replace(constant, value=constant.value.to(source.value.dtype))
                    break
        found.append(constant)
    return found


# --- weights -------------------------------------------------------------------------------------------------


# What float16 converters do beside rounding (onnxconverter_common and onnxruntime.transformers, by default): numbers
# closer to zero than the smallest positive one become it, numbers beyond the largest become the largest.
_CLAMP_BELOW = (2.0**-24, 2.0**-23)  # 5.96e-8 and 1e-7, as float16 stores them
_CLAMP_ABOVE = (1e4, 65504.0)


def is_clamp(stored: float, fmt: torch.dtype) -> bool:
    """Whether a number may be what a float16 converter's clamp leaves."""
    return fmt == torch.float16 and abs(stored) in (*_CLAMP_BELOW, *_CLAMP_ABOVE)


def clamped(exact: float, stored: float, fmt: torch.dtype) -> bool:
    """Whether a float16 converter's clamp makes ``stored`` of ``exact``."""
    one = torch.tensor([exact], dtype=torch.float64), torch.tensor([stored], dtype=torch.float64)
    return is_clamp(stored, fmt) and exact != 0.0 and bool(clamped_elements(*one).all())


def clamped_elements(exact: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """Mark the elements that a converter's clamp explains; float64 in."""
    found = torch.zeros_like(exact, dtype=torch.bool)
    same_sign = exact.sign() == stored.sign()
    for low in _CLAMP_BELOW:
        found |= (stored.abs() == low) & (exact.abs() < low)
    for high in _CLAMP_ABOVE:
        found |= (stored.abs() == high) & (exact.abs() > high)
    return found & same_sign


def _unclamped(value: torch.Tensor) -> torch.Tensor:
    """Make elements equal that only a clamp of float16 can tell apart, so that both sides have one fingerprint."""
    if value.dtype != torch.float16:
        return value
    size = value.abs()
    value = torch.where(size <= _CLAMP_BELOW[1], torch.zeros((), dtype=value.dtype), value)
    return torch.where(size >= _CLAMP_ABOVE[0], value.sign() * _CLAMP_ABOVE[0], value)


def stores(stored: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether ``stored`` holds ``exact``, element by element, rounded to its format or clamped by a converter.

    A finite number that became an infinity is never the same number.
    """
    rounded = exact.to(stored.dtype)
    if stored.dtype.itemsize == 1:  # float8 has few operators of its own
        rounded, stored = rounded.to(torch.float32), stored.to(torch.float32)
    if torch.equal(rounded, stored) and bool(torch.isfinite(stored).all()):
        return True
    same, lost = rounded == stored, torch.isinf(stored) & torch.isfinite(exact)
    if not bool(same.all()) and stored.dtype == torch.float16:
        same = same | clamped_elements(exact.to(torch.float64), stored.to(torch.float64))
    return bool((same & ~lost).all())


def within_ulps(stored: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, fmt: torch.dtype, ulps: float) -> bool:
    """Whether no element is farther off than so many ulps of its size."""
    least = 0.5 * ulps * torch.finfo(fmt).eps
    for mine, theirs, at in zip(*(torch.split(t.reshape(-1), PIECE) for t in (stored, exact, size)), strict=True):
        gap = (mine - theirs).abs_()
        # An ulp is at least half an epsilon of its number: nearly always that is enough, and cheap.
        if not bool((gap <= least * at.abs()).all()) and not bool((gap <= ulps * ulp(at, fmt)).all()):
            return False
    return True


def rounded_twice(stored: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, fmt: torch.dtype) -> bool:
    """Whether a fold computed in float32 was rounded to a narrower format: half an ulp, and float32's few.

    A converter may have clamped what was too small or too large for the format.
    """
    if fmt != torch.float16 and fmt != torch.bfloat16:
        return False
    allowed = 0.5 * ulp(stored, fmt) + 4.0 * ulp(size, torch.float32)
    near = (stored - exact).abs() <= allowed
    if fmt == torch.float16 and not bool(near.all()):
        near |= clamped_elements(exact, stored)
    return bool(near.all())


def is_folded(stored: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, ulps: float) -> bool:
    """Whether a stored tensor is one that was computed exactly, of terms of these sizes, rounded on its way."""
    wide, fmt = stored.to(torch.float64), stored.dtype
    if narrow(fmt):
        return stores(stored, exact) or rounded_twice(wide, exact, size, fmt)
    # One rounding each for the square root, the division, the product and the sum.
    return within_ulps(wide, exact, size, fmt, 2.0 * ulps)


class WeightIndex:
    """The stored tensors of one program, found by their bits after rounding to a format.

    Parameters
    ----------
    constants : iterable of Constant
    like : WeightIndex or None
        Of a program that may well hold the same bits under the same names: comparing is cheaper than mixing them.
    """

    def __init__(self, constants: Iterable[Constant], like: WeightIndex | None = None):
        self._like = like
        self._weights = [c for c in constants if c.value.dtype.is_floating_point and c.value.numel() > 1]
        self._formats = {c.value.dtype for c in self._weights}
        self._by_name = {c.name: c for c in self._weights}
        self._ends: dict[torch.dtype, dict[tuple[float, ...], list[Constant]]] = {}
        self._tables: dict[torch.dtype, dict[Fingerprint, list[Constant]]] = {}
        self._widened: dict[torch.dtype, set[Fingerprint]] = {}
        #: Which of another program's constants was found to be this program's, by the names of these.
        self.takers: dict[str, str] = {}

    def has(self, constant: Constant, own: WeightIndex) -> bool:
        """Whether some tensor holds the numbers of one of another program's, which is indexed in ``own``."""
        twin = self._by_name.get(constant.name)
        alike = twin is not None and twin.frontier and twin.value.dtype == constant.value.dtype
        if alike and twin is not None and is_same(twin.value, constant.value):
            return True  # nearly always, and nothing has to be mixed to see it
        return self.holds(constant.value, lambda: own.fingerprint(constant))

    def holds(self, value: torch.Tensor, read: Callable[[], Fingerprint] | None = None) -> bool:
        """Whether some tensor holds the same numbers in some order, in the same format or exactly in another.

        ``read`` is a cheaper way to the fingerprint of ``value``.
        """
        fmt, read = value.dtype, read or (lambda: fingerprint(value))
        # What only a constant subgraph reads is another number by the time it is used.
        alike = [c for c in self._alike(fmt).get(ends_of(value), ()) if c.frontier]
        if any(is_transposed(c.value, value) or self.fingerprint(c) == read() for c in alike):
            return True
        rounded = self._table(fmt)
        for c in rounded.get(fingerprint(_unclamped(value)), ()) if rounded else ():
            if c.frontier and self.fingerprint(c) == fingerprint(value.to(c.value.dtype)):
                return True
        shorter = self._narrower(fmt)
        return bool(shorter) and read() in shorter

    def _alike(self, fmt: torch.dtype) -> dict[tuple[float, ...], list[Constant]]:
        """The tensors of one format by what any order of the same numbers has: it is quickly read."""
        if fmt not in self._ends:
            self._ends[fmt] = {}
            for constant in self._weights:
                if constant.value.dtype == fmt:
                    self._ends[fmt].setdefault(ends_of(constant.value), []).append(constant)
        return self._ends[fmt]

    def _narrower(self, fmt: torch.dtype) -> set[Fingerprint]:
        """What the tensors of narrower formats hold, as ``fmt`` writes it."""
        if fmt not in self._widened:
            shorter = [c for c in self._weights if c.frontier and narrower(c.value.dtype, fmt)]
            self._widened[fmt] = {fingerprint(c.value.to(fmt)) for c in shorter}
        return self._widened[fmt]

    def fingerprint(self, constant: Constant) -> Fingerprint:
        """Return the fingerprint of one of this program's tensors."""
        twin = None if self._like is None else self._like._by_name.get(constant.name)
        return fingerprint(constant.value, None if twin is None else twin.value)

    def wider_than(self, fmt: torch.dtype) -> bool:
        """Whether any tensor is stored in a wider format."""
        return any(narrower(fmt, own) for own in self._formats)

    def rounded_partners(self, value: torch.Tensor) -> list[Constant]:
        """Tensors of a wider format whose rounding to ``value``'s format has the same bits in some order."""
        table = self._table(value.dtype)
        return table.get(fingerprint(_unclamped(value)), []) if table else []

    def wider_namesake(self, constant: Constant) -> Constant | None:
        """The tensor of the same name and shape in a wider format, if there is one."""
        own = self._by_name.get(constant.name)
        wider = own is not None and narrower(constant.value.dtype, own.value.dtype)
        return own if own is not None and wider and own.value.shape == constant.value.shape else None

    def _table(self, fmt: torch.dtype) -> dict[Fingerprint, list[Constant]]:
        """The tensors of wider formats, by their bits after rounding to this one."""
        if fmt not in self._tables:
            table: dict[Fingerprint, list[Constant]] = {}
            for constant in self._weights:
                if narrower(fmt, constant.value.dtype):
                    key = fingerprint(_unclamped(constant.value.to(fmt)))
                    table.setdefault(key, []).append(constant)
            self._tables[fmt] = table
        return self._tables[fmt]


def same_name(one: str, other: str) -> bool:
    """Whether two names are one, but for the module that a program was wrapped in."""
    return one == other or one.endswith(f".{other}") or other.endswith(f".{one}")


def match_weight(constant: Constant, index: WeightIndex, named: bool = False) -> Repair | None:
    """Find the wider weight that ``constant`` stores rounded, in whatever arrangement; ``named``: one of its name."""
    # Nearly always it is the tensor of its name, as it stands: to see that, nothing has to be fingerprinted.
    name, read, own = constant.name, constant.frontier, index.wider_namesake(constant)
    if own is not None and stores(constant.value, own.value):
        return _rounded(constant, own, own.value, index)
    # Rounded, two weights may be one: names tell them apart, what reads them, or the order in which they stand.
    partners = sorted(
        index.rounded_partners(constant.value),
        key=lambda c: (not same_name(c.name, name), c.frontier != read, index.takers.get(c.name, name) != name),
    )
    for partner in partners:
        if named and not same_name(partner.name, constant.name):
            break
        for laid in rearrangements(partner.value, constant.value.shape):
            if stores(constant.value, laid):
                return _rounded(constant, partner, laid, index)
    return None


def _rounded(constant: Constant, partner: Constant, arranged: torch.Tensor, index: WeightIndex) -> Repair:
    words = f"{partner.name} rounded to {str(constant.value.dtype).removeprefix('torch.')}"
    moved = int((arranged.to(constant.value.dtype) != constant.value).sum())
    words += f", {counted(moved, 'element')} of it clamped" if moved else ""
    index.takers[partner.name] = constant.name
    return Repair(constant.name, arranged.to(torch.float64), "weight", words, constant, (partner.name,))


# Weights joined along one axis may be made of weights joined along another: directions of an LSTM, of two biases each.
_JOINS = 2


# What else a block of joined tensors may be.
BlockMatch = Callable[[Constant], Repair | None]


def match_joined(
    constant: Constant, index: WeightIndex, joins: int = _JOINS, more: BlockMatch | None = None
) -> Repair | None:
    """Find the wider weights that ``constant`` stores rounded and joined along an axis (gates, query-key-value).

    With ``more``, a block may also be what that finds (a fold).
    """
    value = constant.value
    for axis in range(value.ndim):
        for pieces in (2, 3, 4, 6, 8):
            # A block of one number is uniform, and so no evidence: any short vector would be "stored exactly".
            if value.shape[axis] % pieces or value.numel() == pieces:
                continue
            parts: list[Repair] = []
            for block in value.chunk(pieces, axis):
                part = Constant(constant.name, block, constant.origin, constant.where)
                found = _match_block(part, index, joins, more)
                if found is None:
                    break
                parts.append(found)
            # Blocks of one number each, as a tensor that was expanded has them, are no evidence either; of one that
            # holds a tensor several times nothing is rounded, and how its elements are ordered is another question.
            again = all(not f.sources and torch.equal(f.value, parts[0].value) for f in parts)
            if len(parts) == pieces and not again and any(uniform(part.constant) is None for part in parts):
                words = " + ".join(dict.fromkeys(f.partner for f in parts))
                sources = tuple(s for f in parts for s in f.sources)
                joined = torch.cat([f.value for f in parts], axis)
                return Repair(constant.name, joined, "weight", words, constant, sources)
    return None


def _match_block(part: Constant, index: WeightIndex, joins: int, more: BlockMatch | None) -> Repair | None:
    """Match one block: a wider weight, the same weight, or weights joined once more."""
    found = match_weight(part, index)
    if found is None and (uniform(part) is not None or index.holds(part.value)):
        # Nothing was rounded in this block (zeros, an exact one); its neighbours may be.
        return Repair(part.name, part.value.to(torch.float64), "weight", "stored exactly", part)
    if found is None and more is not None:
        found = more(part)
    if found is None and joins > 1 and part.value.numel() > 1:
        return match_joined(part, index, joins - 1, more)
    return found
