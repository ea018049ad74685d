"""The gemm study in words: who has the same bits, whether it is rounding, who is closest to exact, and why.

At most one sentence of each kind, whatever the number of data sets and dtypes; the tables hold the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from driftscope.records.kinds.study import ShownTable, Statement, StudyRecord
from driftscope.studies import pairwise
from driftscope.studies.gemm_study.cell import BIAS_TOP, NOT_AVAILABLE
from driftscope.studies.places import places
from driftscope.studies.sentences import agreeing, all_of, counted, floors, is_ranked, joined, part_of

_FINE = (pairwise.SAME_BITS, pairwise.ROUNDING, pairwise.LARGE)
_Place = tuple[str, Sequence[Any]]


def statements(record: StudyRecord) -> tuple[Statement, ...]:
    """Return what the rows show, each sentence with its evidence."""
    found = [(f"{place['dtype']} on {place['device']}, {place['data']} data", rows) for place, rows in places(record)]
    variants = [row for row in record.rows if row.get("kind") == "variant"]
    return (
        *_whether_rounding(found), *_distances(found), *_by_bias(found), *_changes(variants), *_gaps(variants),
    )  # fmt: skip


def tables(record: StudyRecord) -> tuple[ShownTable, ...]:
    """Return the pairs of each place in floors, variants of equal bits as one, and the orders in which kernels add."""
    found = []
    for place, rows in places(record):
        classes = _classes(rows)
        if len(classes) < 1:
            continue
        leaders = [names[0] for names in classes]
        pairs = {frozenset((r["variant"], r["other"])): r for r in rows if r["kind"] == "pair"}
        lines = []
        for i, names in enumerate(classes):
            cells = [
                "" if i == j else _floors_of(pairs[frozenset((leaders[i], leaders[j]))]) for j in range(len(leaders))
            ]
            lines.append((f"{chr(65 + i)} {', '.join(names)}", *cells))
        where = f"{place['dtype']} on {place['device']}, {place['data']} data"
        title = f"{where}: pairs in floors, rounding up to 2.5; a line has equal bits"
        found.append(ShownTable(title, ("variants", *(chr(65 + i) for i in range(len(classes)))), tuple(lines)))
    orders = _orders([row for row in record.rows if row.get("kind") == "variant"])
    return (
        *found,
        *((ShownTable("In which order the kernels add", ("dtype", "order", "variants"), orders),) * bool(orders)),
    )


def _floors_of(pair: Mapping[str, Any]) -> str:
    return f"{pair['floors']:.2g}"


def _classes(rows: Sequence[Any]) -> list[list[str]]:
    """Return the names of variants with equal bits, class by class."""
    classes: dict[int, list[str]] = {}
    for row in rows:
        if row["kind"] == "variant" and row["verdict"] != NOT_AVAILABLE:
            classes.setdefault(row["bits"], []).append(row["variant"])
    return list(classes.values())


def _whether_rounding(found: Sequence[_Place]) -> Iterator[Statement]:
    pairs = [(place, row) for place, rows in found for row in rows if row["kind"] == "pair"]
    if not pairs:
        return
    beyond = [(place, row) for place, row in pairs if row["verdict"] not in _FINE]
    place, far = max(beyond or pairs, key=lambda pair: pair[1]["floors"])
    evidence = {"floors": far["floors"], "max_abs": far["max_abs"], "pairs": len(pairs), "beyond": len(beyond)}
    size = f"{far['variant']} and {far['other']} by {floors(far['floors'])} ({place}; at most {far['max_abs']:.2g})"
    same = sum(row["verdict"] == pairwise.SAME_BITS for _, row in pairs)
    if not beyond:
        if same == len(pairs):
            yield Statement(
                f"{all_of(len(pairs), 'pair').capitalize()} of results {agreeing(same, 'has', 'have')} the same bits.",
                evidence,
            )
            return
        large = sum(row["verdict"] == pairwise.LARGE for _, row in pairs)
        unusual = f", of which {large} unusually large (above 1.5 floors)" if large else ""
        alike = (
            f"{same} of {counted(len(pairs), 'pair')} {agreeing(same, 'has', 'have')} the same bits, the others differ"
        )
        alike = alike if same else f"{all_of(len(pairs), 'pair')} {agreeing(len(pairs), 'differs', 'differ')}"
        yield Statement(
            f"Every difference is rounding: {alike} by rounding{unusual}, the farthest {size}.", evidence
        )  # fmt: skip
        return
    causes = sorted({row["cause"] for _, row in beyond if row.get("cause")})
    open_ = sum(not row.get("cause") for _, row in beyond)
    why = f"{joined(causes)} would explain {len(beyond) - open_} of them by its size" if causes else ""
    rest = f"no cheaper arithmetic that is known explains {open_}" if open_ else ""
    yield Statement(
        f"{part_of(len(beyond), len(pairs), 'pair', 'differs', 'differ')} by more than rounding, the farthest {size}; "
        f"{'; '.join(filter(None, (why, rest)))}.", evidence | {"causes": causes},
    )  # fmt: skip


def _distances(found: Sequence[_Place]) -> Iterator[Statement]:
    """Say for each dtype who is closest to float64, with the first data set; equals are not ranked."""
    parts, evidence, seen = [], {}, set()
    for place, rows in found:
        dtype = place.partition(",")[0]
        computed = [
            r for r in rows if r["kind"] == "variant" and r["verdict"] != NOT_AVAILABLE and r["variant"] != "exact"
        ]
        if dtype in seen or len(computed) < 2:
            continue
        seen.add(dtype)
        best, worst = (pick(computed, key=lambda row: row["rms"]) for pick in (min, max))
        if is_ranked(best["rms"], worst["rms"]):
            near = [row["variant"] for row in computed if not is_ranked(best["rms"], row["rms"])]
            more = f" and {len(near) - 1} more" if len(near) > 1 else ""
            parts.append(
                f"in {dtype} closest {best['variant']}{more} (rms error {best['rms']:.2g}), farthest "
                f"{worst['variant']} ({worst['rms']:.2g})"
            )
        else:
            parts.append(f"in {dtype} all equally far (rms error {worst['rms']:.2g})")
        evidence[dtype] = {"closest": best["variant"], "farthest": worst["variant"],
                           "rms": [best["rms"], worst["rms"]]}  # fmt: skip
    if parts:
        yield Statement(f"Against float64: {'; '.join(parts)}.", evidence)


def _by_bias(found: Sequence[_Place]) -> Iterator[Statement]:
    """Compare the discrepancy under small and under large biases: an ulp of the result grows with it."""
    seen = []
    for place, rows in found:
        bias: list[float] = next((row["bias"] for row in rows if row["kind"] == "columns"), [])
        pair = max((r for r in rows if r.get("by_column")), key=lambda r: r["rms"], default=None)
        if pair is None or not bias or max(bias) < BIAS_TOP * 0.99 or min(bias) < 0:
            continue
        both = list(zip(pair["by_column"], bias, strict=True))
        low = max((d for d, b in both if b <= BIAS_TOP / 8), default=0.0)
        high = max((d for d, b in both if b > BIAS_TOP / 2), default=0.0)
        if low and high > low:
            seen.append((high / low, place, pair, low, high))
    if not seen:
        return
    _, place, pair, low, high = max(seen, key=lambda one: one[0])
    yield Statement(
        f"Larger biases drift more: between {pair['variant']} and {pair['other']} ({place}) columns with a bias below "
        f"{BIAS_TOP / 8:g} differ by at most {low:.2g}, those above {BIAS_TOP / 2:g} by {high:.2g}, because a result "
        "near a large bias is stored on a coarser grid.",
        {"below": low, "above": high, "variant": pair["variant"], "other": pair["other"]},
    )


def _changes(variants: Sequence[Any]) -> Iterator[Statement]:
    """Say what onnxruntime did to the graphs it was given."""
    parts = []
    evidence: dict[str, Any] = {}
    for dtype in dict.fromkeys(row["dtype"] for row in variants):
        own = [row for row in variants if row["dtype"] == dtype]
        casts = list(dict.fromkeys(row["variant"] for row in own if row.get("casts")))
        if casts:
            parts.append(
                f"inserted casts around {counted(len(casts), 'variant')} in {dtype}, which it computes in float32"
            )
            evidence[f"casts {dtype}"] = casts
    changed = list(dict.fromkeys(row["variant"] for row in variants if row.get("runtime") and not row.get("casts")))
    if changed:
        words = next(row["runtime"] for row in variants if row["variant"] == changed[0] and row.get("runtime"))
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        parts.append(f"runs another graph for {changed[0]}{more} ({words})")
        evidence["changed"] = changed
    if parts:
        yield Statement(f"onnxruntime itself {', and '.join(parts)}.", evidence)


def _orders(variants: Sequence[Any]) -> tuple[tuple[str, str, str], ...]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in variants:
        order = row.get("order_words") or row.get("order") or ""
        if order and not order.startswith("not revealed"):
            found.setdefault((row["dtype"], order), []).append(row["variant"])
    return tuple((dtype, order, ", ".join(dict.fromkeys(names))) for (dtype, order), names in found.items())


def _gaps(variants: Sequence[Any]) -> Iterator[Statement]:
    """Say which variants a dtype does not have, and the first reason."""
    gaps = [row for row in variants if row["verdict"] == NOT_AVAILABLE]
    if not gaps:
        return
    parts = []
    for dtype, device in dict.fromkeys((row["dtype"], row["device"]) for row in gaps):
        names = dict.fromkeys(r["variant"] for r in gaps if (r["dtype"], r["device"]) == (dtype, device))
        parts.append(f"{', '.join(names)} in {dtype} on {device}")
    first = " ".join(str(gaps[0]["gap"]).split())
    first = first if len(first) <= 160 else f"{first[:157]}..."
    evidence = {"variants": [[r["variant"], r["dtype"], r["device"], r["gap"]] for r in gaps]}
    yield Statement(f"Not available: {'; '.join(parts)}. The first: {first}", evidence)
