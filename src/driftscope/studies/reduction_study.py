"""The reduction study: how far the result of a sum, mean or normalisation moves when its terms are reordered."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.records.study_record import Statement, StudyRecord
from driftscope.records.study_rows import OK, Plain
from driftscope.records.study_tables import frame_of
from driftscope.studies.asking import one_of, some_of, whole
from driftscope.studies.grid import Grid
from driftscope.studies.plan import Plan, Reading
from driftscope.studies.reduction_cell import MORE, NOT_FINITE, SAME_BITS, reduction_cell
from driftscope.studies.reduction_data import DTYPES, LAWS
from driftscope.studies.reduction_functions import REDUCTIONS, TORCH

FUNCTIONS = ("mean", "layer_norm")
SIZES = (2, 4, 8, 16, 512, 1024, 2048, 4096, 8192)
FLOATS = ("float64", "float32", "float16")
STUDIED_LAWS = ("normal", "fixed", "pareto")


def reduction_plan(
    functions: Sequence[str] | str = FUNCTIONS,
    laws: Sequence[str] | str = STUDIED_LAWS,
    sizes: Sequence[int] | int = SIZES,
    dtypes: Sequence[str] | str = FLOATS,
    *,
    permutations: int = 128,
    seed: int = 0,
    threads: Sequence[int] | int = 1,
    batches: Sequence[int] | int = 1,
) -> Plan:
    """Make the plan of a reduction study; parameters as :func:`driftscope.studies.reduction`."""
    axes: dict[str, tuple[Plain, ...]] = {
        "law": one_of("law", laws, LAWS, references=True),
        "size": whole("size", sizes, least=1),
        "dtype": some_of("dtype", dtypes, DTYPES),
        "function": one_of("reduction", functions, (*REDUCTIONS, *TORCH)),
    }
    fixed: dict[str, Any] = {"permutations": whole("permutations", permutations, least=1)[0], "data_seed": seed}
    for name, values in (("threads", whole("threads", threads, least=1)), ("batch", whole("batch", batches, least=1))):
        if len(values) > 1:
            axes[name] = values
        else:
            fixed[name] = values[0]
    if len(axes["function"]) > 1:
        fixed["beside"] = list(axes["function"])
    uses_torch = any(str(f) in TORCH for f in axes["function"])
    return Plan(
        name="reduction", function=reduction_cell, grid=Grid(axes), fixed=fixed, seed=seed,
        modules=("numpy", "ml_dtypes", *(("torch",) if uses_torch else ())),
        views="driftscope.studies.reduction_study", reading=Reading((), "verdict", "floors"),
    )  # fmt: skip


def matrix(record: StudyRecord, value: str | None = None) -> Any:
    """Return a column as a table: function, law and size as rows (as far as there are several), dtypes as columns.

    Parameters
    ----------
    value : str or None
        ``"spread"`` (the default), ``"predicted_spread"``, ``"ratio"``, ``"floors"``, ``"ordered_floors"``,
        ``"distinct"``, ``"steps"``, ``"verdict"``.
    """
    fine = tuple(row for row in record.rows if row.get("outcome") == OK)
    several = [a for a in ("function", "law", "threads", "batch") if len({str(r.get(a)) for r in fine}) > 1]
    dtypes = list(dict.fromkeys(str(row["dtype"]) for row in fine))
    names = [*several, "size"]
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    # By hand: a pivot table would sort the rows, and drop words and columns of nothing but NaN.
    for row in sorted(fine, key=lambda row: [record.axes[a].index(row[a]) for a in names]):
        cells.setdefault(tuple(row[name] for name in names), {})[str(row["dtype"])] = row[value or "spread"]
    table = frame_of(tuple(dict(zip(names, key, strict=True)) | found for key, found in cells.items()))
    return table.set_index(names)[dtypes].rename_axis(columns="dtype")


def plot(record: StudyRecord, path: Path) -> Path:
    """Draw the largest spread over all sizes as bars on a log axis: laws as groups, dtypes as colours."""
    from driftscope.studies.reduction_figures import spread_bars

    return spread_bars(record, path)


def conclude(record: StudyRecord) -> tuple[Statement, ...]:
    """Say how far each function moves in each dtype, whether rounding explains it, and how well that was predicted."""
    fine = [row for row in record.rows if row.get("outcome") == OK]
    said = [
        _of_dtype(function, dtype, rows)
        for function, dtype, rows in _grouped(fine)
        if any(row["verdict"] != NOT_FINITE for row in rows)
    ]
    said += _beyond(fine)
    ratios = [row["ratio"] for row in fine if row.get("ratio") and row["dtype"] in ("float64", "float32")]
    if len(ratios) > 4:
        low, middle, high = (statistics.quantiles(ratios, n=20, method="inclusive")[k] for k in (0, 9, 18))
        said.append(
            Statement(
                f"The error model, which never saw a permutation, predicts spreads in float32 and float64: observed "
                f"over predicted has the median {middle:.2f}, and nine in ten of the cells that spread lie between "
                f"{low:.2f} and {high:.2f}.",
                {"median": middle, "q05": low, "q95": high, "cells": len(ratios)},
            )
        )
    sorted_far = [row for row in fine if row["ordered_floors"] > 2.5 * max(row["floors"], 0.5)]
    if sorted_far:
        worst = max(sorted_far, key=lambda row: row["ordered_floors"])
        text = (
            f"Sorted terms are no random order: in {len(sorted_far)} cells ascending or descending terms give a result "
            f"farther off than any random order explains, up to {worst['ordered_floors']:.1f} floors "
            f"({worst['function']} of {_place(worst)}, {worst['dtype']}): their partial sums grow larger."
        )
        said.append(Statement(text, {"cells": len(sorted_far), "floors": worst["ordered_floors"]}))
    broken = [row for row in fine if row["verdict"] == NOT_FINITE]
    if broken:
        where = sorted({f"{r['law']} in {r['dtype']}" for r in broken})
        text = f"{len(broken)} cells have no finite result, because a value leaves the format: {', '.join(where)}."
        said.append(Statement(text, {"cells": len(broken)}))
    return tuple(said)


def _grouped(rows: Sequence[Any]) -> list[tuple[str, str, list[Any]]]:
    keys = dict.fromkeys((row["function"], row["dtype"]) for row in rows)
    return [(f, d, [r for r in rows if (r["function"], r["dtype"]) == (f, d)]) for f, d in keys]


def _of_dtype(function: str, dtype: str, rows: Sequence[Any]) -> Statement:
    moved = [row for row in rows if row["spread"] > 0]
    evidence = {"function": function, "dtype": dtype, "cells": len(rows), "moved": len(moved)}
    if not moved:
        text = f"{function} in {dtype}: the same bits in every order tried, in all {len(rows)} cells."
        return Statement(text, evidence)
    worst = max(moved, key=lambda row: row["floors"])
    changed = statistics.mean(1 - _share_of_commonest(row) for row in moved)
    text = (
        f"{function} in {dtype}: the order changes bits in {len(moved)} of {len(rows)} cells, there in "
        f"{changed:.0%} of the orders; the farthest is {_place(worst)}: {worst['spread']:.2g}, {_steps(worst)}, "
        f"{worst['floors']:.2g} floors; rounding alone predicts {worst['predicted_spread']:.2g}."
    )
    largest = max(row["spread"] for row in moved)
    return Statement(text, evidence | {"largest_spread": largest, "floors": worst["floors"], "law": worst["law"],
                                       "size": worst["size"], "predicted": worst["predicted_spread"]})  # fmt: skip


def _place(row: Any) -> str:
    return f"{row['law']}, size {row['size']}"


def _steps(row: Any) -> str:
    """Say a spread in units of the result's last place; a result near zero has a very small one."""
    steps = row["steps"] or 0.0
    if steps > 1e4:
        return "where the terms cancel"
    return "one ulp of the result" if round(steps, 2) == 1 else f"{steps:.2g} ulp of the result"


def _share_of_commonest(row: Any) -> float:
    values = row["values"]
    return Counter(values).most_common(1)[0][1] / len(values)


def _beyond(rows: Sequence[Any]) -> list[Statement]:
    beyond = [row for row in rows if row["verdict"] == MORE]
    same = sum(row["verdict"] == SAME_BITS for row in rows)
    if not beyond:
        text = (
            f"All of it is rounding: {same} of {len(rows)} cells have the same bits in every order, and none of the "
            f"others moves more than 2.5 floors or one unit in the last place."
        )
        return [Statement(text, {"same": same, "cells": len(rows), "beyond": 0})]
    worst = max(beyond, key=lambda row: row["floors"])
    text = (
        f"{len(beyond)} of {len(rows)} cells move more than rounding of independent terms predicts, the farthest "
        f"{worst['floors']:.1f} floors: {worst['function']} of {worst['law']}, size {worst['size']}, {worst['dtype']}."
    )
    return [Statement(text, {"beyond": len(beyond), "floors": worst["floors"]})]
