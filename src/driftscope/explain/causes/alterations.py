"""What was done to a stored tensor: rounded, scaled, shifted, reordered, zeroed; and in which part of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from driftscope.explain.native.cheap_products import rounding_to
from driftscope.lift.readings import fingerprint
from driftscope.lift.reconcile.matching import narrower, ulp
from driftscope.records.words import counted, listed

#: How the words begin where it is the reference that was rounded.
REFERENCE_ROUNDED = "before it was"
_NARROW_FORMATS = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
# What programs do by hand to the bits of a float32: format, ties, and words for it.
_BY_HAND = (
    ("tf32", "even", "rounded to TF32"), ("tf32", "away", "rounded to TF32, ties away from zero"),
    ("tf32", "cut", "rounded to TF32 by cutting bits off"),
    ("bfloat16", "away", "rounded to bfloat16, ties away from zero"),
    ("bfloat16", "cut", "rounded to bfloat16 by cutting bits off"),
)  # fmt: skip
# Indices along an axis up to which they are listed.
_LISTED = 4
# Elements looked at before all are, and steps from zero to the largest number in the coarsest grid, with some room.
_LOOKED_AT = 64
_COARSEST = 127.0
# Bits behind the first one that numbers have together when they are what is left of longer ones, not chosen: one number
# of bfloat16 has up to 7, two of float8 up to 6. More bits than this belong to no narrow format.
_CUT_OFF, _SIGNIFICANT, _COUNTED = 4, 12, 1024
# Digits that tell any two numbers of float64 apart.
_EVERY = 17
#: Units in the last place that a fold in its own format may be off: root, division, product and sum are rounded.
FOLD_ULPS = 8.0
# Elements up to which an order is looked into.
_SMALL = 1 << 24


@dataclass(frozen=True, slots=True)
class Alteration:
    """What was done to a tensor: the finding code for it, and words that follow "it is A's, ..."."""

    code: str
    words: str


def alteration_of(value: torch.Tensor, exact: torch.Tensor, fmt: torch.dtype) -> Alteration:
    """Say what was done to ``exact`` to make ``value`` of it.

    Parameters
    ----------
    value, exact : Tensor, shape S, float64
        What B stores, and what A does.
    fmt : torch.dtype
        The format B stores it in.
    """
    if uniform_of(exact) is not None and uniform_of(value) is not None and bool(value.any()):
        now, before = told_apart(float(value.reshape(-1)[0]), float(exact.reshape(-1)[0]))
        return Alteration("W004", f"{now} where A has {before}")
    if not bool(value.any()):
        return Alteration("W009", "set to zero")
    masked = _other_limit(value, exact)
    if masked:
        return Alteration("W004", masked)
    rounded = rounding_of(value, exact, fmt)
    if rounded:
        return Alteration("W007", rounded)
    wider = rounding_of(exact, value, fmt)
    if wider:
        return Alteration("W007", f"{REFERENCE_ROUNDED} {wider} in the reference")
    if _reordered(value, exact, fmt):
        return _order(value, exact)
    return _changed(value, exact)


def shortest(number: float) -> str:
    """Write a number with the digits that name it: those of float32 where it is one (0.01, not 0.00999999978)."""
    near = np.float32(number)
    return f"{float(str(near)) if float(near) == number else number:.9g}"


def told_apart(one: float, other: float) -> tuple[str, str]:
    """Write two numbers with digits that tell one from the other; the first says where it is the second rounded."""
    texts, digits = (shortest(one), shortest(other)), 9
    while texts[0] == texts[1] and one != other and digits <= _EVERY:
        texts, digits = (f"{one:.{digits}g}", f"{other:.{digits}g}"), digits + 1
    return (f"{texts[0]} ({texts[1]} rounded to float32)" if in_single(other) == one != other else texts[0]), texts[1]


def in_single(number: float) -> float:
    """A number rounded to float32; infinity beyond its range."""
    return float(torch.tensor(number, dtype=torch.float64).float())


def uniform_of(value: torch.Tensor) -> float | None:
    """The one number a tensor holds everywhere; None when it holds several."""
    flat = value.reshape(-1)
    # The last element tells nearly every tensor from one number, without a look at all of it.
    return float(flat[0]) if flat.numel() and flat[-1] == flat[0] and bool((flat == flat[0]).all()) else None


# --- rounding --------------------------------------------------------------------------------------------------


def _other_limit(value: torch.Tensor, exact: torch.Tensor) -> str:
    """Say of a mask that it holds infinities where the other one holds a finite limit, or the other way round."""
    changed = value != exact
    part, before = value[changed], exact[changed]
    if not part.numel() or not bool((part.isinf() != before.isinf()).all()):
        return ""
    if uniform_of(part) is None or uniform_of(before) is None:
        return ""
    return f"{shortest(float(part[0]))} where A has {shortest(float(before[0]))}"


def rounding_of(value: torch.Tensor, exact: torch.Tensor, fmt: torch.dtype) -> str:
    """Say to what ``exact`` was rounded to give ``value``; empty where nothing gives it, or it need not be a rounding.

    Ones and zeros are what numbers near them are rounded to in any format, and are more often simply ones and zeros:
    see :func:`_are_cut_off`.
    """
    found = next(roundings_of(value, exact, fmt), "")
    return found if found and _are_cut_off(value[value != exact]) else ""


def roundings_of(value: torch.Tensor, exact: torch.Tensor, fmt: torch.dtype) -> Iterator[str]:
    """Say every rounding of ``exact`` that gives ``value``, in words."""
    few = slice(None, _LOOKED_AT)
    for name in _NARROW_FORMATS:
        short = getattr(torch, name)
        # Of tensors that have nothing in common a few elements say so.
        if narrower(short, fmt) and all(
            torch.equal(kept.to(short).to(torch.float64), given)
            for kept, given in ((exact.reshape(-1)[few], value.reshape(-1)[few]), (exact, value))
        ):
            # Only numbers that are too small or too large for float16 tell the two apart.
            alike = (
                name == "float16" and fmt == torch.float32 and torch.equal(rounding_to("tf32", "even")(exact), value)
            )
            yield f"rounded to {name} or TF32" if alike else f"rounded to {name}"
    if fmt == torch.float32:
        for name, ties, words in _BY_HAND:
            narrow = rounding_to(name, ties)
            if all(torch.equal(narrow(exact.reshape(-1)[some]), value.reshape(-1)[some]) for some in (few, ...)):
                yield words
    low, high = (float(end) for end in exact.aminmax())
    coarsest, gaps = max(-low, high) / _COARSEST, (value.reshape(-1)[few] - exact.reshape(-1)[few]).abs()
    if float(gaps.max()) > coarsest or float((value - exact).abs().max()) > coarsest:
        return
    for axis, words in ((None, "one scale"), (0, "a scale per index of axis 0"), (-1, "a scale per column")):
        if _on_grid(value, exact, fmt, axis):
            yield f"rounded to an int8 grid ({words})"


def _are_cut_off(numbers: torch.Tensor) -> bool:
    """Whether numbers look as if their last bits were cut off, and not as if somebody had chosen them: 1, -2, 0.25.

    Counted are the bits behind the first one, of each size once; infinity is what a format without the range makes.
    """
    sizes = numbers[:_COUNTED].abs().unique()
    found = torch.zeros_like(sizes)
    significands = torch.frexp(sizes).mantissa * 2.0  # 1 <= s < 2
    for bit in range(_SIGNIFICANT):
        found = torch.where((significands * 2.0**bit).frac() == 0, found, bit + 1)
    return bool(sizes.isinf().any()) or float(found[torch.isfinite(sizes)].sum()) >= _CUT_OFF


def _on_grid(value: torch.Tensor, exact: torch.Tensor, fmt: torch.dtype, axis: int | None) -> bool:
    """Whether ``value`` is ``exact`` rounded to 255 equal steps; symmetric grids only."""
    if exact.numel() < 16 or (axis is not None and exact.ndim < 2) or not bool(torch.isfinite(exact).all()):
        return False
    rest = [k for k in range(exact.ndim) if axis is None or k != axis % exact.ndim]
    peak = exact.abs().amax(rest, keepdim=True)
    if not bool((peak > 0).all()):
        return False
    for levels in (127.0, 127.5, 128.0):
        step = peak / levels
        grid = (value / step).round()
        # What lies between two steps went to either: the division was rounded too.
        nearest = (exact / step - grid).abs() <= 0.5 + 4.0 * levels * torch.finfo(fmt).eps
        on_it = (grid * step - value).abs() <= 2 * ulp(peak.expand_as(value), fmt)
        if bool((nearest & on_it).all()) and not torch.equal(value, exact):
            return float((value - exact).abs().max()) > 8 * float(ulp(peak.max(), fmt))
    return False


# --- order -----------------------------------------------------------------------------------------------------


def _reordered(value: torch.Tensor, exact: torch.Tensor, fmt: torch.dtype) -> bool:
    """Whether ``value`` holds the elements of ``exact`` in other places; ``fmt`` is what they were rounded to."""
    if torch.equal(value, exact):
        return False
    # Rounding keeps order: in order of size the very numbers must stand at the same places. Merely being near would
    # make a reordering of every small change.
    rounded = exact.nan_to_num(0.0, 0.0, 0.0).to(fmt).to(value.dtype).flatten()
    stored = value.nan_to_num(0.0, 0.0, 0.0).flatten()
    same_ends = torch.equal(torch.stack(stored.aminmax()), torch.stack(rounded.aminmax()))
    # What all elements add up to is cheaper to see than their order.
    return (
        same_ends
        and fingerprint(stored) == fingerprint(rounded)
        and torch.equal(stored.sort().values, rounded.sort().values)
    )


def _order(value: torch.Tensor, exact: torch.Tensor) -> Alteration:
    if value.ndim == 2 and value.shape[0] == value.shape[1] and torch.equal(value, exact.T):
        return Alteration("W005", "transposed")
    if value.numel() > _SMALL:
        return Alteration("W006", "in another order")
    for axis in range(value.ndim):
        words = _along(value, exact, axis)
        if words:
            return Alteration("W006", f"{words} along axis {axis}")
    flipped = [d for d in range(value.ndim) if value.shape[d] > 1][-2:]
    if len(flipped) == 2 and torch.equal(value, exact.flip(flipped)):
        return Alteration("W006", f"reversed along axes {flipped[0]} and {flipped[1]}")
    if value.ndim >= 2 and torch.equal(value.reshape(-1), exact.mT.reshape(-1)):
        return Alteration("W005", "transposed and read in the same shape")
    return Alteration("W006", "in another order")


def _along(value: torch.Tensor, exact: torch.Tensor, axis: int) -> str:
    """How the slices along an axis were permuted; empty when they were not."""
    mine, theirs = (
        value.movedim(axis, 0).reshape(value.shape[axis], -1),
        exact.movedim(axis, 0).reshape(value.shape[axis], -1),
    )
    n = mine.shape[0]
    if n < 2:
        return ""
    if torch.equal(mine, theirs.flip(0)):
        return "reversed"
    # Where each slice of B stands in A, by a sum that nearly always tells slices apart.
    weights = torch.linspace(1.0, 2.0, mine.shape[1], dtype=torch.float64, device=mine.device)
    rows, slots = (mine @ weights).sort(), (theirs @ weights).sort()
    order = torch.empty(n, dtype=torch.long)
    order[rows.indices.cpu()] = slots.indices.cpu()
    if not torch.equal(mine, theirs[order.to(theirs.device)]):
        return ""
    shift = (torch.arange(n) - order) % n
    if bool((shift == shift[0]).all()):
        by = int(shift[0])
        return f"rolled by {by if by <= n // 2 else by - n}"
    moved = (order != torch.arange(n)).nonzero().flatten().tolist()
    if len(moved) == 2:
        return f"with slices {moved[0]} and {moved[1]} exchanged"
    return f"permuted ({len(moved)} of {n} slices moved)"


# --- values ----------------------------------------------------------------------------------------------------


def _changed(value: torch.Tensor, exact: torch.Tensor) -> Alteration:
    changed = (value != exact) & ~(value.isnan() & exact.isnan())
    where = _part(changed)
    whole = bool(changed.all())
    part, before = (value.flatten(), exact.flatten()) if whole else (value[changed], exact[changed])
    if not part.numel():
        return Alteration("W004", "with the same numbers")
    if bool((part == 0).all()):
        return Alteration("W009", f"set to zero{where}")
    if part.numel() == 1:
        return Alteration("W004", f"{float(part - before):+.3g} added{where}")
    ratio = part / before
    if _alike(ratio - 1):
        return Alteration("W008", f"multiplied by {_factor(float(ratio.mean()))}{where}")
    if _alike(part - before):
        return Alteration("W004", f"{float((part - before).mean()):+.3g} added{where}")
    scaled = _channels(value, exact)
    if scaled:
        return Alteration("W008", scaled)
    return Alteration("W004", f"changed{where} by {float((part - before).abs().max()):.3g} at most")


def _part(changed: torch.Tensor) -> str:
    """Where the changed elements are: a single one, a few indices of an axis, or how many."""
    count, total = int(changed.sum()), changed.numel()
    if count == total:
        return ""
    if count == 1:
        return f" in element {changed.nonzero()[0].tolist()}"
    for axis in range(changed.ndim):
        hit = changed.movedim(axis, 0).reshape(changed.shape[axis], -1).any(1).nonzero().flatten().tolist()
        if changed.ndim > 1 and len(hit) <= min(_LISTED, changed.shape[axis] - 1):
            listed = ", ".join(map(str, hit))
            return f" in {'index' if len(hit) == 1 else 'indices'} {listed} of axis {axis}"
    if count <= _LISTED:
        listed = ", ".join(str(p) for p in changed.nonzero().tolist())
        return f" in elements {listed}"
    return f" in {count} of {counted(total, 'element')}"


def _channels(value: torch.Tensor, exact: torch.Tensor) -> str:
    """Whether every slice along an axis was multiplied by a number of its own."""
    for axis in range(value.ndim if value.ndim > 1 else 0):
        mine, theirs = (
            value.movedim(axis, 0).reshape(value.shape[axis], -1),
            exact.movedim(axis, 0).reshape(value.shape[axis], -1),
        )
        if _multiplied(mine[:_LISTED], theirs[:_LISTED]) is None:
            continue
        factors = _multiplied(mine, theirs)
        if factors is not None:
            low, high = float(factors.min()), float(factors.max())
            return f"multiplied by {_factor(low)} to {_factor(high)} along axis {axis}"
    return ""


def _multiplied(mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor | None:
    """One factor for each row; None where the rows are not multiples."""
    factors = (mine * theirs).sum(1) / theirs.square().sum(1).clamp(min=1e-300)
    left = float((mine - factors[:, None] * theirs).abs().max())
    # Near one a factor says something only where it leaves less than it takes.
    close = left <= min(1e-5, 0.1 * float((factors - 1).abs().max())) * float(theirs.abs().max())
    return factors if close else None


def _factor(ratio: float) -> str:
    return f"{ratio:.6g}" if abs(ratio - 1) > 1e-4 else f"1{ratio - 1:+.2g}"


def _alike(values: torch.Tensor) -> bool:
    few = values[:_LOOKED_AT]
    # Numbers that are not alike among the first are not alike; looking at all costs as much as the comparison.
    if few.numel() < values.numel() and not _alike(few):
        return False
    centre = float(values.mean())
    return bool(torch.isfinite(values).all()) and float((values - centre).abs().max()) <= 1e-2 * abs(centre)


def exchange_words(names: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """What is exchanged, and the edit, both told by the modules whose tensors stand in each other's places."""
    groups: dict[frozenset[str], list[tuple[str, str]]] = {}
    for pair in names:
        groups.setdefault(frozenset(_apart(*pair)), []).append(pair)
    if len(groups) == len(names) or any(len(group) < 3 for group in groups.values()):
        own = [name for name, _ in names]
        few = listed(own) if len(own) > 2 else " and ".join(own)
        return f"{few} hold each other's numbers: {_whose(names)}", f"Exchange {listed(own, len(own))}."
    owners = [" and ".join(sorted(group)) for group in groups]
    sizes = " and ".join(
        f"{counted(len(group), 'tensor')} of {who}" for who, group in zip(owners, groups.values(), strict=True)
    )
    edits = [f"the tensors of {who}: {_tails(*group)}" for who, group in zip(owners, groups.values(), strict=True)]
    return f"{sizes} hold each other's numbers: {_whose(names)}", f"Exchange {'; '.join(edits)}."


def _whose(names: Sequence[tuple[str, str]]) -> str:
    return listed([f"{one} is A's {other}" for one, other in names], 2)


def _apart(one: str, other: str) -> tuple[str, str]:
    """What is left of two dotted names without the parts that both end with."""
    ours, theirs = one.split("."), other.split(".")
    while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    return ".".join(ours), ".".join(theirs)


def _tails(*names: tuple[str, str]) -> str:
    tails = dict.fromkeys(one[len(_apart(one, other)[0]) + 1 :] for one, other in names)
    return listed(list(tails), len(tails))
