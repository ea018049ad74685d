"""What a forward pass changes on modules, put back: buffers, modes, hooks, gradients, attributes."""

from __future__ import annotations

import functools
import inspect
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from driftscope.programs.isolation.memory import available_bytes
from driftscope.programs.state.by_tensor import ByTensor
from driftscope.programs.state.module_tree import members_of, modules_in
from driftscope.programs.state.process import at_end

#: Parameters and gradients up to this many bytes are compared with a copy after each run, as buffers always are, into
#: which forward passes do write. Above, a change is noticed by the version counter alone.
COPIED_BYTES = 16 << 20
_ROOM = 0.25  # of the free memory, which copies for a whole call may take

#: For the length of one call: a tensor -> its version and place, and what it held then.
_COPIES: ByTensor[tuple[tuple[int, int], torch.Tensor | None]] = ByTensor()


def forget_copies() -> None:
    """Give back the memory of copies of tensors; the next native run makes them anew."""
    _COPIES.clear()


at_end(forget_copies)

_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.float16: torch.int16,
             torch.bfloat16: torch.int16, torch.int64: torch.int64}  # fmt: skip
_CONTAINERS = (dict, list, set, deque)
_SINGLE = (bool, type(None), int, float, str, torch.Tensor, nn.Parameter)  # of most attributes the type
# Subclasses (of quantisation libraries, distributed tensors) have storage of their own kind.
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


def modules_of(program: Any) -> list[nn.Module]:
    """Return the modules that a program is or calls: itself, what it is bound to, its closure and its globals."""
    found: dict[int, nn.Module] = {}
    _collect(program, found, depth=3)
    return list(found.values())


def _collect(thing: Any, found: dict[int, nn.Module], depth: int) -> None:
    if isinstance(thing, nn.Module):
        found[id(thing)] = thing
        return
    if depth == 0:
        return
    for held in _held_by(thing):
        if isinstance(held, nn.Module) or inspect.isroutine(held) or isinstance(held, functools.partial):
            _collect(held, found, depth - 1)


def _held_by(thing: Any) -> Iterator[Any]:
    if isinstance(thing, functools.partial):
        yield from (thing.func, *thing.args, *thing.keywords.values())
    if inspect.ismethod(thing):
        yield from (thing.__self__, thing.__func__)
    yield getattr(thing, "__wrapped__", None)
    if inspect.isfunction(thing):
        cells = thing.__closure__ or ()
        yield from (cell.cell_contents for cell in cells if _filled(cell))
        yield from (thing.__globals__[name] for name in thing.__code__.co_names if name in thing.__globals__)
        yield from thing.__defaults__ or ()


def _filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


class ModuleState:
    """One module with everything in it, as it is now.

    Parameters
    ----------
    module : torch.nn.Module
    """

    def __init__(self, module: nn.Module):
        modules = modules_in(module)
        parameters, buffers = members_of(modules, "_parameters"), members_of(modules, "_buffers")
        # A lazy module becomes another one in its first run: there is nothing to go back to.
        if any(nn.parameter.is_lazy(t) for _, t in (*parameters, *buffers)):
            modules, parameters, buffers = [], [], []
        tables = [(path, table) for path, m in modules for table in _tables(m)]
        self._tables = [(path, table, dict(table)) for path, table in tables if table]
        values = [v for _, _, kept in self._tables for v in kept.values() if type(v) not in _SINGLE]
        held = [v for v in values if isinstance(v, _CONTAINERS)]
        # Nearly all of them are empty tables of hooks.
        self._empty = [v for v in held if not v] + [table for _, table in tables if not table]
        known = {id(table) for _, table, _ in self._tables}
        self._contents = [(v, _copied(v)) for v in held if v and id(v) not in known]
        self._gradients = [(name, p, p.grad) for name, p in parameters]
        self._tensors = [_Tensor(f"buffer {n}", t) for n, t in _named(buffers)]
        others = [(f"parameter {n}", p) for n, p in _named(parameters)]
        others += [(f"the gradient of {name}", grad) for name, _, grad in self._gradients if grad is not None]
        size = sum(t.nbytes for _, t in others)
        if size <= COPIED_BYTES:
            self._tensors += [_Tensor(name, t) for name, t in others]
        else:
            fits = all(_COPIES.get(t) for _, t in others) or size <= _ROOM * available_bytes()
            self._tensors += [_LargeTensor(name, t, fits) for name, t in others]

    def put_back(self) -> list[str]:
        """Put everything back and name what a person would call a change; what only fills a cache is not named."""
        changed = [f"the gradient of {name}" for name, p, grad in self._gradients if p.grad is not grad]
        for _, parameter, grad in self._gradients:
            if parameter.grad is not grad:
                parameter.grad = grad
        for path, table, kept in self._tables:
            changed += _restore(path, table, kept)
        for held in self._empty:
            if held:
                held.clear()
        for held, kept_items in self._contents:
            _refill(held, kept_items)
        return changed + [words for tensor in self._tensors if (words := tensor.put_back())]


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    # Scripted modules keep theirs in C++, where a forward pass cannot rebind them.
    own = (vars(module), module._buffers, module._parameters, module._modules)
    return [table for table in own if isinstance(table, dict)]


