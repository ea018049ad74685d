"""numpy's universal functions, and scipy's, as torch's functions of the same mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]

#: numpy's name where torch has another; the rest have the same in both.
_NAMES = {
    "equal": "eq", "divide": "div", "power": "pow", "invert": "bitwise_not", "conjugate": "conj_physical",
    "fabs": "abs", "rint": "round", "left_shift": "bitwise_left_shift", "right_shift": "bitwise_right_shift",
    "degrees": "rad2deg", "radians": "deg2rad", "arctan2": "atan2",
}  # fmt: skip
_SAME = frozenset({
    "add", "subtract", "multiply", "floor_divide", "remainder", "fmod", "float_power", "negative", "positive",
    "absolute", "sign", "exp", "exp2", "log", "log2", "log10", "expm1", "log1p", "sqrt", "square", "reciprocal",
    "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh",
    "hypot", "maximum", "minimum", "fmax", "fmin", "logaddexp", "logaddexp2", "greater", "greater_equal", "less",
    "less_equal", "not_equal", "logical_and", "logical_or", "logical_xor", "logical_not", "isfinite", "isnan",
    "isinf", "signbit", "floor", "ceil", "trunc", "copysign", "heaviside", "nextafter", "bitwise_and",
    "bitwise_or", "bitwise_xor", "matmul", "gcd", "lcm", "ldexp", "rad2deg", "deg2rad",
})  # fmt: skip
_SPECIAL = {
    "expit": "expit", "erf": "erf", "erfc": "erfc", "erfinv": "erfinv", "erfcx": "erfcx", "ndtr": "ndtr",
    "log_ndtr": "log_ndtr", "ndtri": "ndtri", "gammaln": "gammaln", "psi": "digamma", "logit": "logit", "i0": "i0",
    "i1": "i1", "i0e": "i0e", "i1e": "i1e", "xlogy": "xlogy", "xlog1py": "xlog1py", "entr": "entr", "exp2": "exp2",
    "expm1": "expm1",
}  # fmt: skip
#: Those of two operands that may be given in the other order.
COMMUTING = frozenset({"add", "multiply"})
#: Those whose second operand torch takes as a Python number.
NUMBERS = frozenset({
    "add", "subtract", "multiply", "divide", "power", "floor_divide", "remainder", "fmod", "greater",
    "greater_equal", "less", "less_equal", "equal", "not_equal",
})  # fmt: skip


def _cbrt(x: torch.Tensor) -> torch.Tensor:
    return torch.copysign(x.abs() ** (1.0 / 3.0), x)


def _vecdot(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x.conj().unsqueeze(-2), y.unsqueeze(-1)).squeeze(-1).squeeze(-1)


def _divmod(x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.floor_divide(x, y), torch.remainder(x, y)


def _modf(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.trunc(x)
    return x - whole, whole


_OWN: dict[str, Function] = {
    "cbrt": _cbrt,
    "vecdot": _vecdot,
    "matvec": lambda a, x: torch.matmul(a, x.unsqueeze(-1)).squeeze(-1),
    "vecmat": lambda x, a: torch.matmul(x.conj().unsqueeze(-2), a).squeeze(-2),
    "divmod": _divmod,
    "modf": _modf,
    "log_expit": torch.nn.functional.logsigmoid,
}


def torch_ufunc(name: str) -> Function | None:
    """Find torch's function for a universal function of numpy or ``scipy.special``; None where there is none."""
    if name in _OWN:
        return _OWN[name]
    if name in _SPECIAL and name not in _SAME:
        return getattr(torch.special, _SPECIAL[name], None)
    if name in _NAMES or name in _SAME:
        return getattr(torch, _NAMES.get(name, name), None)
    return None
