"""One setting of the process: its name in words, how it is read, how a reading is written back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in words, how it is read, how a reading is written back.

    Parameters
    ----------
    name : str
    read : callable
        Cheap: it is called before and after every native run.
    write : callable
        Takes what ``read`` returned.
    random : bool
        A generator's state, which an honest program advances.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    random: bool = False
