"""The demo tells its honest export from its two broken copies, and accepts the float16 conversion."""

from __future__ import annotations

import pytest

from driftscope.demo.scenes import Scene, run_demo
from driftscope.records.verdict import Verdict

# The whole demo runs for these; `make demo` is the quick way to see it.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return run_demo()


def test_export_is_the_same_program(scenes: list[Scene]):
    assert scenes[0].comparison.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)
    assert scenes[0].accuracy_a == scenes[0].accuracy_b > 0.97


@pytest.mark.parametrize(("index", "operator"), [(1, "LayerNormalization"), (2, "Gelu")])
def test_broken_copy_is_found_although_every_digit_is_classified_the_same(
    scenes: list[Scene], index: int, operator: str
):
    scene = scenes[index]
    assert scene.comparison.verdict is Verdict.DIFFERENT
    assert scene.reclassified == 0
    assert scene.accuracy_a == scene.accuracy_b
    assert operator in str(scene.comparison.first)


def test_float16_conversion_comes_with_a_tolerance(scenes: list[Scene]):
    scene = scenes[3]
    assert scene.comparison.verdict is not Verdict.DIFFERENT
    tolerance = scene.comparison.outputs[0].tolerance
    assert tolerance is not None
    assert 1e-3 < tolerance.atol < 1.0


def test_comments_carry_the_numbers_of_the_run(scenes: list[Scene]):
    assert all("360 digits" in scene.comment and "%" in scene.comment for scene in scenes)
