"""Stored tensors that a port made of another program's constants ahead of time: sums, scaled sums and products.

``(w x + b) + p`` is ``w x + (b + p)``, and ``w (x + p)`` is ``w x + w p``: a port may store the bias of a layer in the
table of positions behind it, the kind of a segment in every word, a projected table, a table inside a batch norm. No
chain of layers shows it, since the table differs from row to row; the numbers do: *every* element of what is stored
is that sum, rounded. Nothing is ever fitted. A few rows are compared first, so that what is none costs next to nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch

from driftscope.comparison.measuring.spread import largest_magnitude
from driftscope.lift.readings import number_of
from driftscope.lift.reconcile.arrangements import expanded_axis, near_pairs, without_repeats
from driftscope.lift.reconcile.maps import Map
from driftscope.lift.reconcile.matching import Repair, is_folded, uniform
from driftscope.lift.reconcile.scalars import MeantNumber
from driftscope.lift.steps import Constant

# Elements of a row, below which chance might do it, and rows of a table each of which may be a vector by itself.
_FEWEST, _ROWS = 4, 64
# Elements of a product, of which there are few that could be it.
_LEAST = 3
# Elements of a table of which some rows may be stored: of positions, not of words.
_MOST = 1 << 22
# Vectors of one length that are tried in pairs.
_PAIRS = 256
# Rows and columns that are looked at first, and roundings of the largest term within which they have to agree.
_FIRST, _COLUMNS, _REACH = 3, 8, 8.0

# Of the largest term, what is of no size; and of a rounding, what is none.
_NOTHING, _UNMOVED = 2.0**-24, 2.0**-12

_Rows = tuple[torch.Tensor, torch.Tensor]  # values, and the sizes of the terms that were added up


@dataclass(frozen=True, slots=True)
class _Addend:
    """A table, or a vector that may have been added to every row or multiplied with it: one row."""

    words: str
    names: tuple[str, ...]
    rows: torch.Tensor
    terms: torch.Tensor | None = None

    @property
    def size(self) -> torch.Tensor:
        """The sizes of its terms."""
        return self.rows.abs() if self.terms is None else self.terms


@dataclass(frozen=True)
class _Heap:
    """Tables of one shape."""

    members: Sequence[_Addend]

    @cached_property
    def heads(self) -> torch.Tensor:
        """Some elements of each, (tables, rows, columns)."""
        return torch.stack([_head(m.rows) for m in self.members]) if self.members else torch.zeros(0, 1, 1)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Tables and weights, and of their products some elements and terms: (tables, weights, rows, columns) each."""

    lefts: Sequence[tuple[str, torch.Tensor]]
    rights: Sequence[tuple[str, torch.Tensor]]
    made: torch.Tensor
    terms: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Stem:
    """What may stand in a stored tensor before something is added to every row: some first rows, or all of them."""

    names: tuple[str, ...]
    words: str
    whole: Callable[..., _Rows]
    alone: bool = False


