"""The rounding of kernels of linear algebra: what they give is the result of operands that are moved a little.

Such kernels are backward stable (Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sections 1.5, 9.3
and 19.3): the error in all of their results together is that of operands moved by some unit roundoffs. How many is a
matter of the algorithm, the size and the blocks it works in, and no formula tells: a triangular system errs by one,
an inverse of 160 rows by ten. So the kernel itself is run in float32 on operands that are moved, and held against
float64.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from driftscope.lift.steps import Kind, Rounding

# A unit roundoff that float64 resolves well, and float32's kernels round in.
_UNIT = 2.0**-24
# Runs that the error is measured in: more where there are few results.
_RUNS, _FEW_RUNS, _FEW = 4, 16, 16
# A run that is farther off took another way (a pivot, the order of eigenvalues), or has no digit left.
_ASTRAY = 0.1
# A kernel of elementary products rounds its results, whatever was measured.
_LEAST = 0.5

Results = Sequence[Any]


def as_kernel(call: Callable[..., torch.Tensor], *operands: torch.Tensor) -> Rounding:
    """How a kernel rounds that gives one result, as ``torch.linalg.inv`` does."""
    return Rounding(Kind.FUNCTION, moved=MovedOperands(lambda moved: [call(*moved)], operands))


class MovedOperands:
    """A kernel of linear algebra that can be run on operands moved by so many unit roundoffs as it errs by.

    Parameters
    ----------
    call : callable
        Runs the kernel on operands, and gives its results.
    operands : sequence
        Floats in float64; what holds none stays as it is.
    also : callable or None
        The same kernel by another algorithm, which gives some of the results and None for others: who asks for
        eigenvalues alone gets them so.
    unordered : bool
        Whether its first result is a set: eigenvalues come in any order.
    known : dict of int to float, or None
        Growths that were measured before; this one is kept there.
    number : int
        Which of them it is.
    """

    def __init__(
        self, call: Callable[[Sequence[Any]], Results], operands: Sequence[Any],
        also: Callable[[Sequence[Any]], Results] | None = None, *, unordered: bool = False,
        known: dict[int, float] | None = None, number: int = 0,
    ):  # fmt: skip
        self._call, self._operands, self._also, self._unordered = call, operands, also, unordered
        self._known, self._number = {} if known is None else known, number

    def run(self, moved: float, generator: torch.Generator) -> Results | None:
        """Run it on moved operands.

        Parameters
        ----------
        moved : float
            By what share of each number, root mean square.
        generator : torch.Generator

        Returns
        -------
        sequence of Tensor or None
            None where the kernel refuses them.
        """
        with contextlib.suppress(RuntimeError):
            return self._call([_moved(v, moved, generator) for v in self._operands])
        return None

    def growth(self) -> float:
        """By how many unit roundoffs operands are moved that give the kernel's own error, measured in float32.

        No more than the largest side of the operands, as the bounds of backward errors have it (Higham, theorems 9.3
        and 19.4): a kernel that is wrong by more is not excused by itself.
        """
        if self._number not in self._known:
            self._known[self._number] = self._measured()
        return self._known[self._number]

    def _measured(self) -> float:
        floats = [v for v in self._operands if _is_float(v)]
        once = self.run(0.0, torch.Generator())
        few = once is not None and all(v.numel() <= _FEW for v in once if _is_float(v))
        generator = torch.Generator().manual_seed(0)
        samples = []
        for _ in range(_FEW_RUNS if few else _RUNS):
            stored = [_stored(_moved(v, _UNIT, generator)) for v in self._operands]
            with contextlib.suppress(RuntimeError):
                found = self._errors(stored, [_moved(v, _UNIT, generator) for v in stored])
                samples += [] if found is None else [found]
        # Of each result, over all samples.
        kernel, moving = ([sum(one) for one in zip(*(s[k] for s in samples), strict=True)] for k in (0, 1))
        ratios = [math.sqrt(mine / theirs) for mine, theirs in zip(kernel, moving, strict=True) if theirs]
        most = float(max((max(v.shape, default=1) for v in floats), default=1))
        return min(max([*ratios, _LEAST]), max(most, 1.0)) if ratios else 1.0

    def _errors(self, stored: Sequence[Any], moved: Sequence[Any]) -> tuple[list[float], list[float]] | None:
        """Mean squares of what the kernel errs by in each result, and of what moving does; None where one turned."""
        exact = self._call(stored)
        narrow = [_narrowed(v) for v in stored]
        ways = [self._call(narrow), *([] if self._also is None else [self._also(narrow)])]
        by_kernel = [self._off(way, exact) for way in ways]
        by_moving = self._off(self._call(moved), exact)
        found = [max(one) for one in zip(*by_kernel, strict=True)]
        return (found, by_moving) if all(math.isfinite(v) for v in [*found, *by_moving]) else None

    def _off(self, run: Results, exact: Results) -> list[float]:
        """The mean square of the error in each result, relative; infinite where it took another way."""
        found = []
        for mine, theirs in zip(run, exact[:1] if self._unordered else exact, strict=False):
            if not _is_float(theirs) or not theirs.numel() or mine is None:
                found.append(0.0)
                continue
            one, two = mine.to(theirs.dtype), theirs
            if self._unordered:
                one, two = one.abs().sort(-1).values, two.abs().sort(-1).values
            size = float(two.norm())
            error = min(float((turned - two).norm()) for turned in _turned(one, two))
            found.append(math.inf if not error <= _ASTRAY * size else (error / size) ** 2 if size else 0.0)
        return found


def _turned(mine: torch.Tensor, exact: torch.Tensor) -> Iterator[torch.Tensor]:
    """A result, and it with the signs of its columns or rows, which are free where they are vectors of a basis."""
    yield mine
    for axis in (-2, -1) if mine.ndim > 1 and not mine.is_complex() else ():
        yield mine * (mine * exact).sum(axis, keepdim=True).sign()


def _moved(value: Any, share: float, generator: torch.Generator) -> Any:
    if not _is_float(value):
        return value
    noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
    return value * (1.0 + share * noise)


def _stored(value: Any) -> Any:
    """An operand as float32 holds it; numbers that it holds badly stay, and there its kernel is no measure."""
    if not _is_float(value):
        return value
    stored = _narrowed(value).to(value.dtype)
    return torch.where((stored - value).abs() <= 2.0 * _UNIT * value.abs(), stored, value)


def _narrowed(value: Any) -> Any:
    if not _is_float(value):
        return value
    return value.to(torch.complex64 if value.is_complex() else torch.float32)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
