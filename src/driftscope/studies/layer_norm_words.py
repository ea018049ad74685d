"""The layer norm study in words: which operator is responsible, who is closer to exact, what breaks on hard data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from driftscope.records.study_record import Statement, StudyRecord
from driftscope.studies import pairwise
from driftscope.studies.layer_norm_cell import NOT_AVAILABLE, NOT_FINITE
from driftscope.studies.layer_norm_study import places

_TORCH, _ORT, _WHOLE = "ttt", "ooo", "onnxruntime whole"


def statements(record: StudyRecord) -> tuple[Statement, ...]:
    """Return what the rows show, each sentence with its evidence."""
    said: list[Statement] = []
    for place, rows in places(record):
        if place["data"] == "normal" or len({row["data"] for row in record.rows}) == 1:
            said += _of_chain(f"{place['dtype']} on {place['device']}", rows)
    said += _of_implementations(record)
    gaps = [row for row in record.rows if row.get("verdict") == NOT_AVAILABLE]
    for words in dict.fromkeys(row["gap"] for row in gaps):
        here = [row for row in gaps if row["gap"] == words]
        where = f"{here[0]['dtype']} on {here[0]['device']}"
        said.append(Statement(f"Not available in {where}: {here[0]['name']}: {words}", {"rows": len(here)}))
    return tuple(said)


def _of_chain(place: str, rows: Sequence[Any]) -> list[Statement]:
    chains = {row["name"]: row for row in rows if row["kind"] == "chain" and row["verdict"] != NOT_AVAILABLE}
    operators = [row for row in rows if row["kind"] == "operator"]
    pairs = {(row["name"], row["other"]): row for row in rows if row["kind"] == "pair"}
    said = []
    if operators and max(row["rms"] for row in operators) > 0:
        said.append(_responsible(place, operators))
    if (_TORCH, _WHOLE) in pairs:
        said.append(_closer(place, chains, pairs[_TORCH, _WHOLE]))
    if (_ORT, _WHOLE) in pairs and pairs[_ORT, _WHOLE]["rms"] > 0:
        pair, one, whole = pairs[_ORT, _WHOLE], chains[_ORT], chains[_WHOLE]
        said.append(
            Statement(
                f"{place}: onnxruntime differs from itself: node by node and as a whole graph {pair['changed']:.1%} of "
                f"the results differ, by at most {pair['max_abs']:.2g}, although the kernels are the same. Node by "
                f"node rounds {one['roundings']} times, the whole graph {whole['roundings']} times "
                f"({whole['runtime'] or 'no casts'}).",
                {"changed": pair["changed"], "roundings": [one["roundings"], whole["roundings"]]},
            )
        )
    beyond = [row for row in pairs.values() if row["verdict"] == pairwise.MORE]
    if not beyond and pairs:
        far = max(pairs.values(), key=lambda row: row["floors"])
        text = (
            f"{place}: all {len(pairs)} pairs of ways differ by rounding; the farthest, {far['name']} and "
            f"{far['other']}, by {far['floors']:.2g} floors, {far['max_ulp']:.2g} ulp of the largest result."
        )
        said.append(Statement(text, {"pairs": len(pairs), "floors": far["floors"], "max_ulp": far["max_ulp"]}))
    elif beyond:
        text = f"{place}: {len(beyond)} of {len(pairs)} pairs of ways differ by more than rounding."
        said.append(Statement(text, {"pairs": len(pairs), "beyond": len(beyond)}))
    return said


def _responsible(place: str, operators: Sequence[Any]) -> Statement:
    worst = max(operators, key=lambda row: row["rms"])
    total = sum(row["rms"] ** 2 for row in operators)
    others = ", ".join(f"{row['name']} {_share(row, total)}" for row in operators if row is not worst)
    silent = [row["name"] for row in operators if row["rms"] == 0]
    exact = f" {' and '.join(silent)} gives the same bits in both runtimes." if silent else ""
    text = (
        f"{place}: {worst['name']} is responsible: exchanging it alone changes {worst['changed']:.1%} of the results "
        f"({_share(worst, total)} of the squared difference; {others}).{exact}"
    )
    return Statement(text, {"operator": worst["name"], "shares": {r["name"]: r["rms"] ** 2 / total for r in operators}})


def _share(row: Any, total: float) -> str:
    return f"{row['rms'] ** 2 / total:.0%}"


def _closer(place: str, chains: dict[str, Any], pair: Any) -> Statement:
    torch, whole = chains[_TORCH], chains[_WHOLE]
    nearer, farther = ("onnxruntime", "torch") if whole["rms"] < torch["rms"] else ("torch", "onnxruntime")
    near, far = sorted((torch, whole), key=lambda row: row["rms"])
    why = ""
    if near["roundings"] < far["roundings"]:
        why = f": it rounds {near['roundings']} times on the way, {farther} {far['roundings']} times"
    text = (
        f"{place}: {nearer} is closer to exact (rms error {near['rms']:.2g} against {far['rms']:.2g}){why}. Between "
        f"torch and the whole graph in onnxruntime {pair['changed']:.1%} of the results differ, by at most "
        f"{pair['max_abs']:.2g}: {pair['max_ulp']:.2g} ulp of the largest result, {pair['floors']:.2g} floors."
    )
    return Statement(text, {"closer": nearer, "rms": [near["rms"], far["rms"]], "changed": pair["changed"]})


def _of_implementations(record: StudyRecord) -> list[Statement]:
    rows = [row for row in record.rows if row.get("kind") == "implementation" and row["verdict"] != NOT_AVAILABLE]
    said = []
    for name in dict.fromkeys(row["name"] for row in rows):
        here = [row for row in rows if row["name"] == name]
        broken = [row for row in here if row["verdict"] in (pairwise.MORE, NOT_FINITE)]
        if not broken:
            continue
        worst = max(broken, key=lambda row: row["floors"])
        negative = sum(row["negative"] for row in broken)
        infinite = any(not math.isfinite(row["rms"]) for row in broken)
        size = "not finite" if not math.isfinite(worst["rms"]) else f"{worst['floors']:.3g} floors off"
        where = ", ".join(dict.fromkeys(f"{row['data']} {row['dtype']}" for row in broken))
        text = f"{name} is more than rounding away from exact on {where}; at worst {size} ({worst['data']})"
        text += f": {negative} computed variances are negative" if negative else ""
        text += ", and the result is NaN" if infinite and negative else ""
        said.append(Statement(f"{text}.", {"implementation": name, "worst": worst["floors"], "negative": negative}))
    fine = [n for n in dict.fromkeys(r["name"] for r in rows) if not any(
        r["verdict"] in (pairwise.MORE, NOT_FINITE) for r in rows if r["name"] == n)]  # fmt: skip
    if fine:
        sets = len({row["data"] for row in rows})
        said.append(Statement(f"{', '.join(fine)} stay within rounding on all {sets} data sets.", {"within": fine}))
    return said
