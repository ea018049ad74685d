"""Constants that stay up-cast from one float64 run to the next."""

from __future__ import annotations

from collections.abc import Hashable

import torch

#: Bytes of float64 that one program's constants may take between runs. Above, each is up-cast where it is used and
#: dropped again, which keeps the memory of large models near that of their weights.
HELD_BYTES = 1 << 27


class LiftedConstants:
    """The lifted constants of one program, as far as there is room.

    Nobody writes into them: a replay that writes gives every value memory of its own.
    """

    def __init__(self) -> None:
        self._held: dict[Hashable, torch.Tensor] = {}
        self.bytes = 0

    def get(self, name: Hashable) -> torch.Tensor | None:
        """Give a constant if it is held."""
        return self._held.get(name)

    def takes(self, elements: int) -> bool:
        """Whether there is room for a constant of so many elements."""
        return self.bytes + 8 * elements <= HELD_BYTES

    def hold(self, name: Hashable, tensor: torch.Tensor) -> None:
        """Keep a constant."""
        self._held[name] = tensor
        self.bytes += tensor.numel() * tensor.element_size()
