"""Shapes of an exported model as a sheet: what to fix first, the domain as a picture, relations, ways of exporting."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from driftscope.records.first_line import ended, place_of
from driftscope.records.kinds.shape_report import ShapePoint, ShapeRecord
from driftscope.records.user_code import written
from driftscope.records.words import counted
from driftscope.report.sheet import Cell, HeatMap, Listing, Mark, Section, Sheet, Table

EXPORTED = "export"
#: Asked for comparison alone: what they do is no verdict on the chosen program.
ASIDE = ("unguarded", "onnx of Dim.AUTO")

#: outcome -> (tone, letter in the picture, depth of the colour)
_LOOKS: dict[str, tuple[str, str, float]] = {
    "right": ("good", "✓", 0.5),
    "lost": ("fair", "lost", 0.8),
    "wrong": ("bad", "wrong", 1.0),
    "crash": ("bad", "crash", 1.0),
    "accepts-more": ("unsure", "more", 0.4),
    "invalid": ("", "–", 0.1),
    "not asked": ("", "?", 0.1),
}
#: The worst first, for a square that stands for several points.
_WORST = ("wrong", "crash", "lost", "right", "accepts-more", "not asked", "invalid")
_LEGEND = (
    ("good", "right"),
    ("fair", "lost: the model runs, the target refuses"),
    ("bad", "silently wrong, or a crash"),
    ("unsure", "only the target answers"),
)
_WIDEST = 16  # sizes shown along one side of the picture

_TITLES = {
    EXPORTED: "the exported program",
    "unguarded": "without its checks",
    "onnx": "ONNX on onnxruntime",
    "aoti": "AOTInductor",
    "onnx of Dim.AUTO": "ONNX of a plain export",
}


def sheet_of(record: ShapeRecord) -> Sheet:
    """Draw a check of shapes."""
    sections: list[Section] = []
    pair = chosen_axes(record)
    if pair is not None:
        shown = [t for t in record.targets if t in (EXPORTED, "onnx", "aoti")]
        # The picture to look at first is that of the target that is wrong, or else of the export.
        shown.sort(key=lambda t: -sum(record.count(t, outcome) for outcome in ("wrong", "crash")))
        sections += [replace(domain_picture(record, t, pair), aside=t != shown[0]) for t in shown]
    sections.append(_relations(record))
    if record.spec_code:
        sections.append(Listing("Export it like this", record.spec_code, "Paste it; `export` makes this very program."))
    sections += [_outcomes(record), _candidates(record)]
    if record.broadcasts:
        sections.append(broadcast_picture(record))
    sections.append(_points(record))
    return Sheet(
        title=f"{record.program}: shapes",
        tone=tone_of(record),
        headline=headline_of(record),
        reason=reason_of(record),
        figures=figures_of(record),
        findings=record.findings,
        sections=tuple(s for s in sections if not isinstance(s, Table) or s.rows),
        command=record.command,
        panels={"environment": dict(record.environment)} if record.environment else {},
        sign={"not exported": "⊘", "shapes lost": "⊂"}.get(headline_of(record), ""),
    )


def spec_of(record: ShapeRecord) -> list[str]:
    """Lines to paste behind ``model`` and ``args`` from the spec code: the spec, and the export that it is for.

    Sizes that are marked instead (unbacked) exclude a spec: the marks and the call stand for it.
    """
    lines = record.spec_code.splitlines()
    start = next((i for i, line in enumerate(lines) if " = Dim(" in line or line == "dynamic_shapes = {"), None)
    body = next((i for i, line in enumerate(lines) if line.startswith("def export")), len(lines))
    if start is None:
        return []
    call = textwrap.dedent("\n".join(lines[body + 1 :])).replace("return torch", "exported = torch")
    called = [line for line in call.replace("(args, kwargs)", "args").replace(", kwargs", "").splitlines() if line]
    called = [line for line in called if not line.lstrip().startswith("#")]
    if any(line.startswith("marks = ") for line in called):
        return called
    imported = [line for line in lines[:start] if "import" in line and line != "import torch"]
    return [*imported, *(line for line in lines[start:body] if line), *called]


def tone_of(record: ShapeRecord) -> str:
    """Bad where anything is silently wrong, fair where shapes are lost, unsure where nothing could be exported."""
    if not record.mode:
        return "unsure"
    outcomes = {outcome for point in record.points for outcome in point.outcomes.values()} if record.points else set()
    told = {o for t in record.targets if t not in ASIDE for o in outcomes if record.count(t, o)}
    if told & {"wrong", "crash"}:
        return "bad"
    return "fair" if "lost" in told else "good"


def headline_of(record: ShapeRecord) -> str:
    """One to four words."""
    if not record.mode:
        return "not exported"
    return {"bad": "silently wrong", "fair": "shapes lost"}.get(tone_of(record), "no drift found")


def reason_of(record: ShapeRecord) -> str:
    """The answer with the line that the first finding is about, and what it assumes there."""
    first = next((f for f in record.findings if not f.note), None)
    if first is None or not first.where.line or not first.why or tone_of(record) == "good":
        return record.headline
    return f"{ended(record.headline)} At {place_of(first.where)}: {ended(first.why)}"


def figures_of(record: ShapeRecord) -> tuple[tuple[str, str, str], ...]:
    """The numbers to read first: shapes tried, then what each target does there."""
    running = sum(point.valid for point in record.points)
    told = [("Shapes tried", str(running), "at which the model itself runs; nothing beyond them is proved")]
    for target in record.targets:
        if target in ASIDE:
            continue
        parts = [f"{record.count(target, o)} {o}" for o in ("wrong", "crash", "lost") if record.count(target, o)]
        words = ", ".join(parts) or "none lost"
        told.append((_TITLES.get(target, target), f"{record.count(target, 'right')} right", words))
    return tuple(told)


# --- the picture ----------------------------------------------------------------------------------------------


def chosen_axes(record: ShapeRecord) -> tuple[int, int] | None:
    """Choose the two axes along which the outcomes vary most; None where nothing varies.

    An axis that goes together with another one is not chosen beside it: the picture would be its diagonal.
    """
    free = [i for i, is_free in enumerate(record.free) if is_free and len({p.sizes[i] for p in record.points}) > 1]
    if not free:
        return None
    ranked = sorted(free, key=lambda i: (-_telling(record, i), i))
    first = ranked[0]
    others = [i for i in ranked[1:] if not _tied(record, first, i)] or ranked[1:]
    return (first, others[0]) if others else (first, first)


def _telling(record: ShapeRecord, axis: int) -> float:
    """How far the share of right points differs between sizes of an axis."""
    shares: dict[int, list[int]] = {}
    for point in record.points:
        if point.valid:
            told = [outcome for target, outcome in point.outcomes.items() if target not in ASIDE]
            shares.setdefault(point.sizes[axis], []).append(all(o == "right" for o in told))
    rates = [sum(values) / len(values) for values in shares.values() if values]
    return max(rates) - min(rates) if rates else 0.0


def _tied(record: ShapeRecord, a: int, b: int) -> bool:
    valid = [p for p in record.points if p.valid and p.sizes[a] > 1 and p.sizes[b] > 1]
    return bool(valid) and all(p.sizes[a] == p.sizes[b] for p in valid)


def domain_picture(record: ShapeRecord, target: str, pair: tuple[int, int]) -> HeatMap:
    """A target's outcomes on a grid of two axes; a square shows the worst of the points it stands for."""
    down, across = pair
    rows = _sizes_shown(record, down)
    columns = _sizes_shown(record, across) if across != down else ()
    squares = tuple(
        tuple(_square(record, target, {down: r, across: c}) for c in columns or (r,)) for r in rows
    )  # fmt: skip
    title = f"{_TITLES.get(target, target)}, by {record.axes[down]} (down)"
    if columns:
        title += f" and {record.axes[across]} (across)"
    return HeatMap(
        title[0].upper() + title[1:],
        tuple(map(str, rows)),
        tuple(map(str, columns)) or ("",),
        squares,
        note="Each square stands for every shape tried with these two sizes and shows the worst. –: the model refuses; "
        "blank: none tried.",
        legend=_LEGEND,
    )


