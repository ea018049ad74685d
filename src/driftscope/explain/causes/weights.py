"""Which stored tensors of B are not those of A: compared before anything else, because it costs no run.

Tensors are matched by their bits whatever their names and layout, as exporters transpose, reshape and merge them.
What is left on both sides is matched by name, by the module that reads it, and by size. A tensor that holds A's
elements in an order no exporter writes, or under the name of another, is left as well. Whether a difference matters
is not decided here: it is tried, by running B with A's tensor in the place of its own.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.explain.causes.alterations import Alteration, alteration_of, uniform_of
from driftscope.explain.locate.fingerprints import Visited
from driftscope.lift.readings import Fingerprint, fingerprint
from driftscope.lift.reconcile.arrangements import rearrangements
from driftscope.lift.reconcile.matching import WeightIndex, ulp
from driftscope.lift.steps import Constant, Origin

# Elements up to which every arrangement of a tensor is compared; above, as it is and transposed.
_SMALL, _FEW_ARRANGEMENTS = 1 << 20, 2
# Candidates of one size compared element by element.
_MOST_CANDIDATES = 12
# Tensors farther apart than this, relative to their size, have nothing in common: independent ones are at 1.4.
_STRANGE = 0.5
# Elements by which layouts are told apart; how much farther than the nearest one a layout may look, and how many
# times nearer one has to be than a tensor as it stands, or another tensor than its namesake.
_SAMPLED, _AS_NEAR, _CLEARLY = 1024, 1.1, 2.0
# Roundings, in ulps, of a fold that was computed in its own format: root, division, product, sum.
_OF_FOLDS = 8.0


@dataclass(frozen=True, slots=True)
class ChangedWeight:
    """A stored tensor of B that is not A's.

    Parameters
    ----------
    constant : Constant
        B's.
    partner : Constant
        A's tensor that it should be.
    value : Tensor
        A's elements, float64, laid out as B stores them.
    alteration : Alteration
        What was done to it.
    """

    constant: Constant
    partner: Constant
    value: torch.Tensor
    alteration: Alteration

    @property
    def strange(self) -> bool:
        """Whether the two have nothing in common but their name and size: not where each is one number everywhere."""
        if uniform_of(self.constant.value) is not None and uniform_of(self.value) is not None:
            return False
        own = self.constant.value.to(torch.float64)
        return bool((own - self.value).square().sum() > _STRANGE**2 * self.value.square().sum())


def exchanged_names(changed: Sequence[ChangedWeight]) -> list[tuple[str, str]]:
    """Tensors of B that are each another one of A's: their names and those of A; empty where that is not all."""
    found: list[tuple[str, str]] = []
    for change in changed:
        own = change.constant.value.reshape(-1)  # it may be rounded
        other = next((c for c in changed if c is not change and own.equal(c.value.reshape(-1).to(own.dtype))), None)
        if other is None:
            return []
        found.append((change.constant.name, other.partner.name))
    return found


@dataclass(slots=True)
class Matched:
    """Stored tensors of two programs side by side.

    Parameters
    ----------
    same : dict of str to list of str
        For constants of B the names of A's with the same elements, in any order.
    changed : list of ChangedWeight
    """

    same: dict[str, list[str]] = field(default_factory=dict)
    changed: list[ChangedWeight] = field(default_factory=list)


#: What folding a program's layers computes, each with the names of the constants that it is computed from.
Folds = Callable[[Collection[int]], Mapping[str, tuple[Constant, tuple[str, ...]]]]


def _no_folds(_sizes: Collection[int]) -> Mapping[str, tuple[Constant, tuple[str, ...]]]:
    return {}


def match_weights(
    a: Sequence[Constant], b: Sequence[Constant], settled: Iterable[str], folds: Folds = _no_folds
) -> Matched:
    """Match the stored tensors of two programs.

    Parameters
    ----------
    a, b : sequences of Constant
    settled : iterable of str
        Names of B's constants that are known to be A's, rounded or folded.
    folds : callable
        Returns A's folds of these numbers of elements; asked if a constant is left.
    """
    own_a, own_b = _side_by_side(a, b)
    same = _same_bits(own_a, own_b)
    order = {c.name: k for k, c in enumerate(own_b)}
    changed = _changes(own_a, own_b, same, set(settled), folds)
    return Matched(same, sorted(changed, key=lambda c: order[c.constant.name]))


