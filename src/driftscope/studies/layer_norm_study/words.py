"""The layer norm study in words: which operator is responsible, who is closer to exact, what breaks on hard data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.studies import pairwise
from driftscope.studies.layer_norm_study.cell import NOT_AVAILABLE, NOT_FINITE
from driftscope.studies.places import places
from driftscope.studies.sentences import agreeing, all_of, counted, floors, is_ranked, joined, part_of, percent

_TORCH, _ORT, _WHOLE = "ttt", "ooo", "onnxruntime whole"
_BROKEN = (pairwise.MORE, NOT_FINITE)


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
    said: list[tuple[float, Statement]] = []  # the largest difference first: it is the cause of what a user sees
    if operators and max(row["rms"] for row in operators) > 0:
        said.append((max(row["rms"] for row in operators), _responsible(place, operators)))
    if (_ORT, _WHOLE) in pairs and pairs[_ORT, _WHOLE]["rms"] > 0:
        pair = pairs[_ORT, _WHOLE]
        said.append((pair["rms"], _itself(place, pair, chains[_ORT], chains[_WHOLE])))
    ordered = [statement for _, statement in sorted(said, key=lambda one: -one[0])]
    if (_TORCH, _WHOLE) in pairs:
        ordered.append(_closer(place, chains, pairs[_TORCH, _WHOLE]))
    return [*ordered, *_pairs(place, list(pairs.values()))]


def _itself(place: str, pair: Any, one: Any, whole: Any) -> Statement:
    """Speak of onnxruntime's own two ways to run the same operators."""
    why = f" ({whole['runtime']})" if whole["runtime"] else ""
    text = (
        f"{place}: onnxruntime run node by node and as a whole graph differ in {percent(pair['changed'], 1)} of the "
        f"results, by at most {pair['max_abs']:.2g}: node by node rounds {counted(one['roundings'], 'time')}, the "
        f"whole graph {counted(whole['roundings'], 'time')}{why}."
    )
    return Statement(text, {"changed": pair["changed"], "roundings": [one["roundings"], whole["roundings"]]})


def _pairs(place: str, pairs: Sequence[Any]) -> list[Statement]:
    if not pairs:
        return []
    beyond = [row for row in pairs if row["verdict"] in (pairwise.MORE, NOT_FINITE)]
    far = max(pairs, key=lambda row: row["floors"])
    evidence = {"pairs": len(pairs), "beyond": len(beyond), "floors": far["floors"], "max_ulp": far.get("max_ulp")}
    if beyond:
        differ = part_of(len(beyond), len(pairs), "pair", "of ways differs", "of ways differ")
        text = f"{place}: {differ} by more than rounding."
    elif far["rms"] == 0:
        text = f"{place}: {all_of(len(pairs), 'pair')} of ways {agreeing(len(pairs), 'gives', 'give')} the same bits."
    else:
        unusual = ", which is unusually large" if far["verdict"] == pairwise.LARGE else ""
        text = (
            f"{place}: {all_of(len(pairs), 'pair')} of ways {agreeing(len(pairs), 'differs', 'differ')} by rounding; "
            f"the farthest, {far['name']} and {far['other']}, by {floors(far['floors'])}{unusual}: "
            f"{far['max_ulp']:.2g} ulp of the largest result."
        )
    return [Statement(text, evidence)]


def _responsible(place: str, operators: Sequence[Any]) -> Statement:
    """Say which operator, exchanged alone, changes most; two that change about as much are named together."""
    worst = max(operators, key=lambda row: row["rms"])
    total = sum(row["rms"] ** 2 for row in operators)
    first = [row for row in operators if not is_ranked(row["rms"], worst["rms"])]
    rest = [row for row in operators if row not in first]
    others = "".join(f"; {row['name']} {_share(row, total)}" for row in rest if row["rms"])
    silent = [row["name"] for row in rest if row["rms"] == 0]
    exact = (
        f" {joined(silent)} {'gives' if len(silent) == 1 else 'give'} the same bits in both runtimes." if silent else ""
    )
    if len(first) == 1:
        text = (
            f"{place}, operator by operator: {worst['name']} changes most: exchanging it alone changes "
            f"{percent(worst['changed'], 1)} of the results ({_share(worst, total)} of the squared difference"
            f"{others}).{exact}"
        )
    else:
        shares = joined([f"{row['name']} ({_share(row, total)})" for row in first])
        text = f"{place}, operator by operator: {shares} change about as much of the results{others}.{exact}"
    shares_of = {row["name"]: row["rms"] ** 2 / total for row in operators}
    named = [row["name"] for row in first]
    return Statement(text, {"operator": named[0] if len(named) == 1 else "", "operators": named, "shares": shares_of})