def _sizes_shown(record: ShapeRecord, axis: int) -> tuple[int, ...]:
    """Sizes of an axis that were tried, the small ones and the example's."""
    sizes = sorted({point.sizes[axis] for point in record.points})
    if len(sizes) <= _WIDEST:
        return tuple(sizes)
    return tuple(sorted({*sizes[: _WIDEST - 1], record.example[axis]}))


def _square(record: ShapeRecord, target: str, at: dict[int, int]) -> Mark:
    points = [p for p in record.points if all(p.sizes[axis] == size for axis, size in at.items())]
    told: dict[str, int] = {}
    for point in points:
        outcome = point.outcomes.get(target, "not asked")
        told[outcome] = told.get(outcome, 0) + 1
    if not told:
        return Mark("")
    worst = next(outcome for outcome in _WORST if outcome in told)
    tone, letter, level = _LOOKS[worst]
    tip = ", ".join(f"{count} {outcome}" for outcome, count in told.items())
    return Mark(letter, tone, level, tip)


def broadcast_picture(record: ShapeRecord) -> HeatMap:
    """Ways of broadcasting against what was exported."""
    names = list(dict.fromkeys(name for one in record.broadcasts for name in one.outcomes))
    rows = tuple(_configuration(one.axes, one.ones) for one in record.broadcasts)
    squares = tuple(tuple(_outcome_mark(one.outcomes.get(name)) for name in names) for one in record.broadcasts)
    return HeatMap(
        "Broadcasting: which sizes may be 1",
        rows,
        tuple(_TITLES.get(name, name) for name in names),
        squares,
        note="Every way of setting sizes that go together to 1 in which the model runs.",
        legend=_LEGEND,
        aside=True,
    )


