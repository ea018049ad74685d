"""What is known of tensors, for as long as each of them lives."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

V = TypeVar("V")


class ByTensor(Generic[V]):
    """A mapping of tensors, by identity, that keeps none alive.

    As ``torch.utils.weak.WeakIdKeyDictionary``, which makes two objects for each look and takes ten times as long:
    a comparison of a convolutional network looks twenty thousand times.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], V]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, tensor: torch.Tensor) -> V | None:
        """Give what is known of a tensor; None where nothing is."""
        held = self._known.get(id(tensor))
        # Torch may bring an object back whose reference is cleared by then, and an address may be another's.
        return held[1] if held is not None and held[0]() is tensor else None

    def __setitem__(self, tensor: torch.Tensor, value: V) -> None:
        key, known = id(tensor), self._known
        known[key] = weakref.ref(tensor, lambda _gone: known.pop(key, None)), value

    def clear(self) -> None:
        """Know nothing any more."""
        self._known.clear()
