"""The layer norm study: can one implementation of LayerNormalization be exchanged for another?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from driftscope.programs.torch_devices import DEVICES, present
from driftscope.records.kinds.study import Statement, StudyRecord
from driftscope.records.runs.tables import frame_of
from driftscope.studies.arguments import one_of, some_of, whole
from driftscope.studies.engine.grid import Grid
from driftscope.studies.engine.plan import Plan, Reading
from driftscope.studies.layer_norm_study.cell import layer_norm_cell
from driftscope.studies.layer_norm_study.implementations import DATA
from driftscope.studies.places import PLACE, places

FLOATS = ("float32", "float16")


def layer_norm_plan(
    rows: int = 1024,
    last_dim: int = 1152,
    dtypes: Sequence[str] | str = FLOATS,
    devices: Sequence[str] | str | None = None,
    data: Sequence[str] | str = DATA,
    *,
    threads: int = 1,
    seed: int = 0,
) -> Plan:
    """Make the plan of a layer norm study; parameters as :func:`driftscope.studies.layer_norm`."""
    axes = {
        "data": one_of("data set", data, DATA),
        "dtype": some_of("dtype", dtypes, (*FLOATS, "bfloat16")),
        "device": one_of("device", present(DEVICES) if devices is None else devices, DEVICES),
    }
    fixed = {
        "rows": whole("rows", rows, least=1)[0], "last_dim": whole("last_dim", last_dim, least=2)[0],
        "threads": whole("threads", threads, least=1)[0], "data_seed": seed,
    }  # fmt: skip
    return Plan(
        name="layer_norm", function=layer_norm_cell, grid=Grid({**axes}), fixed=fixed, seed=seed,
        modules=("torch", "onnxruntime", "onnx"), views="driftscope.studies.layer_norm_study.study",
        reading=Reading(("kind", "name", "other"), "verdict", "floors"),
    )  # fmt: skip


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
