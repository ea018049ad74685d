"""Least squares with as many unknowns as a program has weights, on torch's own derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

# Share of a gap that may be left, and what float64 leaves of one; steps that have to close it by so much, or it stays.
_CLOSED, _LEAST, _EVERY, _SLOWEST = 1e-4, 1e-8, 30, 0.7
# Share of a gap that is left where steps are only slow; unknowns that are solved for at once then, or always, and
# equations more.
_CLOSING, _FEW, _VERY_FEW, _MORE = 0.05, 512, 128, 32
# Samples of a gradient for each row and column of a tensor, and rows or columns that are not told apart any more.
_SAMPLES, _WIDEST, _PROBES, _TURNS = 16, 1024, 128, 3
# Numbers of all samples together.
_HELD = 30_000_000
# Random sums by which it is seen how much each unknown counts.
_SUMS = 6
# Eigenvalues below this share of the largest are taken for it.
_DAMPING = 1e-8


def least_change(
    gap: torch.Tensor, at: Sequence[torch.Tensor], steps: int, nothing: float
) -> tuple[list[torch.Tensor] | None, int]:
    """Find a small change of tensors that closes a gap.

    Parameters
    ----------
    gap : Tensor, shape (n,), float64
        Differentiable, twice, in ``at``.
    at : sequence of Tensor, float64
    steps : int
        Of conjugate gradients, at most.
    nothing : float
        Size (root mean square) of a gap that is none.

    Returns
    -------
    (list of Tensor or None, int)
        What is to be added to ``at``, None where the gap stays open; and how often all of the gap was differentiated.

    Notes
    -----
    By conjugate gradients (CGLS: A. Bjorck, Numerical Methods for Least Squares Problems, SIAM 1996, section 7.4).
    Features of a network are correlated, which makes these slow; the covariance of gradients along rows and columns of
    each weight undoes that (V. Gupta, T. Koren, Y. Singer, Shampoo, ICML 2018). A few unknowns, and where steps are
    slow some more, are solved for at once, from as many random sums of the equations and some more: these give what all
    of them give if there is an answer (P. Drineas et al., Faster least squares approximation, Numer. Math. 117, 2011).
    """
    system, unknown = _System(gap, at), sum(t.numel() for t in at)
    whole = float(system.gap.norm())
    least = max(_LEAST * whole, nothing * math.sqrt(len(system.gap)))
    closed = max(_CLOSED * whole, least)
    found, left = _at_once(system) if unknown <= _VERY_FEW else _step_by_step(system, steps, least)
    if least < closed < left < _CLOSING * whole and _VERY_FEW < unknown <= _FEW:
        found, left = _at_once(system)
    return found if left <= closed else None, system.passes


def column_sizes(gap: torch.Tensor, at: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """About how much each unknown element moves a gap (the root of the sum of squares), of a few random sums of it."""
    generator, sizes = torch.Generator().manual_seed(0), [torch.zeros_like(t) for t in at]
    for _ in range(_SUMS):
        signs = _signs(len(gap), generator)
        slopes = torch.autograd.grad(gap, at, signs, retain_graph=True, materialize_grads=True)
        sizes = [s + g.square() / _SUMS for s, g in zip(sizes, slopes, strict=True)]
    return [s.sqrt() for s in sizes]


class _System:
    """The equations: what a move of the unknown does to the gap, and the other way round."""

    def __init__(self, gap: torch.Tensor, at: Sequence[torch.Tensor]):
        self.gap, self.at, self.passes = gap.detach(), at, 1
        self._gap = gap
        # The gap's derivative along a move is that of its own gradient, a straight line in what is sent back.
        self._sent = torch.zeros_like(gap, requires_grad=True)
        self._back = torch.autograd.grad(gap, at, self._sent, create_graph=True, materialize_grads=True)

    def ahead(self, move: Sequence[torch.Tensor]) -> torch.Tensor:
        """By how much a move closes the gap."""
        self.passes += 2
        return -torch.autograd.grad(self._back, self._sent, move, retain_graph=True)[0]

    def sloped(self, left: torch.Tensor) -> list[torch.Tensor]:
        """Which way the unknown has to move to close what is left."""
        self.passes += 1
        return [-g for g in torch.autograd.grad(self._gap, self.at, left, retain_graph=True, materialize_grads=True)]


def _signs(length: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, (length,), generator=generator, dtype=torch.float64) * 2.0 - 1.0


def _at_once(system: _System) -> tuple[list[torch.Tensor], float]:
    sizes, generator = [t.numel() for t in system.at], torch.Generator().manual_seed(0)
    sums = torch.stack([_signs(len(system.gap), generator) for _ in range(sum(sizes) + _MORE)])
    rows = torch.stack([torch.cat([g.reshape(-1) for g in system.sloped(each)]) for each in sums])
    answer = torch.linalg.lstsq(rows, (sums @ system.gap)[:, None], rcond=_DAMPING, driver="gelsd").solution[:, 0]
    found = [part.reshape(t.shape) for part, t in zip(answer.split(sizes), system.at, strict=True)]
    return found, float((system.gap - system.ahead(found)).norm())


def _step_by_step(system: _System, steps: int, least: float) -> tuple[list[torch.Tensor], float]:
    evened = _evened(system)
    left, found = system.gap.clone(), [torch.zeros_like(t) for t in system.at]
    now = before = float(left.norm())
    slope = way = [even(g) for even, g in zip(evened, system.sloped(left), strict=True)]
    steep = _squared(slope)
    for k in range(1, steps + 1):
        move = [even(w) for even, w in zip(evened, way, strict=True)]
        ahead = system.ahead(move)
        size = float(ahead.square().sum())
        if steep == 0.0 or size == 0.0:
            break
        found = [f + steep / size * m for f, m in zip(found, move, strict=True)]
        left = left - steep / size * ahead
        now = float(left.norm())
        if now <= least or (k % _EVERY == 0 and now > _SLOWEST * before):
            break
        before = now if k % _EVERY == 0 else before
        slope = [even(g) for even, g in zip(evened, system.sloped(left), strict=True)]
        steep, flatter = _squared(slope), steep
        way = [s + steep / flatter * w for s, w in zip(slope, way, strict=True)]
    return found, now


def _evened(system: _System) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    """For each tensor the change of variables in which its gradients are alike in every direction, symmetric."""
    sides = [_matrix(t).shape for t in system.at]
    ratio = max((max(a / b, b / a) for a, b in sides if 1 < min(a, b) <= max(a, b) <= _WIDEST), default=1.0)
    room = _HELD // sum(t.numel() for t in system.at)
    generator, probes = torch.Generator().manual_seed(0), max(1, min(_PROBES, math.ceil(_SAMPLES * ratio), room))
    samples = [system.sloped(_signs(len(system.gap), generator)) for _ in range(probes)]
    return [_change(torch.stack([_matrix(g) for g in each])) for each in zip(*samples, strict=True)]


def _matrix(t: torch.Tensor) -> torch.Tensor:
    return t.reshape(t.shape[0] if t.ndim > 1 else 1, -1)


def _change(samples: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Undo the covariance of matrices along rows and along columns, each estimated with the other one undone."""
    count, height, width = samples.shape
    if not bool(samples.any()):
        return lambda t: t
    left = torch.ones(1, dtype=torch.float64)
    for _ in range(_TURNS):
        evened = _times(left, samples)
        right = _inverse_root(evened.reshape(-1, width), count * height, max(height, width))
        evened = _times(right, samples.mT).mT
        left = _inverse_root(evened.mT.reshape(-1, height), count * width, max(height, width))
    return lambda t: _times(right, _times(left, _matrix(t)).mT).mT.reshape(t.shape)


def _times(root: torch.Tensor, matrices: torch.Tensor) -> torch.Tensor:
    """Multiply by a matrix, or by a diagonal, from the left."""
    return root @ matrices if root.ndim > 1 else root[:, None] * matrices


def _inverse_root(rows: torch.Tensor, count: int, widest: int) -> torch.Tensor:
    """The inverse root of the covariance of rows; of its diagonal where there are too many columns or too few rows."""
    if widest > _WIDEST or count < 2 * rows.shape[1]:
        spread = rows.square().sum(0) / count
        return spread.clamp(min=_DAMPING * float(spread.max()) or 1.0).rsqrt()
    values, vectors = torch.linalg.eigh(rows.mT @ rows / count)
    root: torch.Tensor = (vectors * values.clamp(min=_DAMPING * float(values[-1]) or 1.0).rsqrt()) @ vectors.T
    return root


def _squared(tensors: Sequence[torch.Tensor]) -> float:
    return sum(float(t.square().sum()) for t in tensors)
