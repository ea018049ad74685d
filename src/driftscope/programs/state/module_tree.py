"""The modules inside a module and their tensors, as torch lists them.

Torch nests one generator for each level, and goes through all of them anew for parameters and for buffers; a comparison
asks a dozen times. What a module lists otherwise than torch does is left to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


def modules_in(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a module and all modules in it with their paths, each once: as ``named_modules``."""
    if type(module).named_modules is not nn.Module.named_modules:
        return list(module.named_modules())
    found: dict[nn.Module, str] = {}
    waiting: list[tuple[str, nn.Module]] = [("", module)]
    while waiting:
        path, current = waiting.pop()
        if current in found:
            continue
        found[current] = path
        if current._modules:
            before = f"{path}." if path else ""
            waiting += [(before + name, m) for name, m in current._modules.items() if m is not None][::-1]
    return [(path, current) for current, path in found.items()]


def members_of(modules: Iterable[tuple[str, nn.Module]], table: str) -> list[tuple[str, torch.Tensor]]:
    """Return what modules hold in a table, ``"_parameters"`` or ``"_buffers"``, each tensor with its first name."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for path, module in modules:
        for name, tensor in getattr(module, table).items():
            if tensor is not None and id(tensor) not in found:
                found[id(tensor)] = f"{path}.{name}" if path else name, tensor
    return list(found.values())


def tensors_in(module: nn.Module, *, buffers: bool = True) -> list[torch.Tensor]:
    """Return the parameters and then the buffers of a module, each once."""
    own: Any = type(module)
    if own.named_parameters is not nn.Module.named_parameters or own.named_buffers is not nn.Module.named_buffers:
        return [*module.parameters(), *(module.buffers() if buffers else ())]
    modules, tables = modules_in(module), ("_parameters", "_buffers") if buffers else ("_parameters",)
    return [tensor for table in tables for _, tensor in members_of(modules, table)]
