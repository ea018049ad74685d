"""Random inputs that are the same everywhere: a law, a shape, a dtype, a seed and a name make a tensor.

A spec reads ``4x64:float32:uniform(0, 1)``: shape, then dtype, then law. The stream of random numbers depends on the
seed and the input's name alone, so that adding an input or reordering them changes no other input.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from driftscope.errors import InputError
from driftscope.programs.arrays import dtype_name

DTYPES: dict[str, torch.dtype] = {
    dtype_name(d): d
    for d in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.bool, torch.complex64, torch.complex128),
    )
}

Draw = Callable[..., Any]

# name -> (default arguments, what it draws); numpy's float64 values, rounded once to the dtype.
LAWS: dict[str, tuple[tuple[float, ...], Draw]] = {
    "normal": ((0.0, 1.0), lambda rng, shape, mean, std: mean + std * rng.standard_normal(shape)),
    "uniform": ((0.0, 1.0), lambda rng, shape, low, high: low + (high - low) * rng.random(shape)),
    "pareto": ((1.0,), lambda rng, shape, alpha: rng.pareto(alpha, shape)),
    "ones": ((), lambda rng, shape: np.ones(shape)),
    "zeros": ((), lambda rng, shape: np.zeros(shape)),
    "full": ((0.0,), lambda rng, shape, value: np.full(shape, value)),
    "arange": ((), lambda rng, shape: np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)),
    "randint": ((0, 2), lambda rng, shape, low, high: rng.integers(int(low), int(high), size=shape)),
}
_INTEGER_LAWS = {"randint", "ones", "zeros", "full", "arange"}
_FLOAT_ONLY = {"normal", "uniform", "pareto"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor still to be drawn.

    Parameters
    ----------
    name : str
        Names its stream of random numbers.
    shape : tuple of int
    dtype : torch.dtype
    law : str
        A key of :data:`LAWS`.
    arguments : tuple of float
        The law's arguments.
    settled : bool
        False when ``randint`` bounds are only a default, which a program that looks the values up in a table of
        known size may raise.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    law: str
    arguments: tuple[float, ...] = ()
    settled: bool = True

    is_tree_leaf: ClassVar[bool] = True

    def draw(self, seed: int) -> torch.Tensor:
        """Return the tensor: the same bits for the same spec, name and seed on every machine."""
        try:
            return self._drawn(seed)
        except (MemoryError, OverflowError, ValueError) as error:
            raise InputError(f"input {self.name!r}: {self} cannot be made on this machine: {error}") from error

    def _drawn(self, seed: int) -> torch.Tensor:
        rng = rng_for("inputs", seed, self.name)
        _, law = LAWS[self.law]
        values = law(rng, self.shape, *self.arguments)
        if self.dtype.is_complex and self.law in _FLOAT_ONLY:
            values = values + 1j * law(rng, self.shape, *self.arguments)
        return torch.from_numpy(np.ascontiguousarray(values)).reshape(self.shape).to(self.dtype)

    def within(self, limit: int) -> Wanted:
        """Return the same with indices below ``limit``, unless the bounds were given."""
        return self if self.settled else replace(self, arguments=(0, limit), settled=True)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "()"
        arguments = ", ".join(f"{a:g}" if isinstance(a, float) else str(a) for a in self.arguments)
        return f"{shape}:{dtype_name(self.dtype)}:{self.law}({arguments})"


def rng_for(*names: object) -> np.random.Generator:
    """Return the random stream of this name: the same on every machine, in any order of asking."""
    digest = hashlib.blake2b(repr(names).encode(), digest_size=16).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))


def parse_spec(name: str, text: str) -> Wanted:
    """Read ``4x64:float32:uniform(0, 1)``.

    Parameters
    ----------
    name : str
        The input's name, for the messages and the random stream.
    text : str
        Shape (``4x64``, ``()`` for a scalar, sizes of 0 allowed), then optionally dtype (default float32), then
        optionally a law: normal, uniform, pareto, ones, zeros, full, arange, randint.

    Raises
    ------
    InputError
        Naming the part that cannot be read.
    """
    shape_text, _, rest = text.partition(":")
    dtype_text, _, law_text = rest.partition(":")
    shape = _shape(name, shape_text.strip())
    dtype = _dtype(name, dtype_text.strip() or "float32")
    return wanted(name, shape, dtype, law_text.strip())


def wanted(name: str, shape: tuple[int, ...], dtype: torch.dtype, law_text: str = "") -> Wanted:
    """Return the tensor of this shape, dtype and law, to be drawn; an empty law means the dtype's usual one."""
    if not law_text:
        if dtype.is_floating_point or dtype.is_complex:
            return Wanted(name, shape, dtype, "normal", (0.0, 1.0))
        return Wanted(name, shape, dtype, "randint", (0, 2), settled=dtype is torch.bool)
    law, arguments = _law(name, law_text, dtype)
    return Wanted(name, shape, dtype, law, arguments)


