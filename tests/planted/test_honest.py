"""No honest change is called a bug, nor cheaper arithmetic. Its twin is test_bugs.py, where everything must be."""

from __future__ import annotations

from pathlib import Path

import pytest

import driftscope as ds

from .bug import HONEST
from .catalogue import CASES
from .exports import Exports
from .honest_files import FILES
from .honest_runs import RUNS
from .sampling import each_once
from .stage import Honest, Stage

VARIANTS = each_once((*RUNS, *FILES), lambda variant: variant.dtypes, lambda variant: variant.slow)


def test_there_are_as_many_honest_variants_as_bugs():
    assert len(VARIANTS) >= len(CASES)


@pytest.mark.parametrize(("variant", "dtype"), VARIANTS)
@pytest.mark.sampled(4)
def test_honest_variant_is_not_flagged(variant: Honest, dtype: str, exports: Exports, tmp_path: Path):
    stage = Stage(variant.architecture, dtype, exports, tmp_path)
    a, b = variant.make(stage)
    comparison = ds.compare(a, b, stage.example())
    assert comparison.verdict in HONEST, f"{comparison.verdict}: {comparison.reason}"
    blamed = [f for f in comparison.findings if not f.note and f.code[0] in "NW"]
    assert not blamed, blamed