def changed_weights(a: Sequence[Constant], b: Sequence[Constant], settled: Iterable[str]) -> Iterator[ChangedWeight]:
    """Yield the changed ones alone, one at a time, those with other elements first; see :func:`match_weights`."""
    own_a, own_b = _side_by_side(a, b)
    return _changes(own_a, own_b, _same_bits(own_a, own_b), set(settled))


def _side_by_side(a: Sequence[Constant], b: Sequence[Constant]) -> tuple[list[Constant], list[Constant]]:
    # The two programs may live on different devices; and B may hold what A computes once for every row of the batch.
    own_b = [dataclasses.replace(c, value=c.value.cpu()) for c in b if _is_tensor(c) and c.frontier]
    shapes = {c.value.shape: c.value.shape for c in own_b if c.origin is Origin.COMPUTED}
    wide = {_once(shape[1:]): shape for shape in sorted(shapes, key=math.prod, reverse=True)} | shapes
    own_a = [dataclasses.replace(c, value=c.value.cpu()) for c in a if _is_tensor(c)]
    for k, c in enumerate(own_a):
        shape = wide.get(c.value.shape, wide.get(_once(c.value.shape))) if c.origin is Origin.COMPUTED else None
        if shape is not None and shape != c.value.shape:
            own_a[k] = dataclasses.replace(c, value=c.value.reshape(_once(c.value.shape)).expand(shape))
    return own_a, own_b


def _changes(
    a: Sequence[Constant],
    b: Sequence[Constant],
    same: Mapping[str, Sequence[str]],
    settled: set[str],
    folds: Folds = _no_folds,
) -> Iterator[ChangedWeight]:
    by_name = {c.name: c for c in a}
    used = {name for names in same.values() for name in names}
    free = [c for c in a if c.name not in used]
    folded: Mapping[str, tuple[Constant, tuple[str, ...]]] | None = None
    # Whoever needs not all of them mostly needs those with other elements, which are few and cheap to tell.
    for constant in sorted(b, key=lambda c: bool(same.get(c.name))):
        if constant.name in settled:
            continue
        names = same.get(constant.name, [])
        if names:
            change = _misplaced(constant, names, by_name)
        else:
            if folded is None:
                folded = folds({c.value.numel() for c in b if c.name not in settled and c.name not in same})
            change = _altered(constant, free, by_name, _folds_for(constant, folded))
        if change is not None:
            yield change


def _once(shape: torch.Size) -> torch.Size:
    """The shape of one row of a batch, without axes of one."""
    return torch.Size(itertools.dropwhile(lambda n: n == 1, shape))


def _is_tensor(constant: Constant) -> bool:
    return constant.value.dtype.is_floating_point and constant.value.numel() > 1


def _same_bits(a: Sequence[Constant], b: Sequence[Constant]) -> dict[str, list[str]]:
    theirs = WeightIndex(a)
    mine = WeightIndex(b, like=theirs)
    tables: dict[torch.dtype, dict[Fingerprint, list[str]]] = {}
    same = {}
    for constant in b:
        fmt = constant.value.dtype
        if fmt not in tables:
            tables[fmt] = {}
            for other in a:
                own = other.value.dtype == fmt
                key = theirs.fingerprint(other) if own else fingerprint(other.value.to(fmt))
                tables[fmt].setdefault(key, []).append(other.name)
        names = tables[fmt].get(mine.fingerprint(constant))
        if names:
            same[constant.name] = names
    return same


# --- other elements ----------------------------------------------------------------------------------------------


def _folds_for(constant: Constant, folds: Mapping[str, tuple[Constant, tuple[str, ...]]]) -> list[Constant]:
    """The folds that a constant may be: computed from the tensor of its name, or from tensors of its module."""
    module = constant.where.module
    return [
        fold
        for fold, sources in folds.values()
        if _fits(constant, fold) and any(constant.name == s or (module and _module(s) == module) for s in sources)
    ]


