"""Where terms stand in the operands that a call really has: shapes, axes and windows as the user runs them.

A layout turns rows of terms into the first operand of a call in its exact shape, weights into the second, and picks
the elements of the result that are the sums of those rows.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.kernels.kernel import Kernel, Meter, unit_weights
from driftscope.errors import InputError

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]


class Layout(Protocol):
    """How rows of terms stand in a call.

    Attributes
    ----------
    rows, n : int
    products : bool
        Whether there is a second operand, with the weights.
    called : tuple of int
        The shape, as a person would give it: ``(rows, n)``, ``(M, K, N)``, or that of an image.
    """

    @property
    def rows(self) -> int: ...
    @property
    def n(self) -> int: ...
    @property
    def products(self) -> bool: ...
    @property
    def called(self) -> Sizes: ...
    def spread(self, x: Array) -> Array:
        """Return the first operand for terms ``(rows, n)``."""
        ...

    def weights(self, w: Array) -> Array | None:
        """Return the second operand for weights ``(n,)`` or ``(n, k)``; None where there is none."""
        ...

    def picked(self, out: Array) -> Array:
        """Return the sums ``(rows, columns)`` of a result; all columns of a row have the same terms."""
        ...


@dataclass(frozen=True)
class AxesLayout:
    """A reduction of some axes of one tensor; terms are numbered in row-major order of those axes.

    Parameters
    ----------
    shape : tuple of int
    axes : tuple of int
        Not negative, ascending.
    """

    shape: Sizes
    axes: Sizes
    products: bool = False

    @functools.cached_property
    def _kept(self) -> Sizes:
        return tuple(axis for axis in range(len(self.shape)) if axis not in self.axes)

    @property
    def rows(self) -> int:
        """Number of sums."""
        return math.prod(self.shape[axis] for axis in self._kept)

    @property
    def n(self) -> int:
        """Number of terms of each."""
        return math.prod(self.shape[axis] for axis in self.axes)

    @property
    def called(self) -> Sizes:
        """``(rows, n)``."""
        return self.rows, self.n

    def spread(self, x: Array) -> Array:
        """Return the tensor whose reduced axes hold the rows."""
        order = (*self._kept, *self.axes)
        wide = x.reshape([self.shape[axis] for axis in order])
        return np.ascontiguousarray(wide.transpose(np.argsort(order)))

    def weights(self, w: Array) -> None:
        """Return None: nothing is multiplied."""

    def picked(self, out: Array) -> Array:
        """Return the result as one column."""
        return out.reshape(self.rows, 1)


@dataclass(frozen=True)
class ProductLayout:
    """A matrix product ``(*batch, M, K) by (*batch_b, K, N)``.

    Parameters
    ----------
    left, right : tuple of int
        Shapes of both operands as they are given to the call.
    transposed : bool
        Whether the second one is given as ``(N, K)``.
    """

    left: Sizes
    right: Sizes
    transposed: bool = False
    products: bool = True

    @property
    def rows(self) -> int:
        """Number of rows of the first operand."""
        return math.prod(self.left[:-1])

    @property
    def n(self) -> int:
        """K."""
        return self.left[-1]

    @property
    def columns(self) -> int:
        """N."""
        return self.right[-2 if self.transposed else -1]

    @property
    def called(self) -> Sizes:
        """``(M, K, N)``, rows of all batches counted."""
        return self.rows, self.n, self.columns

    def spread(self, x: Array) -> Array:
        """Return the first operand."""
        return np.ascontiguousarray(x.reshape(self.left))

    def weights(self, w: Array) -> Array:
        """Return a second operand whose columns take the weights in turn."""
        matrix = in_turn(w, self.columns)
        one = np.broadcast_to(matrix.T if self.transposed else matrix, self.right)
        return np.ascontiguousarray(one)

    def picked(self, out: Array) -> Array:
        """Return the result, batches one after another."""
        return out.reshape(self.rows, self.columns)


@dataclass(frozen=True)
class TurnedLayout:
    """A product of two matrices with more columns than rows: the columns take the terms, the rows the weights.

    Parameters
    ----------
    whole : ProductLayout
        Of two matrices.
    """

    whole: ProductLayout
    products: bool = True

    @property
    def rows(self) -> int:
        """N."""
        return self.whole.columns

    @property
    def n(self) -> int:
        """K."""
        return self.whole.n

    @property
    def called(self) -> Sizes:
        """``(M, K, N)``."""
        return self.whole.called

    def spread(self, x: Array) -> Array:
        """Return the second operand, its columns the rows of terms."""
        return np.ascontiguousarray(x if self.whole.transposed else x.T)

    def weights(self, w: Array) -> Array:
        """Return the first operand, its rows the weights in turn."""
        return np.ascontiguousarray(in_turn(w, self.whole.rows).T)

    def picked(self, out: Array) -> Array:
        """Return the result turned."""
        return np.ascontiguousarray(out.T)


def product_layout(left: Sizes, right: Sizes, *, transposed: bool = False) -> ProductLayout | TurnedLayout:
    """Return the layout of a product in which one call holds the most rows of terms."""
    whole = ProductLayout(left, right, transposed)
    return TurnedLayout(whole) if len(left) == len(right) == 2 and whole.columns > whole.rows else whole


@dataclass(frozen=True)
class WindowLayout:
    """A convolution: every window that overlaps no other one is a row, every output channel of group 0 a column.

    Parameters
    ----------
    image : tuple of int
        ``(images, channels, *sizes)``.
    filters : tuple of int
        ``(filters, channels of a group, *sizes)``.
    strides, dilations : tuple of int
    pads : tuple of int
        Zeros before and after each axis, all befores first.
    groups : int
    """

    image: Sizes
    filters: Sizes
    strides: Sizes
    dilations: Sizes
    pads: Sizes
    groups: int = 1
    products: bool = True

    @functools.cached_property
    def _starts(self) -> list[list[int]]:
        """Per axis, output positions whose windows lie inside the image and apart from each other."""
        found = []
        for axis, size in enumerate(self.image[2:]):
            stride, dilation, before = self.strides[axis], self.dilations[axis], self.pads[axis]
            reach = dilation * (self.filters[2 + axis] - 1) + 1
            after = self.pads[axis + len(self.strides)]
            count = (size + before + after - reach) // stride + 1
            inside = [p for p in range(max(count, 0)) if 0 <= p * stride - before <= size - reach]
            found.append(inside[:: -(-reach // stride)])
        return found

    @functools.cached_property
    def _windows(self) -> list[Sizes]:
        return list(itertools.product(*self._starts))

    @property
    def rows(self) -> int:
        """Windows of all images."""
        return self.image[0] * len(self._windows)

    @property
    def n(self) -> int:
        """Terms of one window."""
        return math.prod(self.filters[1:])

    @property
    def called(self) -> Sizes:
        """Shape of the images."""
        return self.image

    def spread(self, x: Array) -> Array:
        """Return images with a row of terms in every window."""
        image = np.zeros(self.image, x.dtype)
        terms = x.reshape(self.image[0], len(self._windows), *self.filters[1:])
        for number, window in enumerate(self._windows):
            image[(slice(None), slice(0, self.filters[1]), *self._slices(window))] = terms[:, number]
        return image

    def _slices(self, window: Sizes) -> list[slice]:
        slices = []
        for axis, p in enumerate(window):
            first = p * self.strides[axis] - self.pads[axis]
            dilation = self.dilations[axis]
            slices.append(slice(first, first + dilation * (self.filters[2 + axis] - 1) + 1, dilation))
        return slices

    def weights(self, w: Array) -> Array:
        """Return filters that take the weights in turn."""
        return np.ascontiguousarray(in_turn(w, self.filters[0]).T.reshape(self.filters))

    def picked(self, out: Array) -> Array:
        """Return the elements of the windows in the channels of the first group."""
        channels: Any = out[:, : max(self.filters[0] // self.groups, 1)]
        parts = [channels[(..., *window)] for window in self._windows]
        return np.stack(parts, axis=1).reshape(self.rows, -1)


class PlacedKernel(Kernel):
    """A call in exactly the shape that the user runs.

    Parameters
    ----------
    name : str
    layout : Layout
    make : callable
        Given the second operand (or None), returns the function of the first one.
    dtype : str
    library : str
    meter : Meter

    Raises
    ------
    InputError
        If there is nothing to add, or no window of a convolution lies inside its image.
    """

    def __init__(
        self, name: str, layout: Layout, make: Callable[[Array | None], Callable[[Array], Array]], dtype: str,
        library: str, meter: Meter,
    ):  # fmt: skip
        super().__init__(name, layout.n, dtype, meter)
        if layout.n < 1 or layout.rows < 1:
            raise InputError(f"{name}: no sum in this call has all of its terms inside the operands")
        self.layout, self.rows, self.library = layout, layout.rows, library
        self.products = layout.products
        self.shape = layout.called
        if isinstance(layout, TurnedLayout):
            self.nouns = "columns", "rows"
        self._make = make
        self.use_weights(None)

    def use_weights(self, weights: Array | None) -> None:
        # Made when it is used: the second operand may be packed, or a session be created for it.
        self._weights: Array | None = weights
        self._run: Callable[[Array], Array] | None = None

    def run(self, x: Array) -> Array:
        out = self.run_columns(x)
        own = out[:, self.column]
        same = ((out == own[:, None]) | ((out != out) & (own != own)[:, None])).all(axis=0)
        self.columns = same if self.columns is None else self.columns & same
        return np.ascontiguousarray(own)

    def run_columns(self, x: Array) -> Array:
        if self._run is None:
            given = unit_weights(self.n, self.dtype) if self._weights is None else self._weights
            self._run = self._make(self.layout.weights(given))
        return self.layout.picked(self._run(self.layout.spread(x)))


def in_turn(w: Array, columns: int) -> Array:
    """Return weights ``(n, columns)``: those of ``(n,)`` in every column, those of ``(n, k)`` in turn."""
    return np.repeat(w[:, None], columns, axis=1) if w.ndim == 1 else w[:, np.arange(columns) % w.shape[1]]


def sizes_of(shape: Any) -> tuple[int, ...]:
    """Check that a shape is one.

    Raises
    ------
    InputError
        If it is not.
    """
    try:
        sizes = tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        raise InputError(f"shape {shape!r} is not a tuple of whole numbers") from None
    if min(sizes, default=0) < 1:
        raise InputError(f"shape {sizes}: every size is at least 1")
    return sizes