class MadeAhead:
    """The tables, vectors and weights of one program that something may have been made of.

    Parameters
    ----------
    values : mapping of str to Tensor
        Its constants as they are meant, and what it computes of them.
    maps : sequence of Map
        Its affine pieces; of use are those with one factor per channel.
    near : callable
        Gives the numbers of it that are another one, within so much of its size.
    """

    def __init__(
        self, values: Mapping[str, torch.Tensor], maps: Sequence[Map],
        near: Callable[[float, float], Sequence[MeantNumber]],
    ):  # fmt: skip
        floats = [(n, v) for n, v in values.items() if v.dtype.is_floating_point and v.dtype.itemsize > 1]
        tables = [(name, value) for name, value in floats if value.numel() >= _FEWEST and number_of(value) is None]
        # Most often an initial state, or a query, is one row that all examples have.
        single = [(name, one) for name, v in tables for one in without_repeats(v)]
        self._tables = [*tables, *single]
        self._by_count: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, value in self._tables:
            self._by_count.setdefault(value.numel(), []).append((name, value))
        self._near = near
        self._maps = [m for m in maps if m.product.value.ndim == 1]
        self._vectors: dict[tuple[int, str], _Heap] = {}
        self._laid: dict[tuple[torch.Size, int], _Heap] = {}
        self._pairs: dict[torch.Size, list[_Pairs]] = {}

    def match(self, constant: Constant, ulps: float) -> Repair | None:
        """Find what a stored tensor was made of.

        Parameters
        ----------
        constant : Constant
        ulps : float
            Largest distance for each of two roundings, in ulps of the stored format at the size of the terms.
        """
        if uniform(constant) is not None or constant.value.numel() < _LEAST or constant.value.dtype.itemsize < 2:
            return None
        for axis in expanded_axis(constant.value):
            found = self.match(replace(constant, value=constant.value.narrow(axis, 0, 1)), ulps)
            if found is not None:
                return replace(found, value=found.value.expand(constant.value.shape).contiguous(), constant=constant)
        for axis in reversed(range(constant.value.ndim)):
            turned = constant.value.movedim(axis, -1)
            rows = turned.reshape(-1, turned.shape[-1])
            if len(rows) > 1 and torch.equal(rows[1], rows[0]) and torch.equal(rows, rows[:1].expand_as(rows)):
                continue  # what was added to every row is all there is: any table of equal rows would fit
            for base in self._bases(constant.value, rows, axis):
                for term in self._added(rows, base):
                    values, sizes = base.whole()
                    exact = values if term is None else values + term.rows[0]
                    size = sizes if term is None else sizes + term.size[0]
                    if _is_rounded(rows, exact, size, ulps):
                        names = (*base.names, *(() if term is None else term.names))
                        words = base.words if term is None else f"{base.words} + {term.words}"
                        laid = exact.reshape(turned.shape).movedim(-1, axis).contiguous()
                        return Repair(constant.name, laid, "fold", words, constant, names)
        return None

    def has_nearly(self, constant: Constant) -> bool:
        """Whether a stored tensor has the bits of a table wherever one looks: then it is that one, changed."""
        value = constant.value
        rows = value.reshape(-1, value.shape[-1]) if value.ndim else value.reshape(1, 1)
        tables = self._tables_like(value, rows, value.ndim - 1) if value.ndim else _Heap([])
        return bool(tables.members) and bool((tables.heads == _head(rows)).flatten(1).all(1).any())

    # -- what something was added to --------------------------------------------------------------------------------

    def _bases(self, stored: torch.Tensor, rows: torch.Tensor, axis: int) -> Iterator[_Stem]:
        last = axis == stored.ndim - 1
        if rows.shape[1] >= _FEWEST:
            tables = self._tables_like(stored, rows, axis) if len(rows) > 1 else self._of_length(rows.shape[1], "terms")
            yield from self._sums(rows, tables)
            if last and len(rows) > 1:
                yield from self._parts(rows)
        if last:
            yield from self._products(rows)

    def _tables_like(self, stored: torch.Tensor, rows: torch.Tensor, axis: int) -> _Heap:
        """The tables of a shape, laid out in rows along an axis."""
        key = stored.shape, axis
        if key not in self._laid:
            sizes = [n for n in stored.shape if n > 1]
            alike = (t for t in self._by_count.get(stored.numel(), []) if sizes == [n for n in t[1].shape if n > 1])
            laid = ((name, v.reshape(stored.shape).movedim(axis, -1).reshape(rows.shape)) for name, v in alike)
            self._laid[key] = _Heap([_Addend(name, (name,), value) for name, value in laid])
        return self._laid[key]

    def _sums(self, rows: torch.Tensor, tables: _Heap) -> Iterator[_Stem]:
        """Tables to every row of which something may have been added, sums of two, and tables with a factor."""
        if not tables.members:
            return
        head, eps, heads = _head(rows), torch.finfo(rows.dtype).eps, tables.heads
        gap, sizes = head - heads, head.abs() + heads.abs()
        reach = _REACH * eps * sizes.clamp(min=_NOTHING * largest_magnitude(head))
        level = ((gap - gap[:, :1]).abs() <= reach + reach[:, :1]).flatten(1).all(1) & (len(rows) > 1)
        factors = self._of_length(rows.shape[1], "factors") if len(rows) > 1 else _Heap([])
        pairs, scaled = _sums_of_two(gap, reach, heads, _REACH * eps), self._scaled(head, heads, factors, eps)
        for k, (table, is_level) in enumerate(zip(tables.members, level.tolist(), strict=True)):
            if is_level:
                yield _Stem(table.names, table.words, partial(_times, table.rows, _ONE))
            for other in (tables.members[n] for n in pairs.get(k, ()) if n >= k):
                made = partial(_both, table.rows, other.rows)
                yield _Stem((*table.names, *other.names), f"{table.words} + {other.words}", made, True)
            for factor in (factors.members[n] for n in scaled.get(k, [])[:_ROWS]):
                words, names = f"{table.words} times {factor.words}", (*table.names, *factor.names)
                yield _Stem(names, words, partial(_times, table.rows, factor.rows[0]), True)

    def _scaled(self, head: torch.Tensor, heads: torch.Tensor, factors: _Heap, eps: float) -> dict[int, list[int]]:
        """For tables the factors of their channels: what is added to every row is no difference of rows."""
        if not factors.members:
            return {}
        by, step, steps = factors.heads[:, 0], head[1] - head[0], heads[:, 1] - heads[:, 0]
        sizes, least = heads[:, :2].abs().sum(1), _NOTHING * largest_magnitude(head)
        found: dict[int, list[int]] = {}
        widest = steps.abs().argmax(1)  # a column in which a table changes
        for column in widest.unique().tolist():
            tables = (widest == column).nonzero()[:, 0]
            wide, most = steps[tables, column], sizes[tables, column] * by[:, column].abs().max()
            far = _REACH * eps * (head[:2, column].abs().sum() + most).clamp(min=least) / wide.abs()
            n, at = near_pairs(by[:, column].contiguous(), step[column] / wide, far)
            k = tables[at]
            reach = _REACH * eps * (head[:2].abs().sum(0) + sizes[k] * by[n].abs()).clamp(min=least)
            close = ((step - steps[k] * by[n]).abs() <= reach).all(1)
            for table, factor in sorted(zip(k[close].tolist(), n[close].tolist(), strict=True)):
                found.setdefault(table, []).append(factor)
        return found

    def _parts(self, rows: torch.Tensor) -> Iterator[_Stem]:
        """Some rows of a table, one after the other."""
        for name, value in self._tables:
            if value.ndim > 1 and value.shape[-1] == rows.shape[1] and rows.numel() < value.numel() <= _MOST:
                table = value.reshape(-1, rows.shape[1])
                for start in _windows(rows, table):
                    yield _Stem((name,), name, partial(_times, table[start : start + len(rows)], _ONE))

    def _products(self, rows: torch.Tensor) -> Iterator[_Stem]:
        """A table, a bias or a weight multiplied with the weights of a layer."""
        if rows.shape not in self._pairs:
            self._pairs[rows.shape] = self._pairs_of(rows)
        for pairs in self._pairs[rows.shape]:
            for one, other in self._plausible(rows, pairs).nonzero().tolist():
                (table, left), (weight, right) = pairs.lefts[one], pairs.rights[other]
                base = _Stem((table, weight), f"{table} times {weight}", partial(_product, left, right), True)
                yield base
                yield from self._by_a_number(rows, base)

    def _pairs_of(self, rows: torch.Tensor) -> list[_Pairs]:
        """All tables and weights whose product has the shape of some rows, by the length that is added up."""
        (count, length), (down, across) = rows.shape, _places(rows)
        lefts: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for table, value in self._tables:
            ways = [value.reshape(count, -1)] if value.shape[:-1].numel() == count else []
            for way in [*ways, value.mT] if value.ndim == 2 and value.shape[1] == count else ways:
                lefts.setdefault(way.shape[1], []).append((table, way))
        found = []
        for inner, members in lefts.items():
            rights = [
                (weight, way)
                for weight, value in self._by_count.get(inner * length, [])
                for two in [value.squeeze()]
                for way in ([two[:, None]] if two.ndim == 1 else [two, two.mT] if two.ndim == 2 else [])
                if way.shape == (inner, length)
            ]
            if rights:
                left = torch.stack([way[down] for _, way in members]).to(torch.float64)
                right = torch.stack([way[:, across] for _, way in rights]).to(torch.float64)
                parts = ((left, right), (left.abs(), right.abs()))
                found.append(_Pairs(members, rights, *(torch.einsum("kfm,wmc->kwfc", a, b) for a, b in parts)))
        return found

    def _plausible(self, rows: torch.Tensor, pairs: _Pairs) -> torch.Tensor:
        """Where a few elements are those of a product, times a number, but for what is added to every row."""
        wanted, made = _head(rows), pairs.made
        reach = _REACH * torch.finfo(rows.dtype).eps * (wanted.abs() + pairs.terms)
        found = torch.zeros(made.shape[:2], dtype=torch.bool)
        if len(rows) == 1:
            heads, gap, far = self._of_length(rows.shape[1], "terms").heads, (wanted - made)[:, :, 0], reach[:, :, 0]
            one, other = near_pairs(gap[..., 0].reshape(-1), heads[:, 0, 0], float(far[..., 0].max()))
            close = (gap.flatten(0, 1)[one] - heads[other, 0]).abs() <= far.flatten(0, 1)[one]
            found.view(-1)[one[close.all(1)]] = True
        else:
            wanted, made = wanted[1:] - wanted[:1], made[..., 1:, :] - made[..., :1, :]
            reach = reach[..., 1:, :] + reach[..., :1, :]
        ratio = (wanted * made).sum((-2, -1), keepdim=True) / made.square().sum((-2, -1), keepdim=True)
        far = reach * ratio.abs().clamp(min=1.0)
        return found | ((wanted - ratio * made).abs() <= far).flatten(2).all(2)

    def _by_a_number(self, rows: torch.Tensor, base: _Stem) -> Iterator[_Stem]:
        """A product with a number of the program multiplied in: the scale of an attention."""
        (values, sizes), eps = base.whole(_FIRST), torch.finfo(rows.dtype).eps
        ratio = float((rows[:_FIRST] * values).sum() / values.square().sum())
        gap = (rows[:_FIRST] - ratio * values).abs()
        if ratio <= 0.0 or not bool((gap <= _REACH * eps * ratio * sizes.max()).all()):
            return
        for number in self._near(ratio, _REACH * eps):
            whole = partial(_multiplied, base.whole, number.value)
            yield _Stem(base.names, f"{base.words} times {number.words}", whole, True)

    # -- what was added ---------------------------------------------------------------------------------------------

    def _added(self, rows: torch.Tensor, base: _Stem) -> Iterator[_Addend | None]:
        """What a stored tensor may have more than a base: nothing, or a vector in every row."""
        few, (values, sizes) = rows[:_FIRST].to(torch.float64), base.whole(_FIRST)
        gap = few - values
        reach = _REACH * torch.finfo(rows.dtype).eps * max(largest_magnitude(few), largest_magnitude(sizes))
        if base.alone and bool((gap.abs() <= reach).all()):
            yield None
        if not bool(((gap - gap[:1]).abs() <= 2.0 * reach).all()):
            return
        vectors = self._of_length(rows.shape[1], "terms")
        wanted, heads = _head(gap[:1]), vectors.heads
        if not vectors.members:
            return
        near = ((heads - wanted).abs() <= reach).flatten(1).all(1)
        yield from itertools.compress(vectors.members, near.tolist())
        few = heads[:_PAIRS, 0]
        i, j = near_pairs(wanted[0, 0] - few[:, 0], few[:, 0].contiguous(), reach)
        both = ((few[i] + few[j] - wanted[0]).abs() <= reach).all(1) & (i < j)
        pairs = sorted(zip(i[both].tolist(), j[both].tolist(), strict=True))
        for one, two in ((vectors.members[i], vectors.members[j]) for i, j in pairs[:_ROWS]):
            yield _Addend(f"{one.words} + {two.words}", (*one.names, *two.names), one.rows + two.rows)

    def _of_length(self, length: int, kind: str) -> _Heap:
        """The vectors of a length: constants, rows of a constant that has few, what affine pieces shift or scale by."""
        if (length, kind) not in self._vectors:
            found = []
            for name, value in self._tables:
                if value.numel() == length or (value.shape[-1] == length and value.numel() <= _ROWS * length):
                    rows = value.to(torch.float64).reshape(-1, 1, length)
                    found += [_Addend(name, (name,), row) for row in rows if bool(row.any())]
            for m in self._maps:
                vector = m.bias if kind == "terms" else m.product.made()
                if vector.numel() == length and bool(vector.any()):
                    words = f"the shift of {m.steps[0]}" if kind == "terms" else m.steps[0]
                    terms = m.magnitude[None] if kind == "terms" else None
                    found.append(_Addend(words, m.sources, vector[None], terms))
            self._vectors[length, kind] = _Heap(found)
        return self._vectors[length, kind]


