"""The gemm study in words: who has the same bits, whether it is rounding, who is closest to exact, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.records.study_record import Statement, StudyRecord
from driftscope.studies import pairwise
from driftscope.studies.gemm_cell import BIAS_TOP, NOT_AVAILABLE
from driftscope.studies.gemm_study import places

_FINE = (pairwise.SAME_BITS, pairwise.ROUNDING, pairwise.LARGE)


def statements(record: StudyRecord) -> tuple[Statement, ...]:
    """Return what the rows show, each sentence with its evidence."""
    said: list[Statement] = []
    for place, rows in places(record):
        said += _of_place(f"{place['dtype']} on {place['device']}, {place['data']} data", rows)
    variants = [row for row in record.rows if row.get("kind") == "variant"]
    said += [*_casts(variants), *_orders(variants), *_gaps(variants)]
    return tuple(said)


def _of_place(place: str, rows: Sequence[Any]) -> list[Statement]:
    variants = [row for row in rows if row["kind"] == "variant" and row["verdict"] != NOT_AVAILABLE]
    pairs = [row for row in rows if row["kind"] == "pair"]
    if not pairs:
        return []
    classes: dict[int, list[str]] = {}
    for row in variants:
        classes.setdefault(row["bits"], []).append(row["variant"])
    far = max(pairs, key=lambda row: row["floors"])
    beyond = [row for row in pairs if row["verdict"] not in _FINE]
    said = [_whether_rounding(place, far, beyond, len(pairs), len(classes))]
    computed = [row for row in variants if row["variant"] != "exact"]
    best, worst = (pick(computed, key=lambda row: row["rms"]) for pick in (min, max))
    distance = (
        f"closest to float64 is {best['variant']} (rms error {best['rms']:.2g}, {best['floors']:.2g} floors), farthest "
        f"{worst['variant']} ({worst['rms']:.2g}, {worst['floors']:.2g} floors)"
    )
    if best["rms"] == worst["rms"]:
        distance = (
            f"all variants are equally far from float64 (rms error {best['rms']:.2g}, {best['floors']:.2g} floors)"
        )
    groups = "; ".join(f"{{{', '.join(names)}}}" for names in sorted(classes.values(), key=len, reverse=True)[:3])
    said.append(
        Statement(
            f"{place}: {distance}. Equal bits: {groups}{' and others' if len(classes) > 3 else ''}.",
            {"closest": best["variant"], "farthest": worst["variant"], "classes": list(classes.values())},
        )
    )
    said += _by_bias(place, rows)
    return said


def _whether_rounding(place: str, far: Any, beyond: Sequence[Any], pairs: int, classes: int) -> Statement:
    evidence = {"floors": far["floors"], "max_abs": far["max_abs"], "max_ulp": far["max_ulp"], "pairs": pairs}
    if not beyond:
        text = (
            f"{place}: {classes} classes of equal bits; every difference is rounding. The farthest pair, "
            f"{far['variant']} and {far['other']}, is {far['floors']:.2g} floors apart: at most {far['max_abs']:.2g}, "
            f"{_ulps(far['max_ulp'])} of the largest result."
        )
        return Statement(text, evidence)
    named = sorted({row["cause"] for row in beyond if row.get("cause")})
    why = f"{', '.join(named)} explains it" if named else "no cheaper arithmetic that is known explains it"
    text = (
        f"{place}: {len(beyond)} of {pairs} pairs differ by more than rounding, the farthest {far['variant']} and "
        f"{far['other']} by {far['floors']:.3g} floors ({far['max_abs']:.2g}); {why}."
    )
    return Statement(text, evidence | {"causes": named, "beyond": len(beyond)})


def _ulps(count: float) -> str:
    return "one unit in the last place" if round(count, 2) == 1 else f"{count:.2g} units in the last place"


def _by_bias(place: str, rows: Sequence[Any]) -> list[Statement]:
    """Compare the discrepancy under small and under large biases: an ulp of the result grows with it."""
    bias: list[float] = next((row["bias"] for row in rows if row["kind"] == "columns"), [])
    pair = max((r for r in rows if r.get("by_column")), key=lambda r: r["rms"], default=None)
    if pair is None or not bias or max(bias) < BIAS_TOP * 0.99 or min(bias) < 0:
        return []
    columns = pair["by_column"]
    low = max((d for d, b in zip(columns, bias, strict=True) if b <= BIAS_TOP / 8), default=0.0)
    high = max((d for d, b in zip(columns, bias, strict=True) if b > BIAS_TOP / 2), default=0.0)
    if not low or not high:
        return []
    text = (
        f"{place}: between {pair['variant']} and {pair['other']} columns with a bias below {BIAS_TOP / 8:g} differ by "
        f"at most {low:.2g}, those above {BIAS_TOP / 2:g} by {high:.2g}: a result near a large bias is stored on a "
        f"coarser grid, so the same rounding is a larger number."
    )
    return [Statement(text, {"below": low, "above": high, "variant": pair["variant"], "other": pair["other"]})]


def _casts(variants: Sequence[Any]) -> list[Statement]:
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in variants):
        inserted = [row for row in variants if row["dtype"] == dtype and row.get("casts")]
        changed = sorted({(row["variant"], row["runtime"]) for row in variants if row["dtype"] == dtype
                          and row.get("runtime") and not row.get("casts")})  # fmt: skip
        if inserted:
            one = inserted[0]
            text = (
                f"{dtype}: onnxruntime itself inserted casts into {len({r['variant'] for r in inserted})} variants "
                f"({one['variant']}: {one['runtime']}): it has no {dtype} kernel there and computes in float32."
            )
            found.append(Statement(text, {"dtype": dtype, "variants": sorted({r["variant"] for r in inserted})}))
        if changed:
            text = f"{dtype}: the optimiser changed {changed[0][0]} ({changed[0][1]})"
            text += f" and {len(changed) - 1} more variants." if len(changed) > 1 else "."
            found.append(Statement(text, {"dtype": dtype, "changes": [f"{v}: {words}" for v, words in changed]}))
    return found


def _orders(variants: Sequence[Any]) -> list[Statement]:
    found = []
    for dtype in dict.fromkeys(row["dtype"] for row in variants):
        orders: dict[str, list[str]] = {}
        for row in variants:
            if row["dtype"] == dtype and row.get("order") and not row["order"].startswith("not revealed"):
                orders.setdefault(row["order"], []).append(row["variant"])
        if orders:
            text = f"{dtype}: the kernels add in the order " + "; ".join(
                f"{pattern} ({', '.join(dict.fromkeys(names))})" for pattern, names in orders.items()
            )
            found.append(Statement(f"{text}.", {"dtype": dtype, "orders": {k: v[0] for k, v in orders.items()}}))
    return found


def _gaps(variants: Sequence[Any]) -> list[Statement]:
    gaps = [row for row in variants if row["verdict"] == NOT_AVAILABLE]
    found = []
    for dtype, device in dict.fromkeys((row["dtype"], row["device"]) for row in gaps):
        here = [row for row in gaps if (row["dtype"], row["device"]) == (dtype, device)]
        for words in dict.fromkeys(row["gap"] for row in here):
            names = list(dict.fromkeys(row["variant"] for row in here if row["gap"] == words))
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            found.append(
                Statement(f"Not available in {dtype} on {device}: {names[0]}{more}: {words}", {"variants": names})
            )
    return found
