"""Every loss has its line, its consequence and a remedy that was tried; the honest neighbour has none."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import driftscope as ds
from driftscope.errors import InputError
from driftscope.shapes.findings.rewriting import rewrites
from driftscope.shapes.private_torch import transforms_left, unguarded
from driftscope.shapes.probe.runners import scratch_file
from shapes.small_models import (
    Buckets,
    CenterAlways,
    CenterUnlessAlone,
    DampLong,
    Gated,
    Halved,
    HalvedAsSize,
    OneAndAHalf,
    seeded,
)


class Shared(nn.Module):
    """The number of rows is read from one of two tensors that broadcast."""

    def forward(self, a, b):
        return (a - b).sum() / a.shape[0]


class Empty(nn.Module):
    """Nothing tells an empty input from others but the model's own question."""

    def forward(self, x):
        return x.new_ones(1) if x.numel() == 0 else x.sum(0)


def by_code(report, code):
    return [finding for finding in report.findings if finding.code == code]


def test_a_branch_on_a_length_is_lost_needed_and_named():
    report = ds.check_shapes(DampLong(), (seeded(2, 4),), targets=())
    (finding,) = by_code(report, "S024")
    assert finding.where.file.endswith("small_models.py")
    assert "if x.shape[1] > 5" in finding.where.expression
    assert "x.shape[1] <= 5" in finding.why
    assert "needed: without its checks it is wrong" in finding.why
    assert all(sizes["x.shape[1]"] > 5 for sizes in finding.evidence["shapes"])
    assert len(report.lost) == finding.evidence["count"]
    assert by_code(report, "S028"), "what drops the checks would be wrong"


def test_its_neighbour_without_the_branch_has_no_finding_of_probing():
    report = ds.check_shapes(CenterAlways(), (seeded(4, 3),), targets=())
    assert not [f for f in report.findings if f.code in ("S020", "S023", "S024", "S028")]
    assert "is right at all" in str(report)


@pytest.mark.slow
def test_a_broadcast_that_is_needless_and_one_that_is_needed():
    needless = ds.check_shapes(Gated(), (seeded(3, 6), seeded(3, 6)), targets=())
    assert by_code(needless, "S023")
    assert all("needless" in f.why and f.verified for f in by_code(needless, "S023"))
    needed = ds.check_shapes(Shared(), (seeded(4), seeded(4)), targets=())
    assert by_code(needed, "S024")
    assert not by_code(needed, "S023")


@pytest.mark.slow
def test_wrong_comes_before_lost_and_lost_before_notes():
    report = ds.check_shapes(CenterUnlessAlone(), (seeded(4, 3),), targets=("onnx",))
    order = [
        ("S020", "S021").index(f.code) if f.code in ("S020", "S021") else 3 if f.note else 2 for f in report.findings
    ]
    assert order == sorted(order)


