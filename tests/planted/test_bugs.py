"""Every planted bug is found and its place is named. Its twin is test_honest.py, where nothing may be."""

from __future__ import annotations

import copy

import pytest
import torch

import driftscope as ds
from driftscope.records.verdict import Verdict

from .architectures import ARCHITECTURES
from .bug import Bug
from .catalogue import BUGS
from .constant_bugs import WITHIN_NOISE
from .exports import Exports
from .naming import names
from .sampling import each_once
from .torch_bugs import TORCH_BUGS, TorchBug


@pytest.mark.parametrize(("bug", "dtype"), each_once(BUGS, lambda bug: bug.dtypes))
@pytest.mark.sampled(12)
def test_planted_bug_is_found_and_placed(bug: Bug, dtype: str, exports: Exports):
    architecture, native = ARCHITECTURES[bug.architecture], getattr(torch, dtype)
    broken = exports.model(bug.architecture, dtype)
    guilty = bug.plant(broken)
    comparison = ds.compare(architecture.module(native), broken, architecture.example(native))
    assert comparison.verdict in bug.expected, f"{comparison.verdict}: {comparison.reason}"
    assert comparison.first is not None
    assert names(comparison.first, guilty), f"named {comparison.first.where.node}, guilty is {guilty}"


@pytest.mark.parametrize(("bug", "dtype"), each_once(TORCH_BUGS, lambda bug: bug.dtypes))
def test_bug_in_a_module_is_found(bug: TorchBug, dtype: str):
    architecture, native = ARCHITECTURES[bug.architecture], getattr(torch, dtype)
    clean = architecture.module(native)
    broken = copy.deepcopy(clean)
    bug.break_it(broken)
    comparison = ds.compare(clean, broken, architecture.example(native))
    assert comparison.verdict is Verdict.DIFFERENT, f"{comparison.verdict}: {comparison.reason}"


def test_a_cast_within_the_noise_of_the_format_is_rounding(exports: Exports):
    architecture = ARCHITECTURES[WITHIN_NOISE.architecture]
    model = exports.model(WITHIN_NOISE.architecture, "float16")
    WITHIN_NOISE.plant(model)
    comparison = ds.compare(architecture.module(torch.float16), model, architecture.example(torch.float16))
    assert comparison.verdict in WITHIN_NOISE.expected
