"""A description in words: lanes, blocks, how they are joined."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.numerics.trees.naming import Chain, Fold, Leaf, Term

_UNEVEN = ", with an uneven rest"
MIXED = "terms and blocks of up to "
_TURNED = ", but not from the first term to the last"


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
        return _blocks(term) or f"{_heaviest(term)}{_UNEVEN}"
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
    """Recognise terms added one after another, lanes of unequal length, and runs of consecutive terms."""
    one_by_one = all(isinstance(run.inner, Leaf) and not run.fused for run in term.runs)
    if one_by_one and _pairs_turned(term):
        return "dot-product pairs: one after another, two neighbours at a time, the second of them first"
    if one := _repeated(term):
        if one == Leaf() and _descending(term):
            return "sequential, backwards"
        words = "sequential" if one == Leaf() else f"blocks of {width(one)}, blocks joined one after another"
        return f"{words}{_TURNED}"
    parts = [(1, term.head), *((run.count, run.inner) for run in term.runs)]
    strides = {_stride(part) for _, part in parts}
    if len(strides) == 1 and 1 < (lanes := abs(strides.pop())) == sum(count for count, _ in parts):
        return f"{lanes} lanes, lanes joined one after another{_UNEVEN}"
    found: list[tuple[int, int]] = []
    for count, part in parts:
        many, size = _consecutive(part)
        if size == 0:
            return None
        found.append((count * many, size))
    turned = "" if _ascending(term) else _TURNED
    if any(size == 1 for _, size in found[1:]):
        return f"{MIXED}{max(size for _, size in found)}, one after another{turned}"
    if turned and len(found) == 2 and found[0][0] == found[1][0] == 1:  # a sum of two has no order
        found, turned = found[::-1], ""
    return f"sequential blocks: {', '.join(f'{count} of {size}' for count, size in found)}{turned}"


def _repeated(term: Chain) -> Term | None:
    """Return the term, or the run of consecutive terms, whose copies are all that is added one after another."""
    one, head = term.runs[0].inner, term.head
    begun = head == one or (isinstance(head, Fold) and not head.fused and head.inner == one)
    alike = begun and all(run.inner == one and not run.fused for run in term.runs)
    return one if alike and not _ascending(term) and _consecutive(one)[0] == 1 else None


def _stride(term: Term) -> int:
    """Return how far apart the terms are that a fold adds one after another; 0 where it is no such fold."""
    return term.stride if isinstance(term, Fold) and not term.fused and isinstance(term.inner, Leaf) else 0


def _descending(term: Chain) -> bool:
    """Whether the last two terms come first, and the others from there to the first."""
    run = term.runs[0]
    return len(term.runs) == 1 and str(term.head) == "pair(+1: x)" and run.offset == -1 and run.stride in (0, -1)


def _ascending(term: Chain) -> bool:
    """Whether every part begins where the one before it ends."""
    end = width(term.head)
    for run in term.runs:
        if run.offset != end or (run.count > 1 and run.stride != width(run.inner)):
            return False
        end += run.count * width(run.inner)
    return True


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


def _heaviest(term: Chain) -> str:
    """Name the largest part, where it says something about the whole."""
    part = max((term.head, *(run.inner for run in term.runs)), key=width)
    if 4 * width(part) < width(term):
        return f"parts of up to {width(part)} terms, one after another"
    return family_of(part).removesuffix(_UNEVEN)
