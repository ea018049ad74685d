"""Constants that stay up-cast from one float64 run to the next, and the memory of those that do not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.readings import PIECE

#: Bytes of float64 that one program's constants may take between runs. Above, each is up-cast where it is used and
#: dropped again, which keeps the memory of large models near that of their weights.
HELD_BYTES = 1 << 27
#: The same for a program all of whose constants are no more than that: casting them again for each run would be a large
#: part of what a comparison costs.
WHOLE_BYTES = 1 << 29

# Bytes from which the C library takes memory from the system for each tensor and gives it back. Pages that are fresh
# cost twice as much as casting a weight into them.
_FROM_SYSTEM = 1 << 25
_ROOMS = 2
_uses: Callable[[int], int] | None = getattr(torch._C, "_storage_Use_Count", None)


class Rooms:
    """Memory of one run for constants that are up-cast where they are used: the next takes the place of the last."""

    def __init__(self) -> None:
        self._rooms: list[torch.Tensor] = []

    def up_cast(self, data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
        """Lift a large tensor, laid out as it is; None where a fresh one does as well."""
        size = data.numel()
        usual = type(data) is torch.Tensor and data.device.type == "cpu" and not data.requires_grad
        if not usual or _uses is None or dtype != torch.float64 or 8 * size < _FROM_SYSTEM:
            return None
        if not (data.is_contiguous() or (data.dim() > 1 and data.mT.is_contiguous())):
            return None
        free = [room for room in self._rooms if _is_unused(room)]
        room = next((r for r in free if r.numel() >= size), None)
        if room is None:
            room = torch.empty(size, dtype=dtype)
            # One that is too small makes place; those in use by now belong to who uses them.
            busy = [r for r in self._rooms if not any(r is f for f in free)]
            self._rooms = [*busy, *free[1:], room][-_ROOMS:]
        return room[:size].as_strided(data.shape, data.stride()).copy_(data)

    def clear(self) -> None:
        """Give the memory back at the end of a run, which garbage may outlive."""
        self._rooms.clear()


def _is_unused(room: torch.Tensor) -> bool:
    """Whether no view of a tensor is left: it counts for one, and asking for another."""
    return _uses is not None and _uses(room.untyped_storage()._cdata) <= _UNUSED


def _counted() -> int:
    probe = torch.empty(1)
    return 0 if _uses is None else _uses(probe.untyped_storage()._cdata)


_UNUSED = _counted()


def stay_up_cast(elements: int) -> bool:
    """Whether all constants of a program that has so many elements stay up-cast from one run to the next."""
    return 8 * elements <= WHOLE_BYTES


#: How many elements a tensor has, and its first one: a transpose and an up-cast tensor have the same.
Mark = tuple[int, float]


def _mark(tensor: torch.Tensor) -> Mark:
    return tensor.numel(), float(tensor[(0,) * tensor.ndim]) if tensor.numel() else 0.0


def marked(tensors: Iterable[torch.Tensor]) -> dict[Mark, list[torch.Tensor]]:
    """Tensors by what :func:`as_stored` looks them up by."""
    found: dict[Mark, list[torch.Tensor]] = {}
    for tensor in tensors:
        found.setdefault(_mark(tensor), []).append(tensor)
    return found


def as_stored(wide: torch.Tensor, stored: Mapping[Mark, Sequence[torch.Tensor]]) -> torch.Tensor:
    """The stored tensor, or its transpose, that holds the numbers of an up-cast one; that one itself if none does."""
    for tensor in stored.get(_mark(wide), ()) if stored else ():
        for own in (tensor, tensor.mT) if tensor.ndim == 2 else (tensor,):
            if own.shape == wide.shape and _hold_the_same(wide, own):
                return own
    return wide


def _hold_the_same(wide: torch.Tensor, own: torch.Tensor) -> bool:
    rows = max(PIECE * len(wide) // max(wide.numel(), 1), 1) if wide.ndim else 1
    pairs = zip(*(t.split(rows) if t.ndim else (t,) for t in (wide, own)), strict=True)
    return all(torch.equal(one, other.to(one.dtype)) for one, other in pairs)


@dataclass(slots=True)
class Product:
    """A tensor as it is stored, or in float64, and factors along its axes, multiplied in when somebody asks."""

    value: torch.Tensor
    factors: tuple[torch.Tensor, ...] = ()

    def fresh(self) -> torch.Tensor:
        """The product, for one look at it."""
        return functools.reduce(torch.mul, self.factors, self.value.to(torch.float64))

    def made(self) -> torch.Tensor:
        """The product, for all who ask; where the tensor is as it is stored, for one look."""
        made = self.fresh()
        if self.value.dtype == torch.float64:
            self.value, self.factors = made, ()
        return made

    def times(self, factor: torch.Tensor) -> Product:
        """It with one factor more."""
        if self.value.dtype == torch.float64:
            self.made()
        return Product(self.value, (*self.factors, factor))


class LiftedConstants:
    """The lifted constants of one program, as far as there is room.

    Nobody writes into them: a replay that writes gives every value memory of its own.

    Parameters
    ----------
    elements : int or None
        How many elements the program's constants have in all; None where that is not known.
    """

    def __init__(self, elements: int | None = None) -> None:
        self._held: dict[Hashable, torch.Tensor] = {}
        self._met: set[Hashable] = set()
        self.room = HELD_BYTES if elements is None or not stay_up_cast(elements) else max(HELD_BYTES, 8 * elements)
        self.bytes = 0

    def get(self, name: Hashable) -> torch.Tensor | None:
        """Give a constant if it is held."""
        return self._held.get(name)

    def takes(self, name: Hashable, elements: int) -> bool:
        """Whether to keep a constant of so many elements: from its second use on, while there is room.

        Many a graph, as the one that a runtime made, runs only once.
        """
        again = name in self._met
        self._met.add(name)
        return again and self.bytes + 8 * elements <= self.room

    def hold(self, name: Hashable, tensor: torch.Tensor) -> None:
        """Keep a constant."""
        self._held[name] = tensor
        self.bytes += tensor.numel() * tensor.element_size()
