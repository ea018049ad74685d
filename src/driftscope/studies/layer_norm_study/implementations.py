"""Ways to compute a layer normalisation, and the exact one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from driftscope.errors import InputError
from driftscope.numerics.seeds import seed_of

EPSILON = 1e-5


def exact(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Normalise in float64, two passes; the mean is taken off twice, so that its own rounding is gone.

    Returns
    -------
    torch.Tensor of float64, shape of ``x``
    """
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    centred -= centred.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + EPSILON)
    return centred * scale * weight.double() + bias.double()


def _two_pass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, (x - mean).square().mean(-1, keepdim=True)


def _one_pass(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean = x.mean(-1, keepdim=True)
    return mean, x.square().mean(-1, keepdim=True) - mean.square()


def _welford(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    columns = x.movedim(-1, 0).contiguous()
    mean = torch.zeros_like(columns[0])
    squares, delta, step = (torch.zeros_like(mean) for _ in range(3))
    for count, term in enumerate(columns.unbind(), start=1):
        torch.sub(term, mean, out=delta)
        mean += torch.div(delta, count, out=step)
        squares += torch.sub(term, mean, out=step).mul_(delta)
    return mean[..., None], (squares / len(columns))[..., None]


def _in_double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = _two_pass(x.double())
    return mean.to(x.dtype), variance.to(x.dtype)


#: implementation -> mean and variance of a row, in the format the row is given in.
MOMENTS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "two pass": _two_pass,
    "one pass": _one_pass,
    "Welford": _welford,
    "float64 accumulation": _in_double,
}


def normalise(
    name: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalise rows the way of an implementation: in float32 for 16-bit formats, rounded once at the end.

    Returns
    -------
    y : torch.Tensor
        In the dtype and shape of ``x``.
    variance : torch.Tensor
        Of each row as it was computed.
    """
    wide = x.float() if x.dtype.itemsize == 2 else x
    mean, variance = MOMENTS[name](wide)
    y = (wide - mean) * torch.rsqrt(variance + EPSILON) * weight.to(wide.dtype) + bias.to(wide.dtype)
    return y.to(x.dtype), variance


def rows_of(data: str, rows: int, last_dim: int, seed: int) -> torch.Tensor:
    """Draw the rows of a data set.

    Returns
    -------
    torch.Tensor of float32, shape ``(rows, last_dim)``
        ``"normal"``; ``"large mean"``: 1000 standard deviations away from zero; ``"tiny variance"``: deviations of
        1e-4 around 1, where epsilon matters; ``"outliers"``: one element in 128 is a hundred times larger.
    """
    generator = torch.Generator().manual_seed(seed_of("layer_norm", seed, "rows"))
    x = torch.randn((rows, last_dim), generator=generator)
    if data == "normal":
        return x
    if data == "large mean":
        return 1000.0 + x
    if data == "tiny variance":
        return 1.0 + 1e-4 * x
    if data == "outliers":
        x[:, ::128] *= 100.0
        return x
    raise InputError(f"there is no data set {data!r}; there are {', '.join(DATA)}")


DATA = ("normal", "large mean", "tiny variance", "outliers")