def _places(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    few = [min(n, most) for n, most in zip(rows.shape, (_FIRST, _COLUMNS), strict=True)]
    down, across = (torch.linspace(0, n - 1, k).long() for n, k in zip(rows.shape, few, strict=True))
    return down, across


def _head(rows: torch.Tensor) -> torch.Tensor:
    """Some elements of some rows, float64: they tell most tables apart."""
    down, across = _places(rows)
    return rows[down[:, None], across].to(torch.float64)


def _sums_of_two(gap: torch.Tensor, reach: torch.Tensor, heads: torch.Tensor, roundings: float) -> dict[int, list[int]]:
    """For each table the others that are what it lacks."""
    far = float(reach[:, 0, 0].max()) + roundings * float(heads[:, 0, 0].abs().max())
    one, other = near_pairs(gap[:, 0, 0].contiguous(), heads[:, 0, 0].contiguous(), far)
    close = (gap[one] - heads[other]).abs() <= reach[one] + roundings * heads[other].abs()
    found: dict[int, list[int]] = {}
    alike = close.flatten(1).all(1)
    for k, n in sorted(zip(one[alike].tolist(), other[alike].tolist(), strict=True)):
        found.setdefault(k, []).append(n)
    return found


_ONE = torch.ones((), dtype=torch.float64)


def _times(rows: torch.Tensor, by: torch.Tensor, count: int | None = None) -> _Rows:
    made = rows[:count].to(torch.float64) * by
    return made, made.abs()


def _product(rows: torch.Tensor, by: torch.Tensor, count: int | None = None) -> _Rows:
    left, right = rows[:count].to(torch.float64), by.to(torch.float64)
    return left @ right, left.abs() @ right.abs()


def _both(one: torch.Tensor, two: torch.Tensor, count: int | None = None) -> _Rows:
    left, right = one[:count].to(torch.float64), two[:count].to(torch.float64)
    return left + right, left.abs() + right.abs()


def _multiplied(made: Callable[..., _Rows], by: float, count: int | None = None) -> _Rows:
    values, sizes = made(count)
    return by * values, abs(by) * sizes


def _is_rounded(stored: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, ulps: float) -> bool:
    # A cosine of a right angle is 6e-17, or nothing: beside its neighbours that is float64's own rounding.
    wide, size = stored.to(torch.float64), size.clamp(min=_NOTHING * largest_magnitude(size))
    if largest_magnitude(wide - exact) <= _UNMOVED * torch.finfo(stored.dtype).eps * largest_magnitude(size):
        return False  # nothing was rounded: it is a row of what was made of it
    return is_folded(stored, exact, size, ulps)


def _windows(mine: torch.Tensor, rows: torch.Tensor) -> list[int]:
    """Where some rows of a table, one after the other, may begin that stand in a stored tensor."""
    more = len(rows) - len(mine)
    if more <= 0:
        return []
    # What is added to every row is none of the differences between rows.
    reach = 2.0 * _REACH * torch.finfo(mine.dtype).eps * max(map(largest_magnitude, (mine[:2], rows[:_ROWS])))
    across = _places(rows)[1]
    wide, first = rows[:, across].to(torch.float64), mine[:2][:, across].to(torch.float64).diff(dim=0)
    near = ((wide[1 : more + 2] - wide[: more + 1] - first).abs() <= reach).all(1)
    return [start for start, alike in enumerate(near.tolist()) if alike]
