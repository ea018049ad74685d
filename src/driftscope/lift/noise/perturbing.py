"""One pass over a value that adds noise to it: by the compiled library, or by torch where there is none.

Noise is drawn as bytes. Each stands for a level that is uniform over 256 steps -127.5 ... 127.5, in units of
:data:`LEVELS`, its standard deviation.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from driftscope.comparison.measuring.spread import largest_magnitude
from driftscope.lift.formulas.terms import ProductSquares
from driftscope.lift.noise import compiled
from driftscope.lift.noise.measured import errors_at

#: Standard deviation of bytes -128 ... 127.
LEVELS = math.sqrt((256**2 - 1) / 12)
#: Elements perturbed at a time by torch: a few float64 blocks of this size stay in a core's cache.
_BLOCK = 2**15


def drawn(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw levels, int8; eight for each number of the generator, which is sixteen times faster than torch.rand."""
    words = torch.empty((count + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    levels = words.view(torch.int8)
    return levels if count % 8 == 0 else levels[:count]


def broadcasts(shape: Sequence[int], target: Sequence[int]) -> bool:
    """Whether a tensor of a shape can be expanded to another (torch.broadcast_shapes imports sympy)."""
    ends = zip(reversed(shape), reversed(target), strict=False)
    return shape == target or (len(shape) <= len(target) and all(mine in (1, theirs) for mine, theirs in ends))


@dataclass(frozen=True, slots=True)
class TermSizes:
    """What noise is in units of besides the value itself: ``rows[i] * columns[i // period, j]`` for element (i, j).

    A value counts as rows of its last axis.

    Parameters
    ----------
    rows : torch.Tensor, contiguous, one for each row, or None
    columns : torch.Tensor, contiguous, (groups, columns), or None
    period : int
        Rows that have one group in common.
    """

    rows: torch.Tensor | None
    columns: torch.Tensor | None
    period: int = 1

    @classmethod
    def of(cls, sizes: torch.Tensor, shape: torch.Size) -> TermSizes:
        """Terms of sizes that broadcast to a shape."""
        full = sizes.reshape((1,) * (len(shape) - sizes.dim()) + tuple(sizes.shape)).to(torch.float64)
        if not len(shape) or (full.shape[-1] == 1 and shape[-1] != 1):
            return cls(full.expand(*shape[:-1], 1).reshape(-1).contiguous(), None)
        if full.shape[:-1].numel() == 1:
            return cls(None, full.reshape(1, -1).contiguous(), max(shape[:-1].numel(), 1))
        return cls(None, full.expand(shape).reshape(-1, shape[-1]).contiguous())

    @classmethod
    def of_squares(cls, squares: torch.Tensor, shape: torch.Size) -> TermSizes:
        """Terms of a sum of squares for each element."""
        return cls.of(squares.to(torch.float64).sqrt(), shape)

    @classmethod
    def of_product(cls, squares: ProductSquares, shape: torch.Size) -> TermSizes | None:
        """Terms of a product of matrices, which need not be multiplied out; None for other shapes than its own."""
        rows, columns = squares.factors()
        if min(rows.dim(), columns.dim(), len(shape)) < 2:
            return None  # of a vector
        batch = shape[:-2]
        if (*rows.shape[-2:], *columns.shape[-2:]) != (shape[-2], 1, 1, shape[-1]):
            return None  # of another output
        if not (broadcasts(rows.shape[:-2], batch) and broadcasts(columns.shape[:-2], batch)):
            return None
        rows, columns = rows.sqrt(), columns.sqrt()
        shared = columns.shape[:-2].numel() == 1
        if not shared:
            columns = columns.expand(*batch, 1, shape[-1])
        period = shape[:-1].numel() if shared else shape[-2]
        return cls(
            rows.expand(*batch, shape[-2], 1).reshape(-1).contiguous(),
            columns.reshape(-1, shape[-1]).contiguous(),
            max(period, 1),
        )

    def block(self, part: slice) -> torch.Tensor:
        """The terms of some rows, as a tensor that broadcasts to them."""
        rows = None if self.rows is None else self.rows[part, None]
        if self.columns is None:
            assert rows is not None
            return rows
        if self.columns.shape[0] == 1:
            columns = self.columns
        else:
            columns = self.columns[torch.arange(part.start, part.stop, device=self.columns.device) // self.period]
        return columns if rows is None else rows * columns


@dataclass(slots=True)
class Noise:
    """How much noise a value gets.

    Parameters
    ----------
    share : float
        Standard deviation in units of the value.
    generator : torch.Generator
    terms : TermSizes or None
    terms_share : float
        Standard deviation in units of the terms.
    errors : torch.Tensor or None
        What both are multiplied by for each element: errors listed by ``argument``, see
        :func:`~driftscope.lift.noise.measured.errors_at`.
    argument : torch.Tensor or None
        The argument of a function, in the shape of the value; None counts as zero.
    room : float
        Share of its distance to a value that a function returns exactly (one, or its argument), within which noise
        is kept: a result that close rounds to that value, and its error is that distance. 0.0 for no such values.
    """

    share: float
    generator: torch.Generator
    terms: TermSizes | None = None
    terms_share: float = 0.0
    errors: torch.Tensor | None = None
    argument: torch.Tensor | None = None
    room: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether it is a share of the value and nothing else."""
        return self.terms is None and self.errors is None

    def added(self, value: torch.Tensor) -> tuple[torch.Tensor, float, float]:
        """Add it.

        Parameters
        ----------
        value : torch.Tensor of float64, contiguous, not empty

        Returns
        -------
        (torch.Tensor, float, float)
            The value with noise; the smallest size before that is not zero, the largest after (infinite or NaN where
            there is such). What ends as zero keeps its sign: atan2(-0.0, -1) lies 2 pi from atan2(0.0, -1), and no
            rounding turns one zero into the other.
        """
        levels = drawn(value.numel(), self.generator)
        more = drawn(value.numel(), self.generator) if self.terms is not None and self.terms_share else None
        library = compiled.library()
        if library is None or value.device.type != "cpu":
            return self._by_torch(value, levels, more)
        noisy = torch.empty_like(value)
        found = (ctypes.c_double * 2)()
        columns = value.shape[-1] if value.dim() else 1
        terms = self.terms if more is not None else None
        share, terms_share = self.share / LEVELS, self.terms_share / LEVELS
        library.driftscope_perturb(
            value.data_ptr(), noisy.data_ptr(), value.numel() // columns, columns, levels.data_ptr(), share,
            _at(terms.rows if terms else None), _at(terms.columns if terms else None), terms.period if terms else 1,
            _at(more), terms_share, _at(self.argument), _at(self.errors), self.room, found,
        )  # fmt: skip
        return noisy, found[0], found[1]

    def _by_torch(
        self, value: torch.Tensor, levels: torch.Tensor, more: torch.Tensor | None
    ) -> tuple[torch.Tensor, float, float]:
        columns = value.shape[-1] if value.dim() else 1
        clean, noisy = value.view(-1, columns), torch.empty_like(value)
        own, other = levels.view(-1, columns), None if more is None else more.view(-1, columns)
        argument = None if self.argument is None else self.argument.view(-1, columns)
        for part in _parts(clean.shape[0], columns):
            noise = clean[part] * _level(own[part], value.device, self.share)
            if other is not None and self.terms is not None:
                noise += self.terms.block(part) * _level(other[part], value.device, self.terms_share)
            x = None if argument is None else argument[part]
            if self.errors is not None and x is not None:
                noise *= errors_at(x, self.errors)
            if self.room:
                noise = _limited(clean[part], noise, x, self.room)
            out = clean[part] + noise
            noisy.view(-1, columns)[part] = torch.where(out == 0.0, clean[part], out)
        sizes = value.abs()
        return noisy, float(torch.where(sizes > 0, sizes, math.inf).amin()), largest_magnitude(noisy)


def _at(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _parts(rows: int, columns: int) -> Iterator[slice]:
    height = max(1, _BLOCK // max(columns, 1))
    return (slice(start, min(start + height, rows)) for start in range(0, rows, height))


def _level(levels: torch.Tensor, device: torch.device, share: float) -> torch.Tensor:
    return levels.to(device=device, dtype=torch.float64).add_(0.5).mul_(share / LEVELS)


def _limited(clean: torch.Tensor, noise: torch.Tensor, argument: torch.Tensor | None, room: float) -> torch.Tensor:
    to_argument = clean.abs() if argument is None else (clean - argument).abs_()
    limit = torch.minimum(clean.abs().sub_(1).abs_(), to_argument).mul_(room)
    return torch.maximum(torch.minimum(noise, limit), limit.neg())


def row_sizes(
    rows: torch.Tensor, before: torch.Tensor | None, epsilon: float, gain: float, equal: float
) -> torch.Tensor | None:
    """Sizes of rows before they were centred, (count, 1), by the library; None where it cannot say.

    See :meth:`driftscope.lift.noise.rows.NormalisedRows.size`; a variance up to ``equal`` of the mean square is none.
    """
    library = compiled.library()
    if library is None or not _is_plain(rows) or (before is not None and not _is_plain(before)):
        return None
    sizes = torch.empty((rows.shape[0], 1), dtype=torch.float64)
    library.driftscope_row_sizes(rows.data_ptr(), _at(before), *rows.shape, epsilon, gain, equal, sizes.data_ptr())
    return sizes


@dataclass(frozen=True, slots=True)
class RowNoise:
    """What the elements of a row have in common: an offset, and a share of each element.

    Parameters
    ----------
    absolute : float
        Standard deviation of the offset.
    level : float
        Of a further part of it, in units of the row's size.
    mean : float
        Of a third part of it, which rows that have a size have.
    shared : float
        Standard deviation of the share.
    """

    absolute: float
    level: float
    mean: float
    shared: float

    def add(
        self, noisy: torch.Tensor, rows: torch.Tensor, sizes: torch.Tensor | None, generator: torch.Generator
    ) -> bool:
        """Add it to a contiguous float64 value, of which ``rows`` (count, length) is a view or has the same numbers.

        ``sizes`` (count, 1) are left out where nothing is in units of them. Returns whether everything is finite.
        """
        count, library = rows.shape[0], compiled.library()
        levels = drawn(4 * count, generator)
        shares = [x / LEVELS for x in (self.absolute, self.level, self.mean, self.shared)]
        if library is not None and _is_plain(noisy) and _is_plain(rows):
            places = noisy.data_ptr(), rows.data_ptr(), *rows.shape, levels.data_ptr(), (ctypes.c_double * 4)(*shares)
            return bool(library.driftscope_move_rows(*places, _at(sizes)))
        one, two, three, four = levels.view(4, count, 1).to(device=noisy.device, dtype=torch.float64).add_(0.5)
        offset = one * shares[0]
        if sizes is not None:
            offset += two * sizes * shares[1] + three * shares[2]
        offset = offset.nan_to_num_(0.0, 0.0, 0.0)
        noisy.view(rows.shape).add_(rows * (four * shares[3])).add_(offset)
        return math.isfinite(noisy.sum().item())


def _is_plain(x: torch.Tensor) -> bool:
    return x.dtype is torch.float64 and x.device.type == "cpu" and x.is_contiguous()
