"""Large constants are up-cast into the memory of earlier ones, as long as nobody uses those."""

from __future__ import annotations

import pytest
import torch

from driftscope.lift import constant_cache
from driftscope.lift.constant_cache import Rooms, as_stored, marked


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
