"""Stored tensors that a port made of another program's constants ahead of time: sums, scaled sums and products.

``(w x + b) + p`` is ``w x + (b + p)``, and ``w (x + p)`` is ``w x + w p``: a port may store the bias of a layer in the
table of positions behind it, the kind of a segment in every word, a projected table, a table inside a batch norm. No
chain of layers shows it, since the table differs from row to row; the numbers do: *every* element of what is stored
is that sum, rounded. Nothing is ever fitted. A few rows are compared first, so that what is none costs next to nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from driftscope.comparison.measuring.spread import largest_magnitude
from driftscope.lift.reconcile.arrangements import expanded_axis
from driftscope.lift.reconcile.maps import Map, narrow
from driftscope.lift.reconcile.matching import Repair, rounded_twice, stores, uniform, within_ulps
from driftscope.lift.reconcile.scalars import MeantNumber
from driftscope.lift.steps import Constant, Kind, Observer, Step

# Elements of a row, below which chance might do it, and rows of a table each of which may be a vector by itself.
_FEWEST, _ROWS = 4, 64
# Elements of a product, of which there are few that could be it.
_LEAST = 3
# Vectors of one length that are tried in pairs.
_PAIRS = 256
# Rows that are looked at first, and roundings of the largest term within which they have to agree.
_FIRST, _REACH = 3, 8.0

# Elements of a layer of constants whose parts are looked at: a state, and no table.
_SMALL = 1 << 16

_Rows = tuple[torch.Tensor, torch.Tensor]  # values, and the sizes of the terms that were added up


@dataclass(frozen=True, slots=True)
class _Addend:
    """What may have been added to every row, or multiplied with it."""

    words: str
    names: tuple[str, ...]
    value: torch.Tensor
    size: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Stem:
    """What may stand in a stored tensor before something is added to every row: its first rows, and all of them."""

    names: tuple[str, ...]
    words: str
    first: _Rows
    whole: Callable[..., _Rows]
    alone: bool = False


class MadeAhead:
    """The tables, vectors and weights of one program that something may have been made of.

    Parameters
    ----------
    constants : sequence of Constant
    meant : mapping of str to Tensor
        What constants of it are meant to be, where that is not what is stored.
    maps : sequence of Map
        Its affine pieces; of use are those with one factor per channel.
    near : callable
        Gives the numbers of it that are another one, within so much of its size.
    """

    def __init__(
        self, constants: Sequence[Constant], meant: Mapping[str, torch.Tensor], maps: Sequence[Map],
        near: Callable[[float, float], Sequence[MeantNumber]],
    ):  # fmt: skip
        floats = [c for c in constants if c.value.dtype.is_floating_point and uniform(c) is None]
        values = [(c.name, meant.get(c.name, c.value)) for c in floats if c.value.numel() >= _FEWEST]
        single = [(name, v.narrow(axis, 0, 1)) for name, v in values for axis in expanded_axis(v)]
        self._tables = [*values, *single]
        self._by_count: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, value in self._tables:
            self._by_count.setdefault(value.numel(), []).append((name, value))
        self._near = near
        self._maps = [m for m in maps if m.product.value.ndim == 1]
        self._terms: dict[int, list[_Addend]] = {}

    def match(self, constant: Constant, ulps: float) -> Repair | None:
        """Find what a stored tensor was made of.

        Parameters
        ----------
        constant : Constant
        ulps : float
            Largest distance for each of two roundings, in ulps of the stored format at the size of the terms.
        """
        if uniform(constant) is not None or constant.value.numel() < _LEAST:
            return None
        for axis in reversed(range(constant.value.ndim)):
            turned = constant.value.movedim(axis, -1)
            rows = turned.reshape(-1, turned.shape[-1])
            for base in self._bases(constant.value, rows, axis):
                for term in self._added(rows, base):
                    values, sizes = base.whole()
                    exact = values if term is None else values + term.value
                    size = sizes if term is None else sizes + term.size
                    if _is_rounded(rows, exact, size, ulps):
                        names = (*base.names, *(() if term is None else term.names))
                        words = base.words if term is None else f"{base.words} + {term.words}"
                        laid = exact.reshape(turned.shape).movedim(-1, axis).contiguous()
                        return Repair(constant.name, laid, "fold", words, constant, names)
        return None

    # -- what something was added to --------------------------------------------------------------------------------

    def _bases(self, stored: torch.Tensor, rows: torch.Tensor, axis: int) -> Iterator[_Stem]:
        sizes, length = [n for n in stored.shape if n > 1], rows.shape[1]
        for table, value in self._tables if length >= _FEWEST else ():
            if value.numel() == stored.numel() and sizes == [n for n in value.shape if n > 1]:
                yield from self._scaled(table, value.reshape(stored.shape).movedim(axis, -1).reshape(rows.shape))
            elif axis == stored.ndim - 1 and value.ndim > 1 and value.shape[-1] == length:
                for start in _windows(rows, value.reshape(-1, length)):
                    yield _part_of(table, value.reshape(-1, length)[start : start + len(rows)])
        if axis == stored.ndim - 1:
            yield from self._products(rows)

    def _scaled(self, table: str, value: torch.Tensor) -> Iterator[_Stem]:
        """A table as it is, and multiplied by a factor for each channel."""
        yield _part_of(table, value)
        length = value.shape[1]
        factors = [_Addend(m.steps[0], m.sources, m.product.made(), m.magnitude) for m in self._maps]
        for factor in (*self._of_length(length), *factors) if len(value) > 1 else ():
            if factor.value.numel() == length:
                words, names = f"{table} times {factor.words}", (table, *factor.names)
                made = partial(_times, value, factor.value)
                yield _Stem(names, words, made(_FIRST), made, True)

    def _products(self, rows: torch.Tensor) -> Iterator[_Stem]:
        """A table multiplied with the weights of a layer."""
        count, length = rows.shape
        for table, value in self._tables:
            inner = value.shape[-1]
            if value.ndim < 2 or value.numel() != count * inner:
                continue
            for base in self._with_weights(table, value.reshape(count, inner), (inner, length)):
                yield base
                yield from self._by_a_number(rows, base)

    def _with_weights(self, table: str, rows: torch.Tensor, shape: tuple[int, int]) -> Iterator[_Stem]:
        for weight, value in self._by_count.get(math.prod(shape), []):
            two = value.squeeze()
            ways = [two[:, None]] if two.ndim == 1 else [two, two.mT] if two.ndim == 2 else []
            for way in (w for w in ways if w.shape == shape):
                words, made = f"{table} times {weight}", partial(_product, rows, way)
                yield _Stem((table, weight), words, made(_FIRST), made, True)

    def _by_a_number(self, rows: torch.Tensor, base: _Stem) -> Iterator[_Stem]:
        """A product with a number of the program multiplied in: the scale of an attention."""
        (values, sizes), eps = base.first, torch.finfo(rows.dtype).eps
        ratio = float((rows[:_FIRST] * values).sum() / values.square().sum())
        gap = (rows[:_FIRST] - ratio * values).abs()
        if ratio <= 0.0 or not bool((gap <= _REACH * eps * ratio * sizes.max()).all()):
            return
        for number in self._near(ratio, _REACH * eps):
            first = number.value * values, number.value * sizes
            whole = partial(_multiplied, base.whole, number.value)
            yield _Stem(base.names, f"{base.words} times {number.words}", first, whole, True)

    # -- what was added ---------------------------------------------------------------------------------------------

    def _added(self, rows: torch.Tensor, base: _Stem) -> Iterator[_Addend | None]:
        """What a stored tensor may have more than a base: nothing, a vector in every row, or another table."""
        few, (values, sizes) = rows[:_FIRST].to(torch.float64), base.first
        gap = few - values
        reach = _REACH * torch.finfo(rows.dtype).eps * max(largest_magnitude(few), largest_magnitude(sizes))
        if base.alone and bool((gap.abs() <= reach).all()):
            yield None
        if bool(((gap - gap[:1]).abs() <= 2.0 * reach).all()):
            yield from self._vectors(gap[0], reach)
        elif not base.alone:
            for table, value in self._by_count.get(rows.numel(), []):
                if value.shape[-1] == rows.shape[1]:
                    laid = value.reshape(rows.shape)
                    if bool(((laid[:_FIRST].to(torch.float64) - gap).abs() <= reach).all()):
                        wide = laid.to(torch.float64)
                        yield _Addend(table, (table,), wide, wide.abs())

    def _vectors(self, wanted: torch.Tensor, reach: float) -> Iterator[_Addend]:
        terms = self._of_length(len(wanted))
        shifts = (m for m in self._maps if m.bias.shape == wanted.shape and bool(m.bias.any()))
        terms = [*terms, *(_Addend(f"the shift of {m.steps[0]}", m.sources, m.bias, m.magnitude) for m in shifts)]
        for term in terms:
            if bool(((term.value - wanted).abs() <= reach).all()):
                yield term
        few = terms if len(terms) <= _PAIRS else []
        for k, one in enumerate(few[:-1]):
            others = torch.stack([t.value[:_FEWEST] for t in few[k + 1 :]])
            near = ((others + one.value[:_FEWEST] - wanted[:_FEWEST]).abs() <= reach).all(1)
            for two in itertools.compress(few[k + 1 :], near.tolist()):
                names, words = (*one.names, *two.names), f"{one.words} + {two.words}"
                yield _Addend(words, names, one.value + two.value, one.size + two.size)

    def _of_length(self, length: int) -> list[_Addend]:
        """The vectors of a length that are constants, or rows of a constant that has few."""
        if length not in self._terms:
            found = []
            for name, value in self._tables:
                if value.numel() == length or (value.shape[-1] == length and value.numel() <= _ROWS * length):
                    rows = value.to(torch.float64).reshape(-1, length)
                    found += [_Addend(name, (name,), row, row.abs()) for row in rows if bool(row.any())]
            self._terms[length] = found
        return self._terms[length]


def _times(rows: torch.Tensor, by: torch.Tensor, count: int | None = None) -> _Rows:
    made = rows[:count].to(torch.float64) * by
    return made, made.abs()


def _product(rows: torch.Tensor, by: torch.Tensor, count: int | None = None) -> _Rows:
    left, right = rows[:count].to(torch.float64), by.to(torch.float64)
    return left @ right, left.abs() @ right.abs()


def _multiplied(made: Callable[[], _Rows], by: float) -> _Rows:
    values, sizes = made()
    return by * values, abs(by) * sizes


def _part_of(table: str, rows: torch.Tensor) -> _Stem:
    made = partial(_times, rows, torch.ones((), dtype=torch.float64))
    return _Stem((table,), table, made(_FIRST), made)


def _is_rounded(stored: torch.Tensor, exact: torch.Tensor, size: torch.Tensor, ulps: float) -> bool:
    wide = stored.to(torch.float64)
    if narrow(stored.dtype):
        return stores(stored, exact) or rounded_twice(wide, exact, size, stored.dtype)
    return within_ulps(wide, exact, size, stored.dtype, 2.0 * ulps)


def _windows(mine: torch.Tensor, rows: torch.Tensor) -> list[int]:
    """Where some rows of a table, one after the other, may begin that stand in a stored tensor."""
    more = len(rows) - len(mine)
    if more <= 0 or len(mine) == 1:
        return list(range(len(rows))) if more > 0 and len(rows) <= _ROWS else []
    # What is added to every row is none of the differences between rows.
    reach = 2.0 * _REACH * torch.finfo(mine.dtype).eps * max(map(largest_magnitude, (mine[:2], rows)))
    steps = rows[1 : more + 2].to(torch.float64) - rows[: more + 1].to(torch.float64)
    return (
        ((steps - (mine[1].to(torch.float64) - mine[0].to(torch.float64))).abs() <= reach)
        .all(1)
        .nonzero()
        .flatten()
        .tolist()
    )


# --- what layers make of their constants ---


@dataclass(frozen=True)
class Statistic:
    """A tensor that a program may compute ahead of time of the constants of one layer, and the sizes of its terms."""

    words: str
    value: torch.Tensor
    size: torch.Tensor
    sources: tuple[str, ...]


def recurrent_statistics(held: Sequence[tuple[str, torch.Tensor]]) -> list[Statistic]:
    """What can be computed ahead of time of the constants of a recurrent layer: its biases, and its first product.

    Parameters
    ----------
    held : sequence of (str, Tensor)
        Names and values: weights ``(gates * H, H)`` and biases ``(gates * H,)`` each by itself, as torch has them, or
        in one tensor for all directions, as ONNX has them; initial states ``(..., batch, H)``.
    """
    pairs = _biases_of(held)
    found = []
    for names, a, b in pairs:
        gates, both = 2 * a.shape[-1] // 3, a + b
        words = " + ".join(names) if len(names) > 1 else f"the two biases of {names[0]} added"
        some, none = torch.cat([both[..., :gates], a[..., gates:]], -1), torch.zeros_like(a)
        values = [both, both[..., :gates], some]
        if a.ndim > 1:
            rest = torch.cat([none[..., :gates], b[..., gates:]], -1)
            values = [torch.cat(two, 1) for two in ((both, none), (none, both), (some, rest))]
        found += [Statistic(words, value, value, names) for value in values]
    return found + _first_products(held, pairs)


def _biases_of(held: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[tuple[str, ...], torch.Tensor, torch.Tensor]]:
    """A recurrent layer adds two biases; only a GRU's last gate keeps them apart."""
    vectors = [((name,), v) for name, v in held if v.ndim == 1]
    pairs = [((*one, *two), a, b) for (one, a), (two, b) in itertools.pairwise(vectors) if a.shape == b.shape]
    # ONNX keeps both in one row for each direction, next to weights with two more axes.
    rows = next((v.shape[1] for _, v in held if v.ndim == 3), 0)
    joined = [((name,), v) for name, v in held if rows and v.ndim == 2 and v.shape[1] == 2 * rows]
    # A port that keeps that layout puts zeros where nothing is left to add.
    return pairs + [(name, a, b) for name, v in joined for a, b in (*(row.chunk(2) for row in v), v.chunk(2, 1))]


