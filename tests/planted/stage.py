"""What an honest variant is, and what it is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from onnx import ModelProto
from torch import Tensor, nn

from .architectures import ARCHITECTURES
from .exports import Exports, export

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Stage:
    """One architecture in one dtype, for an honest variant to work on."""

    name: str
    dtype: str
    exports: Exports
    folder: Path

    @property
    def native(self) -> torch.dtype:
        made: torch.dtype = getattr(torch, self.dtype)
        return made

    def module(self) -> nn.Module:
        return ARCHITECTURES[self.name].module(self.native)

    def example(self) -> tuple[Tensor, ...]:
        return ARCHITECTURES[self.name].example(self.native)

    def model(self, **options: Any) -> ModelProto:
        """Return a fresh copy of the clean export; options go to the exporter, ``opset`` among them."""
        return self.exports.model(self.name, self.dtype, **options)

    def export(self, module: nn.Module, **options: Any) -> ModelProto:
        return export(module, self.example(), **options)


@dataclass(frozen=True)
class Honest:
    """A change of how a program runs that leaves the program alone.

    ``make`` returns the two programs to compare. ``slow`` keeps it out of the default run.
    """

    id: str
    architecture: str
    make: Callable[[Stage], Pair]
    dtypes: tuple[str, ...] = ("float32", "float16")
    slow: bool = False
