"""The reduction study: how far the result of a sum, mean or normalisation moves when its terms are reordered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driftscope.programs.state.process import state_kept
from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.records.runs.rows import OK, Plain
from driftscope.studies.arguments import one_of, some_of, whole
from driftscope.studies.engine.grid import Grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan, Reading
from driftscope.studies.engine.result import Study, perform
from driftscope.studies.reduction_study.cell import reduction_cell
from driftscope.studies.reduction_study.distributions import DTYPES, LAWS
from driftscope.studies.reduction_study.functions import REDUCTIONS, TORCH

if TYPE_CHECKING:
    from pathlib import Path

FUNCTIONS = ("mean", "layer_norm")
SIZES = (2, 4, 8, 16, 512, 1024, 2048, 4096, 8192)
FLOATS = ("float64", "float32", "float16")
_SECONDS_PER_TERM = 4e-9  # measured: 0.11 s for the 37 million terms of the default grid
STUDIED_LAWS = ("normal", "fixed", "pareto")


@state_kept(exclusive=False)
def reduction(
    functions: Sequence[str] | str = FUNCTIONS,
    laws: Sequence[str] | str = STUDIED_LAWS,
    sizes: Sequence[int] | int = SIZES,
    dtypes: Sequence[str] | str = FLOATS,
    permutations: int = 128,
    seed: int = 0,
    *,
    threads: Sequence[int] | int = 1,
    batches: Sequence[int] | int = 1,
    **running: Any,
) -> Study:
    """Reorder the terms of a reduction many times and see how far its result moves.

    Parameters
    ----------
    functions : names
        ``"mean"``, ``"sum"``, ``"var"``, ``"norm"``, ``"layer_norm"``, ``"softmax"`` in numpy; the same with
        ``"torch."`` in front are torch's kernels.
    laws : names
        ``"normal"``, ``"fixed"`` (outliers), ``"pareto"``, ``"uniform"``, ``"lognormal"``, ``"cauchy"``,
        ``"cancelling"``, ``"wide"``, ``"shifted"``, or ``"module:function"`` for ``function(rng, size)``.
    sizes : whole numbers
        Terms of one reduction.
    dtypes : names
        ``"float64"``, ``"float32"``, ``"float16"``, ``"bfloat16"``.
    permutations : int
        Orders beside the one drawn; ascending and descending are the second and third of them.
    seed : int
    threads, batches : whole numbers
        Threads inside an operator, and rows of one call: further axes, for torch's kernels.
    running
        ``workers`` (None: one for each core; 0: this process), ``cluster``, ``store``, ``seconds`` and ``memory`` (for
        one cell), ``progress``: see :func:`driftscope.studies.engine.options.running_of`.

    Returns
    -------
    Study
        ``.matrix()`` is the spread by size and dtype; ``.matrix(value="predicted_spread")`` what the error model
        predicts. A row's ``values`` hold the result of every order.

    Raises
    ------
    InputError
        For a name or number that is not known.
    """
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
    plan = Plan(
        name="reduction", function=reduction_cell, grid=Grid(axes), fixed=fixed, seed=seed,
        modules=("numpy", *(("torch",) if uses_torch else ())),
        views="driftscope.studies.reduction_study.study", reading=Reading((), "verdict", "floors"),
        safe_seconds=safe_seconds(axes, permutations),
    )  # fmt: skip
    return perform(plan, running_of(**running))


def safe_seconds(axes: Mapping[str, Sequence[Any]], permutations: int) -> float | None:
    """Estimate the work of numpy's own functions: every term of every order is drawn, gathered and added.

    None where a cell runs torch or a function of the user: nothing is known of those.
    """
    if any(str(law) not in LAWS for law in axes["law"]) or any(str(name) in TORCH for name in axes["function"]):
        return None
    terms: int = sum(axes["size"]) * (permutations + 1)
    return _SECONDS_PER_TERM * terms * math.prod(len(axes[name]) for name in ("law", "dtype", "function"))


def matrix(record: StudyRecord, value: str | None = None) -> Any:
    """Return a column as a table: function, law and size as rows (as far as there are several), dtypes as columns.

    Parameters
    ----------
    value : str or None
        ``"spread"`` (the default), ``"random_spread"``, ``"predicted_spread"``, ``"ratio"``, ``"floors"``,
        ``"ordered_floors"``, ``"ordered_times"``, ``"distinct"``, ``"steps"``, ``"verdict"``.
    """
    from driftscope.records.runs.tables import frame_of

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
    from driftscope.studies.reduction_study.figures import spread_bars

    return spread_bars(record, path)


def conclude(record: StudyRecord) -> tuple[Statement, ...]:
    """Say how far each function moves in each dtype, whether rounding explains it, and how well that was predicted."""
    from driftscope.studies.reduction_study.words import finished_rows, statements

    return statements(finished_rows(record))
