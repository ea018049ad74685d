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
from calibration import Case, run_case
from test_noise_kernels import KERNELS, NUMPY, error_in_noise
found = {f"{k.name} {d}": error_in_noise(k, d) for k in KERNELS for d in (torch.float32, torch.float16)
         if k.low == 0.5 and (d is torch.float32 or not k.name.startswith(("mm", "conv")))}
found |= {k.name: error_in_noise(k, torch.float32) for k in NUMPY}
cases = [Case("encoder 1x64", torch.float32), Case("convnet", torch.float32), Case("softmax 4096", torch.float32),
         Case("mlp", torch.bfloat16), Case("decoder 3x96", torch.float16), Case("gru 24 steps", torch.float32)]
found |= {str(case): run_case(case).ratio for case in cases}
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("personality", PERSONALITIES)
def test_the_native_error_is_about_one_floor_under(personality: str) -> None:
    paths = os.pathsep.join([str(HERE), *sys.path])
    wide = "avx512f" in capture()["processor"].get("flags", ())
    if PERSONALITIES[personality].get("OPENBLAS_CORETYPE") == "SkylakeX" and not wide:
        pytest.skip("this processor has no AVX-512: OpenBLAS's kernels for it would die of an illegal instruction")
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONPATH": paths, **PERSONALITIES[personality]}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ratios = json.loads(done.stdout.splitlines()[-1])
    outside = {name: round(ratio, 2) for name, ratio in ratios.items() if not LOW <= ratio <= HIGH}
    assert not outside
