"""The devices torch computes on, by name: which this machine has, and what they are called."""

from __future__ import annotations

import torch

from driftscope.errors import RuntimeRefused

#: Kinds of device beside the processor. What is said of one is asked of ``torch.<kind>``.
ACCELERATORS = ("cuda", "xpu", "mps")
DEVICES = ("cpu", *ACCELERATORS)


def present(names: tuple[str, ...] = DEVICES) -> tuple[str, ...]:
    """Return those of the devices that this machine has and this build of torch can use."""
    return tuple(name for name in names if name == "cpu" or _available(name))


def accelerator() -> str | None:
    """Return the accelerator of this machine; None where there is none."""
    return next(iter(present(ACCELERATORS)), None)


def device_of(name: str) -> torch.device:
    """Return a device that is there.

    Raises
    ------
    RuntimeRefused
        If this machine has no such device, or this build of torch cannot use it.
    """
    if name != "cpu" and not _available(name):
        words = {"cuda": "CUDA", "xpu": "XPU", "mps": "MPS"}[name]
        built = {"cuda": torch.version.cuda is not None, "xpu": _in_build("xpu"), "mps": torch.backends.mps.is_built()}
        reason = f"torch sees no {words} device" if built[name] else f"this build of torch has no {words}"
        raise RuntimeRefused("torch", "run", reason)
    return torch.device(name)


def device_words(device: str | torch.device) -> str:
    """Return the name that a device's maker gave it, as ``"NVIDIA H100"``; the device itself where none is known."""
    placed = torch.device(device)
    name = getattr(getattr(torch, placed.type, None), "get_device_name", None)
    return str(name(placed)) if name is not None and _available(placed.type) else str(device)


def _available(name: str) -> bool:
    kind = torch.backends.mps if name == "mps" else getattr(torch, name, None)
    return kind is not None and bool(kind.is_available())


def _in_build(name: str) -> bool:
    kind = getattr(torch, name, None)
    compiled = getattr(kind, "_is_compiled", None)
    return bool(compiled()) if compiled is not None else kind is not None
