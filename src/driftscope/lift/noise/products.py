"""How the error of a matrix product grows with its terms, measured with the library and the device at hand.

A library groups the terms of a product by the registers and caches of the processor, by the numbers of rows and
columns, and for a single row by how the matrix lies in memory: one running sum, sums in lanes, or blocks of 128 to
512 terms. For 4096 terms of mean one the coarsest errs ten times as much as the finest. So every kind of product is
tried once, on numbers of mean zero and of mean one; that takes some milliseconds and is kept for the process.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from driftscope.numerics import groupings
from driftscope.numerics.groupings import ROUNDING_RMS, Growth
from driftscope.programs.state.torch_settings import backend_flags

#: Rows and columns beyond which a product is cut into tiles, whose number changes no sum, where there are so many
#: multiplications that all threads take part.
ROWS, COLUMNS, THREADED = 64, 128, 2**19
#: And of one row: threads share its terms where there are few columns, and the columns where there are many.
ALONE, SHARED = 2**22, 2048
#: Terms beyond which a product is not tried.
LONGEST = 2**14
#: Elements of a result over which an error is averaged, and draws that are made for them at most.
ELEMENTS, DRAWS = 256, 32
#: Variance in units of the expected one that is still chance.
CHANCE = 2.0


@dataclass(frozen=True, slots=True)
class ProductKind:
    """What a library chooses a kernel by.

    Parameters
    ----------
    library : str
        ``"torch"``, ``"numpy"`` or ``"jax"``.
    rows, length, columns : int
        Of a product (rows, length) times (length, columns).
    across : tuple of bool
        Which of the two matrices lie in memory with their columns, not their rows, in one piece.
    batched : bool
        Whether several such products are computed by one call.
    """

    library: str
    rows: int
    length: int
    columns: int
    across: tuple[bool, bool]
    batched: bool

    @classmethod
    def of(cls, library: str, a: torch.Tensor, b: torch.Tensor) -> ProductKind:
        """Describe the product of two matrices, or of two batches of them, by a size like theirs."""
        rows, length, columns = a.shape[-2], a.shape[-1], b.shape[-1]
        widest = min(SHARED, ALONE // length) if rows == 1 else THREADED // (length * min(rows, ROWS))
        sizes = (
            _rounded(rows, max(ROWS, THREADED // (length * min(columns, COLUMNS)))),
            length,
            _rounded(columns, max(COLUMNS, widest)),
        )
        return cls(library, *sizes, (_across(a), _across(b)), a.dim() > 2)


def _rounded(size: int, most: int) -> int:
    """The next power of two, or that of a size that is enough."""
    return 1 << (min(size, most) - 1).bit_length()


def _across(matrix: torch.Tensor) -> bool:
    return matrix.stride(-1) != 1 and matrix.stride(-2) == 1


def product_growth(layout: ProductKind, device: str) -> Growth | None:
    """How a product's error in float32 grows with its terms; None where it is too long, or not ordinary rounding.

    Measured anew when somebody switches a backend of torch off or on, or lets it multiply in TF32.
    """
    return _tried(layout, device, backend_flags())


@functools.lru_cache(maxsize=4096)
def _tried(layout: ProductKind, device: str, _flags: tuple[object, ...]) -> Growth | None:
    if not 2 <= layout.length <= LONGEST:
        return None
    if layout.library in OTHERS:
        return grown(OTHERS[layout.library], layout)
    multiply = torch.bmm if layout.batched else torch.mm
    return grown(lambda a, b: multiply(a.to(device), b.to(device)).cpu(), layout)


def _by_numpy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.matmul(a.numpy(), b.numpy()))


def _by_jax(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import jax.numpy  # a program of JAX multiplied, so it is there

    return torch.from_numpy(np.array(jax.numpy.matmul(a.numpy(), b.numpy())))


#: Libraries beside torch, as the names of their operations begin, and how they multiply.
OTHERS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {"numpy": _by_numpy, "jax": _by_jax}


def grown(multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], layout: ProductKind) -> Growth | None:
    """Try a kernel on products of some layout.

    Two sizes of total beside the same terms tell the two parts of the growth apart. What errs more than one running
    sum in float32 does not sum in float32: that is cheaper arithmetic, which no floor may take for its own.

    Parameters
    ----------
    multiply : callable
        Two float32 matrices (or batches) to their product.
    layout : ProductKind
    """
    random = np.random.default_rng(layout.length)
    spread, level = (_error(multiply, layout, mean, random) for mean in (0.0, 1.0))
    per_term = spread.error / spread.squares
    # What a total adds shows where it is large beside its terms.
    lever = level.totals - spread.totals * level.squares / spread.squares
    total = (level.error - per_term * level.squares) / lever if lever > 0 else 0.0
    total = min(max(total, 0.0), spread.error / spread.totals)
    # What is left can come out below nothing by a rounding.
    found = Growth(max(spread.error - total * spread.totals, 0.0) / spread.squares, total)
    running = groupings.growth(groupings.sequential(layout.length), products=True)
    ordinary = all(m.error <= CHANCE * _variance(running, m) for m in (spread, level))
    return found if ordinary and spread.error else None


@dataclass(frozen=True, slots=True)
class _MeanSquares:
    """Mean squares: of the error in units of one rounding, of the terms, and of their totals."""

    error: float
    squares: float
    totals: float


def _variance(growth: Growth, measured: _MeanSquares) -> float:
    return growth.terms * measured.squares + growth.total * measured.totals


def _error(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], layout: ProductKind, mean: float,
    random: np.random.Generator,
) -> _MeanSquares:  # fmt: skip
    draws = min(max(1, ELEMENTS // (layout.rows * layout.columns)), DRAWS)
    sums = np.zeros(3)
    for _ in range(draws):
        a = _matrix(random, mean, (layout.rows, layout.length), layout.across[0], layout.batched)
        b = _matrix(random, mean, (layout.length, layout.columns), layout.across[1], layout.batched)
        wide = a.to(torch.float64), b.to(torch.float64)
        exact = wide[0] @ wide[1]
        error = multiply(a, b).to(torch.float64) - exact
        squares = wide[0].square() @ wide[1].square()
        sums += [float(error.square().mean()), float(squares.mean()), float(exact.square().mean())]
    error, squares, totals = sums / draws
    return _MeanSquares(float(error) / (ROUNDING_RMS * 2.0**-24) ** 2, float(squares), float(totals))


def _matrix(
    random: np.random.Generator, mean: float, shape: tuple[int, int], across: bool, batched: bool
) -> torch.Tensor:
    stored = (1 + batched, *(shape[::-1] if across else shape))
    drawn = random.standard_normal(stored, dtype=np.float32) + np.float32(mean)
    # In torch's own memory, which lies as that of a program's tensors does.
    matrices = torch.from_numpy(drawn).clone()
    matrices = matrices.mT if across else matrices
    return matrices if batched else matrices[0]