def _named(pairs: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    return [
        (name, t) for name, t in pairs if type(t) in _PLAIN and t.layout is torch.strided and t.device.type != "meta"
    ]


class _Tensor:
    """A tensor and how to tell, and undo, that it was written into.

    One copy serves all runs of a call, as long as the version counter says that it is of what the tensor holds.
    """

    def __init__(self, name: str, tensor: torch.Tensor, fits: bool = True):
        self.name, self.tensor = name, tensor
        self.version = _version(tensor)
        version, copy = _COPIES.get(tensor) or (None, None)
        if version != self.version or tensor.is_inference():  # whose writes are not counted
            copy = tensor.detach().clone() if fits else None
            _COPIES[tensor] = (self.version, copy)
        self.copy: torch.Tensor | None = copy

    def put_back(self) -> str:
        """Put it back and return its name; nothing where it holds what it held."""
        if self.copy is not None and _same_bits(self.tensor, self.copy):
            return ""
        if self.copy is not None:
            with torch.no_grad():
                if self.tensor.shape == self.copy.shape:
                    self.tensor.copy_(self.copy)
                else:
                    self.tensor.data = self.copy.clone()
        _COPIES[self.tensor] = (_version(self.tensor), self.copy)
        return self.name if self.copy is not None else f"{self.name} (too large to be put back)"


class _LargeTensor(_Tensor):
    """One that is copied only where there is room, and read again only if its version says that it was written."""

    def __init__(self, name: str, tensor: torch.Tensor, fits: bool):
        super().__init__(name, tensor, fits and tensor.device.type == "cpu")

    def put_back(self) -> str:
        return "" if _version(self.tensor) == self.version else super().put_back()


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """How often a tensor was written, as far as that is counted, and where it lies: ``t.data = ...`` is not."""
    return 0 if tensor.is_inference() else tensor._version, tensor.data_ptr()


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape:
        return False
    # By bits: NaN is unequal to itself, and a buffer that holds one is not changed by that.
    return bool(torch.equal(_bits(one), _bits(other)))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    integer = _INTEGERS.get(tensor.dtype)
    if integer is not None and not tensor.is_neg():
        return tensor.detach().view(integer)
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _restore(path: str, table: dict[str, Any], kept: dict[str, Any]) -> list[str]:
    if table.keys() == kept.keys() and all(map(operator.is_, table.values(), kept.values())):
        return []
    changed = []
    for name in [name for name in table if name not in kept]:
        del table[name]
    for name, value in kept.items():
        now = table.get(name, table)
        if now is not value:
            table[name] = value
            if _counts(now, value):
                changed.append(f"{path}.{name}".lstrip("."))
    return changed


def _counts(now: Any, before: Any) -> bool:
    """Whether an attribute that was bound anew is a change of state; equal values and filled caches are none."""
    if isinstance(before, torch.Tensor):
        return not (isinstance(now, torch.Tensor) and now.dtype == before.dtype and _same_bits(now, before))
    return isinstance(before, (bool, int, float, complex, str)) and now != before


def _copied(held: Any) -> Any:
    return dict(held) if isinstance(held, dict) else list(held)


def _refill(held: Any, kept: Any) -> None:
    if isinstance(held, dict):
        if len(held) != len(kept) or any(k not in kept or held[k] is not kept[k] for k in held):
            held.clear()
            held.update(kept)
    elif len(held) != len(kept) or any(a is not b for a, b in zip(held, kept, strict=True)):
        held.clear()
        (held.update if isinstance(held, set) else held.extend)(kept)
