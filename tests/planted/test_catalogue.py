"""The catalogue itself is checked with other people's evaluators: every bug is one, every edit names its node."""

from __future__ import annotations

from collections import Counter

import pytest

from .bug import CHEAPER, Bug
from .catalogue import BUGS, CASES
from .doubled import reference_outputs
from .exports import Exports
from .native import feeds_of, native_outputs, relative_rms

# onnx.reference ignores these attributes; onnxruntime does not.
REFERENCE_IGNORES = {"lstm-clip", "lstm-forget-coupled"}


def _cases(dtype: str) -> list[Bug]:
    return [bug for bug, native in CASES if native == dtype]


def test_catalogue_is_broad():
    assert len(BUGS) >= 30
    assert len({bug.architecture for bug in BUGS}) >= 6
    assert max(Counter(bug.id for bug in BUGS).values()) == 1
    assert {dtype for _, dtype in CASES} == {"float32", "float16"}


def _changes_the_function(bug: Bug, exports: Exports, dtype: str) -> None:
    clean, broken = exports.model(bug.architecture, dtype), exports.model(bug.architecture, dtype)
    guilty = bug.plant(broken)
    assert guilty in [node.name for node in broken.graph.node]
    feeds = feeds_of(clean, bug.architecture, dtype)
    if (bug.expected == CHEAPER and "weight" not in bug.id) or bug.id in REFERENCE_IGNORES:
        # A cast leaves the real-valued function alone: what changes is the arithmetic.
        assert relative_rms(native_outputs(clean, feeds)[0], native_outputs(broken, feeds)[0]) > 1e-5
    else:
        assert relative_rms(reference_outputs(clean, feeds)[0], reference_outputs(broken, feeds)[0]) > 1e-8


@pytest.mark.parametrize("bug", _cases("float32"), ids=lambda bug: bug.id)
@pytest.mark.sampled(40)
def test_bug_changes_the_function(bug: Bug, exports: Exports):
    _changes_the_function(bug, exports, "float32")


@pytest.mark.sweep
@pytest.mark.parametrize("bug", _cases("float16"), ids=lambda bug: bug.id)
def test_bug_changes_the_function_in_float16(bug: Bug, exports: Exports):
    _changes_the_function(bug, exports, "float16")


@pytest.mark.parametrize("name", sorted({bug.architecture for bug in BUGS}))
def test_the_second_opinion_has_no_opinion_on_a_clean_file(name: str, exports: Exports):
    clean = exports.model(name, "float32")
    feeds = feeds_of(clean, name, "float32")
    assert relative_rms(reference_outputs(clean, feeds)[0], native_outputs(clean, feeds)[0]) < 1e-6
