"""Every planted bug is found. Its twin is test_honest.py, where nothing may be."""

from __future__ import annotations

import copy

import pytest
import torch

import driftscope as ds
from driftscope.records.comparison import Comparison
from driftscope.records.verdict import Verdict

from .architectures import ARCHITECTURES
from .bug import Bug
from .catalogue import CASES
from .exports import Exports
from .torch_bugs import TORCH_BUGS, TorchBug


def compare_with_planted(bug: Bug, dtype: str, exports: Exports) -> tuple[Comparison, str]:
    """Return the comparison of the module with its broken export, and the guilty node's name."""
    architecture, native = ARCHITECTURES[bug.architecture], getattr(torch, dtype)
    broken = exports.model(bug.architecture, dtype)
    guilty = bug.plant(broken)
    return ds.compare(architecture.module(native), broken, architecture.example(native)), guilty


@pytest.mark.parametrize(("bug", "dtype"), CASES, ids=lambda value: getattr(value, "id", value))
def test_planted_bug_is_found(bug: Bug, dtype: str, exports: Exports):
    comparison, _ = compare_with_planted(bug, dtype, exports)
    assert comparison.verdict in bug.expected, f"{comparison.verdict}: {comparison.reason}"


@pytest.mark.parametrize(
    ("bug", "dtype"),
    [(bug, dtype) for bug in TORCH_BUGS for dtype in bug.dtypes],
    ids=lambda value: getattr(value, "id", value),
)
def test_bug_in_a_module_is_found(bug: TorchBug, dtype: str):
    architecture, native = ARCHITECTURES[bug.architecture], getattr(torch, dtype)
    clean = architecture.module(native)
    broken = copy.deepcopy(clean)
    bug.break_it(broken)
    comparison = ds.compare(clean, broken, architecture.example(native))
    assert comparison.verdict is Verdict.DIFFERENT, f"{comparison.verdict}: {comparison.reason}"
