"""Everything a function reaches is found, put back in place, and read so that a change is seen."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.diagnose.traces_left import drifts
from driftscope.transforms.world.process_state import process_kept, reseed
from driftscope.transforms.world.running import run_once
from driftscope.transforms.world.snapshot import Escaped, World, same_bits

KEPT: list = []
COUNT = 0


class Holder:
    shared = 0

    def __init__(self):
        self.values = [1]
        self.n = 0


class Slotted:
    __slots__ = ("n",)

    def __init__(self):
        self.n = 0


def changes(function, *arguments):
    """Return the paths that one call changes, after making sure that all of them are put back."""
    world = World(function, arguments)
    start = world.fingerprint()
    function(*arguments)
    found = [drift.path for drift in drifts(start, world.fingerprint())]
    world.rewind()
    assert drifts(start, world.fingerprint()) == []
    return found


def reaching():
    holder, slotted, box, line = Holder(), Slotted(), {"a": 1}, deque([1])
    tensor, array, numbers = torch.ones(2), np.ones(2), iter([1, 2, 3])
    counter = itertools.count()
    net = nn.BatchNorm1d(2)
    drawn, seeded, torched = np.random.default_rng(0), random.Random(0), torch.Generator()
    cached = functools.lru_cache(lambda n: n)
    n = 0

    def binds():
        nonlocal n
        n += 1

    def binds_a_global():
        global COUNT
        COUNT += 1

    def appends():
        KEPT.append(1)

    def sets_attribute():
        holder.n = 5

    def reaches_deep():
        holder.values.append(2)

    def sets_slot():
        slotted.n = 5

    def sets_on_class():
        Holder.shared += 1

    def sets_item():
        box["b"] = 2

    def pops_left():
        line.popleft()

    def writes_tensor():
        tensor.mul_(3)

    def resizes_tensor():
        tensor.resize_(5).zero_()

    def writes_array():
        array[0] = 7

    def advances():
        next(numbers)

    def exhausts():
        list(numbers)

    def counts():
        next(counter)

    def trains():
        net(torch.randn(4, 2))

    def switches():
        net.eval()

    def draws_numpy():
        drawn.normal()

    def draws_python():
        seeded.random()

    def draws_torch():
        torch.rand(1, generator=torched)

    def fills_cache():
        cached(3)

    def marks_itself():
        marks_itself.called = True

    return {
        name: function for name, function in locals().items() if callable(function) and "<locals>" in repr(function)
    }


CHANGING = sorted(name for name in reaching() if name not in ("cached",))


@pytest.mark.parametrize("name", CHANGING)
def test_a_change_is_seen_and_put_back(name):
    assert changes(reaching()[name]) != []


def test_what_is_put_back_is_the_same_object():
    kept, tensor = [1, 2], torch.ones(2)
    alias = kept

    def f():
        kept.clear()
        tensor.fill_(9)

    world = World(f)
    f()
    world.rewind()
    assert alias == [1, 2]
    assert alias is kept
    assert tensor.tolist() == [1.0, 1.0]


def test_a_leaf_that_entered_a_graph_is_a_leaf_again():
    buffer = torch.zeros(2)

    def f(x):
        buffer.add_(x)

    world = World(f)
    f(torch.ones(2, requires_grad=True))
    assert buffer.grad_fn is not None
    world.rewind()
    assert buffer.grad_fn is None
    assert not buffer.requires_grad


def test_reading_changes_nothing():
    state = {"n": 1, "t": torch.ones(2)}

    def f():
        return state["t"] * state["n"]

    assert changes(f) == []


def test_a_tensor_that_escaped_is_recognised():
    kept = []

    def f(x):
        kept.append(x * 2)
        return x

    world = World(f)
    torch.vmap(f)(torch.ones(3, 2))
    assert any(isinstance(value, Escaped) for value in world.fingerprint().values())
    world.rewind()
    assert kept == []


def test_code_of_libraries_is_left_alone():
    def f(x):
        return torch.nn.functional.relu(x)

    names = [function.__module__ for function in World(f).functions]
    assert names == [__name__]


def test_running_generators_are_opaque_and_other_iterators_are_not():
    running, plain = (i for i in range(3)), iter([1])

    def f():
        return next(running), next(plain)

    assert World(f).opaque == ("running",)


VALUES = st.recursive(
    st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.lists(VALUES, min_size=1, max_size=4), st.lists(VALUES, max_size=4))
def test_rewinding_undoes_any_replacement(before, after):
    state = list(before)
    told = repr(state)

    def f():
        state[:] = after

    world = World(f)
    f()
    world.rewind()
    assert repr(state) == told


@settings(max_examples=60)
@given(st.lists(st.floats(width=32), max_size=6))
def test_same_bits_knows_nan_and_signed_zero(values):
    tensor = torch.tensor(values, dtype=torch.float32)
    assert same_bits(tensor, tensor.clone())
    if tensor.numel() and not bool(torch.isnan(tensor[0])):
        other = tensor.clone()
        other[0] = -other[0]
        assert not same_bits(tensor, other)


def test_many_runs_leave_nothing_queued_for_devices_that_are_not_there():
    if internals.accelerated():
        pytest.skip("the generators of the device are seeded as well")
    torch.manual_seed(0)
    before = len(torch.cuda._queued_calls), torch.rand(1)
    reseed(3)
    drawn = torch.rand(1), np.random.rand(), random.random()
    reseed(3)
    assert (torch.rand(1), np.random.rand(), random.random()) == drawn
    torch.manual_seed(0)
    reseed(0)
    assert torch.rand(1) == before[1]
    assert len(torch.cuda._queued_calls) <= before[0] + 1


def test_a_run_is_seeded_whatever_was_drawn_before_and_the_process_is_as_it_was():
    world = World(torch.rand)
    state = torch.get_rng_state()
    with process_kept():
        first = run_once(world, [lambda: torch.rand(2), lambda: os.environ.update(DRIFTSCOPE_X="1")])
        torch.rand(5)
        second = run_once(world, [lambda: torch.rand(2), lambda: os.environ.get("DRIFTSCOPE_X")])
    assert torch.equal(first.value[0], second.value[0])
    assert first.moved == second.moved == {"torch"}
    assert second.value[1] is None
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_that_draws_nothing_moves_nothing():
    assert run_once(World(torch.sin), [lambda: torch.zeros(2).sin()]).moved == frozenset()