@pytest.mark.slow
def test_onnx_is_wrong_where_the_checks_are_gone_and_the_guard_refuses_that():
    report = ds.check_shapes(CenterUnlessAlone(), (seeded(4, 3),), targets=("onnx",))
    (finding,) = by_code(report, "S021")
    assert {sizes["batch.shape[0]"] for sizes in finding.evidence["shapes"]} == {1}
    assert finding.evidence["consequences"]["export"] == {"lost": finding.evidence["count"]}
    guarded = report.guard()
    x = seeded(5, 3, seed=9)
    torch.testing.assert_close(guarded(x), CenterUnlessAlone()(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(guarded(batch=x), guarded(x))
    with pytest.raises(ds.DriftscopeError, match=r"batch.shape\[0\] != 1"):
        guarded(x[:1])
    assert not guarded.admits(x[:1])


@pytest.mark.slow
def test_the_onnx_file_of_its_neighbour_is_right_and_its_guard_lets_everything_pass(tmp_path):
    report = ds.check_shapes(CenterAlways(), (seeded(4, 3),), onnx=tmp_path / "center.onnx")
    assert report.onnx_path == tmp_path / "center.onnx"
    assert not by_code(report, "S021")
    assert report.guard(tmp_path / "center.onnx").admits(seeded(1, 3))


def test_a_guard_needs_a_file_that_was_probed(tmp_path):
    report = ds.check_shapes(CenterAlways(), (seeded(4, 3),), targets=())
    with pytest.raises(InputError, match="no ONNX file was probed"):
        report.guard(tmp_path / "other.onnx")
    with pytest.raises(InputError, match="no target 'tensorrt'"):
        ds.check_shapes(CenterAlways(), (seeded(4, 3),), targets=("tensorrt",))


@pytest.mark.parametrize(
    ("model", "old", "new"),
    [
        (Halved(), "int(x.shape[0] / 2)", "x.shape[0] // 2"),
        (Buckets(), "math.ceil(x.shape[0] / 4)", "(x.shape[0] + 4 - 1) // 4"),
    ],
)
def test_a_rewrite_computes_the_same_and_is_found(model, old, new):
    (rewrite,) = rewrites(model)
    assert (rewrite.old, rewrite.new) == (old, new)
    for rows in (0, 1, 4, 9):
        x = seeded(rows, 2)
        torch.testing.assert_close(rewrite.model(x), model(x), equal_nan=True)


def test_code_without_such_an_expression_has_no_rewrite():
    assert rewrites(CenterAlways()) == []
    assert rewrites(nn.Linear(2, 2)) == []


def test_status_tells_what_the_program_does_without_running_it():
    model = DampLong()
    report = ds.check_shapes(model, (seeded(2, 4),), targets=())
    program = report.program.module()
    for rows, columns in [(2, 5), (17, 3), (1, 1), (2, 6), (3, 41), (0, 4), (23, 23)]:
        x = seeded(rows, columns)
        try:
            expected = "right" if torch.equal(program(x), model(x)) else "wrong"
        except Exception:
            expected = "lost"
        assert report.status(x) == expected, (rows, columns)


@pytest.mark.slow
def test_status_says_invalid_where_the_model_refuses():
    report = ds.check_shapes(Gated(), (seeded(3, 6), seeded(3, 6)), targets=())
    assert report.status(seeded(31, 6), seeded(31, 6)) == "right"
    assert report.status(seeded(31, 6), seeded(30, 6)) == "invalid"
    assert report.status(seeded(31, 7), seeded(31, 7)) == "invalid"
    assert report.status(seeded(31, 6), seeded(1, 6)) == "lost"


@pytest.mark.slow
def test_a_size_that_only_values_betray():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Embedding(8, 4)

        def forward(self, x):
            return x + self.rows(torch.arange(x.shape[1]))

    report = ds.check_shapes(Table(), (seeded(2, 5, 4),), targets=())
    assert report.status(seeded(11, 8, 4)) == "right"
    assert report.status(seeded(11, 9, 4)) == "invalid"


@pytest.mark.slow
def test_what_nothing_recorded_explains_is_found_all_the_same():
    report = ds.check_shapes(Empty(), (seeded(3, 2),), targets=("onnx",))
    wrong = by_code(report, "S021") + by_code(report, "S020")
    lost = by_code(report, "S024") + by_code(report, "S023")
    assert wrong or lost
    assert any(0 in sizes.values() for f in wrong + lost for sizes in f.evidence["shapes"])


@pytest.mark.slow
def test_what_a_plain_export_to_onnx_would_get_wrong_is_noted_and_the_chosen_one_gets_right():
    report = ds.check_shapes(Halved(), (seeded(7, 2),), targets=("onnx",))
    notes = by_code(report, "S032")
    assert notes
    assert all(note.note for note in notes)
    assert report.record.count("onnx", "wrong") == 0
    assert report.record.count("onnx of Dim.AUTO", "wrong") == sum(note.evidence["count"] for note in notes)
    assert not by_code(ds.check_shapes(HalvedAsSize(), (seeded(7, 2),), targets=("onnx",)), "S032")


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.slow
def test_a_runtime_that_aborts_is_a_finding_and_the_check_goes_on():
    """onnxruntime 1.31 aborts its process on an LSTM with batch 0."""
    report = ds.check_shapes(Recurrent(), (seeded(2, 5, 4),), targets=("onnx",))
    crashes = [point for point in report.record.points if point.outcomes.get("onnx") == "crash"]
    (finding,) = by_code(report, "S026")
    assert finding.evidence["count"] == len(crashes)
    assert all(point.sizes[0] == 0 for point in crashes)
    assert report.record.count("onnx", "right") > 2, "batches that are not empty were run after the crash"
    assert not report.guard().admits(seeded(0, 5, 4))


class Unrolled(nn.Module):
    """Rows that are stacked one after another, as users write them before they know of ``vmap``."""

    def forward(self, x):
        return torch.stack([row.softmax(0) * 2 for row in x])


class UnrolledByIndex(nn.Module):
    def forward(self, x):
        return torch.stack([x[i].sin() for i in range(x.shape[0])], dim=1)


class Numbered(nn.Module):
    """The number of a row is part of its result, and a condition leaves rows out."""

    def forward(self, x):
        return torch.stack([x[i] * i for i in range(x.shape[0])]) + torch.stack([r for r in x if r.dim() == 1])


@pytest.mark.parametrize("model", [Unrolled(), UnrolledByIndex()])
def test_rows_that_are_stacked_in_a_loop_are_mapped_instead(model):
    (rewrite,) = rewrites(model)
    assert rewrite.old.startswith("torch.stack([")
    assert rewrite.new.startswith("torch.vmap(lambda row:")
    for rows in (1, 3, 7):
        x = torch.randn(rows, 4)
        assert torch.allclose(rewrite.model(x), model(x))


class AddedUp(nn.Module):
    def forward(self, x):
        total = torch.zeros(x.shape[0])
        for t in range(x.shape[1]):
            total = total + x[:, t].softmax(-1)[:, 0]
        return total


class AddedRows(nn.Module):
    def forward(self, x):
        total = 0
        for row in x:
            total += row.sin()
        return total


class NeedsItsLastStep(nn.Module):
    """What it has so far goes into the next step: no sum."""

    def forward(self, x):
        state = torch.zeros(x.shape[2])
        for row in x[0]:
            state = state + (row * state).tanh()
        for row in x[0]:
            state = state * 0.5 + row
        return state


@pytest.mark.parametrize("model", [AddedUp(), AddedRows()])
def test_rows_that_are_added_up_in_a_loop_are_summed_instead(model):
    (rewrite,) = rewrites(model)
    assert rewrite.old.startswith("for ")
    assert rewrite.new.startswith("total = total + torch.vmap(lambda row:")
    for rows in (1, 3, 7):
        x = torch.randn(rows, rows + 2, 4)
        assert torch.allclose(rewrite.model(x), model(x), atol=1e-6)


def test_an_exported_program_that_fails_inside_vmap_leaves_it():
    class Mapped(nn.Module):
        def forward(self, x):
            return torch.vmap(lambda row: row @ torch.ones(4))(x)

    made = torch.export.export(Mapped(), (torch.randn(3, 4),), dynamic_shapes=({0: Dim.AUTO, 1: Dim.AUTO},))
    program = unguarded(made)
    with transforms_left(), pytest.raises(RuntimeError):
        program(torch.randn(3, 5))
    assert torch.randn(2, 2).shape == (2, 2), "still inside vmap"
    assert program(torch.randn(5, 4)).shape == (5,)


@pytest.mark.slow
def test_the_sum_that_keeps_the_number_of_steps_is_tried_and_recommended():
    report = ds.check_shapes(AddedUp(), (torch.randn(3, 5, 4),), targets=())
    lost = [finding for finding in report.findings if finding.code in ("S023", "S024")]
    assert any("torch.vmap(lambda row: row.softmax(-1)[:, 0])(x.movedim(1, 0)).sum(0)" in f.fix for f in lost), lost


@pytest.mark.sweep
def test_a_cover_keeps_the_number_of_steps_of_a_sum():
    covered = ds.cover(AddedUp(), (torch.randn(3, 5, 4),))
    x = torch.randn(2, 9, 6)
    assert torch.allclose(covered(x), AddedUp()(x), atol=1e-6)


@pytest.mark.parametrize("model", [Numbered(), NeedsItsLastStep()])
def test_a_loop_that_needs_its_number_its_rows_or_its_last_step_stays(model):
    assert rewrites(model) == []


@pytest.mark.slow
def test_a_cover_keeps_the_number_of_rows_of_a_loop():
    covered = ds.cover(Unrolled(), (torch.randn(3, 4),))
    assert len(covered.members) == 1
    x = torch.randn(7, 5)
    assert torch.equal(covered(x), Unrolled()(x))


class CountedGrid(nn.Module):
    """Two sizes are fixed, each on its own line, and a third by an axis that only one channel broadcasts along."""

    def forward(self, x):
        ys = torch.linspace(-1, 1, x.shape[2])
        xs = torch.linspace(0, 1, steps=x.shape[3])
        return torch.stack(torch.meshgrid(ys, xs, indexing="ij"))[None] + x


@pytest.mark.slow
def test_each_of_two_lines_that_fix_a_size_is_rewritten_though_shapes_break_other_conditions_as_well():
    report = ds.check_shapes(CountedGrid(), (torch.randn(2, 2, 4, 5),), targets=())
    fixes = {f.where.line: f for f in report.findings if "torch.linspace" in f.fix}
    first = CountedGrid.forward.__code__.co_firstlineno
    assert sorted(fixes) == [first + 1, first + 2]
    assert all("torch.arange" in f.fix and f.verified for f in fixes.values())


@pytest.mark.slow
def test_a_file_that_took_the_place_of_another_is_the_one_that_is_asked(tmp_path):
    """The worker kept a session by its path: the second model was held against the file of the first."""
    image, path = seeded(1, 1, 6, 4), tmp_path / "enlarged.onnx"
    nearest = ds.check_shapes(OneAndAHalf("nearest"), (image,), onnx=path)
    kept = path.read_bytes()
    bilinear = ds.check_shapes(OneAndAHalf("bilinear"), (image,), onnx=path)
    for report in (nearest, bilinear):
        assert not by_code(report, "S021"), report
    # The first model is not what is there now; once its own file is back, it is.
    with pytest.raises(ds.DriftscopeError, match="wrong at some inputs"):
        nearest.guard()
    shutil.copy(path, tmp_path / "given.onnx")
    with pytest.raises(ds.DriftscopeError, match=r"given\.onnx is wrong at some inputs"):
        nearest.guard(tmp_path / "given.onnx")
    assert bilinear.guard(tmp_path / "given.onnx").admits(image)
    (tmp_path / "given.onnx").write_bytes(kept)
    assert nearest.guard(tmp_path / "given.onnx").admits(image)


def test_files_of_the_check_s_own_have_names_that_no_earlier_one_had():
    assert len({scratch_file(".onnx") for _ in range(64)}) == 64
    first = ds.check_shapes(CenterAlways(), (seeded(4, 3),), targets=("onnx",)).onnx_path
    second = ds.check_shapes(CenterAlways(), (seeded(4, 3),), targets=("onnx",)).onnx_path
    assert first != second
    assert first.is_file()
    assert second.is_file()


class Learnt(nn.Module):
    """Positions looked up in a table, by counting or by a slice of it."""

    def __init__(self, rows, counted):
        super().__init__()
        self.counted = counted
        self.table = nn.Embedding(rows, 4)

    def forward(self, x):
        places = self.table(torch.arange(x.shape[1])) if self.counted else self.table.weight[: x.shape[1]]
        return x + places


@pytest.mark.parametrize("rows", [12, 32])
@pytest.mark.parametrize("counted", [False, True])
def test_a_table_of_positions_ends_where_it_ends(rows, counted):
    report = ds.check_shapes(Learnt(rows, counted).eval(), (torch.randn(2, 8, 4),), targets=())
    assert report.status(torch.randn(2, rows, 4)) == "right"
    for more in (rows + 1, 500):
        assert report.status(torch.randn(2, more, 4)) == "invalid"


class PooledToThree(nn.Module):
    """The exporter writes the window of the example's size into the file."""

    def forward(self, x):
        x = x * 2
        return F.adaptive_avg_pool1d(x, 3)


def test_what_the_exporter_to_onnx_assumed_is_told_at_the_models_line_and_not_at_its_callers():
    findings = ds.check_shapes(PooledToThree(), (seeded(2, 3, 6),), targets=("onnx",)).findings
    assert "S021" in [finding.code for finding in findings]
    placed = {finding.where.expression for finding in findings if finding.where.file}
    assert placed == {"return F.adaptive_avg_pool1d(x, 3)"}
