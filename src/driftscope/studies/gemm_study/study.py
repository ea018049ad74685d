"""The gemm study: Gemm, or MatMul and Add, or one of nine other ways to compute ``A @ X + B``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.programs.state.process import state_kept
from driftscope.programs.torch_devices import DEVICES, present
from driftscope.records.kinds.study import ShownTable, Statement, StudyRecord
from driftscope.records.runs.tables import frame_of
from driftscope.studies.arguments import one_of, some_of, whole
from driftscope.studies.engine.grid import Grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan, Reading
from driftscope.studies.engine.result import Study, perform
from driftscope.studies.gemm_study.cell import gemm_cell, shape_of
from driftscope.studies.gemm_study.variants import VARIANTS
from driftscope.studies.places import PLACE, pair_values, places

DATA = ("normal", "bias")
FLOATS = ("float32", "float16", "bfloat16")
LEVELS = ("disable", "basic", "extended", "layout", "all")


@state_kept(exclusive=False)
def gemm(
    size: int | str = 1280,
    dtypes: Sequence[str] | str = FLOATS,
    devices: Sequence[str] | str | None = None,
    data: Sequence[str] | str = DATA,
    *,
    variants: Sequence[str] | str = VARIANTS,
    levels: Sequence[str] | str = ("disable", "all"),
    threads: int = 1,
    reveal: bool = True,
    seed: int = 0,
    **running: Any,
) -> Study:
    """Compute ``A @ X + B`` in every way and set the results side by side.

    Parameters
    ----------
    size : int or str
        Of all three dimensions, or ``"MxKxN"`` as ``"1280x256x256"``.
    dtypes : names
        ``"float32"``, ``"float16"``, ``"bfloat16"``, ``"float64"``. The reference is always the product in float64.
    devices : names or None
        ``"cpu"``, ``"cuda"``, ``"xpu"``, ``"mps"``; by default those there are. One that is not gives rows that say so.
    data : names
        ``"normal"``: unit normal. ``"bias"``: A and X at most 1 and a bias that climbs to 16 from column to column.
    variants : names
        ``"F.linear"``, ``"Gemm"``, ``"Gemm + Add"``, ``"MatMul + Add"``, ``"FusedMatMul + Add"``,
        ``"Cast(Gemm) + Add"``, ``"Cast(Gemm)"``, ``"a @ x + b"``, ``"torch.compile"``, ``"numpy"``, ``"exact"``
        (float64, rounded once).
    levels : names
        Optimisation levels of onnxruntime: ``"disable"``, ``"basic"``, ``"extended"``, ``"layout"``, ``"all"``. A
        level at which it runs the same graph as at an earlier one is left out.
    threads : int
        Threads inside an operator.
    reveal : bool
        Also reveal the order in which each kernel adds, with the first data set.
    seed : int
    running
        As for :func:`reduction`.

    Returns
    -------
    Study
        ``.matrix()`` is the largest absolute difference of every pair; ``.matrix("floors")`` the same in floors,
        ``.matrix("verdict")`` in words.

    Raises
    ------
    InputError
        For a name or number that is not known.
    """
    m, k, n = shape_of(str(size))
    sets = one_of("data set", data, DATA)
    chosen = one_of("device", present(DEVICES) if devices is None else devices, DEVICES)
    plan = Plan(
        name="gemm", function=gemm_cell,
        grid=Grid({"data": sets, "dtype": some_of("dtype", dtypes, ("float64", *FLOATS)), "device": chosen}),
        fixed={
            "size": f"{m}x{k}x{n}", "variants": "|".join(one_of("variant", variants, VARIANTS)),
            "levels": "|".join(one_of("optimisation level", levels, LEVELS)),
            "threads": whole("threads", threads, least=1)[0], "data_seed": seed,
            "reveal_with": sets[0] if reveal else "",
        },
        seed=seed, modules=("torch", "onnxruntime", "onnx"), views="driftscope.studies.gemm_study.study",
        reading=Reading(("kind", "variant", "other"), "verdict", "floors"),
    )  # fmt: skip
    return perform(plan, running_of(**{"operator_threads": threads, **running}))


def matrix(record: StudyRecord, value: str | None = None) -> Any:
    """Return the pairwise matrix: variants by variants, one below the other for several data sets, dtypes, devices.

    Parameters
    ----------
    value : str or None
        ``"max_abs"`` (the default), ``"floors"``, ``"max_ulp"``, ``"rms"`` or ``"verdict"``.
    """
    shown = value or "max_abs"
    several = [axis for axis in PLACE if len({str(row.get(axis)) for row in record.rows}) > 1]
    names = list(dict.fromkeys(str(row["variant"]) for row in _of_kind(record, "variant")))
    rows = []
    for place, here in places(record):
        cells = pair_values(here, shown)
        for one in names:
            at = {axis: place[axis] for axis in several} | {"variant": one}
            rows.append(at | {other: cells.get((one, other)) for other in names})
    return frame_of(tuple(rows)).set_index([*several, "variant"])


def plot(record: StudyRecord, path: Path) -> Path:
    """Draw heat maps of the pairs in floors beside the discrepancy of each column over its bias."""
    from driftscope.studies.gemm_study.figures import heat_maps

    return heat_maps(record, path)


def tables(record: StudyRecord) -> tuple[ShownTable, ...]:
    """Return what answers at a glance: the matrix of pairs in floors, and the orders of adding."""
    from driftscope.studies.gemm_study import words

    return words.tables(record)


def conclude(record: StudyRecord) -> tuple[Statement, ...]:
    """Say in words what the rows show."""
    from driftscope.studies.gemm_study.words import statements

    return statements(record)


def _of_kind(record: StudyRecord, kind: str) -> list[Any]:
    return [row for row in record.rows if row.get("kind") == kind]
