"""Kernels under question, seen from the outside: rows of terms in, one number per row out.

A kernel is one subclass of :class:`Kernel`. Everything else in this room hands it a numpy array of shape
``(rows, n)`` and reads a numpy array of shape ``(rows,)``; bfloat16 is spelled by ``ml_dtypes``.
"""

from __future__ import annotations

import abc
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from driftscope.accumulation.revealing.refusal import BudgetSpentError, RaisedError, RevealError
from driftscope.numerics.formats import numpy_dtype
from driftscope.records.words import counted

Array = npt.NDArray[Any]


@dataclass
class Meter:
    """What was spent on a kernel, and how much may be.

    Parameters
    ----------
    max_calls : int or None
    max_seconds : float or None
    """

    max_calls: int | None = None
    max_seconds: float | None = None
    calls: int = 0
    rows: int = 0
    started: float = 0.0

    def count(self, rows: int) -> None:
        """Enter one call.

        Raises
        ------
        BudgetSpentError
            Before the call that would be one too many.
        """
        if self.calls == 0:
            self.started = time.perf_counter()
        if self.max_calls is not None and self.calls >= self.max_calls:
            raise BudgetSpentError(
                f"the order was not found within {counted(self.max_calls, 'call')} ({self.seconds:.2g} s);"
                " allow more with max_calls= (--max-calls)"
            )
        if self.max_seconds is not None and self.seconds >= self.max_seconds:
            raise BudgetSpentError(
                f"the order was not found within {self.max_seconds:g} s ({counted(self.calls, 'call')});"
                " allow more with max_seconds= (--max-seconds)"
            )
        self.calls += 1
        self.rows += rows

    @property
    def seconds(self) -> float:
        """Time since the first call."""
        return time.perf_counter() - self.started if self.started else 0.0


class Kernel(abc.ABC):
    """Something that adds the ``n`` terms of a row.

    Attributes
    ----------
    name : str
    n : int
    length : int
        Number of terms of the kernel; larger than ``n`` where only some of them are asked.
    dtype : str
        Format of the terms.
    subnormals : str
        What the kernel does with subnormal numbers, once seen (:mod:`driftscope.accumulation.revealing.subnormals`).
    nouns : pair of str
        What ``rows`` and ``columns`` are in the call itself.
    products : bool
        Whether each term is multiplied with a weight first.
    rows : int or None
        Rows of every call where the shape is fixed; None where any number will do.
    alike : ndarray of int or None
        Rows of the shape that are added like row 0, where not all are; only they are used then.
    column : int
        The column of a product that is asked.
    columns : ndarray of bool or None
        Columns of a product that gave the bits of that one whenever asked.
    mapped : bool
        Whether it is known which elements are added alike, so that nobody needs to find out.
    library : str
        Name and version of what computes.
    shape : tuple of int or None
        The shape that was asked for.
    """

    products: bool = False
    rows: int | None = None
    alike: npt.NDArray[np.int64] | None = None
    column: int = 0
    columns: npt.NDArray[np.bool_] | None = None
    mapped: bool = False
    library: str = ""
    subnormals: str = ""
    nouns: tuple[str, str] = ("rows", "columns")
    shape: tuple[int, ...] | None = None

    def __init__(self, name: str, n: int, dtype: str, meter: Meter):
        self.name = name
        self.n = n
        self.length = n
        self.dtype = dtype
        self.meter = meter
        self.output = dtype

    def __call__(self, x: Array, asked: int | None = None, *, every_column: bool = False) -> Array:
        """Run once and count the call.

        Parameters
        ----------
        x : ndarray, shape (rows, n)
        asked : int, optional
            How many of the rows hold something; the others fill the shape. All by default.
        every_column : bool
            Return the results of all columns of a product, ``(rows, columns)``.

        Raises
        ------
        RevealError
            If the kernel raises, or does not return one float per row.
        """
        self.meter.count(len(x) if asked is None else asked)
        run = self.run_columns if every_column else self.run
        if self.alike is None or self.rows is None:
            result = self._checked(self._result(run, x), len(x), every_column)
        else:
            filled = np.zeros((self.rows, self.n), x.dtype)
            filled[self.alike[: len(x)]] = x
            result = self._checked(self._result(run, filled), self.rows, every_column)[self.alike[: len(x)]]
        self.output = result.dtype.name
        return result

    def _result(self, run: Callable[[Array], Array], x: Array) -> Array:
        try:
            return run(x)
        except (RevealError, KeyboardInterrupt):
            raise
        except Exception as error:
            words = (str(error).splitlines() or [""])[0]
            raise RaisedError(f"{self.name} raised {type(error).__name__}: {words}") from error

    def _checked(self, result: Array, rows: int, every_column: bool) -> Array:
        if result.shape == (rows, 1) and not every_column:
            result = result[:, 0]
        if result.shape[:1] != (rows,) or result.ndim != 1 + every_column:
            raise RevealError(
                f"{self.name} does not reduce the last axis: shape ({rows}, {self.n}) gave {result.shape},"
                f" not ({rows},)"
            )
        if result.dtype.kind not in "fV":
            raise RevealError(f"{self.name} returns {result.dtype}, not floating-point numbers")
        return result

    @abc.abstractmethod
    def run(self, x: Array) -> Array:
        """Return the result for terms of shape ``(rows, n)``."""

    def run_columns(self, x: Array) -> Array:
        """Return the results of every column of a product, ``(rows, columns)``."""
        raise NotImplementedError(f"{type(self).__name__} has no columns")

    def use_weights(self, weights: Array | None) -> None:
        """Multiply the terms with these from now on; None for ones.

        Parameters
        ----------
        weights : ndarray, shape (n,) or (n, k), or None
            The same for every column of the product; or k of them, which columns take in turn.
        """
        raise NotImplementedError(f"{type(self).__name__} has no weights")


