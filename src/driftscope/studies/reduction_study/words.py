"""The reduction study in words, computed from its rows alone: every number stands in the rows it speaks of."""

from __future__ import annotations

import math
import statistics as measures
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.records.runs.rows import OK
from driftscope.studies.reduction_study.cell import MORE, NOT_FINITE, SAME_BITS
from driftscope.studies.reduction_study.functions import REDUCTIONS
from driftscope.studies.sentences import counted, floors, part_of, percent

_PREDICTED = ("float64", "float32")  # dtypes in which a spread is more than a step of the grid


def statements(rows: Sequence[Any]) -> tuple[Statement, ...]:
    """Return what the finished rows show, each sentence with its evidence."""
    finite = [row for row in rows if row["verdict"] != NOT_FINITE]
    said = [_of_dtype(*group) for group in _grouped(finite)]
    return (*said, *_of_random_orders(finite), *_of_sorted_terms(finite), *_prediction(finite), *_not_finite(rows))


def finished_rows(record: StudyRecord) -> list[Any]:
    """Return the rows of cells that ended well; runs of earlier versions did not tell sorted from random orders."""
    fine = [row for row in record.rows if row.get("outcome") == OK]
    return [row if "random_spread" in row else {**row, "random_spread": row["spread"], "ordered_times": None}
            for row in fine]  # fmt: skip


def _grouped(rows: Sequence[Any]) -> Iterator[tuple[str, str, list[Any]]]:
    for function, dtype in dict.fromkeys((row["function"], row["dtype"]) for row in rows):
        yield function, dtype, [row for row in rows if (row["function"], row["dtype"]) == (function, dtype)]


def _of_dtype(function: str, dtype: str, rows: Sequence[Any]) -> Statement:
    moved = [row for row in rows if row["spread"] > 0]
    evidence = {"function": function, "dtype": dtype, "cells": len(rows), "moved": len(moved)}
    if not moved:
        return Statement(
            f"{function} in {dtype}: the same bits in every order tried, in all {counted(len(rows), 'cell')}.", evidence
        )
    changed = measures.fmean(1 - _share_of_commonest(row) for row in moved)
    head = (
        f"{function} in {dtype}: the order changes bits in {len(moved)} of {counted(len(rows), 'cell')}, there in "
        f"{percent(changed)} of the orders"
    )
    far = max(moved, key=lambda row: row["random_spread"])
    evidence |= {"largest_spread": far["random_spread"], "floors": far["floors"], "law": far["law"],
                 "size": far["size"], "predicted": far["predicted_spread"]}  # fmt: skip
    if not far["random_spread"]:
        return Statement(f"{head}, and only for sorted terms.", evidence)
    text = (
        f"{head}; over random orders the largest spread is {far['random_spread']:.2g} ({_place(far)}): {_steps(far)}, "
        f"{floors(far['floors'])}; rounding alone predicts {far['predicted_spread']:.2g}."
    )
    return Statement(text, evidence)


def _of_random_orders(rows: Sequence[Any]) -> Iterator[Statement]:
    if not rows:
        return
    beyond = [row for row in rows if row["verdict"] == MORE]
    same = sum(row["verdict"] == SAME_BITS for row in rows)
    evidence = {"same": same, "cells": len(rows), "beyond": len(beyond)}
    if not beyond:
        if same < len(rows):  # where no cell moves at all, each function and dtype has said so
            yield Statement(
                f"For random orders the change is rounding: {_how_many_stay(same, len(rows))} moves more than 2.5 "
                "floors or one unit in the last place.", evidence,
            )  # fmt: skip
        return
    worst = max(beyond, key=lambda row: row["floors"])
    yield Statement(
        f"{part_of(len(beyond), len(rows), 'cell', 'moves', 'move')} more between random orders than rounding of "
        f"independent terms predicts, the farthest {floors(worst['floors'])}: {worst['function']} of {_place(worst)}, "
        f"{worst['dtype']}.", evidence | {"floors": worst["floors"]},
    )  # fmt: skip


def _how_many_stay(same: int, cells: int) -> str:
    """Begin a sentence on cells that only round with those that have the same bits in every order."""
    if not same:
        return "no cell" if cells > 1 else "nothing"
    return f"{part_of(same, cells, 'cell', 'has', 'have')} the same bits in every order, and none of the others"


def _of_sorted_terms(rows: Sequence[Any]) -> Iterator[Statement]:
    """Speak of cells in which sorted terms go farther than every random order that was tried."""
    far = [row for row in rows if row["ordered_floors"] > 2.5 and (row["ordered_times"] or 0.0) > 1.0]
    if not far:
        return
    worst = max(far, key=lambda row: row["ordered_floors"])
    yield Statement(
        f"For sorted terms it is larger: in {counted(len(far), 'cell')} ascending or descending terms move the result "
        f"by more than 2.5 floors and farther than every random order tried, up to {floors(worst['ordered_floors'])} "
        f"({worst['function']} of {_place(worst)}, {worst['dtype']}: {worst['ordered_times']:.2g} times as far as the "
        "farthest random order).", {"cells": len(far), "floors": worst["ordered_floors"]},
    )  # fmt: skip


def _prediction(rows: Sequence[Any]) -> Iterator[Statement]:
    ratios = [row["ratio"] for row in rows if row["ratio"] and row["dtype"] in _PREDICTED]
    if len(ratios) > 4:
        low, middle, high = (measures.quantiles(ratios, n=20, method="inclusive")[k] for k in (0, 9, 18))
        yield Statement(
            f"The error model, which never saw a permutation, predicts the spread over random orders in float32 and "
            f"float64: observed over predicted has the median {middle:.2f}, and nine in ten of the cells that spread "
            f"lie between {low:.2f} and {high:.2f}.",
            {"median": middle, "q05": low, "q95": high, "cells": len(ratios)},
        )


def _not_finite(rows: Sequence[Any]) -> Iterator[Statement]:
    broken = [row for row in rows if row["verdict"] == NOT_FINITE]
    if broken:
        where = sorted({f"{row['law']} in {row['dtype']}" for row in broken})
        yield Statement(
            f"{counted(len(broken), 'cell')} {'has' if len(broken) == 1 else 'have'} no finite result, because a value "
            f"leaves the format: {', '.join(where)}.", {"cells": len(broken)},
        )  # fmt: skip


def _place(row: Any) -> str:
    return f"{row['law']}, size {row['size']}"


def _steps(row: Any) -> str:
    """Say a spread in units of the result's last place; a result near zero has a very small one."""
    steps = row["steps"] or 0.0
    if steps > 1e4 or not math.isfinite(steps):
        return "where the terms cancel"
    reduction = REDUCTIONS.get(row["function"].removeprefix("torch."))
    whose = "the largest element" if reduction is not None and reduction.map is not None else "the result"
    return f"one ulp of {whose}" if round(steps, 2) == 1 else f"{steps:.2g} ulp of {whose}"


def _share_of_commonest(row: Any) -> float:
    values = row["values"]
    return max(Counter(values).values()) / len(values)
