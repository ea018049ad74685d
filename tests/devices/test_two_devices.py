"""A program on the processor and on another device: the same, but for its rounding, and a bug on it is found there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import backend_registration

TESTS = Path(__file__).parents[1]
SAME = ("IDENTICAL", "ROUNDING")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason=f"torch {torch.__version__} takes no device made of Python",
    ),
]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What a process with a second device finds."""
    paths = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "devices.pairs"], cwd=TESTS, env={**os.environ, "PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


ALIKE = ["the same", "the same, swapped", "both there", "module there", "file", "file, swapped, inputs there", "export"]


@pytest.mark.parametrize("pair", [*ALIKE, "reductions", "scattered"])
def test_another_device_is_no_other_function(found: dict[str, Any], pair: str) -> None:
    assert found[pair]["verdict"] in SAME
    assert "same function" in found[pair]["reason"] or "the same bits" in found[pair]["reason"]


@pytest.mark.parametrize("pair", ["epsilon", "epsilon, swapped", "export, epsilon"])
def test_a_bug_on_a_device_is_found_at_its_step(found: dict[str, Any], pair: str) -> None:
    assert found[pair]["verdict"] == "DIFFERENT"
    code, _, node, why = found[pair]["findings"][0]
    assert (code, node) == ("N001", "native_layer_norm")
    assert "epsilon is 0.001 here and 1e-05 in A" in why


def test_another_weight_on_a_device_is_named(found: dict[str, Any]) -> None:
    assert found["weight"]["verdict"] == "DIFFERENT"
    assert "mix.weight" in found["weight"]["findings"][0][1]


def test_half_precision_on_a_device_is_rounding_to_it(found: dict[str, Any]) -> None:
    assert found["half"]["verdict"] in ("PRECISION", "ROUNDING")
    assert "same function" in found["half"]["reason"]


@pytest.mark.parametrize(("pair", "side"), [("TF32", "B"), ("TF32, swapped", "A")])
def test_a_device_that_multiplies_in_tf32_is_told_by_its_own_kernels(
    found: dict[str, Any], pair: str, side: str
) -> None:
    assert found[pair]["verdict"] == "PRECISION"
    assert "TF32" in found[pair]["reason"]
    assert found[pair]["reason"].endswith(f"in {side}")
    code, what, _, why = found[pair]["findings"][0]
    assert code == "N025"
    assert f"in {side} is" in what
    assert "predicts the native error" in why


def test_what_runs_there_is_asked_for_invariance_and_shapes_too(found: dict[str, Any]) -> None:
    # A view shows no memory on the device made of Python, so what is said of layouts is not asked here.
    assert "repeat same" in found["invariance"]
    assert "order same" in found["invariance"]
    assert "is right at all" in found["shapes"]
