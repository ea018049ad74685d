"""Drift against a floor: over the tensor, over the slices along each axis, and in the tail.

A bug in one channel disappears in the root mean square over a million elements, so every ratio here is the
largest over the whole tensor and over the slices along each axis. A slice has few elements and there are many
slices, so what chance alone explains is taken off (:func:`_allowance`), and the floor of a slice, known from
one noise sample, is drawn towards the floor of the tensor. Where all elements of a slice share one error (a
column divided by one sum), a slice is one number however many elements it has (:func:`_shared`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

# A slice's floor counts its own noise sample and this many pseudo-elements at the tensor's floor.
_PRIOR = 8.0
# A slice smaller than the tensor by this factor is judged on the tensor's scale: it is zero by cancellation.
_NEGLIGIBLE = 1e-4
# The largest |drift| / local floor of honest pairs reached 2.8 times that of the noise sample itself.
_TAIL_SLACK = 4.0
# Beside 2 ln m, what n times the squared cosine of independent errors stays below: a chi-squared of one degree.
_LUCK = 6.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """The largest ratio and where it was found.

    Parameters
    ----------
    value : float
        The ratio; ``inf`` for a drift where the scale is zero.
    place : str
        ``"tensor"``, ``"axis 1, index 7"`` or ``"tail"``.
    limit : float
        What the ratio was judged against, for ratios that carry their own limit; ``nan`` otherwise.
    whole : float
        The plain ratio over the whole tensor, before what chance explains is taken off.
    """

    value: float
    place: str = "tensor"
    limit: float = math.nan
    whole: float = math.nan

    @property
    def overall(self) -> float:
        """The plain ratio, and the value where there is none beside it: of nothing at all, or of no floor."""
        return self.value if math.isnan(self.whole) else self.whole


def finite(x: torch.Tensor) -> torch.Tensor:
    """The tensor with zeros where it is not finite; the tensor itself where all of it is, which one pass tells."""
    if x.numel() and x.is_floating_point() and math.isfinite(largest_magnitude(x)):
        return x
    return torch.where(torch.isfinite(x), x, torch.zeros((), dtype=x.dtype, device=x.device))


def rms(x: torch.Tensor) -> float:
    """Root mean square of a real or complex tensor; 0.0 when empty."""
    if x.numel() == 0:
        return 0.0
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.float64)
    wide = torch.complex128 if x.is_complex() else torch.float64
    root = math.sqrt(x.numel())
    norm = float(torch.linalg.vector_norm(x, dtype=wide))
    if root * _SQUARES[0] < norm < _SQUARES[1]:
        return norm / root  # the largest number lies between: no second pass to look for it
    factor = _factor(x)
    return norm / root if factor == 1.0 else float(torch.linalg.vector_norm(x * factor, dtype=wide)) / root / factor


def _factor(*values: torch.Tensor) -> float:
    """A power of two by which values are multiplied so that their squares stay in range; 1 where they do anyway."""
    top = max((_largest(v) for v in values if v.numel()), default=0.0)
    if top == 0.0 or _SQUARES[0] < top < _SQUARES[1]:
        return 1.0
    return math.ldexp(1.0, max(-1000, min(1000, -math.frexp(top)[1])))


def largest_magnitude(x: torch.Tensor) -> float:
    """The largest magnitude of a real tensor, NaN where it holds one; a norm takes 15 times as long."""
    low, high = torch.aminmax(x)
    return max(-float(low), float(high))


def _largest(x: torch.Tensor) -> float:
    """The largest finite magnitude; one pass over the usual tensor, which holds nothing else."""
    top = float(torch.linalg.vector_norm(x, math.inf)) if x.is_complex() else largest_magnitude(x)
    if math.isfinite(top):
        return top
    sizes = x.abs()
    sizes = sizes[torch.isfinite(sizes)]
    return float(sizes.max()) if sizes.numel() else 0.0


# Squares, and fourth powers of what is 1e-8 times smaller, of numbers between these are numbers of float64.
_SQUARES = (1e-60, 1e70)


def floor_of(samples: Sequence[torch.Tensor]) -> float | None:
    """The floor that noise samples stand for: the root of their summed mean squares; None without samples."""
    return math.hypot(*map(rms, samples)) if samples else None  # squares of a chaotic program leave the range


def _square(x: torch.Tensor) -> torch.Tensor:
    x = torch.view_as_real(x).square().sum(-1) if x.is_complex() else x.square()
    return x.to(torch.float64)


def _squares(samples: Sequence[torch.Tensor]) -> torch.Tensor:
    """The squares of samples, added up."""
    return functools.reduce(torch.add, map(_square, samples))


def _slice_means(square: torch.Tensor) -> list[torch.Tensor]:
    """Mean square per index along each axis of more than one index."""
    found, rest = [], square  # whose axes before this one are averaged away: the tensor itself is read twice
    for size in square.shape:
        found.append(rest.reshape(size, -1).mean(1) if 1 < size < square.numel() else torch.empty(0))
        rest = rest[0] if size == 1 else rest.mean(0)
    return found


def _allowance(slices: int, elements: torch.Tensor) -> torch.Tensor:
    """How far above 1 the largest of ``slices`` rms estimates from ``elements`` samples each lies by chance.

    The rms of n independent samples has a relative standard deviation of 1/sqrt(2n); the largest of m normal
    deviates lies at about sqrt(2 ln m). Elements of one slice share rounding errors (one row shares one
    normalisation), so a quarter of them counts as independent.
    """
    independent = (elements / 4.0).clamp(min=0.5)
    return 1.0 + (math.sqrt(2.0 * math.log(max(slices, 2))) + 1.0) / torch.sqrt(2.0 * independent)


def _effective(mean: torch.Tensor, size: float, fourth: torch.Tensor) -> torch.Tensor:
    """Elements that a mean square really rests on: ``size`` for normal deviates, 1 when one element is all of it.

    Participation ratio (sum x^2)^2 / sum x^4, which is n/3 for n normal deviates.
    """
    ratio = size * mean.square() / fourth.clamp(min=torch.finfo(torch.float64).tiny)
    return (3.0 * ratio - 2.0).clamp(min=1.0, max=size)


def _shared(drift: torch.Tensor, noises: Sequence[torch.Tensor], axis: int | None) -> torch.Tensor:
    """How many elements a slice is worth where its elements share errors: between 1 and all that it has.

    A slice divided by one norm has one error, ``c * v``, in the drift and another, ``d * v``, in the noise: the two
    are parallel, and the ratio of ``c`` to ``d`` is that of two single numbers. Elements with errors of their own are
    not parallel, but for chance: the squared cosine of n of them is 1/n. With a share f of what is shared in both, the
    squared cosine is f^2, and a mean square varies as that of 1 / (f^2 + (1 - f)^2 / n) elements.

    Parameters
    ----------
    drift : Tensor, shape S
    noises : sequence of Tensor, shape S
    axis : int or None
        Along which the slices lie; None for the whole tensor as one slice.

    Returns
    -------
    Tensor, float64
        One number per slice.
    """

    def sums(x: torch.Tensor) -> torch.Tensor:
        return x.sum() if axis is None else x.sum([k for k in range(x.ndim) if k != axis])

    along = [sums((drift * n.conj()).real if drift.is_complex() else drift * n).square() for n in noises]
    moved, noise = sums(_square(drift)), sums(_squares(noises))
    elements = drift.numel() / max(1, moved.numel())
    tiny = torch.finfo(torch.float64).tiny
    squared = (torch.stack(along).sum(0) / (moved * noise).clamp(min=tiny)).clamp(max=1.0)
    # What all slices show together is known better; one slice alone has to show more than the luckiest of them would.
    mean = ((elements * squared.mean() - 1.0) / max(elements - 1.0, 1.0)).clamp(min=0.0, max=1.0)
    lucky = (2.0 * math.log(max(squared.numel(), 2)) + _LUCK) / elements
    squared = torch.where(squared > lucky, torch.maximum(squared, mean), mean)
    return 1.0 / (squared + (1.0 - squared.sqrt()).square() / elements)


def drift_in_floors(drift: torch.Tensor, noises: list[torch.Tensor], enough: float = 1.0) -> Ratio:
    """Return rho: rms(drift) over the root of the summed squared floors, largest over tensor, slices and tail.

    Parameters
    ----------
    drift : Tensor, shape S, float64 or complex128
        ``b - a`` of the native values.
    noises : list of Tensor, shape S
        Noise samples, one or more per side; each is what ordinary rounding did in one noise run. Their
        squares add up (DESIGN section 2, step 3).
    enough : float
        A ratio that is not looked into further: what elements share could only make it smaller.

    Returns
    -------
    Ratio
        0 when the drift is zero everywhere; ``inf`` when there is drift but no floor at all.
    """
    if drift.numel() == 0:
        return Ratio(0.0)
    factor = _factor(drift, *noises)
    if factor != 1.0:
        drift, noises = drift * factor, [n * factor for n in noises]
    moved = _square(drift)
    total = float(moved.mean())
    if total == 0.0:
        return Ratio(0.0)
    noise = _squares(noises) if noises else torch.zeros_like(moved)
    floor = float(noise.mean())
    if floor == 0.0:
        return Ratio(math.inf)
    whole = math.sqrt(total / floor)
    # Scaled to a floor of 1, so that fourth powers stay in range.
    moved, noise = moved / floor, noise / floor
    found = _worst_of(moved, noise, whole)
    if found.value <= enough:
        return found
    axes = [axis for axis in range(moved.ndim) if 1 < moved.shape[axis] < moved.numel()]
    shared = {axis: _shared(drift, noises, axis) for axis in axes}
    return min(
        found, _worst_of(moved, noise, whole, shared, float(_shared(drift, noises, None))), key=lambda r: r.value
    )


def _worst_of(
    moved: torch.Tensor,
    noise: torch.Tensor,
    whole: float,
    shared: Mapping[int, torch.Tensor] | None = None,
    worth: float = math.inf,
) -> Ratio:
    """The largest ratio over the tensor, its slices and the tail, of squares scaled to a mean floor of 1.

    ``shared`` and ``worth``: what slices, by axis, and the tensor are worth in elements where errors are shared.
    """
    fourth, shared = noise.square(), shared or {}
    rests_on = min(_effective(noise.mean(), float(noise.numel()), fourth.mean()), torch.tensor(worth))
    best = Ratio(whole / float(_allowance(1, rests_on)), whole=whole)
    shares: dict[int, torch.Tensor] = {}
    for axis, (m, n, q) in enumerate(zip(*map(_slice_means, (moved, noise, fourth)), strict=True)):
        if m.numel() == 0:
            continue
        count = moved.numel() / m.numel()
        most = shared.get(axis, torch.tensor(count, dtype=n.dtype))
        size = torch.minimum(_effective(n, count, q), most)
        ratio = (m / _drawn(n, size)).sqrt() / _allowance(m.numel(), size)
        index = int(ratio.argmax())
        if float(ratio[index]) > best.value:
            best = Ratio(float(ratio[index]), f"axis {axis}, index {index}", whole=whole)
        # Outer-product form: rows and columns each scale the floor by their own share.
        shares[axis] = _drawn(n, most).reshape(-1, *[1] * (moved.ndim - axis - 1))
    local = functools.reduce(torch.mul, reversed(shares.values()), noise.new_ones(()))
    tail = _tail(moved, noise, local)
    return Ratio(tail, "tail", whole=whole) if tail > best.value else best


def _drawn(floor: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """The squared floor of slices, drawn towards the tensor's, which is 1, the more the fewer elements tell of it."""
    return (elements * floor + _PRIOR) / (elements + _PRIOR)


