"""Bugs planted in a torch module, for the formats onnxruntime's CPU kernels do not take (and for the others too)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

BreakIt = Callable[[nn.Module], str]


@dataclass(frozen=True)
class TorchBug:
    """A bug in a module: ``break_it`` edits a module in place and returns the guilty submodule's path."""

    id: str
    architecture: str
    break_it: BreakIt
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")


def _attribute(path: str, name: str, value: object) -> BreakIt:
    def break_it(module: nn.Module) -> str:
        setattr(module.get_submodule(path), name, value)
        return path

    return break_it


def _weight(path: str, edit: Callable[[torch.Tensor], torch.Tensor], name: str = "weight") -> BreakIt:
    def break_it(module: nn.Module) -> str:
        tensor = getattr(module.get_submodule(path), name)
        with torch.no_grad():
            tensor.copy_(edit(tensor.detach().clone()))
        return path

    return break_it


def _rotary_base(module: nn.Module) -> str:
    with torch.no_grad():
        module.frequency.copy_(module.frequency.float() ** (torch.tensor(20000.0).log() / torch.tensor(10000.0).log()))
    return ""


def _gates_exchanged(w: torch.Tensor) -> torch.Tensor:
    r, z, n = w.chunk(3)
    return torch.cat((z, r, n))


TORCH_BUGS = (
    TorchBug("layernorm-eps-x100", "encoder", _attribute("layers.1.norm1", "eps", 1e-3)),
    TorchBug("heads-halved", "encoder", _attribute("layers.0.attention", "heads", 2)),
    TorchBug("weight-transposed", "encoder", _weight("layers.0.attention.out", lambda w: w.T)),
    TorchBug("bias-dropped", "mlp", _weight("third", torch.zeros_like, "bias")),
    TorchBug("channel-x1.01", "mlp", _weight("second", lambda w: torch.cat((w[:1] * 1.01, w[1:])))),
    TorchBug("batchnorm-eps", "convnet", _attribute("bn2", "eps", 1e-5)),
    TorchBug("groups-halved", "groupnet", _attribute("norm1", "num_groups", 2)),
    TorchBug("rms-eps-x100", "decoder", _attribute("norm", "eps", 1e-4)),
    TorchBug("rotary-base", "decoder", _rotary_base),
    TorchBug("gru-gates-exchanged", "recurrent", _weight("gru", _gates_exchanged, "weight_ih_l0")),
    TorchBug("relative-buckets-exchanged", "relative", _weight("bias", lambda w: w[[0, 2, 1, *range(3, 8)]])),
)
