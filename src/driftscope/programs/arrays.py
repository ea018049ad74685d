"""Between torch tensors and the arrays of other libraries, bit for bit and without a copy where memory allows."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from typing import Any

import ml_dtypes
import numpy as np
import torch

from driftscope.errors import InputError
from driftscope.programs.value_trees import flatten

# numpy has no such formats of its own; ml_dtypes spells them, and the bits are the same.
_SHARED_BITS: dict[str, tuple[torch.dtype, Any, Any]] = {
    name: (getattr(torch, name), getattr(ml_dtypes, name), carrier)
    for name, carrier in (
        ("bfloat16", np.int16),
        ("float8_e4m3fn", np.uint8),
        ("float8_e5m2", np.uint8),
        ("float8_e4m3fnuz", np.uint8),
        ("float8_e5m2fnuz", np.uint8),
        ("float8_e8m0fnu", np.uint8),
    )
    if hasattr(torch, name) and hasattr(ml_dtypes, name)
}


def dtype_name(dtype: torch.dtype) -> str:
    """Return ``"float32"`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def is_array(value: Any) -> bool:
    """Whether ``value`` is a numpy or JAX array or a numpy scalar."""
    if isinstance(value, (np.ndarray, np.generic)):
        return True
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array)


def library_of(tree: Any) -> str:
    """Return the one library whose arrays a tree holds: ``"torch"``, ``"numpy"``, ``"jax"``; empty for none or more."""
    found = {library for _, leaf in flatten(tree)[0] if (library := _library_of_leaf(leaf))}
    return found.pop() if len(found) == 1 else ""


def _library_of_leaf(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return "torch"
    if isinstance(leaf, (np.ndarray, np.generic)):
        return "numpy"
    return "jax" if is_array(leaf) else ""


def tensor_of(value: Any) -> Any:
    """Turn an array into a torch tensor with the same bits; anything that is not an array comes back as it is.

    Raises
    ------
    InputError
        If the array holds something that is not a number, a bool or a string.
    """
    if not is_array(value):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "USO":
        return _strings(array)
    if array.dtype.name in _SHARED_BITS:
        dtype, _, carrier = _SHARED_BITS[array.dtype.name]
        return _view(array, carrier).view(dtype)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        return _view(array, array.dtype)
    except TypeError as error:
        raise InputError(
            f"arrays of dtype {array.dtype} have no torch counterpart;"
            " convert to a float, integer, bool or complex dtype"
        ) from error


def _view(array: np.ndarray[Any, Any], carrier: Any) -> torch.Tensor:
    # torch shares memory only with writable arrays of positive strides, and would warn about the former.
    plain = array if array.flags.writeable and all(s >= 0 for s in array.strides) else array.copy()
    return torch.from_numpy(np.atleast_1d(plain).view(carrier)).reshape(array.shape)


def _strings(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if array.dtype.kind == "O" and not all(isinstance(item, (str, bytes)) for item in array.ravel()):
        raise InputError("an array of Python objects holds something else than strings; convert it to a numeric dtype")
    try:
        texts = array.astype(object)
        "".join(text for text in texts.ravel() if isinstance(text, str)).encode()
        return texts
    except (SystemError, ValueError) as error:  # numpy stores any number as a character, half a pair included
        raise InputError("an array of texts holds numbers that are no characters; save it again") from error


def array_of(value: Any) -> Any:
    """Turn a torch tensor into a numpy array with the same bits; anything else comes back as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.detach().cpu().resolve_conj().resolve_neg()
    name = dtype_name(tensor.dtype)
    if name in _SHARED_BITS:
        _, dtype, carrier = _SHARED_BITS[name]
        bits = tensor.contiguous().view(torch.int16 if carrier is np.int16 else torch.uint8)
        return bits.numpy().view(dtype)
    return tensor.numpy()


def real_array_of(leaf: Any) -> Any:
    """Return what a runtime without complex numbers is fed: their real and imaginary parts along a last axis."""
    value = torch.as_tensor(leaf)
    return array_of(torch.view_as_real(value.resolve_conj()) if value.is_complex() else value)


def jax_available() -> bool:
    """Whether JAX can be imported."""
    return importlib.util.find_spec("jax") is not None


def jax_in_64_bits() -> contextlib.AbstractContextManager[Any]:
    """Let JAX compute in float64 in this thread, for as long as the context lasts."""
    import jax

    if hasattr(jax, "enable_x64"):  # since JAX 0.8
        found: contextlib.AbstractContextManager[Any] = jax.enable_x64(True)
        return found
    from jax.experimental import enable_x64

    return enable_x64()  # type: ignore[no-any-return]


def jax_array_of(value: Any) -> Any:
    """Turn a torch tensor into a JAX array; anything else comes back as it is.

    Raises
    ------
    InputError
        If JAX would round the values: it computes in 32 bits unless ``jax_enable_x64`` is set.
    """
    if not isinstance(value, torch.Tensor):
        return value
    import jax.numpy as jnp

    array = array_of(value)
    converted = jnp.asarray(array)
    if np.asarray(converted).astype(array.dtype).tobytes() != array.tobytes():
        raise InputError(
            f"JAX would turn {array.dtype} into {converted.dtype} and change values;"
            " call jax.config.update('jax_enable_x64', True), or give 32-bit inputs"
        )
    return converted