def _share(row: Any, total: float) -> str:
    return percent(row["rms"] ** 2 / total)


def _closer(place: str, chains: dict[str, Any], pair: Any) -> Statement:
    torch, whole = chains[_TORCH], chains[_WHOLE]
    near, far = sorted((torch, whole), key=lambda row: row["rms"])
    evidence = {"closer": "", "rms": [near["rms"], far["rms"]], "changed": pair["changed"]}
    if pair["rms"] == 0:
        return Statement(f"{place}: torch and the whole graph in onnxruntime have the same bits.", evidence)
    if is_ranked(near["rms"], far["rms"]):
        nearer, farther = ("onnxruntime", "torch") if near is whole else ("torch", "onnxruntime")
        why = ""
        if near["roundings"] < far["roundings"]:
            why = f": it rounds {counted(near['roundings'], 'time')} on the way, {farther} {far['roundings']}"
        text = f"{place}: {nearer} is closer to exact (rms error {near['rms']:.2g} against {far['rms']:.2g}){why}."
        evidence["closer"] = nearer
    else:
        text = f"{place}: torch and onnxruntime are equally close to exact (rms error {far['rms']:.2g})."
    text += (
        f" Between torch and the whole graph in onnxruntime {percent(pair['changed'], 1)} of the results differ, "
        f"by at most {pair['max_abs']:.2g}: {pair['max_ulp']:.2g} ulp of the largest result, {floors(pair['floors'])}."
    )
    return Statement(text, evidence)


def _of_implementations(record: StudyRecord) -> list[Statement]:
    rows = [row for row in record.rows if row.get("kind") == "implementation" and row["verdict"] != NOT_AVAILABLE]
    groups = [[row for row in rows if row["name"] == name] for name in dict.fromkeys(row["name"] for row in rows)]
    broken = [group for group in groups if any(row["verdict"] in _BROKEN for row in group)]
    fine = [group for group in groups if group not in broken]
    return [*(_broken(group) for group in broken), *_within(fine)]


def _broken(group: Sequence[Any]) -> Statement:
    """Say on which data an implementation fails, data set by data set."""
    name = group[0]["name"]
    failed = [row for row in group if row["verdict"] in _BROKEN]
    parts = []
    for row in failed:
        size = "not finite" if not math.isfinite(row["rms"]) else floors(row["floors"])
        if row["negative"]:
            size += f", {counted(row['negative'], 'computed variance')} negative"
        parts.append(f"{row['data']} {row['dtype']} ({size})")
    text = f"{name} is more than rounding away from exact on {'; '.join(parts)}."
    finite = [row["floors"] for row in failed if math.isfinite(row["floors"])]
    return Statement(text, {"implementation": name, "worst": max(finite, default=math.inf),
                            "negative": {f"{r['data']} {r['dtype']}": r["negative"] for r in failed}})  # fmt: skip


def _within(groups: Sequence[Sequence[Any]]) -> list[Statement]:
    """Say which implementations only round, on which of the data, and which of them unusually much."""
    if not groups:
        return []
    worst = {group[0]["name"]: max(group, key=lambda row: row["floors"]) for group in groups}
    usual = [name for name, row in worst.items() if row["verdict"] != pairwise.LARGE]
    said = []
    if usual:
        most = max(worst[name]["floors"] for name in usual)
        verb = "stays" if len(usual) == 1 else "stay"
        text = f"{joined(usual)} {verb} within rounding wherever they were run: at most {floors(most)} from exact."
        said.append(Statement(text.replace("they were", "it was") if len(usual) == 1 else text,
                              {"within": usual, "floors": most}))  # fmt: skip
    for name, row in worst.items():
        if name not in usual:
            text = (
                f"{name} rounds unusually much: {floors(row['floors'])} from exact on {row['data']} {row['dtype']}, "
                "where ordinary rounding makes up to 1.5."
            )
            said.append(Statement(text, {"implementation": name, "floors": row["floors"]}))
    return said