def _altered(
    constant: Constant, free: Sequence[Constant], by_name: Mapping[str, Constant], folds: Sequence[Constant]
) -> ChangedWeight | None:
    """The tensor of A that this one was made of: of its name, of its module, or the nearest of its size."""
    partner = by_name.get(constant.name)
    candidates = [partner, *folds] if partner is not None and _fits(constant, partner) else []
    if not candidates:
        fitting = [c for c in free if _fits(constant, c)] or _repeated(constant, free)
        module = constant.where.module
        beside = [c for c in fitting if module and _module(c.name) == module]
        # A tensor that several steps share may have been copied for one of them, and changed there.
        anywhere = [c for c in by_name.values() if _fits(constant, c)]
        candidates = [*beside, *folds] or (fitting or anywhere)[:_MOST_CANDIDATES]
    nearest = None
    for candidate in candidates:
        close = _nearest(constant, candidate)
        least = math.inf if nearest is None else nearest[0] / (_CLEARLY if nearest[2] is partner else 1.0)
        if close is not None and close[0] < least:
            nearest = (*close, candidate)
    if nearest is None:
        return None
    gap, value, other = nearest
    own = other.name == constant.name or any(other is fold for fold in folds)
    named = own or _module(other.name) == constant.where.module
    # Tensors of one size that have nothing in common are not one tensor, changed; zeros may be one filled otherwise.
    filled = all(c.origin is Origin.COMPUTED and uniform_of(c.value) is not None for c in (constant, other))
    if gap == 0.0 or (not named and not filled and gap > _STRANGE):
        return None
    return _changed(constant, other, value)


def _fits(one: Constant, other: Constant) -> bool:
    loose = Origin.COMPUTED in (one.origin, other.origin)
    return one.value.numel() == other.value.numel() and (loose or _sizes(one) == _sizes(other))


def _repeated(constant: Constant, free: Sequence[Constant]) -> list[Constant]:
    """Tensors with which a tensor fits once one of the two is repeated over the batch: an exporter stores it so."""
    shape = constant.value.shape
    found = []
    for other in free:
        value = other.value
        if value.dim() == len(shape) and value.numel() and value.numel() != shape.numel():
            once = value[tuple(slice(0, 1) if n == 1 else slice(None) for n in shape)]
            if all(m in (1, n) for m, n in zip(once.shape, shape, strict=True)) and bool((once == value).all()):
                found.append(dataclasses.replace(other, value=once.expand(shape)))
    return found


def _sizes(constant: Constant) -> list[int]:
    return sorted(n for n in constant.value.shape if n > 1)


def _nearest(constant: Constant, partner: Constant) -> tuple[float, torch.Tensor] | None:
    """A's elements in the layout nearest to B's, with the distance relative to their size.

    Layouts are told apart by a sample of the elements; all are compared in those that the sample finds nearest.
    """
    shape, stored = constant.value.shape, constant.value.reshape(-1)
    chosen = _sample(stored.numel())
    seen = stored[chosen].to(torch.float64)
    gaps = [_gap(value.reshape(-1)[chosen].to(torch.float64), seen) for value in _arrangements(partner.value, shape)]
    least = min(gaps)
    # Numbers that have nothing in common are about as far apart in every layout, and less so if all are positive.
    as_it_is = [n for n in partner.value.shape if n > 1] == [n for n in shape if n > 1]
    near = [k for k, gap in enumerate(gaps) if gap <= _AS_NEAR * least] if least <= _STRANGE else [gaps.index(least)]
    near = [0] if as_it_is and (least > _STRANGE or gaps[0] <= _CLEARLY * least) else near
    whole = stored.to(torch.float64)
    best: tuple[float, torch.Tensor] | None = None
    for k, arranged in enumerate(itertools.islice(_arrangements(partner.value, shape), near[-1] + 1)):
        if k in near:
            value = arranged.to(torch.float64)
            distance = _gap(value.reshape(-1), whole)
            best = (distance, value) if best is None or distance < best[0] else best
    return best


def _gap(value: torch.Tensor, stored: torch.Tensor) -> float:
    # A mask's infinities are equal or as far apart as can be.
    gap = torch.nan_to_num(value - stored, nan=0.0, posinf=1.0, neginf=1.0)
    size = float(torch.nan_to_num(value, posinf=1.0, neginf=1.0).square().sum().sqrt()) or 1.0
    return float(gap.square().sum().sqrt()) / size


@functools.cache
def _sample(count: int) -> torch.Tensor:
    """Positions spread over a tensor of so many elements, whatever the length of its rows."""
    if count <= _SAMPLED:
        return torch.arange(count)
    # Multiples of the golden ratio modulo 1: no two fall near each other, and no stride of a layout is met.
    spread = (torch.arange(_SAMPLED, dtype=torch.float64) * 0.6180339887498949) % 1.0
    return (spread * count).long()


def _arrangements(source: torch.Tensor, shape: torch.Size) -> Iterable[torch.Tensor]:
    found = rearrangements(source, shape)
    return found if source.numel() <= _SMALL else itertools.islice(found, _FEW_ARRANGEMENTS)


