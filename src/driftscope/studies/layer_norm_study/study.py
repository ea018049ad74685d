"""The layer norm study: can one implementation of LayerNormalization be exchanged for another?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.programs.state.process import state_kept
from driftscope.programs.torch_devices import DEVICES, present
from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.records.runs.tables import frame_of
from driftscope.studies.arguments import one_of, some_of, whole
from driftscope.studies.engine.grid import Grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.plan import Plan, Reading
from driftscope.studies.engine.result import Study, perform
from driftscope.studies.layer_norm_study.cell import layer_norm_cell
from driftscope.studies.layer_norm_study.implementations import DATA
from driftscope.studies.places import PLACE, places

FLOATS = ("float32", "float16")


@state_kept(exclusive=False)
def layer_norm(
    rows: int = 1024,
    last_dim: int = 1152,
    dtypes: Sequence[str] | str = FLOATS,
    devices: Sequence[str] | str | None = None,
    data: Sequence[str] | str = DATA,
    *,
    threads: int = 1,
    seed: int = 0,
    **running: Any,
) -> Study:
    """Run LayerNormalization, MatMul and Add in every mixture of torch and onnxruntime.

    Parameters
    ----------
    rows, last_dim : int
        Shape of the input; the matrix is square.
    dtypes : names
        ``"float32"``, ``"float16"``, ``"bfloat16"``.
    devices : names or None
        ``"cpu"``, ``"cuda"``, ``"xpu"``, ``"mps"``; by default those this machine has.
    data : names
        ``"normal"``, ``"large mean"``, ``"tiny variance"``, ``"outliers"``.
    threads : int
        Threads inside an operator.
    seed : int
    running
        As for :func:`reduction`.

    Returns
    -------
    Study
        Mixtures are three letters, one for each operator: ``t`` torch, ``o`` onnxruntime. ``.matrix()`` is the error
        of every way to run the chain by dtype; ``.matrix("floors")`` in floors. Rows of kind ``operator`` say what
        exchanging one operator does, rows of kind ``implementation`` how good a normalisation is by itself.

    Raises
    ------
    InputError
        For a name or number that is not known.
    """
    axes = {
        "data": one_of("data set", data, DATA),
        "dtype": some_of("dtype", dtypes, (*FLOATS, "bfloat16")),
        "device": one_of("device", present(DEVICES) if devices is None else devices, DEVICES),
    }
    fixed = {
        "rows": whole("rows", rows, least=1)[0], "last_dim": whole("last_dim", last_dim, least=2)[0],
        "threads": whole("threads", threads, least=1)[0], "data_seed": seed,
    }  # fmt: skip
    plan = Plan(
        name="layer_norm", function=layer_norm_cell, grid=Grid({**axes}), fixed=fixed, seed=seed,
        modules=("torch", "onnxruntime", "onnx"), views="driftscope.studies.layer_norm_study.study",
        reading=Reading(("kind", "name", "other"), "verdict", "floors"),
    )  # fmt: skip
    return perform(plan, running_of(**{"operator_threads": threads, **running}))


def matrix(record: StudyRecord, value: str | None = None) -> Any:
    """Return a column of every way to run the chain, and of every implementation, by data set, dtype and device.

    Parameters
    ----------
    value : str or None
        ``"rms"`` error against float64 (the default), ``"floors"``, ``"max_abs"``, ``"max_ulp"``, ``"roundings"``,
        ``"verdict"``.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    columns: dict[str, None] = {}
    for place, here in places(record):
        column = " ".join(str(place[axis]) for axis in PLACE)
        columns[column] = None
        for row in here:
            if row["kind"] in ("chain", "implementation"):
                rows.setdefault((row["kind"], row["name"]), {})[column] = row.get(value or "rms")
    listed = tuple({"kind": kind, "name": name, **cells} for (kind, name), cells in rows.items())
    return frame_of(listed).set_index(["kind", "name"])[list(columns)]


def plot(record: StudyRecord, path: Path) -> Path:
    """Draw the pairs of mixtures, the errors of each way, and the implementations on hard data."""
    from driftscope.studies.layer_norm_study.figures import panels

    return panels(record, path)


def conclude(record: StudyRecord) -> tuple[Statement, ...]:
    """Say which operator is responsible, who is closer to exact and why, and which implementations break."""
    from driftscope.studies.layer_norm_study.words import statements

    return statements(record)
