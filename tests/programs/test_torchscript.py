"""TorchScript files run in a worker, are lifted from their exported graph, and reach no file of the machine."""

from __future__ import annotations

import os
import zipfile
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

import driftscope as ds
from driftscope.programs.runtimes.torchscript import process

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Outputs(NamedTuple):
    logits: Tensor
    hidden: Tensor


class Net(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16, eps=eps), nn.Linear(16, 4)

    def forward(self, x: Tensor, times: int = 1):
        hidden = torch.relu(self.norm(self.first(x)))
        for _ in range(times):
            hidden = torch.tanh(hidden)
        return Outputs(self.last(hidden), hidden)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor):
        self.calls += 1
        return x * self.calls


class Looping(nn.Module):
    def forward(self, x: Tensor):
        while bool(x.abs().sum() < 100.0):
            x = x * 2.0 + x.sin()
        return x


class Writing(nn.Module):
    def forward(self, x: Tensor):
        torch.save(x, "written.bin")
        return x


class Mapping(nn.Module):
    def forward(self, x: Tensor):
        return x + torch.from_file("mapped.bin", True, 4)


class Restored(nn.Module):
    def __init__(self):
        super().__init__()
        self.add = 1

    @torch.jit.export
    def __getstate__(self):
        return self.add, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]):
        self.add, self.training = state[0], state[1]

    def forward(self, x: Tensor):
        return x + self.add


class Raising(nn.Module):
    """Its code calls ``ops.prim.RaiseException``, which is allowed."""

    def forward(self, x: Tensor):
        if x.dim() > 3:
            raise ValueError("x has too many dimensions")
        return torch.add(x, 1)


class Asserting(nn.Module):
    def forward(self, x: Tensor):
        assert x.dim() == 3, "x must have rank 3"
        return x


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """Save a module as TorchScript; from then on this process must not load one itself."""

    def refuse(*_, **__):
        raise AssertionError("torch.jit.load was called in the process of the user")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.jit, "load", refuse)

    def save(module: nn.Module):
        path = tmp_path / "model.pt"
        torch.jit.script(module).save(str(path))
        return path

    return save


def net(eps: float = 1e-5) -> Net:
    torch.manual_seed(0)
    return Net(eps).eval()


@pytest.mark.slow
def test_the_same_module_has_the_same_bits_and_names(saved):
    c = ds.compare(net(), saved(net()), {"x": torch.randn(3, 8), "times": 2})
    assert c.verdict == "IDENTICAL"
    assert [o.path for o in c.outputs] == ["out.logits", "out.hidden"]


@pytest.mark.slow
def test_another_epsilon_is_placed_in_the_graph_of_the_file(saved):
    c = ds.compare(net(), saved(net(1e-3)), [torch.randn(3, 8)])
    assert c.verdict == "DIFFERENT"
    assert c.first.where.module == "norm"
    assert "epsilon" in c.first.why
    assert c.first.fix.startswith("Set epsilon")


def test_buffers_are_as_they_were_before_each_run(saved):
    program = ds.program(saved(Counting()))
    assert [program([torch.ones(1)]).item() for _ in range(2)] == [1.0, 1.0]
    assert ds.compare(Counting(), program, [torch.ones(2)]).verdict == "IDENTICAL"


def test_what_cannot_be_lifted_is_judged_by_its_floor(saved):
    x = torch.randn(4)
    assert ds.compare(Looping(), saved(Looping()), [x]).verdict == "IDENTICAL"
    c = ds.compare(Looping(), saved(nn.Tanh()), [x])
    assert c.verdict == "DIFFERENT"


@pytest.mark.parametrize("module", [Writing(), Mapping(), Restored()], ids=lambda m: type(m).__name__)
def test_what_reaches_files_or_runs_while_it_is_loaded_is_refused(saved, tmp_path, module):
    path = saved(module)
    with pytest.raises(ds.ProgramError, match=r"TorchScript program .* if you trust it, give file\.py:name"):
        ds.program(path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("call", ["ops.prim.PythonOp", "ops . prim.PythonOp", "(ops # a comment\n.prim.PythonOp)"])
def test_an_operation_that_crashes_the_compiler_is_refused_before_it_is_compiled(saved, call):
    path = saved(Raising())
    assert ds.program(path)([torch.ones(2)]).tolist() == [2.0, 2.0]
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data.replace(b"torch.add", call.encode()))
    with pytest.raises(ds.ProgramError, match="a TorchScript program with a call of prim::PythonOp; if you trust it"):
        ds.program(path)


def test_a_program_that_raises_is_told_in_its_own_words(saved):
    with pytest.raises(ds.RuntimeRefused, match="x must have rank 3"):
        ds.program(saved(Asserting()))([torch.ones(2)])


def test_inputs_are_fitted_by_the_names_in_the_file(saved):
    program = ds.program(saved(net()))
    assert torch.equal(program({"x": torch.ones(1, 8)}).logits, net()(torch.ones(1, 8)).logits)
    with pytest.raises(ds.InputError, match=r"takes \(x, times=1\)"):
        program({"y": torch.ones(1, 8)})


def test_a_pickled_module_is_not_torchscript(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "m.pt")
    with pytest.raises(ds.ProgramError, match="holds pickled Python objects, which are not loaded"):
        ds.program(tmp_path / "m.pt")


def _edited(path, change):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, change(name.partition("/")[2], data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name, data: b"" if name == "data/0" else data, "storage '0' declares .* holds 0 bytes"),
        (lambda name, data: data[:-4] if name == "data/1" else data, "storage '1' declares"),
        # The first tensor's offset, a small integer after its storage, becomes 120 elements.
        (
            lambda name, data: data.replace(b"K\x00(K", b"Kx(K") if name == "data.pkl" else data,
            "reads beyond its storage",
        ),
        (lambda name, data: data[:-9] if name == "data.pkl" else data, "its data.pkl is damaged"),
    ],
    ids=["empty", "short", "view", "pickle"],
)
def test_tensors_beyond_the_bytes_of_the_file_are_refused_before_torch_reads_them(saved, change, words):
    path = saved(net())
    _edited(path, lambda name, data: data)
    assert ds.program(path)([torch.ones(1, 8)]).logits.shape == (1, 4)
    _edited(path, change)
    with pytest.raises(ds.ProgramError, match=words):
        ds.program(path)


def test_a_cut_file_is_called_cut(saved):
    path = saved(net())
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ds.ProgramError, match="zip archive that is cut or damaged"):
        ds.program(path)


class Gelu(torch.nn.Module):
    """Its operator has had several versions, for which torch writes the archive's own version into another member."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x)


def test_an_archive_that_keeps_its_version_in_a_folder_is_loaded(tmp_path):
    path = tmp_path / "gelu.pt"
    torch.jit.script(Gelu()).save(str(path))
    x = torch.linspace(-2, 2, 12).reshape(3, 4)
    assert ds.compare(Gelu(), str(path), x).verdict == "IDENTICAL"


@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_is_replaced_or_deleted_stays_the_one_that_was_read(saved, gone):
    path, x = saved(net()), torch.randn(3, 8)
    program = ds.program(path)
    digest = program.describe()["sha256"]
    path.unlink()
    if not gone:
        saved(net(0.5))
    assert ds.compare(net(), program, (x,)).verdict is ds.Verdict.IDENTICAL
    assert program.describe()["sha256"] == digest
    # A worker that is started anew has to read it again, and another file is not it.
    process._POOLS.pop(os.getpid()).stop()
    with pytest.raises(ds.ProgramError, match="deleted or written anew since it was read"):
        ds.compare(net(), program, (x,))
