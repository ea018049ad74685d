"""Run in a process of its own: compares programs on the processor and on a second device, and prints what was found."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import driftscope as ds
from devices import second_device

generator = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


class Block(nn.Module):
    """Normalisation, products, a convolution, and numbers that are made on whichever device the input is on."""

    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(16, eps), nn.Linear(16, 16)
        self.filter, self.batch = nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4)
        for tensor in self.parameters():
            nn.init.normal_(tensor, generator=generator)
        self.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.mix(self.norm(x))
        y = torch.softmax(y @ y.mT / 16, -1) @ x
        places = torch.arange(16, device=x.device) * torch.full((16,), 0.1, device=x.device)
        return nn.functional.gelu(self.batch(self.filter(y))) + places


class Reductions(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(-1), x.logsumexp(-1), x.argmax(-1), x.cumsum(-1)


class Scattered(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.zeros(9, 4, device=x.device).index_add(0, at, x)


BLOCK, X = Block(), {"x": numbers(2, 4, 16)}
OTHER_EPSILON, OTHER_WEIGHT = copy.deepcopy(BLOCK), copy.deepcopy(BLOCK)
OTHER_EPSILON.norm.eps = 1e-3
OTHER_WEIGHT.mix.weight[2, 5] *= 1.01
MOVED, EXPORT = copy.deepcopy(BLOCK).to(second_device.NAME), torch.export.export(BLOCK, (X["x"],))
FILE = torch.onnx.export(BLOCK, (X["x"],), dynamo=True, verbose=False).model_proto
ROWS = {"x": numbers(16, 300)}
POINTS = {"x": numbers(400, 4), "at": torch.randint(0, 9, (400,), generator=generator)}


def there(module: nn.Module, **more: Any) -> Any:
    return ds.torch(module, device=second_device.NAME, **more)


def in_tf32(ask: Callable[[], Any]) -> Any:
    second_device.TF32 = True
    try:
        return ask()
    finally:
        second_device.TF32 = False


PAIRS: dict[str, Callable[[], Any]] = {
    "the same": lambda: ds.compare(BLOCK, there(BLOCK), X),
    "the same, swapped": lambda: ds.compare(there(BLOCK), BLOCK, X),
    "both there": lambda: ds.compare(there(BLOCK), there(BLOCK), X),
    "epsilon": lambda: ds.compare(BLOCK, there(OTHER_EPSILON), X),
    "epsilon, swapped": lambda: ds.compare(there(BLOCK), OTHER_EPSILON, X),
    "weight": lambda: ds.compare(BLOCK, there(OTHER_WEIGHT), X),
    "half": lambda: ds.compare(BLOCK, there(BLOCK, dtype=torch.float16), X),
    "TF32": lambda: in_tf32(lambda: ds.compare(BLOCK, there(BLOCK), X)),
    "TF32, swapped": lambda: in_tf32(lambda: ds.compare(there(BLOCK), BLOCK, X)),
    "module there": lambda: ds.compare(BLOCK, MOVED, X),
    "file": lambda: ds.compare(FILE, MOVED, X),
    "file, swapped, inputs there": lambda: ds.compare(MOVED, FILE, {"x": X["x"].to(second_device.NAME)}),
    "export": lambda: ds.compare(EXPORT, MOVED, X),
    "export, epsilon": lambda: ds.compare(EXPORT, there(OTHER_EPSILON), X),
    "reductions": lambda: ds.compare(Reductions(), there(Reductions()), ROWS),
    "scattered": lambda: ds.compare(Scattered(), there(Scattered()), POINTS),
}


def main() -> None:
    """Print, by pair, the verdict and the findings."""
    found = {}
    for name, ask in PAIRS.items():
        comparison = ask()
        told = [[f.code, f.what, str(f.where.node), str(f.why)] for f in comparison.findings]
        found[name] = {"verdict": comparison.verdict.value, "reason": comparison.reason, "findings": told}
    found["invariance"] = str(ds.check_invariance(MOVED, X))
    found["shapes"] = str(ds.check_shapes(MOVED, (X["x"].to(second_device.NAME),)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
