"""From what a person calls a kernel to a :class:`Kernel`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from driftscope.accumulation.kernels.kernel import CallableKernel, Kernel, Meter
from driftscope.accumulation.kernels.operand_layouts import sizes_of
from driftscope.accumulation.kernels.products import PRODUCTS, product_kernel
from driftscope.errors import InputError
from driftscope.programs.loading.frameworks import framework_of
from driftscope.programs.loading.references import is_reference, resolve

FORMATS_TAKEN = ("float64", "float32", "float16", "bfloat16")


def _torch_sum(x: Any) -> Any:
    return x.sum(-1)


def _torch_mean(x: Any) -> Any:
    return x.mean(-1)


def _numpy_sum(x: Any) -> Any:
    return np.sum(x, axis=-1)


def _numpy_mean(x: Any) -> Any:
    return np.mean(x, axis=-1)


#: Functions that add everything unless told the axis.
_WHOLE = (
    ("torch", "sum", _torch_sum),
    ("torch", "mean", _torch_mean),
    ("numpy", "sum", _numpy_sum),
    ("numpy", "mean", _numpy_mean),
)

SUMS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "torch.sum": ("torch", _torch_sum),
    "torch.mean": ("torch", _torch_mean),
    "numpy.sum": ("numpy", _numpy_sum),
}


def open_kernel(
    kernel: Callable[[Any], Any] | str, n: int, dtype: Any, shape: Any, threads: int | None, meter: Meter, *,
    device: str | None = None,
) -> Kernel:  # fmt: skip
    """Make a kernel of a callable or a name.

    Raises
    ------
    InputError
        If there is no such kernel, or dtype or shape do not fit.
    """
    name = dtype_word(dtype)
    where = _device(device)
    if isinstance(kernel, str):
        if kernel in PRODUCTS:
            return product_kernel(kernel, name, product_shape(kernel, n, shape), meter, device=where)
        if kernel in SUMS:
            framework, function = SUMS[kernel]
            return checked_rows(CallableKernel(kernel, function, framework, n, name, meter, device=where), shape)
        if ".onnx:" in kernel:
            from driftscope.accumulation.kernels.onnx_nodes import open_node

            return open_node(kernel, n, name, shape, threads, meter)
        kernel = _resolved(kernel)
    if not callable(kernel):
        raise InputError(
            f"a {type(kernel).__name__} is not a kernel driftscope can call; give a function of one array, or a name"
        )
    words = getattr(kernel, "__name__", None) or type(kernel).__name__
    return checked_rows(CallableKernel(words, *_with_last_axis(kernel), n, name, meter, device=where), shape)


def _device(device: Any) -> str | None:
    """Check that torch can compute on a device.

    Raises
    ------
    InputError
        If it cannot.
    """
    if device is None or str(device) == "cpu":
        return None
    import torch

    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise InputError(f"device={device!r}: {(str(error).splitlines() or [''])[0]}") from error
    return str(device)


def _resolved(text: str) -> Any:
    if is_reference(text):
        return resolve(text).program
    names = ", ".join((*SUMS, *PRODUCTS))
    raise InputError(f"there is no kernel {text!r}; give {names}, model.onnx:output, or file.py:name")


def _with_last_axis(kernel: Callable[[Any], Any]) -> tuple[Callable[[Any], Any], str]:
    """Return the function to call and its framework; ``torch.sum`` itself adds everything unless told the axis."""
    for framework, word, along_last in _WHOLE:
        library = sys.modules.get(framework)
        if library is not None and kernel is getattr(library, word):
            return along_last, framework
    home = str(getattr(kernel, "__module__", ""))
    # Functions of the standard library take any sequence of numbers; numpy's are the cheapest.
    return kernel, "numpy" if home in ("builtins", "math", "statistics") else framework_of(kernel)


def dtype_word(dtype: Any) -> str:
    """Return the name of a dtype of numpy or torch, or of a name.

    Raises
    ------
    InputError
        If terms of that dtype cannot be probed.
    """
    text = str(getattr(dtype, "__name__", None) or dtype)
    word = text.removeprefix("torch.").removeprefix("numpy.")
    word = {"double": "float64", "float": "float32", "half": "float16"}.get(word, word)
    if word not in FORMATS_TAKEN:
        raise InputError(f"dtype {text!r}: give {', '.join(FORMATS_TAKEN)}")
    return word


def checked_rows(kernel: Kernel, shape: Any) -> Kernel:
    """Give a sum the shape ``(rows, n)`` that was asked for, if one was.

    Raises
    ------
    InputError
        If it does not end with n.
    """
    if shape is None:
        return kernel
    sizes = sizes_of(shape)
    if len(sizes) != 2 or sizes[1] != kernel.n:
        raise InputError(f"{kernel.name} adds the last axis of (rows, n): shape {sizes} does not end with n={kernel.n}")
    kernel.rows, kernel.shape = sizes[0], sizes
    return kernel


def product_shape(name: str, n: int, shape: Any) -> tuple[int, int, int]:
    """Check ``(M, K, N)``; without one, a product of 32 by n by 32.

    Raises
    ------
    InputError
        If K is not n.
    """
    sizes = (32, n, 32) if shape is None else sizes_of(shape)
    if len(sizes) != 3 or sizes[1] != n:
        raise InputError(f"{name} takes shape (M, K, N) with K = n = {n}, not {sizes}")
    return sizes[0], sizes[1], sizes[2]