def _changed(constant: Constant, partner: Constant, value: torch.Tensor) -> ChangedWeight:
    fmt, stored = constant.value.dtype, constant.value.to(torch.float64)
    exact = value
    if partner.value.dtype == torch.float64 != fmt:
        # A fold was rounded when it was computed; what was done to it is said of the other elements.
        rounding = _OF_FOLDS * ulp(torch.maximum(value.abs(), value.abs().mean()), fmt)
        exact = torch.where((stored - value).abs() <= rounding, stored, value)
        exact = value if torch.equal(exact, stored) else exact  # there are no others: then rounding is what was done
    alteration = alteration_of(stored, exact, fmt)
    if partner.origin is Origin.COMPUTED and alteration.code == "W004":
        alteration = Alteration("W011", alteration.words)
    return ChangedWeight(constant, partner, value, alteration)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


# --- A's elements, elsewhere ---------------------------------------------------------------------------------------


def _misplaced(constant: Constant, names: Sequence[str], by_name: Mapping[str, Constant]) -> ChangedWeight | None:
    """A tensor that holds the elements of one of A's, but not in an order that exporters write, or not where A does."""
    wanted = _wanted(constant, names, by_name)
    if uniform_of(constant.value) is not None:
        # Zeros and ones are in every model: what counts is whether its own module holds something else.
        close = None if wanted is None or wanted in names else _nearest(constant, by_name[wanted])
        return None if close is None or wanted is None else _changed(constant, by_name[wanted], close[1])
    held = by_name[wanted if wanted is not None and wanted in names else names[0]]
    layout = _layout(constant, held)
    if wanted is not None and wanted not in names:
        # The elements are those of another of A's tensors: lay out the right one in the same way.
        meant = by_name[wanted]
        value = next(itertools.islice(rearrangements(meant.value, constant.value.shape), layout or 0, None))
        words = f"replaced by the elements of {held.name}"
        return ChangedWeight(constant, meant, value.to(torch.float64), Alteration("W010", words))
    same_place = constant.name == held.name and constant.value.shape == held.value.shape
    if layout == 0 or (layout is not None and not same_place):
        return None
    close = None if same_place else _nearest(constant, held)
    value = held.value.reshape(constant.value.shape).to(torch.float64) if close is None else close[1]
    return _changed(constant, held, value)


def _wanted(constant: Constant, names: Sequence[str], by_name: Mapping[str, Constant]) -> str | None:
    """The name of A's tensor that belongs where B reads this one, if the name or the module says it."""
    own = by_name.get(constant.name)
    if own is not None and _fits(constant, own):
        return own.name
    module = constant.where.module
    if not module or any(n.startswith(f"{module}.") for n in names):  # or of a module inside it, read directly
        return None
    there = [c for n, c in by_name.items() if _module(n) == module and _sizes(c) == _sizes(constant)]
    return there[0].name if len(there) == 1 else None


def misread(
    piece: Sequence[Visited], same: Mapping[str, Sequence[str]], a: Sequence[Constant], b: Sequence[Constant]
) -> ChangedWeight | None:
    """A tensor that a piece reads and that belongs to another module, where the piece's own module has one like it.

    Parameters
    ----------
    piece : sequence of Visited
        Steps of B.
    same : mapping of str to sequence of str
        For constants of B the names of A's with the same elements.
    a, b : sequences of Constant
    """
    theirs, mine = {c.name: c for c in a if _is_tensor(c)}, {c.name: c for c in b}
    for step in piece:
        module = step.where.module
        for name in step.stored:
            names = same.get(name, ())
            if not module or not names or name not in mine or any(n.startswith(f"{module}.") for n in names):
                continue
            own = [c for n, c in theirs.items() if _module(n) == module and _sizes(c) == _sizes(mine[name])]
            if len(own) == 1:
                layout = _layout(mine[name], theirs[names[0]]) or 0
                value = next(itertools.islice(rearrangements(own[0].value, mine[name].value.shape), layout, None))
                constant = dataclasses.replace(mine[name], where=dataclasses.replace(step.where, node=step.name))
                words = f"replaced by the elements of {names[0]}"
                return ChangedWeight(constant, own[0], value.to(torch.float64), Alteration("W010", words))
    return None


def _layout(constant: Constant, held: Constant) -> int | None:
    """The first arrangement of A's tensor that gives exactly B's; None when none does."""
    stored = constant.value
    arranged = enumerate(_arrangements(held.value, stored.shape))
    return next((k for k, value in arranged if torch.equal(value.to(stored.dtype), stored)), None)
