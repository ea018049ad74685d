"""The devices a study runs on, by name."""

from __future__ import annotations

import torch

from driftscope.errors import RuntimeRefused

DEVICES = ("cpu", "cuda")


def device_of(name: str) -> torch.device:
    """Return a device that is there.

    Raises
    ------
    RuntimeRefused
        If this machine has no such device, in torch's own words.
    """
    if name == "cuda" and not torch.cuda.is_available():
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
        raise RuntimeRefused("torch", "run", reason)
    return torch.device(name)


def present(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of the devices that this machine has."""
    return tuple(name for name in names if name == "cpu" or torch.cuda.is_available())
