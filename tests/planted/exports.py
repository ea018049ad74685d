"""Export each architecture once: kept in pytest's cache, under a name that changes whenever the result could."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import Tensor, nn

from .architectures import ARCHITECTURES

OPSET = 20
_SOURCE = Path(__file__).with_name("architectures.py").read_bytes()
_VERSIONS = [version(name) for name in ("torch", "onnx", "onnxscript")]
# Seeded weights differ by an ulp from one instruction set to another: torch draws normal numbers with its own kernels.
_STAMP = hashlib.blake2b(
    _SOURCE + ",".join([*_VERSIONS, torch.backends.cpu.get_cpu_capability()]).encode(), digest_size=8
).hexdigest()


def export(module: nn.Module, example: tuple[Tensor, ...], opset: int = OPSET, **options: Any) -> onnx.ModelProto:
    """Export with the dynamo exporter, quietly."""
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    program = torch.onnx.export(module, example, dynamo=True, opset_version=opset, verbose=False, **options)
    if program is None:
        raise RuntimeError("torch.onnx.export returned no program")
    return program.model_proto


@dataclass
class Exports:
    """The clean exports, made when first asked for. ``folder`` outlives the test session."""

    folder: Path
    _made: dict[tuple[Any, ...], bytes] = field(default_factory=dict)

    def model(self, name: str, dtype: str, opset: int = OPSET, **options: Any) -> onnx.ModelProto:
        """Return a fresh copy of the clean export; the caller may break it."""
        key = (name, dtype, opset, *sorted(options.items()))
        if key not in self._made:
            words = "-".join(str(k) for k in key).replace("'", "").replace(" ", "")
            file = self.folder / f"{words}-{_STAMP}.onnx"
            if not file.exists():
                architecture, native = ARCHITECTURES[name], getattr(torch, dtype)
                made = export(architecture.module(native), architecture.example(native), opset, **options)
                part = file.with_suffix(f".{id(self)}.part")
                part.write_bytes(made.SerializeToString())
                part.replace(file)
            self._made[key] = file.read_bytes()
        return onnx.ModelProto.FromString(self._made[key])