def _configuration(axes: Sequence[str], ones: Sequence[bool]) -> str:
    return ", ".join(f"{name}={'1' if is_one else 'p'}" for name, is_one in zip(axes, ones, strict=True))


def _outcome_mark(outcome: str | None) -> Mark:
    if outcome is None:
        return Mark("")
    tone, letter, level = _LOOKS[outcome]
    return Mark(letter, tone, level, outcome)


# --- tables ---------------------------------------------------------------------------------------------------


def _relations(record: ShapeRecord) -> Table:
    rows = tuple(
        (
            relation.text,
            Mark("checked", "good") if relation.enforced else Mark("not checked", "fair"),
            f"{written(relation.file)}:{relation.line}" if relation.file else "",
            relation.expression or relation.asked_by,
        )
        for relation in record.relations
    )
    return Table(
        "Relations between sizes",
        ("relation", "at run time", "line", "asked by"),
        rows,
        "What the program was traced under. Converters to ONNX drop all of them.",
    )


def _outcomes(record: ShapeRecord) -> Table:
    kinds = ("right", "wrong", "lost", "crash", "accepts-more", "invalid", "not asked")
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (_TITLES.get(target, target), *(_counted(record, target, kind) for kind in kinds)) for target in record.targets
    )
    return Table("What happens where", ("target", *kinds), rows, "Numbers of shapes that were tried.", aside=True)


def _counted(record: ShapeRecord, target: str, kind: str) -> Mark:
    count = record.count(target, kind)
    tone = _LOOKS[kind][0] if count else ""
    return Mark(str(count), tone, sort=float(count))


def _candidates(record: ShapeRecord) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            Mark(c.name, "good" if c.chosen else ""),
            c.mode,
            Mark("accepted" if c.accepted else "refused", "" if c.accepted else "fair"),
            c.right,
            c.lost,
            c.wrong,
            "; ".join(c.changes) or c.words,
        )
        for c in record.candidates
    )
    tried = max((c.right + c.lost + c.wrong for c in record.candidates), default=0)
    running = sum(point.valid for point in record.points)
    some = f" They were compared at {tried} of {counted(running, 'shape')}." if 0 < tried < running else ""
    return Table(
        "Ways of exporting",
        ("spec", "mode", "torch", "right", "lost", "wrong", "changed or refused because"),
        rows,
        f"Best first: ranked by shapes kept, not by whether torch accepts them.{some}",
        aside=True,
    )


def _points(record: ShapeRecord) -> Table:
    free = [i for i, is_free in enumerate(record.free) if is_free] or list(range(len(record.axes)))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            *(point.sizes[i] for i in free),
            "runs" if point.valid else "refuses",
            *(_outcome_mark(point.outcomes.get(target)) for target in record.targets),
        )
        for point in sorted(record.points, key=_worst_first)
    )
    names = tuple(record.axes[i] for i in free)
    return Table(
        "Every shape tried", (*names, "the model", *(_TITLES.get(t, t) for t in record.targets)), rows, aside=True
    )


def _worst_first(point: ShapePoint) -> tuple[int, tuple[int, ...]]:
    told = [outcome for target, outcome in point.outcomes.items() if target not in ASIDE]
    return min((_WORST.index(outcome) for outcome in told), default=len(_WORST)), point.sizes
