"""Ways of exporting are ranked by the shapes they keep; the code to paste makes the very same program."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.export import Dim

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.candidates import Candidate, CandidateSearch, Coverage, _bound, sizes_from
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.capture.inference import infer
from driftscope.shapes.capture.repairing import Repaired
from driftscope.shapes.conditions.expressions import Size, holds, operation
from driftscope.shapes.probe.axes import arguments_of
from shapes.small_models import DampLong, Doubled, Gated, OfPair, PadToFive, Pair, PoolAndAdd, pool_inputs, seeded


def search(model, inputs) -> CandidateSearch:
    arguments = arguments_of(model, inputs)
    return CandidateSearch(model, arguments, infer([arguments]))


def a_capture(mode: Mode) -> Capture:
    model = DampLong()
    arguments = arguments_of(model, (seeded(2, 4),))
    hint = Dim.DYNAMIC if mode is Mode.DYNAMIC else Dim.AUTO
    made = capture(model, arguments, Attempt(mode, (hint, hint)))
    assert isinstance(made, Capture)
    return made


def test_more_shapes_win_over_a_plainer_spec_and_a_plainer_spec_over_as_many():
    dynamic, auto, oblivious = (a_capture(m) for m in (Mode.DYNAMIC, Mode.AUTO, Mode.OBLIVIOUS))
    few = Candidate("few", Repaired(dynamic), Coverage(right=10, lost=5))
    many = Candidate("many", Repaired(oblivious), Coverage(right=12, lost=3))
    plain = Candidate("plain", Repaired(auto), Coverage(right=12, lost=3))
    wrong = Candidate("wrong", Repaired(dynamic), Coverage(right=14, wrong=1))
    ranked = sorted((few, many, plain, wrong), key=lambda c: c.worth, reverse=True)
    assert [c.name for c in ranked] == ["plain", "many", "wrong", "few"]


def test_names_and_bounds_are_taken_from_the_relations():
    made = search(DampLong(), (seeded(2, 4),))
    first = made.automatic()
    sizes = sizes_from(first.capture.relations, made.wanted)
    assert [size.__name__ for size in sizes] == ["x_0", "x_1"]
    assert sizes[1].max == 5


@given(st.integers(-5, 5).filter(bool), st.integers(-20, 20), st.integers(-20, 20), st.sampled_from(["<=", ">="]))
def test_a_bound_says_what_its_inequality_says(slope, offset, number, word):
    condition = operation(word, operation("+", operation("*", slope, Size("n")), offset), number)
    name, kind, bound = _bound(condition)
    sizes = np.arange(-60, 60)
    assert name == "n"
    expected = sizes <= bound if kind == "max" else sizes >= bound
    assert np.array_equal(holds(condition, {"n": sizes}, len(sizes)), expected)


def test_a_size_on_a_line_of_another_is_derived_from_it():
    made = search(Doubled(), (seeded(4, 2), seeded(9, 2)))
    related = made.related(made.automatic().capture.relations)
    assert related.capture.mode is Mode.DERIVED
    assert related.repair.steps == ()
    assert "'longer': {0: 2*rows_0 + 1, 1: rows_1}" in related.capture.spec_code
    exec(related.capture.spec_code, {})  # noqa: S102


def test_fixed_axes_are_fixed_and_entangled_ones_left_to_torch():
    gated = search(Gated(), (seeded(2, 6), seeded(2, 6)))
    assert [size is None for size in sizes_from(gated.automatic().capture.relations, gated.wanted)] == [
        False,
        True,
        False,
        True,
    ]
    pooled = search(PoolAndAdd(), pool_inputs())
    sizes = sizes_from(pooled.automatic().capture.relations, pooled.wanted)
    assert sizes[0] == Dim.DYNAMIC
    assert sizes[1].__name__ == sizes[5].__name__


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.sampled(2)
def test_pasted_code_makes_the_same_program(mode):
    model, inputs = PadToFive(), (seeded(2, 12),)
    arguments = arguments_of(model, inputs)
    words = {Mode.NAMED: (Dim("rows"), Dim.DYNAMIC), Mode.DERIVED: (Dim("rows"), Dim.DYNAMIC)}
    hint = Dim.AUTO if mode in (Mode.AUTO, Mode.OBLIVIOUS) else Dim.DYNAMIC
    made = capture(model, arguments, Attempt(mode, words.get(mode, (hint, hint))))
    assert isinstance(made, Capture), made
    pasted: dict = {}
    exec(made.spec_code, pasted)  # noqa: S102
    again = pasted["export"](model, inputs)
    assert again._guards_code == made.exported._guards_code
    assert [str(n.meta["val"].shape) for n in again.graph.nodes if n.op == "placeholder"] == [
        str(n.meta["val"].shape) for n in made.exported.graph.nodes if n.op == "placeholder"
    ]
    if mode not in (Mode.OBLIVIOUS, Mode.UNBACKED):
        torch.export.export(model, inputs, dynamic_shapes=made.spec)


@pytest.mark.slow
def test_code_for_containers_runs_in_a_process_of_its_own(tmp_path):
    model, inputs = OfPair(), (Pair(seeded(2, 3), seeded(3, 4)), {"by": torch.ones(())})
    made = search(model, inputs).automatic()
    script = [
        "from shapes.small_models import OfPair, Pair, seeded",
        made.capture.spec_code,
        "made = export(OfPair(), (Pair(seeded(2, 3), seeded(3, 4)), {'by': torch.ones(())}))",
        "value = made.module()(Pair(seeded(5, 3), seeded(3, 7)), {'by': torch.ones(())})",
        "raise SystemExit(value.shape != (5, 7))",
    ]
    path = tmp_path / "pasted.py"
    path.write_text("\n".join(script))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=_environment(), check=False)
    assert done.returncode == 0, done.stderr


def _environment() -> dict[str, str]:
    import os
    from pathlib import Path

    here = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here.parent / 'src'}"}
