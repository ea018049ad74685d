"""A cover is right wherever the model is and refuses the rest; on disk it needs nothing of the model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.errors import InputError, ProgramError, RecordError
from driftscope.shapes.covering.dispatching import NotCovered
from driftscope.shapes.covering.search import CoverEffort
from shapes.small_models import CenterAlways, CenterUnlessAlone, DampLong, Gated, Looped, OfPair, Pair, seeded


class Product(nn.Module):
    def forward(self, a, b):
        return a * b


class PerRow(nn.Module):
    def forward(self, a, b):
        return (a * b).sum() / a.shape[0]


class Nested(nn.Module):
    def forward(self, d, more):
        return {"sum": d["left"] + more[0], "rows": more[0].shape[0]}


SIZES = [(a, b) for a in range(8) for b in range(8) if a == b or 1 in (a, b)]


@pytest.mark.parametrize("model", [Product(), PerRow()])
def test_every_way_of_broadcasting_two_axes_is_kept(model):
    """The configurations of x*y: (1, 1), (1, p), (q, 1) and (p, p)."""
    cover = ds.cover(model, (seeded(3), seeded(3)))
    for m, n in SIZES:
        a, b = seeded(m), seeded(n, seed=1)
        torch.testing.assert_close(cover(a, b), model(a, b), equal_nan=True)
    with pytest.raises(Exception, match=r"no program here|shape"):
        cover(seeded(2), seeded(3))


@pytest.mark.slow
def test_two_sides_of_a_branch_are_two_programs():
    cover = ds.cover(DampLong(), (seeded(2, 4),))
    assert len(cover.members) == 2
    for columns in (1, 5, 6, 30):
        x = seeded(2, columns)
        assert torch.equal(cover(x), DampLong()(x))
    assert "no drift on" in str(cover)
    assert "not proved" in str(cover)


def test_a_model_without_a_branch_is_one_program():
    cover = ds.cover(CenterAlways(), (seeded(4, 3),))
    assert len(cover.members) == 1
    assert cover.covered == cover.probed


@pytest.mark.slow
def test_what_needs_a_program_for_every_size_is_covered_in_part_and_never_wrong():
    cover = ds.cover(Looped(), (seeded(3, 2),), effort=CoverEffort(programs=3))
    assert cover.covered < cover.probed
    for rows in range(1, 40, 6):
        x = seeded(rows, 2)
        if cover.choose(x) is None:
            with pytest.raises(ds.DriftscopeError, match="known to be right"):
                cover(x)
        else:
            torch.testing.assert_close(cover(x), Looped()(x))


@pytest.mark.slow
def test_a_cover_loads_without_the_source_of_the_model(tmp_path):
    model = CenterUnlessAlone()
    cover = ds.cover(model, (seeded(4, 3),))
    folder = cover.save(tmp_path / "kept")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["schema"] == "driftscope/cover/1"
    assert [program["file"] for program in manifest["programs"]] == ["program_0.pt2", "program_1.pt2"]
    torch.save([seeded(1, 3), seeded(6, 3)], tmp_path / "x.pt")
    torch.save([model(seeded(1, 3)), model(seeded(6, 3))], tmp_path / "y.pt")
    script = (
        "import sys, torch, driftscope as ds\n"
        "cover = ds.CoveredProgram.load(sys.argv[1] + '/kept')\n"
        "xs, ys = torch.load(sys.argv[1] + '/x.pt'), torch.load(sys.argv[1] + '/y.pt')\n"
        "for x, y in zip(xs, ys):\n    torch.testing.assert_close(cover(x), y)\n"
        "assert 'small_models' not in ' '.join(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Nested(), ({"left": seeded(2, 3)}, [seeded(2, 3)])),
        (OfPair(), (Pair(seeded(2, 3), seeded(3, 4)), {"by": seeded(1)})),
    ],
)
@pytest.mark.sampled(1)
def test_nested_inputs_and_outputs_survive_the_disk(tmp_path, model, inputs):
    ds.cover(model, inputs).save(tmp_path / "kept")
    loaded = ds.CoveredProgram.load(tmp_path / "kept")
    torch.testing.assert_close(loaded(*inputs), model(*inputs))


def test_a_number_that_is_part_of_the_program_must_be_that_number():
    def scaled(x, by: float):
        return x * by

    cover = ds.cover(scaled, (seeded(3), 2.0))
    assert torch.equal(cover(seeded(5), 2.0), seeded(5) * 2.0)
    with pytest.raises(ds.DriftscopeError, match=r"by is 3.0, and 2.0 is part of the program"):
        cover(seeded(5), 3.0)


def test_arguments_of_another_kind_are_refused():
    cover = ds.cover(CenterAlways(), (seeded(4, 3),))
    for args in [(seeded(4),), (seeded(4, 3).double(),), (), (seeded(4, 3), seeded(4, 3))]:
        with pytest.raises(ds.DriftscopeError, match="example"):
            cover(*args)


@pytest.mark.slow
def test_a_cover_of_onnx_files_keeps_the_branch(tmp_path):
    model = CenterUnlessAlone()
    cover = ds.cover(model, (seeded(4, 3),), target="onnx")
    cover.save(tmp_path / "kept")
    loaded = ds.CoveredProgram.load(tmp_path / "kept")
    for rows in (1, 2, 9):
        x = seeded(rows, 3)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(ProgramError, match="fails on its own example"):
        ds.cover(Gated(), (seeded(3, 5), seeded(3, 5)))
    with pytest.raises(InputError, match="do not fit"):
        ds.cover(Gated(), (seeded(3, 6),))
    with pytest.raises(InputError, match="target='tflite'"):
        ds.cover(CenterAlways(), (seeded(3, 6),), target="tflite")
    with pytest.raises(RecordError, match="holds no cover"):
        ds.CoveredProgram.load(tmp_path)
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(InputError, match="holds other files"):
        ds.cover(CenterAlways(), (seeded(3, 6),)).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_damaged_manifest_is_refused(tmp_path):
    folder = ds.cover(CenterAlways(), (seeded(3, 6),)).save(tmp_path / "kept")
    data = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(data | {"programs": [{"file": "program_0.pt2"}]}))
    with pytest.raises(RecordError, match="damaged"):
        ds.CoveredProgram.load(folder)


def test_outputs_in_containers_and_sizes_among_them_come_back(tmp_path):
    class Wrapped(nn.Module):
        def forward(self, x):
            return {"part": x * 2}, x.shape[0]

    ds.cover(Wrapped(), (seeded(3),)).save(tmp_path / "kept")
    doubled, rows = ds.CoveredProgram.load(tmp_path / "kept")(seeded(7))
    assert torch.equal(doubled["part"], seeded(7) * 2)
    assert rows == 7


class PositionTable(nn.Module):
    """A table that is taken as it is where it fits; ``off`` is what it is off there."""

    def __init__(self, off: float):
        super().__init__()
        self.table = nn.Parameter(torch.arange(16.0))
        self.off = off

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[0] // 4, x.shape[1] // 4
        if height * width == 16 and height == width:
            return x.sum() + self.table.sum() + self.off
        return x.sum() + self.table.sum() + 0.0 * height * width


@pytest.mark.parametrize("off", [0.0, pytest.param(5.0, marks=pytest.mark.slow)])
def test_a_coincidence_of_two_sizes_is_tried_before_it_is_refused(off):
    model = PositionTable(off)
    covered = ds.cover(model, (torch.randn(24, 20),), effort=CoverEffort(seconds=1))
    for sizes in ((16, 16), (18, 17), (8, 32), (20, 12), (9, 9)):
        x = torch.randn(sizes)
        refused = False
        try:
            answer = covered(x)
        except NotCovered:
            refused = True
        if not refused:
            assert torch.allclose(answer, model(x), atol=1e-3), sizes
        assert refused <= (off != 0.0), sizes