def _tail(moved: torch.Tensor, noise: torch.Tensor, local: torch.Tensor) -> float:
    """The largest single drift against the largest single noise, both in units of the local floor."""
    z_drift = float((moved / local).max().sqrt())
    z_noise = float((noise / local).max().sqrt())
    expected = max(z_noise, math.sqrt(2.0 * math.log(max(moved.numel(), 2))) + 1.0)
    return z_drift / (expected * _TAIL_SLACK) * 1.5


def lifted_drift(
    a: torch.Tensor, b: torch.Tensor, floor64: torch.Tensor | None, *, relative: float, multiple: float
) -> Ratio:
    """Return delta64 where it stands furthest above its limit, with that limit (tau).

    Parameters
    ----------
    a, b : Tensor, shape S, float64 or complex128
        Lifted values of both sides.
    floor64 : Tensor, shape S, or None
        A noise sample at the unit roundoff of float64.
    relative, multiple : float
        tau = max(relative, multiple * floor64 / rms(a)), per tensor and per slice.

    Returns
    -------
    Ratio
        ``value`` = rms(b - a) / rms(a) at the worst place, ``limit`` = tau there, ``whole`` over the whole tensor.
    """
    drift, base, noise = b - a, a, floor64
    if has_sentinels(a):
        marked = shared_sentinels(a, b)
        drift, base, b = (x.masked_fill(marked, 0.0) for x in (drift, base, b))
        noise = None if noise is None else noise.masked_fill(marked, 0.0)
    factor = _factor(drift, base)
    if factor != 1.0:
        drift, base, noise = drift * factor, base * factor, None if noise is None else noise * factor
    d, y = _square(drift), _square(base)
    f = torch.zeros_like(y) if noise is None else _square(noise)
    whole_d, whole_y, whole_f = (float(t.mean()) if t.numel() else 0.0 for t in (d, y, f))
    if whole_d <= multiple**2 * whole_f and not bool(b.any()):
        whole_y = 0.0  # float64's rounding of nothing, on whichever side it is
    worst = _against_limit(whole_d, whole_y, whole_f, relative, multiple, "tensor")
    if whole_y == 0.0 or whole_d == 0.0 or not math.isfinite(whole_d):
        return worst
    pieces = zip(_slice_means(d), _slice_means(y), _slice_means(f), strict=True)
    for axis, (ds, ys, fs) in enumerate(pieces):
        if ds.numel() == 0:
            continue
        size = d.numel() / ds.numel()
        ys = ys + _NEGLIGIBLE**2 * whole_y
        fs = (size * fs + _PRIOR * whole_f) / (size + _PRIOR)
        limit = torch.clamp(multiple * (fs / ys).sqrt(), min=relative)
        value = (ds / ys).sqrt()
        index = int((value / limit).nan_to_num(nan=0.0).argmax())
        if float(value[index] / limit[index]) > worst.value / worst.limit:
            worst = Ratio(float(value[index]), f"axis {axis}, index {index}", float(limit[index]))
    return replace(worst, whole=math.sqrt(whole_d / whole_y))


