"""One call tells relations, the spec to write, and which shapes are kept; bad input is one clear finding."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import driftscope as ds
from driftscope.errors import InputError
from driftscope.records.kinds.shape_report import ShapeRecord
from shapes.small_models import (
    ByValue,
    CenterAlways,
    CenterUnlessAlone,
    Folded,
    Gated,
    Halved,
    PadToFive,
    PoolAndAdd,
    pool_inputs,
    seeded,
)


def check(model, inputs, **more):
    """Without ONNX, which takes most of the time and has tests of its own."""
    return ds.check_shapes(model, inputs, targets=(), **more)


def codes(report) -> list[str]:
    return [finding.code for finding in report.findings]


@pytest.mark.slow
def test_the_sum_of_two_sizes():
    n, p, q, r = (Dim(name) for name in ("n", "p", "q", "r"))
    spec = {"left": {0: p, 1: n}, "right": {0: q, 1: n}, "long": {0: r, 1: n}}
    report = check(PoolAndAdd(), pool_inputs(), dynamic=spec)
    assert "long.shape[0] in {2*left.shape[0] + 2*right.shape[0] - 1, 2*left.shape[0] + 2*right.shape[0]}" in str(
        report.relations
    )
    refused = next(f for f in report.findings if f.code == "S001")
    assert "long.shape[0] not in 1..2" in refused.why
    assert refused.where.file.endswith("small_models.py")
    assert refused.verified
    assert "S003" in codes(report)
    torch.export.export(PoolAndAdd(), pool_inputs(), dynamic_shapes=report.spec)


def test_the_best_way_is_the_one_that_keeps_most():
    report = check(PadToFive(), (seeded(2, 12),))
    ranked = [c.right for c in report.record.candidates if c.accepted]
    assert ranked[0] == max(ranked)
    assert report.record.mode == report.record.candidates[0].mode
    assert len({c.mode for c in report.record.candidates}) > 2
    assert ranked[0] > ranked[-1], "names and AUTO lose every length up to 5 of this model"


def test_an_operator_that_no_trace_can_run_is_named_with_its_line():
    def covaries(x):
        return torch.cov(x.T) + 1  # asks torch whether two tensors are equal

    (refused,) = [f for f in check(covaries, (seeded(4, 3),)).findings if f.code == "S005"]
    assert "aten.equal" in refused.what
    assert "follows from values of tensors" in refused.why
    assert refused.where.file == __file__
    assert refused.where.line == covaries.__code__.co_firstlineno + 1


def test_no_other_way_is_tried_where_only_equalities_are_in_the_way():
    report = check(lambda x, mask: x * mask, (seeded(4, 3), seeded(4, 3)))
    assert report.lost, "a mask of one row is broadcast, and lost by every way of tracing"
    assert {c.mode for c in report.record.candidates} == {"named Dim", "Dim.AUTO"}


def test_a_silently_wrong_way_is_not_chosen_over_one_that_refuses():
    report = check(CenterUnlessAlone(), (seeded(4, 3),))
    assert any(c.wrong for c in report.record.candidates)
    assert not next(c for c in report.record.candidates if c.chosen).wrong
    assert report.wrong == ()


def test_its_neighbour_without_the_branch_is_kept_whole():
    report = check(CenterAlways(), (seeded(4, 3),))
    assert not report.lost
    assert not report.wrong
    assert "S011" not in codes(report)
    assert "is right at all" in str(report)


def test_a_suggestion_that_freezes_is_said_and_one_that_keeps_the_sizes_is_followed():
    freezes = check(Halved(), (seeded(7, 2),), dynamic={"x": {0: Dim("rows")}})
    assert "rows = 7" in next(f for f in freezes.findings if f.code == "S002").what
    follows = check(Gated(), (seeded(2, 6), seeded(2, 6)), dynamic={"x": {0: Dim("rows")}, "gate": {0: Dim("gates")}})
    assert "S002" not in codes(follows)
    assert "torch suggested" in next(f for f in follows.findings if f.code == "S001").fix


def test_a_suggestion_that_loses_nothing_is_not_complained_about():
    report = check(Folded(), (seeded(2, 12),), dynamic={"x": {1: Dim("length")}})
    assert any("length = 3*_length" in f.evidence.get("words", "") for f in report.findings)
    assert "S002" not in codes(report)


def test_axes_that_the_spec_fixes_are_not_called_lost():
    report = check(CenterAlways(), (seeded(4, 3),), dynamic={"batch": {0: Dim("rows")}})
    assert {point.sizes[1] for point in report.record.points} == {3}
    assert not report.lost


def test_sets_of_inputs_keep_constant_axes_fixed():
    sets = [(seeded(n, 6), seeded(n, 6)) for n in (2, 5, 7)]
    report = check(Gated(), sets)
    assert report.record.free == (True, False, True, False)
    assert report.record.evidence["inferred"] == [
        "x.shape[0] == gate.shape[0]",
        "x.shape[1] == 6",
        "gate.shape[1] == 6",
    ]
    assert report.spec == {"x": {0: report.spec["x"][0]}, "gate": {0: report.spec["gate"][0]}}


def test_functions_are_checked_like_modules():
    report = check(lambda x: x * 2, (seeded(3),))
    assert report.program is not None
    assert not report.lost


def test_the_record_is_plain_and_comes_back():
    report = check(Gated(), (seeded(2, 6), seeded(2, 6)))
    again = ShapeRecord.from_dict(report.to_dict())
    assert again.relations == report.record.relations
    assert again.points == report.record.points
    assert [r.line is not None for r in again.relations if r.kind == "equal"] == [True]


# --- bad input ------------------------------------------------------------------------------------------------


def test_a_model_that_fails_on_its_own_example_is_one_finding():
    report = check(Gated(), (seeded(2, 5), seeded(2, 5)))
    assert codes(report) == ["S006"]
    assert "fails on its own example" in str(report)
    assert report.record.axes, "what can be known is still told"
    assert report.program is None


def test_inputs_that_do_not_bind_are_one_finding():
    report = check(Gated(), (seeded(2, 6),))
    assert codes(report) == ["S007"]
    assert "gate" in report.first.what
    with pytest.raises(InputError, match="no program"):
        report.status(seeded(2, 6))


def test_a_model_that_nothing_exports_is_one_finding_with_its_line():
    report = check(ByValue(), (seeded(3),))
    assert codes(report)[0] == "S005"
    assert "only known at run time" in report.first.why
    assert report.program is None
    assert report.spec_code == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the device is here")
def test_a_model_that_needs_a_gpu_is_one_finding():
    report = check(lambda x: x + torch.ones(3, device="cuda"), (seeded(3),))
    assert codes(report) == ["S010"]


def test_sizes_that_depend_on_values_are_said():
    report = check(lambda x: x[x > 0] * 2, (seeded(4, 3),))
    assert report.program is not None
    assert report.status(seeded(5, 2)) == "right"


@pytest.mark.parametrize(
    ("reader", "name"),
    [
        ("recorded_guards", "guards"),
        ("symbol_sources", "var_to_sources"),
        ("guard_texts", "_guards_code"),
        ("value_ranges", "var_to_range"),
    ],
)
@pytest.mark.sampled(1)
def test_a_private_name_that_moved_is_one_finding(monkeypatch, reader, name):
    from driftscope.shapes import private_torch

    def gone(*_):
        raise private_torch.Moved(f"ShapeEnv.{name} was read in torch 2.13 and is not found")

    monkeypatch.setattr(private_torch, reader, gone)
    report = check(Gated(), (seeded(2, 6), seeded(2, 6)))
    assert "S008" in codes(report)
    assert name in next(f for f in report.findings if f.code == "S008").what
    assert report.program is not None, "the program does not depend on what torch recorded about it"


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InputError, match="cannot be called"):
        check(3, (seeded(2),))


def test_asking_for_the_status_leaves_the_inputs_alone():
    def model(x):
        x.add_(1)
        return x[x > 0]

    report = check(model, (seeded(4, 3),))
    asked = seeded(5, 3)
    assert report.status(asked) == "right"
    assert torch.equal(asked, seeded(5, 3))
