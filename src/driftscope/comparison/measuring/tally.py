"""The running totals of one comparison, fed piece by piece."""

from __future__ import annotations

import math

import torch

from driftscope.comparison.measuring.aligned import Aligned
from driftscope.comparison.measuring.pieces import bits_of, pieces
from driftscope.numerics.formats import Format, format_of
from driftscope.numerics.ulp import line_distance, line_number, line_number_in

#: Squares of numbers in this range neither overflow nor vanish, and neither do sums of 2**60 of them.
_SAFE_SQUARES = (1e-140, 1e140)


class Tally:
    """Running totals over pairs of pieces; each is described at :class:`driftscope.comparison.measuring.metrics.Drift`.

    Parameters
    ----------
    pair : Aligned
        The tensors that the pieces come from.
    thresholds : tuple of float
    rel_offset : float
    """

    def __init__(self, pair: Aligned, thresholds: tuple[float, ...] = (), rel_offset: float = 0.0):
        self.thresholds = thresholds
        self.above = [0] * len(thresholds)
        self.mismatched = self.differing = 0
        self.nan_a = self.nan_b = self.nan_both = self.inf_differ = self.inf_both = 0
        self.max_abs = self.max_rel = self.sum_abs = 0.0
        self.max_ulp: float | None = None if pair.steps_in is None else 0.0
        self.place: int | None = None
        self._special_place: int | None = None
        self._pair = pair
        self._rel_offset = rel_offset
        self._finite = 0
        # The sum of squares is kept as m * 4**e, so that differences near the ends of the range count too.
        self._squares, self._exponent = 0.0, 0
        self._rooms: list[torch.Tensor | None] = [None, None]

    @property
    def rms(self) -> float:
        """Root mean square of the differences that are finite."""
        if not self._finite or not self._squares:
            return 0.0
        return math.ldexp(math.sqrt(self._squares / self._finite), self._exponent)

    def add_same(self, a: torch.Tensor) -> None:
        """Count a whole tensor that has the same bits on both sides."""
        self._finite += a.numel()
        if not a.dtype.is_floating_point:
            return
        for _, piece, _ in pieces(a, a):
            if not _may_hold_specials(piece):
                continue
            nan = int(torch.isnan(_readable(piece)).sum())
            inf = int(torch.isinf(_readable(piece)).sum())
            self.nan_both += nan
            self.inf_both += inf
            self._finite -= nan + inf

    def add(self, start: int, a: torch.Tensor, b: torch.Tensor, low: torch.Tensor | None = None) -> None:
        """Count a piece.

        Parameters
        ----------
        start : int
            Position of its first element.
        a, b : Tensor, one-dimensional, on one device
        low : Tensor of float64 or None
            To be added to ``b - a``.
        """
        changed = None
        if self._pair.comparable_bits:
            changed = bits_of(a) ^ bits_of(b)
            mismatched = int(torch.count_nonzero(changed))
            if not mismatched:
                self.add_same(a)
                return
            self.mismatched += mismatched
        x, y = self._float64(0, a), self._float64(1, b)
        difference, largest = _difference(a, b, x, y, low)
        finite = None
        if math.isfinite(largest):
            self._finite += a.numel()
        else:
            y = _readable(b).to(torch.float64)  # its room holds the differences by now
            finite = torch.isfinite(x) & torch.isfinite(y)
            self._finite += int(finite.sum())
            self._add_specials(start, x, y)
            difference = torch.where(finite, difference, 0.0)
            largest = float(difference.amax())
        if largest > 0:
            # Never negative, so zero is the one value with no bit set; integers are counted fifteen times faster.
            self.differing += int(torch.count_nonzero(difference.view(torch.int64)))
            self._add_sizes(start, difference, x.abs_() if x is not a else x.abs(), largest)
            self._add_steps(a, b, finite, changed)

    def _float64(self, side: int, x: torch.Tensor) -> torch.Tensor:
        """Return a piece in float64; the memory is used again for the next piece."""
        if x.dtype == torch.float64:
            return x
        if x.dtype == torch.uint64:
            return _high(x).add_(_low(x))
        if x.dtype.itemsize == 1 and x.dtype.is_floating_point:
            x = x.to(torch.float32)
        room = self._rooms[side]
        if room is None or room.numel() < x.numel() or room.device != x.device:
            # A fresh allocation for every piece would cost more than the arithmetic: its pages fault in each time.
            self._rooms[side] = room = torch.empty(x.numel(), dtype=torch.float64, device=x.device)
        return room[: x.numel()].copy_(x)

    def _add_specials(self, start: int, x: torch.Tensor, y: torch.Tensor) -> None:
        nan_x, nan_y = torch.isnan(x), torch.isnan(y)
        infinite = (torch.isinf(x) | torch.isinf(y)) & ~nan_x & ~nan_y
        inf_differ = infinite & (x != y)
        unequal = (nan_x ^ nan_y) | inf_differ
        self.nan_a += int((nan_x & ~nan_y).sum())
        self.nan_b += int((nan_y & ~nan_x).sum())
        self.nan_both += int((nan_x & nan_y).sum())
        self.inf_differ += int(inf_differ.sum())
        self.inf_both += int((infinite & ~inf_differ).sum())
        self.differing += int(unequal.sum())
        if self._special_place is None and bool(unequal.any()):
            self._special_place = start + int(unequal.to(torch.uint8).argmax())
            if self.place is None:
                self.place = self._special_place

    def _add_sizes(self, start: int, difference: torch.Tensor, scale: torch.Tensor, largest: float) -> None:
        if largest > self.max_abs:
            self.max_abs = largest
            self.place = start + int(difference.argmax())
        self.sum_abs += float(difference.sum())
        self._add_squares(difference, largest)
        for i, threshold in enumerate(self.thresholds):
            if largest > threshold:
                self.above[i] += int((difference > threshold).sum())
        scale = scale.add_(self._rel_offset) if self._rel_offset else scale
        ratio = difference.div_(scale)  # the last use of both
        worst = float(ratio.amax())
        if math.isnan(worst):  # 0/0
            worst = float(ratio.nan_to_num_(nan=0.0, posinf=math.inf).amax())
        self.max_rel = max(self.max_rel, worst)

    def _add_squares(self, difference: torch.Tensor, largest: float) -> None:
        if math.isinf(largest):
            self._squares = math.inf
            return
        exponent = 0
        if not _SAFE_SQUARES[0] < largest < _SAFE_SQUARES[1]:
            exponent = math.frexp(largest)[1]
            difference = torch.ldexp(difference, torch.tensor(-exponent, device=difference.device))
        # Not torch.dot: the BLAS behind it wakes its threads even for a piece of this size.
        squares = float(torch.linalg.vector_norm(difference)) ** 2
        top = max(exponent, self._exponent) if self._squares else exponent
        # At most one of the two shifts is not zero; what it drops is below the last digit of the other.
        self._squares = math.ldexp(self._squares, 2 * (self._exponent - top)) + math.ldexp(
            squares, 2 * (exponent - top)
        )
        self._exponent = top

    def _add_steps(
        self, a: torch.Tensor, b: torch.Tensor, finite: torch.Tensor | None, changed: torch.Tensor | None
    ) -> None:
        fmt = self._pair.steps_in
        if fmt is None or self.max_ulp is None:
            return
        if finite is None and changed is not None and fmt.bits > 8:
            largest = _largest_step(a, b, changed)
        else:
            steps = line_distance(_lines(a, fmt), _lines(b, fmt))
            largest = float((steps if finite is None else steps.masked_fill_(~finite, 0)).amax())
        self.max_ulp = max(self.max_ulp, largest)