def _against_limit(d: float, y: float, f: float, relative: float, multiple: float, place: str) -> Ratio:
    if not math.isfinite(d):  # infinity or NaN on one side alone, whichever it is
        return Ratio(math.inf, place, relative)
    if d == 0.0:
        return Ratio(0.0, place, relative if y == 0 else max(relative, multiple * math.sqrt(f / y)))
    if y == 0.0:
        # Nothing to be relative to: the drift itself must be within the float64 floor.
        return Ratio(math.sqrt(d), place, multiple * math.sqrt(f)) if f else Ratio(math.inf, place, relative)
    return Ratio(math.sqrt(d / y), place, max(relative, multiple * math.sqrt(f / y)))


def shared_sentinels(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Mark elements that are the same infinity, or a format's most negative number, on both sides.

    Masks write ``-inf`` or ``finfo.min`` into tensors; as numbers they would drown everything else.
    """
    if a.is_complex():
        return torch.zeros(a.shape, dtype=torch.bool, device=a.device)
    formats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    marks = (torch.isinf(a) & (a == b)) | (torch.isnan(a) & torch.isnan(b))
    for fmt in formats:
        marks |= (a == torch.finfo(fmt).min) & (b == a)
    return marks


def has_sentinels(a: torch.Tensor) -> bool:
    """Whether a tensor may hold what :func:`shared_sentinels` marks; one pass tells it of the usual one."""
    if a.is_complex() or not a.numel():
        return False
    low, high = (float(end) for end in torch.aminmax(a))
    lowest = -65504.0  # the smallest magnitude among the formats' most negative numbers
    return not (lowest < low and high < math.inf)
