"""Masked probes: one row asks under which common partial sum two terms meet.

A row holds M at term i, -M at term j, a unit at every carrier and zero elsewhere. Units that are added to a partial
sum containing only one of the two masks vanish, for M is too large for them; what comes out is the number of carriers
outside the smallest subtree with both (FPRev, USENIX ATC 2025). Here a call carries many such rows, and carriers may be
a subset, because an output of p bits counts no further than 2**p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel
from driftscope.accumulation.revealing.examination import rows_per_call
from driftscope.accumulation.revealing.refusal import RevealError
from driftscope.numerics.formats import FORMATS, numpy_dtype

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

_FEWEST = 4  # carriers that still tell groups apart


@dataclass(frozen=True, slots=True)
class MeetingQuestion:
    """Where does ``pivot`` meet each of ``others``?

    Parameters
    ----------
    pivot : int
    others : ndarray of int, shape (m,)
    carriers : ndarray of int
        Terms that are counted.
    context : int or None
        One more carrier, outside the group in question.
    """

    pivot: int
    others: Ints
    carriers: Ints
    context: int | None = None


@dataclass(frozen=True, slots=True)
class MaskUnits:
    """Sizes of masks and units for a pair of formats.

    Parameters
    ----------
    mask, unit : float
    most : int
        Largest number of carriers of one row.
    """

    mask: float
    unit: float
    most: int

    @classmethod
    def choose(cls, terms: str, output: str, gain: float) -> MaskUnits:
        """Choose units that vanish beside the mask and can be counted in the output.

        Parameters
        ----------
        terms, output : str
            Formats of terms and result.
        gain : float
            Result of a row that holds a single 1: 1 for a sum, 1/n for a mean.

        Raises
        ------
        RevealError
            If the formats leave no room.
        """
        of_terms, of_output = FORMATS[terms], FORMATS[output]
        half = of_terms.emax <= 15
        # Kernels that split float64 numbers in software would overflow near its end.
        mask = 2.0 ** (of_terms.emax if half else min(of_terms.emax - 1, 500))
        # Sixteen steps of the output per unit: rounding a mean then costs less than a unit, also below normal numbers.
        # float16 has no room for that; there a step is a unit or more.
        steps = 1 if gain == 1 else (1 if half else 16) / gain
        smallest = max(of_terms.smallest_subnormal, of_output.smallest_subnormal * steps)
        unit = 2.0 ** math.ceil(math.log2(smallest)) if half else 1.0
        # A term may be added in a wider format than its own; float16 has only room for float32.
        accumulator = 25 if half else 54
        countable = 2 ** (of_output.p if gain == 1 else of_output.p - 1) - 1
        most = min(countable, int(min(mask / unit * 2.0**-accumulator, 2.0**52)))
        if most < _FEWEST:
            raise RevealError(
                f"units and masks do not fit into {terms}: too few of them can be distinguished; reveal the sum instead"
                " of the mean, or a smaller n"
            )
        return cls(mask, unit, most)


class Prober:
    """Asks a kernel questions, as many per call as fit.

    Parameters
    ----------
    kernel : Kernel
    units : MaskUnits
    gain : float
    """

    def __init__(self, kernel: Kernel, units: MaskUnits, gain: float):
        self.kernel = kernel
        self.units = units
        self.gain = gain
        self._dtype = numpy_dtype(kernel.dtype)
        self._rows = rows_per_call(kernel)

    def ask(self, questions: Sequence[MeetingQuestion]) -> list[Ints]:
        """Return for every question how many carriers lie under the meeting point of pivot and each other term.

        The pivot and the other term count when they are carriers.

        Raises
        ------
        RevealError
            If a result is not a number of carriers: then the kernel does not add its terms in a tree.
        """
        pieces = self._pieces(questions)
        results: list[list[Ints]] = [[] for _ in questions]
        buffer = np.zeros((self._rows, self.kernel.n), self._dtype)
        held: list[tuple[int, slice]] = []
        for rows_of_call in pieces:
            self._fill(buffer, held, questions, rows_of_call)
            used = sum(part.stop - part.start for _, part in rows_of_call)
            out = self.kernel(buffer, used)[:used]
            at = 0
            for index, part in rows_of_call:
                size = part.stop - part.start
                results[index].append(self._under(questions[index], out[at : at + size]))
                at += size
            self._empty(buffer, held, questions, rows_of_call)
        return [np.concatenate(parts) for parts in results]

    def _pieces(self, questions: Sequence[MeetingQuestion]) -> list[list[tuple[int, slice]]]:
        """Deal the rows of all questions out to calls."""
        calls: list[list[tuple[int, slice]]] = []
        free = 0
        for index, question in enumerate(questions):
            start, total = 0, len(question.others)
            while start < total:
                if free == 0:
                    calls.append([])
                    free = self._rows
                stop = min(total, start + free)
                calls[-1].append((index, slice(start, stop)))
                free -= stop - start
                start = stop
        return calls

    def _fill(
        self,
        buffer: Array,
        held: list[tuple[int, slice]],
        questions: Sequence[MeetingQuestion],
        pieces: list[tuple[int, slice]],
    ) -> None:
        if held != [(index, slice(0, part.stop - part.start)) for index, part in pieces]:
            buffer[:] = 0
            at = 0
            for index, part in pieces:
                size = part.stop - part.start
                buffer[at : at + size] = self._row(questions[index])
                at += size
            # Only a call that asks nothing but one question leaves rows that the next one can use again.
            held[:] = [(index, slice(0, part.stop - part.start)) for index, part in pieces]
        at = 0
        for index, part in pieces:
            size = part.stop - part.start
            buffer[np.arange(at, at + size), questions[index].others[part]] = -self.units.mask
            at += size

    def _empty(
        self,
        buffer: Array,
        held: list[tuple[int, slice]],
        questions: Sequence[MeetingQuestion],
        pieces: list[tuple[int, slice]],
    ) -> None:
        at = 0
        for index, part in pieces:
            size = part.stop - part.start
            others = questions[index].others[part]
            buffer[np.arange(at, at + size), others] = self._row(questions[index])[others]
            at += size

    def _row(self, question: MeetingQuestion) -> Array:
        row = np.zeros(self.kernel.n, self._dtype)
        row[question.carriers] = self.units.unit
        if question.context is not None:
            row[question.context] = self.units.unit
        row[question.pivot] = self.units.mask
        return row

    def _under(self, question: MeetingQuestion, out: Array) -> Ints:
        total = len(question.carriers) + (question.context is not None)
        left = out.astype(np.float64) / (self.units.unit * self.gain)
        counted = np.rint(left)
        # A mean rounds once or twice, a sum of so few units never.
        form = FORMATS[self.kernel.output]
        step = form.smallest_subnormal / (self.units.unit * self.gain)
        rounded = max(0.07, 0.5 * step) + 1.6 * counted * form.unit_roundoff
        slack = 0.0 if self.gain == 1 else np.minimum(rounded, 0.5)
        if not (np.isfinite(left).all() and (np.abs(left - counted) <= slack).all()):
            raise not_additive(self.kernel.name, "a count of terms came out as no whole number", left)
        if counted.min(initial=0) < 0 or counted.max(initial=0) > total:
            raise not_additive(self.kernel.name, f"of {total} terms, more or fewer than possible were counted", left)
        return total - counted.astype(np.int64)


def not_additive(name: str, evidence: str, values: Array) -> RevealError:
    """Return the refusal of a kernel whose counts are those of no tree of additions."""
    shown = values[np.argmax(np.abs(values - np.clip(np.rint(values), 0, None)))]
    return RevealError(
        f"{name}: no tree of additions was found: {evidence} ({shown:.6g}); running means (Welford), compensated sums,"
        " maxima and normalisations have no order to reveal"
    )
