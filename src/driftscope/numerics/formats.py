"""Floating-point formats as facts: one row each, known by the name torch, numpy or ml_dtypes gives the dtype.

No tensor library is imported here: reports and records ask these questions too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class Format:
    """A binary floating-point format.

    Parameters
    ----------
    name : str
        The format's name, as ``"float32"`` or ``"tf32"``.
    dtype : str
        Name of the dtype whose bits store it (``"float32"`` for ``tf32``).
    bits : int
        Bits of one stored value.
    p : int
        Significand bits, the hidden one included.
    emin, emax : int
        Smallest and largest exponent of a normal number: ``2**emin <= |x| < 2**(emax + 1)``.
    reserved : int
        Values at the top of the last binade that the encoding takes for NaN.
    subnormals, infinities, signed_zero, signed : bool
        Whether the format has them.

    References
    ----------
    IEEE 754-2019, table 3.5; OCP Microscaling Formats (MX) v1.0; Micikevicius et al., *FP8 Formats for Deep
    Learning* (2022). The ``fnuz`` formats encode NaN as the pattern of minus zero.
    """

    name: str
    dtype: str
    bits: int
    p: int
    emin: int
    emax: int
    reserved: int = 0
    subnormals: bool = True
    infinities: bool = True
    signed_zero: bool = True
    signed: bool = True

    @property
    def unit_roundoff(self) -> float:
        """Bound of the relative error of one rounding to nearest, ``u = 2**-p``."""
        return 2.0**-self.p

    @property
    def smallest_normal(self) -> float:
        """Smallest positive normal number."""
        return 2.0**self.emin

    @property
    def smallest_subnormal(self) -> float:
        """Smallest positive number; the smallest normal one where there are no subnormals."""
        return 2.0 ** (self.emin - self.p + 1) if self.subnormals else self.smallest_normal

    @property
    def largest(self) -> float:
        """Largest finite number."""
        return (2.0 - (1 + self.reserved) * 2.0 ** (1 - self.p)) * 2.0**self.emax

    @property
    def smallest(self) -> float:
        """Most negative finite number; the smallest positive one in an unsigned format."""
        return -self.largest if self.signed else self.smallest_normal

    def ulp(self, scale: float) -> float:
        """Return the distance between neighbours at a scale.

        Parameters
        ----------
        scale : float
            A magnitude; its sign does not matter. At a power of two, the larger of the two distances.

        Returns
        -------
        float
            ``2**(max(floor(log2 |scale|), emin) - p + 1)``; infinity above the largest number, NaN for NaN.
        """
        magnitude = abs(scale)
        if math.isnan(magnitude):
            return math.nan
        if magnitude > self.largest:
            return math.inf
        # frexp counts from 0.5 <= m < 1, a binade below the field's 1 <= m < 2; zero lies in the lowest binade.
        exponent = math.frexp(magnitude)[1] - 1 if magnitude else self.emin
        return 2.0 ** (max(exponent, self.emin) - self.p + 1)


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format("float64", "float64", 64, p=53, emin=-1022, emax=1023),
        Format("float32", "float32", 32, p=24, emin=-126, emax=127),
        # A computing format: float32 operands rounded to it on their way into a tensor core.
        Format("tf32", "float32", 32, p=11, emin=-126, emax=127),
        Format("float16", "float16", 16, p=11, emin=-14, emax=15),
        Format("bfloat16", "bfloat16", 16, p=8, emin=-126, emax=127),
        Format("float8_e3m4", "float8_e3m4", 8, p=5, emin=-2, emax=3),
        Format("float8_e4m3", "float8_e4m3", 8, p=4, emin=-6, emax=7),
        Format("float8_e4m3fn", "float8_e4m3fn", 8, p=4, emin=-6, emax=8, reserved=1, infinities=False),
        Format("float8_e4m3fnuz", "float8_e4m3fnuz", 8, p=4, emin=-7, emax=7, infinities=False, signed_zero=False),
        Format(
            "float8_e4m3b11fnuz", "float8_e4m3b11fnuz", 8, p=4, emin=-10, emax=4, infinities=False, signed_zero=False
        ),
        Format("float8_e5m2", "float8_e5m2", 8, p=3, emin=-14, emax=15),
        Format("float8_e5m2fnuz", "float8_e5m2fnuz", 8, p=3, emin=-15, emax=15, infinities=False, signed_zero=False),
        # A scale, not a number: powers of two only, no sign, no zero.
        Format(
            "float8_e8m0fnu", "float8_e8m0fnu", 8, p=1, emin=-127, emax=127,
            subnormals=False, infinities=False, signed_zero=False, signed=False,
        ),
        Format("float6_e2m3fn", "float6_e2m3fn", 6, p=4, emin=0, emax=2, infinities=False),
        Format("float6_e3m2fn", "float6_e3m2fn", 6, p=3, emin=-2, emax=4, infinities=False),
        # torch stores two of them in one byte and calls the pair the dtype.
        Format("float4_e2m1fn", "float4_e2m1fn_x2", 4, p=2, emin=0, emax=2, infinities=False),
    )
}  # fmt: skip

_OTHER_NAMES = {
    "double": "float64",
    "float": "float32",
    "half": "float16",
    "float4_e2m1fn_x2": "float4_e2m1fn",
    # A complex number is two floats; what is asked about it is asked of each part.
    "complex32": "float16",
    "complex64": "float32",
    "complex128": "float64",
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype that stores a format, also where numpy has none of its own.

    Raises
    ------
    TypeError
        If there is no such dtype.
    """
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name, name))


def format_of(dtype_name: str) -> Format | None:
    """Return the floating-point format of a dtype, given its plain name.

    Parameters
    ----------
    dtype_name : str
        As ``"float32"``, ``"torch.bfloat16"``, ``"float8_e4m3fn"`` or ``"tf32"``. For a complex dtype the
        format of its parts is returned.

    Returns
    -------
    Format or None
        None for integers, bool, strings and anything unknown.
    """
    name = dtype_name.removeprefix("torch.").lower()
    return FORMATS.get(_OTHER_NAMES.get(name, name))
