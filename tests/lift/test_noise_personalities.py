"""The floor holds whatever instruction set, thread count or library does the work: each measured in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from driftscope.records.environment import capture
from instruction_sets import AVX2, BASELINE

LOW, HIGH = 0.5, 1.5
HERE = Path(__file__).parent
PERSONALITIES: dict[str, dict[str, str]] = {
    "as it is": {},
    "two threads": {"DRIFTSCOPE_THREADS": "2"},
    "without oneDNN": {"DRIFTSCOPE_ONEDNN": "0"},
    "AVX2": AVX2,
    "AVX2, two threads, without oneDNN": {**AVX2, "DRIFTSCOPE_THREADS": "2", "DRIFTSCOPE_ONEDNN": "0"},
    "baseline": BASELINE,
    "baseline, two threads, without oneDNN": {**BASELINE, "DRIFTSCOPE_THREADS": "2", "DRIFTSCOPE_ONEDNN": "0"},
    "OpenBLAS for Nehalem": {"OPENBLAS_CORETYPE": "Nehalem"},
    "OpenBLAS for Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OpenBLAS for Zen": {"OPENBLAS_CORETYPE": "Zen"},
    "OpenBLAS for SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
}
SCRIPT = """
import json, os, sys
import torch
torch.set_num_threads(int(os.environ.get("DRIFTSCOPE_THREADS", "1")))
torch.backends.mkldnn.enabled = os.environ.get("DRIFTSCOPE_ONEDNN", "1") == "1"
from calibration import Case, grid, run_case
from test_noise_kernels import KERNELS, NUMPY, error_in_noise
half, whole = torch.float16, "whole" in sys.argv
kernels = [k for k in KERNELS if k.low == 0.5]
pairs = [(k, d) for k in kernels for d in (torch.float32, half, torch.bfloat16)] if whole else [
    (k, d) for k in kernels for d in (torch.float32, half)
    if d is torch.float32 or not k.name.startswith(("mm", "conv"))]
found = {f"{k.name} {d}": error_in_noise(k, d) for k, d in pairs}
found |= {k.name: error_in_noise(k, torch.float32) for k in NUMPY}
cases = [c for c in grid() if c.input_scale == c.weight_scale == 1] if whole else [
    Case("encoder 1x64", torch.float32), Case("convnet", torch.float32), Case("softmax 4096", torch.float32),
    Case("mlp", torch.bfloat16), Case("decoder 3x96", half), Case("gru 24 steps", torch.float32)]
found |= {str(case): run_case(case).ratio for case in cases}
print(json.dumps(found))
"""


def ratios(personality: str, *arguments: str) -> dict[str, float]:
    """Measure error over floor in a process that has those switches; ``whole`` is every kernel, format and program."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    wide = "avx512f" in capture()["processor"].get("flags", ())
    if PERSONALITIES[personality].get("OPENBLAS_CORETYPE") == "SkylakeX" and not wide:
        pytest.skip("this processor has no AVX-512: OpenBLAS's kernels for it would die of an illegal instruction")
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": paths, **PERSONALITIES[personality]}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def outside(found: dict[str, float]) -> dict[str, float]:
    return {name: round(ratio, 2) for name, ratio in found.items() if not LOW <= ratio <= HIGH}


@pytest.mark.slow
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_the_native_error_is_about_one_floor_under(personality: str) -> None:
    assert not outside(ratios(personality))


@pytest.mark.sweep
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_every_kernel_format_and_program_is_about_one_floor_under(personality: str) -> None:
    found = ratios(personality, "whole")
    print(f"{personality}: {len(found)}, {min(found.values()):.2f} to {max(found.values()):.2f}")  # the page's table
    assert not outside(found)
