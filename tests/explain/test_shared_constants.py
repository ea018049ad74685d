"""A constant that several steps read may be wrong in one of them alone."""

from __future__ import annotations

import copy
from pathlib import Path

import onnx
import onnx.parser
import pytest
import torch
from tests.zoo.tools import dynamo
from torch import nn

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.steps import use_of
from driftscope.lift.torch.tape import lift_torch

GRAPH = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[4, 8] x) => (float[4, 8] y) <float small = {0.00001}, int64[1] last = {1}>
{
  s = Mul(x, x)
  m = ReduceMean(s, last)
  a = Add(m, small)
  r = Sqrt(a)
  u = Div(x, r)
  h = Tanh(u)
  t = Mul(h, h)
  n = ReduceMean(t, last)
  b = Add(n, small)
  q = Sqrt(b)
  y = Div(h, q)
}
"""
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


def norms(first: float, second: float) -> object:
    def program(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x / torch.sqrt((x * x).mean(1, keepdim=True) + first))
        return h / torch.sqrt((h * h).mean(1, keepdim=True) + second)

    return program


def test_one_reader_of_a_shared_number() -> None:
    file = onnx.parser.parse_model(GRAPH)
    assert ds.compare(norms(1e-5, 1e-5), file, (X,)).verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)
    first = ds.compare(norms(1e-5, 1e-2), file, (X,)).first
    assert first is not None
    assert first.verified
    assert "its constant small is 1e-05, in A 0.01" in first.why
    assert "other steps read it too" in first.why
    assert "read 0.01 in place of small" in first.fix


def test_all_readers_of_a_shared_number() -> None:
    first = ds.compare(norms(1e-2, 1e-2), onnx.parser.parse_model(GRAPH), (X,)).first
    assert first is not None
    assert first.verified
    assert "small" in first.fix
    assert "other steps" not in first.why


class Words(nn.Module):
    """Words in, scores of words out, by one table or by two."""

    def __init__(self, tied: bool):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.middle, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.table.weight if tied else nn.Parameter(self.table.weight.detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(self.table(x))))


@pytest.mark.parametrize("untied", [False, True])
def test_a_table_that_is_tied_in_one_program_alone(untied: bool) -> None:
    x = (torch.arange(12).reshape(2, 6),)
    tied, apart = torch.export.export(Words(True).eval(), x), Words(False).eval()
    if not untied:
        assert ds.compare(apart, tied, x).verdict in (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)
        return
    with torch.no_grad():
        apart.head.weight[3] *= 1.1
    first = ds.compare(apart, tied, x).first
    assert first is not None
    assert first.verified
    assert "head.weight of A, multiplied by 0.909091 in index 3 of axis 0; other steps read it too" in first.why


def test_a_tape_replaces_what_one_step_reads() -> None:
    weight = torch.randn(3, 3, dtype=torch.float64)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x @ weight.T, x @ weight

    x = torch.randn(2, 3, dtype=torch.float64)
    tape = lift_torch(program, (x,), {})
    (constant,) = (c for c in tape.constants() if c.value.shape == weight.shape)
    assert len(constant.readers) == 2
    other = torch.randn(3, 3, dtype=torch.float64)
    for chosen in (0, 1):
        values = [o.value for o in tape.run(replace={use_of(constant.name, constant.readers[chosen]): other})]
        meant = [x @ (other if chosen == 0 else weight).T, x @ (other if chosen == 1 else weight)]
        assert all(torch.allclose(v, m, rtol=1e-12) for v, m in zip(values, meant, strict=True))
    with pytest.raises(CannotLift, match="no constant named"):
        tape.run(replace={use_of("nothing", constant.readers[0]): other})
    with pytest.raises(CannotLift, match="cannot be replaced alone"):
        tape.run(replace={use_of(constant.name, "nothing"): other})


def test_a_tape_replaces_what_one_step_reads_of_a_part() -> None:
    weight = torch.randn(4, 3, dtype=torch.float64)

    def program(x: torch.Tensor) -> torch.Tensor:
        return (x + weight.chunk(2)[0]) * weight.chunk(2)[1]

    x, other = torch.randn(2, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    tape = lift_torch(program, (x,), {})
    (constant,) = (c for c in tape.constants() if c.value.shape == weight.shape)
    meant = {"add": (x + other[:2]) * weight[2:], "mul": (x + weight[:2]) * other[2:]}
    for step, wanted in meant.items():
        (value,) = tape.run(replace={use_of(constant.name, step): other})
        assert torch.allclose(value.value, wanted, rtol=1e-12)


class Rotated(nn.Module):
    """A rotation by tables that are computed from one buffer."""

    def __init__(self, base: float):
        super().__init__()
        self.register_buffer("frequencies", base ** -(torch.arange(4) / 4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(x.shape[0]).to(x)[:, None] * self.frequencies
        one, other = x.chunk(2, -1)
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)


@pytest.mark.parametrize("backwards", [False, True])
def test_tables_of_one_buffer_are_one_finding(tmp_path: Path, backwards: bool) -> None:
    x = (torch.randn(6, 8, generator=torch.Generator().manual_seed(1)),)
    file = dynamo(Rotated(100.0).eval(), x, tmp_path)
    broken = Rotated(50.0).eval()
    pair = (file, broken) if backwards else (broken, file)
    compared = ds.compare(*pair, x)
    assert compared.verdict == ds.Verdict.DIFFERENT
    assert sum(not f.note for f in compared.findings) == 1
    assert compared.first is not None
    assert compared.first.verified
    assert "frequencies" in compared.first.what


def test_exchanged_weights_among_many_of_one_shape(tmp_path: Path) -> None:
    torch.manual_seed(2)
    layers = [layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.Tanh())]
    model = nn.Sequential(*layers).eval()
    x = (torch.randn(2, 3, 16, generator=torch.Generator().manual_seed(1)),)
    file, broken = dynamo(model, x, tmp_path), copy.deepcopy(model)
    with torch.no_grad():
        broken[2].weight.copy_(model[8].weight)
        broken[8].weight.copy_(model[2].weight)
    first = ds.compare(file, broken, x).first
    assert first is not None
    assert first.code == "W010"
    assert first.verified


def normed(*small: float) -> object:
    def program(x: torch.Tensor) -> torch.Tensor:
        for term in small:
            mean = (x * x).mean(1, keepdim=True)
            x = torch.tanh(x * 1.5 / torch.sqrt(mean + term if term else mean))
        return x

    return program


@pytest.mark.parametrize("backwards", [False, True])
def test_a_small_term_that_one_side_leaves_out(backwards: bool) -> None:
    with_it, without = normed(3e-6, 3e-6), normed(0.0, 0.0)
    compared = ds.compare(*((without, with_it) if backwards else (with_it, without)), (X,))
    assert compared.verdict == ds.Verdict.DIFFERENT
    (found,) = (f for f in compared.findings if not f.note)
    assert found.verified
    sides = ("B adds", "A does not") if backwards else ("A adds", "B does not")
    assert all(words in found.why for words in sides)
    assert "3e-06" in found.why


@pytest.mark.parametrize(("other", "told"), [((1e-3, 3e-6), "0.001"), ((1e-12, 1e-12), "1e-12")])
def test_a_term_that_is_another_one_is_not_left_out(other: tuple[float, float], told: str) -> None:
    for pair in ((normed(3e-6, 3e-6), normed(*other)), (normed(*other), normed(3e-6, 3e-6))):
        compared = ds.compare(*pair, (X,))
        assert compared.first is not None
        assert not any("does not" in f.why for f in compared.findings)
        assert told in compared.first.why


def test_tables_of_two_buffers_are_not_of_the_one_they_share(tmp_path: Path) -> None:
    class Tables(nn.Module):
        def __init__(self, change: float):
            super().__init__()
            self.register_buffer("shared", torch.linspace(0.1, 1.0, 8))
            self.register_buffer("one", torch.linspace(1.0, 2.0, 8) + change)
            self.register_buffer("two", torch.linspace(2.0, 3.0, 8) - change)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x * (self.shared * self.one).cos()) * (self.shared * self.two).sin()

    file, broken = dynamo(Tables(0.0).eval(), (X,), tmp_path), Tables(0.1).eval()
    for pair in ((file, broken), (broken, file)):
        found = ds.compare(*pair, (X,)).findings
        assert not any("computes them all from" in f.what for f in found)
        assert any(f.verified for f in found)
