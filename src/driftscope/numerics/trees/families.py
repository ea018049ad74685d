"""A description in words: lanes, blocks, how they are joined."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.numerics.trees.naming import Chain, Fold, Leaf, Term

_UNEVEN = ", with an uneven rest"


@dataclass(frozen=True)
class _Level:
    """Copies joined in one way; ``strides`` outermost first."""

    copies: int
    strides: tuple[int, ...]
    manner: str  # "pairwise", "one after another", "in one step"


def width(term: Term) -> int:
    """Return how many terms a description stands for."""
    if isinstance(term, Fold):
        return term.count * width(term.inner)
    if isinstance(term, Chain):
        return width(term.head) + sum(run.count * width(run.inner) for run in term.runs)
    return 1


def family_of(term: Term) -> str:
    """Name a description in words."""
    if isinstance(term, Leaf):
        return "a single term"
    if isinstance(term, Chain):
        return _blocks(term) or f"{family_of(_heaviest(term)).removesuffix(_UNEVEN)}{_UNEVEN}"
    levels, innermost = _levels(term)
    first = levels[0]
    if first.copies == 2 and len(levels) > 1 and 2 * first.strides[0] == width(term) and isinstance(term, Fold):
        return f"split in 2 halves, each: {family_of(term.inner)}"
    if isinstance(innermost, Chain):
        how = " of ".join(f"{level.copies} copies {level.manner}" for level in levels)
        return f"{how}, each: {family_of(innermost)}"
    if len(levels) == 1:
        return _single(first)
    return _nested(levels, width(term))


def _levels(term: Term) -> tuple[list[_Level], Term]:
    levels = []
    while isinstance(term, Fold):
        if term.fused:
            levels.append(_Level(term.count, (term.stride,), "in one step"))
            term = term.inner
        elif term.count == 2:
            strides, term = term.pairs()
            levels.append(_Level(2 ** len(strides), tuple(strides), "pairwise"))
        else:
            levels.append(_Level(term.count, (term.stride,), "one after another"))
            term = term.inner
    return levels, term


def _single(level: _Level) -> str:
    if level.manner == "in one step":
        return "all at once, rounded once"
    if level.manner == "pairwise":
        return "pairwise"
    return "sequential, backwards" if level.strides[0] < 0 else "sequential"


def _nested(levels: list[_Level], n: int) -> str:
    """Split the strides at that of the innermost level: smaller ones join lanes, larger ones join blocks."""
    inner = levels[-1]
    lanes = min(inner.strides, key=abs)
    block = inner.copies * abs(lanes)
    words = [f"blocks of {block}" if block < n else ""]
    if abs(lanes) > 1:
        words.append(f"{abs(lanes)} lanes")
    lane_manners = [lv.manner for lv in levels[:-1] if any(abs(s) < abs(lanes) for s in lv.strides)]
    block_manners = [lv.manner for lv in levels[:-1] if any(abs(s) > abs(lanes) for s in lv.strides)]
    text = " in ".join(reversed([w for w in words if w]))
    joined = []
    if lane_manners:
        joined.append(f"lanes joined {' and '.join(dict.fromkeys(lane_manners))}")
    if block_manners:
        joined.append(f"blocks joined {' and '.join(dict.fromkeys(block_manners))}")
    if inner.manner == "in one step":
        joined.append(f"{inner.copies} terms in one step")
    return f"{text}, {', '.join(joined)}"


def _blocks(term: Chain) -> str | None:
    """Recognise runs of consecutive terms, as of a matrix product cut along K."""
    found: list[tuple[int, int]] = []
    for count, part in [(1, term.head), *((run.count, run.inner) for run in term.runs)]:
        many, size = _consecutive(part)
        if size == 0:
            return None
        found.append((count * many, size))
    single = [size == 1 for _, size in found[1:]]
    if all(single) and _pairs_turned(term):
        return "dot-product pairs: one after another, two neighbours at a time, the second of them first"
    if all(single):
        return "sequential, but not from the first term to the last" if found[0][0] == 1 else None
    if any(single):
        return None
    return "sequential blocks: " + ", ".join(f"{count} of {size}" for count, size in found)


def _pairs_turned(term: Chain) -> bool:
    """Whether terms are taken as 3, 2, 5, 4, ...: an instruction adds two products of 16-bit numbers to one sum."""
    turned = sum(run.count == 2 and run.stride == -1 for run in term.runs)
    return turned >= 2 and 2 * turned > len(term.runs)


def _consecutive(term: Term) -> tuple[int, int]:
    if isinstance(term, Leaf):
        return 1, 1
    if isinstance(term, Fold) and not term.fused and term.stride == width(term.inner):
        if isinstance(term.inner, Leaf):
            return 1, term.count
        if isinstance(term.inner, Fold) and isinstance(term.inner.inner, Leaf) and term.inner.stride == 1:
            return term.count, term.inner.count
    return 0, 0


def _heaviest(term: Chain) -> Term:
    return max((term.head, *(run.inner for run in term.runs)), key=width)