class CallableKernel(Kernel):
    """A function of one array that reduces its last axis.

    Parameters
    ----------
    function : callable
    framework : str
        ``"numpy"``, ``"torch"`` or ``"jax"``.
    device : str, optional
        Where torch computes.

    Attributes
    ----------
    row_by_row : bool
        Whether the function is given single rows, shape ``(n,)``.
    """

    def __init__(
        self, name: str, function: Callable[[Any], Any], framework: str, n: int, dtype: str, meter: Meter,
        *, device: str | None = None,
    ):  # fmt: skip
        super().__init__(name, n, dtype, meter)
        self.function = function
        self._framework, self._device = framework, device
        self.be_given(framework, row_by_row=False)

    def be_given(self, framework: str, *, row_by_row: bool) -> None:
        """Give the function arrays of this library from now on, all rows or one by one."""
        self.row_by_row = row_by_row
        self.library = library_words(framework, self._device if framework == "torch" else None)
        self._into, self._out_of = CONVERSIONS[framework](self._device)

    def other_ways(self) -> list[tuple[str, bool]]:
        """Return what else to try where the function refuses: single rows, and the other library's arrays."""
        other = {"torch": "numpy", "numpy": "torch"}.get(self._framework)
        ways = [(self._framework, True)]
        return ways if other is None or self._device is not None else [*ways, (other, False), (other, True)]

    def run(self, x: Array) -> Array:
        if not self.row_by_row:
            return self._out_of(self.function(self._into(x)))
        results = [self._out_of(self.function(self._into(row))) for row in x]
        odd = next((r.shape for r in results if r.size != 1), None)
        if odd is not None:
            raise RevealError(f"{self.name} does not reduce: a row of shape ({self.n},) gave {odd}, not one number")
        return np.stack([r.reshape(()) for r in results])


def library_words(framework: str, device: str | None = None) -> str:
    """Return for example ``"numpy 2.4.6"``, or ``"torch 2.13.0 on NVIDIA H100"``."""
    words = f"{framework} {importlib.import_module(framework).__version__}"
    if device in (None, "cpu"):
        return words
    from driftscope.programs.torch_devices import device_words

    return f"{words} on {device_words(str(device))}"


def _numpy_conversion(_device: str | None = None) -> tuple[Callable[[Array], Any], Callable[[Any], Array]]:
    return (lambda x: x), np.asarray


def _torch_conversion(device: str | None = None) -> tuple[Callable[[Array], Any], Callable[[Any], Array]]:
    from driftscope.programs.arrays import array_of, tensor_of

    def into(x: Array) -> Any:
        return tensor_of(x) if device is None else tensor_of(x).to(device)

    def out_of(value: Any) -> Array:
        return np.asarray(array_of(value.detach().cpu()) if hasattr(value, "detach") else value)

    return into, out_of


# JAX takes numpy arrays as they are.
CONVERSIONS = {"numpy": _numpy_conversion, "torch": _torch_conversion, "jax": _numpy_conversion}


def unit_weights(n: int, dtype: str) -> Array:
    """Return ``n`` ones."""
    return np.ones(n, numpy_dtype(dtype))
