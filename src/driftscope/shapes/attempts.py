"""Ways of declaring sizes to ``torch.export``."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any


class Mode(enum.StrEnum):
    """How sizes are declared to ``torch.export``, from the most to the least said by the user."""

    NAMED = "named Dim"
    DERIVED = "derived Dim"
    DYNAMIC = "Dim.DYNAMIC"
    AUTO = "Dim.AUTO"
    OBLIVIOUS = "Dim.AUTO, backed_size_oblivious"
    UNBACKED = "unbacked"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One way of exporting.

    Parameters
    ----------
    mode : Mode
    sizes : tuple
        What is said of each axis, in the order of ``Arguments.axes``: a ``torch.export.Dim``, a ``Dim`` hint, or
        None for a fixed size.
    """

    mode: Mode
    sizes: tuple[Any, ...]
