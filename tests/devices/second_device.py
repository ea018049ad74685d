"""A second device made of Python: a processor without accelerators can still run a program on two devices.

Importing this registers a backend of torch for the whole process, so tests import it in a process of their own. A
tensor of it holds another one, which lies on the processor; every operator is computed there. As on a real device,
operands of two devices are refused, and views do not show their memory. ``TF32`` says whether products round their
factors to 11 bits, as tensor cores do.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as register

NAME = "second"
TF32 = False
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
# These would fill an ``out`` tensor of no elements, which cannot grow here.
_WHOLE = (
    "abs", "isfinite", "isnan", "isinf", "signbit", "arange", "arange.start", "arange.start_step", "view.dtype",
    "logsumexp", "var.correction", "sort", "cumsum", "argmax", "stack", "cat", "sum", "sum.dim_IntList",
)  # fmt: skip
_held: dict[int, tuple[torch.Tensor, Any]] = {}


class _Device:
    """What torch asks of a backend's module."""

    is_available = is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_device_name = staticmethod(lambda device=None: NAME)


def _put(raw: torch.Tensor) -> torch.Tensor:
    made = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)
    storage = made.untyped_storage()
    _held[storage._cdata] = (raw.contiguous().reshape(-1), storage)
    return made


def _is_there(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.device.type == NAME


def _raw(leaf: Any) -> Any:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    if not _is_there(leaf):
        return leaf
    memory, _ = _held[leaf.untyped_storage()._cdata]
    return memory.as_strided(leaf.shape, leaf.stride(), leaf.storage_offset())


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    if operator is torch.ops.aten._copy_from.default:
        _raw(args[1]).copy_(_raw(args[0]))
        return args[1]
    leaves, spec = pytree.tree_flatten((args, kwargs))
    here = [t for t in leaves if isinstance(t, torch.Tensor) and not _is_there(t) and t.dim()]
    if here and any(map(_is_there, leaves)):
        raise RuntimeError(f"{operator}: expected all tensors to be on the same device")
    wanted = next((leaf.type for leaf in leaves if isinstance(leaf, torch.device)), NAME)
    inner = [_raw(leaf) for leaf in leaves]
    known = {id(raw): leaf for raw, leaf in zip(inner, leaves, strict=True) if _is_there(leaf)}
    given, named = pytree.tree_unflatten(inner, spec)
    kinds = [str(argument.type) for argument in operator._schema.arguments]
    given = [
        torch.tensor(value) if kind == "Tensor" and isinstance(value, (int, float)) else value
        for value, kind in zip(given, kinds, strict=False)
    ]
    if TF32 and operator._schema.name.split("::")[1] in _PRODUCTS:
        factors = [_rounded(x) if x.dtype == torch.float32 else x for x in given if isinstance(x, torch.Tensor)][-2:]
        given = [*given[: len(given) - 2], *factors]
    found = operator(*given, **named)
    put = lambda t: known.get(id(t)) if id(t) in known else t if wanted == "cpu" else _put(t)  # noqa: E731
    return pytree.tree_map_only(torch.Tensor, put, found)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    bits = x.view(torch.int32) + (1 << 12)
    return (bits & ~((1 << 13) - 1)).view(torch.float32)


def _deep(original: Any) -> Any:
    def deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
        if not _is_there(self):
            return original(self, memo)
        if id(self) not in memo:
            new = _put(_raw(self.detach()).clone())
            is_parameter = isinstance(self, torch.nn.Parameter)
            memo[id(self)] = torch.nn.Parameter(new, self.requires_grad) if is_parameter else new
        return memo[id(self)]

    return deepcopy


register(NAME, backend_module=_Device)
_everything = torch.library.Library("_", "IMPL")
_everything.fallback(_run, "PrivateUse1")
_aten = torch.library.Library("aten", "IMPL")
for _name in _WHOLE:
    _packet, _, _overload = _name.partition(".")
    _operator = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _aten.impl(_name, functools.partial(_run, _operator), "PrivateUse1")
_convolve = torch.ops.aten.convolution.default
_aten.impl("convolution_overrideable", functools.partial(_run, _convolve), "PrivateUse1")
for _kind in (torch.Tensor, torch.nn.Parameter):
    _kind.__deepcopy__ = _deep(_kind.__deepcopy__)  # type: ignore[method-assign]
