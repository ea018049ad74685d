"""Twins: two programs that are alike but for a narrower format in which one of them computes, visibly or not.

Visible: the cast is in the program. Hidden: a kernel does it, as a device with TF32 or a fused kernel would; the kernel
is registered with torch under an operator's own name for as long as the hidden side runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import driftscope as ds
from benchmarks.verdicts.sweep import Case, seeded

Round = Callable[[torch.Tensor], torch.Tensor]


def _rounding(name: str) -> Round:
    dtype = getattr(torch, name)
    return lambda x: x.to(dtype).to(torch.float32)


def _tf32(x: torch.Tensor) -> torch.Tensor:
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


class Twin(nn.Module):
    """A small network whose rounding of factors, results, weights and sums can be exchanged.

    Parameters
    ----------
    body : str
        One of :data:`BODIES`.
    factors, results, sums : callable or None
        What is done to factors, to results and to running sums.
    weights : str
        Format in which the weights are stored, empty for float32.
    """

    def __init__(
        self, body: str, factors: Round | None = None, results: Round | None = None, sums: Round | None = None,
        weights: str = "",
    ):  # fmt: skip
        super().__init__()
        g = seeded(3)
        self.body, self.factors, self.results, self.sums = body, factors, results, sums
        stored = getattr(torch, weights) if weights else torch.float32
        self.w1 = nn.Parameter((0.2 * torch.randn(48, 32, generator=g)).to(stored))
        self.w2 = nn.Parameter((0.2 * torch.randn(32, 48, generator=g)).to(stored))

    def product(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """A matrix product in this twin's way."""
        if self.factors is not None:
            x, y = self.factors(x), self.factors(y)
        if self.sums is None:
            return self.done(x @ y)
        total = x[..., :, 0:1] * y[..., 0:1, :]
        for k in range(1, x.shape[-1]):
            total = self.sums(total + x[..., :, k : k + 1] * y[..., k : k + 1, :])
        return self.done(total)

    def done(self, x: torch.Tensor) -> torch.Tensor:
        """A result in this twin's way."""
        return x if self.results is None else self.results(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = self.w1.float(), self.w2.float()
        if self.body == "mlp":
            return self.product(self.done(functional.gelu(self.product(x, one.T))), two.T)
        if self.body == "attention":
            q, k = self.product(x, one.T), self.product(x, one.T.flip(1))
            return self.product(self.done(torch.softmax(self.product(q, k.T) * 0.1, -1)), x)
        if self.body == "softmax":
            return self.product(self.done(torch.softmax(x, -1)), one.T)
        if self.body == "gated":
            gate, value = self.product(x, one.T).chunk(2, -1)
            return self.done(functional.silu(gate) * value)
        if self.body == "recurrent":
            return self.recurrent(x, one, two)
        return self.product(self.done(functional.layer_norm(x, (32,))), one.T)

    def recurrent(self, x: torch.Tensor, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        """A gated recurrence over the rows of the input."""
        state, seen = torch.zeros(4, 48), []
        for step in x.split(4):
            given = self.product(step, one.T) + self.product(self.product(state, two.T), one.T)
            state = self.done(torch.sigmoid(given) * state + torch.tanh(given))
            seen.append(state)
        return torch.cat(seen)


BODIES = ("mlp", "attention", "norm", "softmax", "gated", "recurrent")
_FORMATS = {"float16": _rounding("float16"), "bfloat16": _rounding("bfloat16"), "tf32": _tf32}


def _cases(twins: Callable[[str], tuple[Any, Any]]) -> Iterator[Case]:
    """A plain program and a cheaper one, both ways round, for every body and two inputs."""
    for body in BODIES:
        for seed in (0, 1):
            x = torch.randn(24, 32, generator=seeded(seed))
            for side in "AB":
                plain, cheap = twins(body)
                a, b = (cheap, plain) if side == "A" else (plain, cheap)
                yield Case(
                    f"{body}-{seed}-{side}", partial(ds.compare, a, b, (x,), isolate=False), f"cheaper in {side}"
                )


def _visible(**how: Any) -> Callable[[str], tuple[Any, Any]]:
    return lambda body: (Twin(body), Twin(body, **how))


class _Hidden(torch.utils._python_dispatch.TorchDispatchMode):
    """Products as a device would compute them that rounds their factors; nothing of it is in the program."""

    def __init__(self, change: Round):
        super().__init__()
        self.change = change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default):
            args = tuple(self.change(v) if v.dtype is torch.float32 else v for v in args)
        return func(*args, **(kwargs or {}))


def _hidden(change: Round) -> Callable[[str], tuple[Any, Any]]:
    """A recorded result stands for a device: its program is the plain one, its bits are not."""

    def twins(body: str) -> tuple[Any, Any]:
        return Twin(body), HiddenProgram(Twin(body), change)

    return twins


class HiddenProgram(nn.Module):
    """A module whose products are computed cheaper than it says, where nobody looks on."""

    def __init__(self, inner: nn.Module, change: Round):
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not torch.float32 or torch.utils._python_dispatch._len_torch_dispatch_stack():
            return self.inner(x)
        with _Hidden(self.change):
            return self.inner(x)


TWINS: dict[str, Callable[[], Iterator[Case]]] = {
    **{f"operands-{n}": partial(_cases, _visible(factors=r)) for n, r in _FORMATS.items()},
    **{f"storage-{n}": partial(_cases, _visible(results=r)) for n, r in _FORMATS.items() if n != "tf32"},
    **{f"sums-{n}": partial(_cases, _visible(sums=r)) for n, r in _FORMATS.items() if n != "tf32"},
    **{f"weights-{n}": partial(_cases, _visible(weights=n)) for n in ("float16", "bfloat16")},
    **{f"hidden-{n}": partial(_cases, _hidden(r)) for n, r in _FORMATS.items()},
}


def named_side(row: dict[str, Any]) -> str:
    """The side that an answer calls cheaper: ``"A"``, ``"B"``, ``"both"`` or ``""``."""
    said = f"{row['reason']} {row['first']}" if row["verdict"] == "PRECISION" else ""
    sides = set(re.findall(r"\bin ([AB])\b", said))
    return "both" if len(sides) > 1 else next(iter(sides), "")
