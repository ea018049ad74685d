"""A summation tree as a picture: every addition of a short sum, the repeated parts of a long one."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from html import escape

from driftscope.accumulation.order import RevealedOrder
from driftscope.accumulation.order_maps import draw_map
from driftscope.numerics.trees.families import width
from driftscope.numerics.trees.naming import Chain, Fold, Term
from driftscope.numerics.trees.tree import SumTree

_EVERY_TERM = 32  # longest sum whose every term is drawn
_MOST_ROWS = 14
_WIDE = 728.0
_INK, _QUIET, _LINE, _DOT = "#1f2328", "#59636e", "#0969da", "#0969da"


def draw_tree(a: RevealedOrder) -> str:
    """Return an SVG document.

    Parameters
    ----------
    a : RevealedOrder
    """
    below = [*textwrap.wrap(a.family, 84), f"longest chain of additions: {a.depth}"]
    head = [
        _text(24, 34, f"{a.kernel}: {a.n} terms in {a.dtype}, added in {a.accumulator}", 17, weight=600),
        *(_text(24, 58 + 18 * i, line, 13, _QUIET) for i, line in enumerate(below)),
    ]
    top = 72.0 + 18 * len(below)
    body, wide, high = _every_term(a.tree, top) if a.n <= _EVERY_TERM else _folded(a.structure, top)
    if a.elements is not None:
        shown, high = draw_map(a.classes, 24, high)
        body = [*body, *shown]
    wide = max(wide, 640)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high:.0f}" width="{wide:.0f}"'
            f' height="{high:.0f}" font-family="system-ui, sans-serif" role="img">',
            f"<title>{escape(f'{a.kernel}, n={a.n}: {a.pattern}')}</title>",
            f'<rect width="{wide:.0f}" height="{high:.0f}" fill="#ffffff"/>',
            *head,
            *body,
            "</svg>\n",
        )
    )


def _text(
    x: float, y: float, text: str, size: int, fill: str = _INK, *, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{escape(text)}</text>'
    )


def _line(points: list[tuple[float, float]]) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>'


def _dot(x: float, y: float, radius: float = 4, fill: str = _DOT) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="{fill}" stroke="{_LINE}" stroke-width="1.5"/>'


# --- short sums ---------------------------------------------------------------------------------------------


def _every_term(tree: SumTree, top: float) -> tuple[list[str], float, float]:
    """Draw every addition; terms stand in the order in which no two lines cross."""
    order = _order(tree)
    step = 26.0 if tree.n > 16 else 38.0
    rise = min(34.0, 380.0 / max(tree.depth, 1))
    foot = top + rise * max(tree.depth, 1)
    place = {term: (36 + step * (i + 0.5), foot) for i, term in enumerate(order)}
    lines, dots = [], []
    ends = {int(node) for node in tree.left[tree.joined]}
    for k, (a, b) in enumerate(zip(tree.left.tolist(), tree.right.tolist(), strict=True)):
        node = tree.n + k
        at = (place[a][0] + place[b][0]) / 2, foot - rise * float(tree.heights[node])
        place[node] = at
        for part in (a, b):
            if part not in ends:
                x, y = place[part]
                lines.append(_line([(x, y), (x, at[1]), at]))
        if node not in ends:
            dots.append(_dot(*at))
    labels = [_text(place[t][0], foot + 22, str(t), 12, anchor="middle") for t in order]
    leaves = [_dot(*place[t], 4.5, "#ffffff") for t in order]
    note = _text(36, foot + 48, "numbers: positions of the terms; height: how many additions came before", 12, _QUIET)
    high = foot + 68
    return [*lines, *dots, *leaves, *labels, note], 72 + step * tree.n, high


def _order(tree: SumTree) -> list[int]:
    order, stack = [], [tree.root]
    while stack:
        node = stack.pop()
        if node < tree.n:
            order.append(node)
        else:
            stack += (int(tree.right[node - tree.n]), int(tree.left[node - tree.n]))
    return order


# --- long sums ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    indent: int
    glyph: str  # "pairs", "chain", "fused"
    copies: int
    title: str
    note: str


def _rows(term: Term, indent: int, label: str = "") -> list[_Row]:
    if isinstance(term, Fold):
        if term.count == 2 and not term.fused:
            strides, inner = term.pairs()
            apart = ", ".join(f"{s:+d}" for s in strides)
            title, glyph, copies = f"{2 ** len(strides)} copies, added pairwise", "pairs", 2 ** len(strides)
        else:
            inner, apart, copies = term.inner, f"{term.stride:+d}", term.count
            glyph = "fused" if term.fused else "chain"
            things = "terms" if width(inner) == 1 else "copies"
            title = f"{copies} {things}, added {'in one step' if term.fused else 'one after another'}"
        note = f"{label}{width(term)} terms in all; copies {apart} apart"
        return [_Row(indent, glyph, copies, title, note), *_rows(inner, indent)]
    if isinstance(term, Chain):
        count = 1 + sum(run.count for run in term.runs)
        rows = [_Row(indent, "chain", count, f"{count} unlike parts, one after another", f"{label}{width(term)} terms")]
        rows += _part(term.head, indent + 1, "first: ")
        for run in term.runs:
            rows += _part(run.inner, indent + 1, f"then {run.count} ×, from {run.offset:+d}: ")
        return rows
    return []


def _part(term: Term, indent: int, label: str) -> list[_Row]:
    return _rows(term, indent, label) or [_Row(indent, "term", 1, "a single term", label.rstrip(": "))]


def _folded(structure: Term, y: float) -> tuple[list[str], float, float]:
    rows = _rows(structure, 0)
    drawn: list[str] = []
    for i, row in enumerate(rows[:_MOST_ROWS]):
        x = 24 + 28.0 * row.indent
        if i and rows[i - 1].indent == row.indent and row.note[:1].isdigit():
            drawn.append(_text(x, y + 12, "each of them:", 12, _QUIET))
            y += 22
        drawn.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{_WIDE - 24 - x:.1f}" height="76" rx="6" fill="#f6f8fa"'
            ' stroke="#d1d9e0"/>'
        )
        drawn += _glyph(row, x + 14, y + 10)
        drawn.append(_text(x + 236, y + 34, row.title, 14, weight=600))
        drawn.append(_text(x + 236, y + 56, row.note, 12, _QUIET))
        y += 88
    if len(rows) > _MOST_ROWS:
        drawn.append(_text(24, y + 14, f"and {len(rows) - _MOST_ROWS} further parts", 13, _QUIET))
        y += 28
    return drawn, _WIDE, y + 12


def _glyph(row: _Row, x: float, y: float) -> list[str]:
    shown = min(row.copies, 8 if row.glyph == "pairs" else 7)
    xs = [x + 6 + 26.0 * i for i in range(shown)]
    foot = y + 52
    skips = row.copies > shown
    parts = {"pairs": _pairs_glyph, "fused": _fused_glyph, "chain": _chain_glyph}.get(row.glyph, _chain_glyph)(
        xs, y, foot
    )
    for i, at in enumerate(xs):
        if skips and i == shown - 2:
            parts.append(_text(at, foot + 4, "…", 14, anchor="middle"))
        else:
            parts.append(_dot(at, foot, 4.5, "#ffffff"))
    return parts


def _chain_glyph(xs: list[float], top: float, foot: float) -> list[str]:
    parts, rise = [], (foot - top - 8) / max(len(xs) - 1, 1)
    at = xs[0], foot
    for i, x in enumerate(xs[1:], 1):
        height = foot - rise * i
        parts.append(_line([at, (at[0], height), (x, height), (x, foot)]))
        at = (at[0] + x) / 2, height
        parts.append(_dot(*at, 3))
    return parts


def _pairs_glyph(xs: list[float], top: float, foot: float) -> list[str]:
    parts, level = [], [(x, foot) for x in xs]
    rise = (foot - top - 8) / max(len(xs).bit_length() - 1, 1)
    while len(level) > 1:
        above = []
        for (ax, ay), (bx, by) in zip(level[::2], level[1::2], strict=False):
            at = (ax + bx) / 2, min(ay, by) - rise
            parts += [_line([(ax, ay), (ax, at[1]), (bx, at[1]), (bx, by)]), _dot(*at, 3)]
            above.append(at)
        level = above
    return parts


def _fused_glyph(xs: list[float], top: float, foot: float) -> list[str]:
    at = (xs[0] + xs[-1]) / 2, top + 8
    return [*(_line([at, (x, foot)]) for x in xs), _dot(*at, 4)]