def _first_products(
    held: Sequence[tuple[str, torch.Tensor]], pairs: Sequence[tuple[tuple[str, ...], torch.Tensor, torch.Tensor]]
) -> list[Statistic]:
    """Of an initial state that is a constant, the product with the recurrent weights."""
    parts = [(name, part) for name, v in held if v.ndim in (2, 3) for part in (v if v.ndim == 3 else (v,))]
    weights = [(n, w) for n, w in parts if w.shape[0] in (w.shape[1], 3 * w.shape[1], 4 * w.shape[1])]
    biases = [v for _, a, b in pairs for v in (a, b, a + b)]
    found = []
    for (name, state), (other, weight) in itertools.product(parts, weights):
        if state.shape[1] == weight.shape[1] and state is not weight and bool(state.any()):
            found += _of_product((name, state), (other, weight.T), biases)
    return found


@dataclass(slots=True)
class LayersOfConstants:
    """An observer of constant subgraphs: of each layer the product without its bias, and gates, which others may store.

    Parameters
    ----------
    noise : Observer or None
        What moves the values of each step.
    found : dict of str to Tensor
        Filled during the run.
    """

    noise: Observer | None = None
    found: dict[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        """See one step."""
        seen = None if self.noise is None else self.noise(step)
        made = step.outputs[:1] if seen is None else seen[:1]
        if step.rounding.kind is Kind.DOT and made and made[0] is not None and made[0].numel() <= _SMALL:
            self._layer(step, made[0])
        return seen

    def _layer(self, step: Step, made: torch.Tensor) -> None:
        biases = [x for x in step.inputs if x is not None and x.ndim == 1 and x.shape == made.shape[-1:]]
        if made.ndim < 2 or len(biases) != 1 or step.attributes.get("beta", 1) != 1:
            return
        for name, value in ((step.name, made), (f"{step.name} without its bias", made - biases[0])):
            self.found |= {name: value, **{f"{name}, {said}": part for said, part in _gates(value)}}


def _gates(rows: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The gates of a recurrent layer, and those that stand next to each other."""
    for gates in (3, 4):
        size = rows.shape[-1] // gates
        for first, last in itertools.combinations(range(gates + 1), 2) if size * gates == rows.shape[-1] else ():
            if last - first < gates:
                yield f"gates {first} to {last} of {gates}", rows[..., first * size : last * size]


def _of_product(
    given: tuple[str, torch.Tensor], weight: tuple[str, torch.Tensor], biases: Sequence[torch.Tensor]
) -> list[Statistic]:
    """A product of constants: alone, with a bias added, and of each the gates."""
    rows, names = given[1], (given[0], weight[0])
    # Most often an initial state is one row, which all examples have.
    rows = rows[:1] if torch.equal(rows, rows[:1].expand_as(rows)) else rows
    value, size = rows @ weight[1], rows.abs() @ weight[1].abs()
    fitting = [b for b in biases if b.shape == value.shape[1:]]
    words = f"{names[0]} times {names[1]}"
    made = [(words, value, size), *((f"{words} and a bias", value + b, size + b.abs()) for b in fitting)]
    gates = [n for n in (1, 3, 4) if value.shape[1] % n == 0]
    return [
        Statistic(said, part, terms, names)
        for said, v, s in made
        for n in gates
        for part, terms in zip(v.chunk(n, 1), s.chunk(n, 1), strict=True)
    ]
