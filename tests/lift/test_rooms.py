"""Large constants are up-cast into the memory of earlier ones, as long as nobody uses those."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from float64_truth import lift
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from driftscope.lift import constant_cache
from driftscope.lift.constant_cache import Rooms, as_stored, marked
from driftscope.lift.onnx.graph import lift_onnx


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(constant_cache, "_FROM_SYSTEM", 64)


def lifted(rooms: Rooms, data: torch.Tensor) -> torch.Tensor:
    found = rooms.up_cast(data, torch.float64)
    assert found is not None
    assert torch.equal(found, data.to(torch.float64))
    assert found.stride() == data.to(torch.float64).stride()
    return found


def test_the_next_constant_takes_the_place_of_the_last():
    rooms = Rooms()
    first = lifted(rooms, torch.randn(8, 4))
    place = first.data_ptr()
    del first
    assert lifted(rooms, torch.randn(4, 6).t()).data_ptr() == place


@pytest.mark.parametrize("use", [lambda x: x, lambda x: x[1:], lambda x: x.t().reshape(4, 8), lambda x: x.numpy()])
def test_what_is_in_use_keeps_its_numbers(use):
    rooms, data = Rooms(), torch.randn(8, 4)
    held = use(lifted(rooms, data))
    expected = use(data.to(torch.float64))
    for _ in range(4):
        lifted(rooms, torch.randn(8, 4))
    assert (held == expected).all()


@pytest.mark.parametrize("change", [
    lambda x: x.requires_grad_(), lambda x: x[:, :1].expand(8, 4), lambda x: x[:, ::2], lambda x: x[:1, :2].clone(),
    torch.nn.Parameter, lambda x: x.to("meta"),
])  # fmt: skip
def test_what_is_small_or_unusual_has_memory_of_its_own(change):
    assert Rooms().up_cast(change(torch.randn(8, 4)), torch.float64) is None


def test_the_end_of_a_run_gives_the_memory_back():
    rooms = Rooms()
    lifted(rooms, torch.randn(8, 4))
    rooms.clear()
    assert not rooms._rooms


@pytest.mark.parametrize("shape", [(300, 500), (7,), (), (0, 3), (4, 3, 5, 5)])
@pytest.mark.parametrize("fmt", [torch.float32, torch.bfloat16, torch.float64])
def test_a_tensor_that_is_up_cast_is_told_from_those_that_are_stored(shape, fmt):
    stored, other = torch.randn(shape).to(fmt), torch.randn(shape).to(fmt)
    wide = stored.to(torch.float64)
    assert as_stored(wide, marked([other, stored])).data_ptr() == stored.data_ptr()
    if stored.numel():
        changed = wide.clone()
        changed.reshape(-1)[-1] += 1.0
        assert as_stored(changed, marked([other, stored])) is changed
    if len(shape) == 2:
        turned = as_stored(wide.T, marked([other, stored]))
        assert (turned.data_ptr(), turned.shape) == (stored.data_ptr(), wide.T.shape)


def products(count):
    """A chain of products with weights of one shape, as a file stores it."""
    weights = np.random.default_rng(0).standard_normal((count, 8, 8)).astype(np.float32)
    nodes = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x0", f"x{count}")]
    stored = [numpy_helper.from_array(weight, f"w{k}") for k, weight in enumerate(weights)]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("program", ["tape", "graph"])
@pytest.mark.parametrize(("held", "places"), [(0, [1, 1]), (1 << 20, [1, 6])])
def test_weights_take_turns_in_a_run_that_keeps_none(program, held, places, monkeypatch):
    """The first run, which may be the only one, keeps none; the second where there is no room for them."""
    monkeypatch.setattr(constant_cache, "HELD_BYTES", held)
    monkeypatch.setattr(constant_cache, "WHOLE_BYTES", held)
    x = torch.randn(2, 8)
    linear = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(6)))
    lifted = lift_onnx(products(6), {"x0": x}) if program == "graph" else lift(linear, x)
    seen = []
    for _ in places:
        used = []
        lifted.run(observe=lambda step, used=used: used.append(step.inputs[1].data_ptr()))
        assert len(used) == 6
        seen.append(len(set(used)))
    assert seen == places
