"""The example study: five architectures, and a cell that compares all."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from driftscope.studies import load
from driftscope.studies.engine.grid import make_grid
from driftscope.studies.engine.options import running_of
from driftscope.studies.engine.result import perform

EXAMPLE = Path(__file__).parents[2] / "examples" / "architectures.yaml"


def test_it_sweeps_opset_level_and_dtype_over_five_architectures():
    axes = load(EXAMPLE).plan.grid.axes
    assert list(axes) == ["architecture", "opset", "level", "dtype"]
    assert len(axes["architecture"]) == 5


@pytest.mark.slow
def test_a_part_of_it_runs():
    study = load(EXAMPLE)
    part = make_grid({"architecture": ["llama", "vit"], "opset": [18], "level": ["all"], "dtype": ["float32"]})
    done = perform(dataclasses.replace(study.plan, grid=part), running_of(workers=1, seconds=140))
    assert not done.failures, done.failures
    assert [row["verdict"] for row in done.rows] == ["ROUNDING", "ROUNDING"]
    assert all(row["floors"] < 1.5 for row in done.rows)