def _largest_step(a: torch.Tensor, b: torch.Tensor, changed: torch.Tensor) -> float:
    """Return the largest distance in steps of two pieces of one format, given the exclusive or of their bits."""
    i, j = bits_of(a), bits_of(b)
    # Between numbers of one sign the bits themselves count the steps, and no difference can overflow.
    steps = (i - j).abs_()
    least = int(changed.amin())
    if least < 0:
        # Somewhere the sign bits differ; there the steps to zero from either side add up. Done for all elements and
        # masked: looking for the places takes three times as long.
        magnitude = torch.iinfo(i.dtype).max
        crossing = changed >> (8 * i.dtype.itemsize - 1)
        across = (i & magnitude).add_(j & magnitude).bitwise_and_(crossing)
        steps.bitwise_and_(crossing.bitwise_not_()).bitwise_or_(across)
        if int(steps.amin()) < 0:  # a sum that does not fit
            return float(line_distance(line_number(a), line_number(b)).amax())
    return float(steps.amax())


def _may_hold_specials(x: torch.Tensor) -> bool:
    """Whether a NaN or an infinity may be among the elements; False is certain, and found in one cheap pass."""
    # Any NaN or infinity makes the sum NaN or infinite; so may an overflow, which the caller then looks into.
    return not math.isfinite(float(_readable(x).sum(dtype=None if x.dtype.itemsize > 2 else torch.float32)))


def _readable(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float32) if x.dtype.itemsize == 1 else x


def _difference(
    a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor, low: torch.Tensor | None
) -> tuple[torch.Tensor, float]:
    """Return ``|b - a|`` in float64 and the largest of them, which is not finite where an element is not.

    Rounded once, so zero only where they are equal, for 64-bit integers too. Uses up ``y`` where it is a copy.
    """
    wide = [side.dtype in (torch.int64, torch.uint64) for side in (a, b)]
    if all(wide):
        difference = (_high(b) - _high(a)).add_(_low(b) - _low(a))
    else:
        lost = [_lost(side, rounded) if w else None for side, rounded, w in zip((a, b), (x, y), wide, strict=True)]
        difference = y - x if y is b else y.sub_(x)
        for part, combine in zip(lost, (difference.sub_, difference.add_), strict=True):
            if part is not None:
                combine(part)
    if low is not None:
        difference.add_(low.to(difference.device))
    return difference.abs_(), float(difference.amax())


def _high(x: torch.Tensor) -> torch.Tensor:
    """Return the upper half of 64-bit integers as float64, exactly."""
    half = x.view(torch.int64) >> 32
    if x.dtype == torch.uint64:
        half = half & 0xFFFFFFFF
    return half.to(torch.float64).mul_(2.0**32)


def _lost(x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    """Return what 64-bit integers lose when rounded to float64, exactly (the second half of Dekker's fast two-sum)."""
    return _low(x).sub_(rounded - _high(x))


def _low(x: torch.Tensor) -> torch.Tensor:
    return (x.view(torch.int64) & 0xFFFFFFFF).to(torch.float64)


def _lines(x: torch.Tensor, fmt: Format) -> torch.Tensor:
    """Return the line numbers of ``x`` rounded to ``fmt``."""
    if format_of(str(x.dtype)) != fmt:
        native = getattr(torch, fmt.dtype, None) if fmt.bits >= 8 else None
        if native is None:
            return line_number_in(x, fmt)
        if not fmt.infinities:
            x = x.to(torch.float64).clamp(fmt.smallest, fmt.largest)
        x = x.to(native)
    return line_number(x)
