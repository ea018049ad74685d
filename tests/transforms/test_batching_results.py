"""What users return and look up: dataclasses, None, numbers of numpy, positions that are not there, seeds."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import driftscope as ds
from driftscope.errors import InputError

X = torch.randn(13, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
#: Not among the examples that are tried first.
UNTRIED = 6


@dataclasses.dataclass
class Output:
    loss: torch.Tensor
    logits: torch.Tensor
    extra: Any = None


@dataclasses.dataclass(frozen=True)
class Checked:
    y: torch.Tensor

    def __post_init__(self):
        if self.y.dim() != 1:
            raise ValueError("one example")


def straight(x):
    return Output(x.sum(), x * 2, {"inner": Checked(x.sin())})


def branching(x):
    return Output(x.sum(), x * 2 if x.sum() > 0 else x, {"inner": Checked(x.sin())})


def item(x):
    return Output(x.sum(), x * x.sum().item(), {"inner": Checked(x.sin())})


@pytest.mark.parametrize("f", [straight, branching, item])
@pytest.mark.parametrize("size", [1, 13])
def test_a_dataclass_is_what_the_loop_puts_into_it(f, size):
    x = X[:size].clone().requires_grad_()
    got, rows = ds.vmap(f)(x), [f(row) for row in x]
    assert type(got) is Output
    assert type(got.extra["inner"]) is Checked
    for read in (lambda o: o.loss, lambda o: o.logits, lambda o: o.extra["inner"].y):
        expected = torch.stack([read(row) for row in rows])
        torch.testing.assert_close(read(got), expected)
        slopes = [torch.autograd.grad(out.sum(), x, retain_graph=True)[0] for out in (expected, read(got))]
        torch.testing.assert_close(*slopes)


def test_none_is_part_of_the_structure():
    value, nothing = ds.vmap(lambda x: (x * 2, None))(X)
    assert torch.equal(value, X * 2)
    assert nothing is None
    assert ds.vmap(lambda x: None)(X) is None
    assert ds.vmap(lambda x: Output(x.sum(), x))(X).extra is None
    with pytest.raises(InputError, match=r"other structures for different examples .*None"):
        ds.vmap(lambda x: (x, x if x.sum() > 0 else None))(X)


def test_numbers_of_numpy_are_numbers():
    for kind in (np.float64, np.float32, np.int32, np.bool_):
        got = ds.vmap(lambda x, kind=kind: kind(x.sum().item() > 0))(X)
        assert torch.equal(got, torch.as_tensor(np.array([kind(row.sum().item() > 0) for row in X])))


TABLES = torch.randn(13, 6, 3, generator=torch.Generator().manual_seed(1))
POSITIONS = torch.randint(0, 6, (13, 4), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize(
    "f",
    [
        lambda table, at: F.embedding(at, table),
        lambda table, at: torch.embedding(table, at),
        lambda table, at: F.embedding(at, table) * (2 if table.sum() > 0 else 3),
        lambda table, at: F.one_hot(at, 6) * table.sum(),
    ],
    ids=["embedding", "torch.embedding", "embedding and a way", "one_hot"],
)
@pytest.mark.parametrize("bad", [-1, 6])
def test_a_position_that_is_not_there_raises_as_in_the_loop(f, bad):
    mapped = ds.vmap(f)
    torch.testing.assert_close(mapped(TABLES, POSITIONS), torch.stack(list(map(f, TABLES, POSITIONS))))
    off = POSITIONS.clone()
    off[UNTRIED, 1] = bad
    with pytest.raises((IndexError, RuntimeError)) as loop:
        f(TABLES[UNTRIED], off[UNTRIED])
    with pytest.raises(loop.type):
        mapped(TABLES, off)


def test_rows_whose_positions_are_not_there_take_their_own_way():
    def f(table, at):
        try:
            return F.embedding(at, table)
        except IndexError:
            return table[:4] * 0

    off = POSITIONS.clone()
    off[UNTRIED] = 9
    mapped = ds.vmap(f)
    for at in (POSITIONS, off):
        torch.testing.assert_close(mapped(TABLES, at), torch.stack(list(map(f, TABLES, at))))


def test_the_slope_of_an_extreme_beside_nan_is_the_loops():
    x = X.clone()
    x[UNTRIED, 1] = torch.nan
    x.requires_grad_()
    mapped = ds.vmap(lambda v: v.max())
    mapped(X.clone().requires_grad_())
    slopes = [torch.autograd.grad(out.sum(), x)[0] for out in (mapped(x), torch.stack([v.max() for v in x]))]
    assert torch.equal(*slopes)


@pytest.mark.parametrize(
    "f", [F.hardtanh, torch.selu, torch.nn.Hardswish(), F.relu6, lambda x: x.logit(1e-3), lambda x: F.softshrink(x)]
)
@pytest.mark.parametrize("value", [float("nan"), 0.25])
def test_the_slope_of_an_activation_at_nan_is_the_loops(f, value):
    """Their kernels give NaN another derivative at the end of a tensor than before it."""
    x = X.sigmoid()
    x[UNTRIED, 1] = value
    x, again = x.requires_grad_(), x.clone().requires_grad_()
    mapped = ds.vmap(f)
    mapped(X.sigmoid().requires_grad_())
    (mine,) = torch.autograd.grad(mapped(x).sum(), x)
    (loop,) = torch.autograd.grad(torch.stack([f(row) for row in again]).sum(), again)
    torch.testing.assert_close(mine, loop, equal_nan=True)


def test_a_function_that_seeds_itself_draws_the_same_for_every_example():
    def seeded(x):
        torch.manual_seed(3)
        return x + torch.rand(4)

    def honest(x):
        return x + torch.rand(4)

    drawn = ds.vmap(seeded, randomness="different")(X) - X
    torch.testing.assert_close(drawn, drawn[:1].expand_as(drawn))
    drawn = ds.vmap(honest, randomness="different")(X) - X
    assert len({round(row[0].item(), 6) for row in drawn}) == len(X)


def test_an_empty_batch_of_sizes_is_refused_in_words():
    with pytest.raises(InputError, match="no examples"):
        ds.vmap(lambda x, n: x * torch.ones(4)[: int(n)].sum())(torch.empty(0, 4), torch.empty(0, dtype=torch.int64))