def _shape(name: str, text: str) -> tuple[int, ...]:
    if text in ("()", "", "scalar"):
        return ()
    parts = text.lower().strip("[]() ").replace(",", "x").split("x")
    if "," in text and not parts[-1].strip():
        parts.pop()  # as Python writes a shape of one size: (4,)
    try:
        shape = tuple(int(part) for part in parts)
    except ValueError:
        raise InputError(
            f"input {name!r}: the shape {text!r} cannot be read;"
            " write sizes with x between them, as 4x64 (() for a scalar)"
        ) from None
    negative = next((size for size in shape if size < 0), None)
    if negative is not None:
        raise InputError(f"input {name!r}: the shape {text!r} has the size {negative}; sizes are 0 or more")
    return shape


def _dtype(name: str, text: str) -> torch.dtype:
    if text not in DTYPES:
        raise InputError(f"input {name!r}: unknown dtype {text!r}; choose one of {', '.join(DTYPES)}")
    return DTYPES[text]


def _law(name: str, text: str, dtype: torch.dtype) -> tuple[str, tuple[float, ...]]:
    found = re.fullmatch(r"(\w+)\s*(?:\((.*)\))?", text)
    law = found.group(1) if found else text
    if found is None or law not in LAWS:
        raise InputError(f"input {name!r}: unknown law {text!r}; choose one of {', '.join(LAWS)}")
    arguments = _arguments(name, text, found.group(2) or "")
    defaults, _ = LAWS[law]
    if len(arguments) > len(defaults):
        raise InputError(f"input {name!r}: {text!r} has too many numbers; {law} takes {len(defaults)}")
    if law == "randint" and len(arguments) == 1:
        arguments = (0, *arguments)
    arguments += defaults[len(arguments) :]
    _check_fit(name, law, arguments, dtype)
    return law, arguments


def _arguments(name: str, text: str, inside: str) -> tuple[float, ...]:
    try:
        values = ast.literal_eval(f"({inside},)") if inside.strip() else ()
    except (ValueError, SyntaxError):
        values = (None,)
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
        raise InputError(f"input {name!r}: the numbers of {text!r} cannot be read; write them as in uniform(0, 1)")
    return tuple(values)


def _check_fit(name: str, law: str, arguments: tuple[float, ...], dtype: torch.dtype) -> None:
    integral = not (dtype.is_floating_point or dtype.is_complex)
    if integral and law not in _INTEGER_LAWS:
        raise InputError(
            f"input {name!r}: {law} draws floating-point values, but the dtype is {dtype_name(dtype)};"
            " use randint(low, high), ones, zeros, full or arange"
        )
    if law == "randint" and not arguments[0] < arguments[1]:
        raise InputError(
            f"input {name!r}: randint({arguments[0]}, {arguments[1]}) is empty; the second number must be larger"
        )
    if law == "pareto" and not arguments[0] > 0:
        raise InputError(f"input {name!r}: pareto({arguments[0]}) does not exist; its number must be positive")
    if integral and dtype is not torch.bool and law in ("randint", "full") and arguments:
        limits = torch.iinfo(dtype)
        top = arguments[-1] - (1 if law == "randint" else 0)
        if arguments[0] < limits.min or top > limits.max:
            raise InputError(
                f"input {name!r}: {law}{arguments} leaves the range of {dtype_name(dtype)},"
                f" {limits.min} to {limits.max}"
            )
