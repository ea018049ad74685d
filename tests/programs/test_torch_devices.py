"""Devices by name: what this machine has, and what is said of those it lacks."""

from __future__ import annotations

import types

import pytest
import torch

from driftscope.errors import RuntimeRefused
from driftscope.programs import torch_devices


@pytest.fixture
def only(monkeypatch):
    """Leave this machine one kind of accelerator, or none."""

    def leave(kind: str | None) -> None:
        for name in ("cuda", "xpu"):
            monkeypatch.setattr(getattr(torch, name), "is_available", lambda name=name: name == kind)
        monkeypatch.setattr(torch.backends, "mps", types.SimpleNamespace(
            is_available=lambda: kind == "mps", is_built=lambda: False))  # fmt: skip

    return leave


@pytest.mark.parametrize("kind", torch_devices.ACCELERATORS)
def test_the_one_that_is_there_is_found(only, kind):
    only(kind)
    assert torch_devices.present() == ("cpu", kind)
    assert torch_devices.accelerator() == kind
    assert torch_devices.device_of(kind) == torch.device(kind)


@pytest.mark.parametrize("kind", torch_devices.ACCELERATORS)
def test_one_that_is_not_is_refused_by_its_name(only, kind):
    only(None)
    assert torch_devices.accelerator() is None
    with pytest.raises(RuntimeRefused, match=kind.upper()):
        torch_devices.device_of(kind)


def test_the_processor_is_always_there_and_has_no_maker_s_name(only):
    only(None)
    assert torch_devices.present() == ("cpu",)
    assert torch_devices.device_words(torch_devices.device_of("cpu")) == "cpu"
