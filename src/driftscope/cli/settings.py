"""``--set NAME=VALUE[,VALUE]``: parameters of a study on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from driftscope.errors import InputError

_WORDS = {"true": True, "false": False, "none": None}


def settings_of(given: Sequence[str], dtypes: str | None, devices: str | None, seed: int | None) -> dict[str, Any]:
    """Return parameters by name: a single value, or a tuple where there is a comma.

    Raises
    ------
    InputError
        If something is not NAME=VALUE, or is given twice.
    """
    found: dict[str, Any] = {}
    pairs = [*given]
    pairs += [f"{name}={value}" for name, value in (("dtypes", dtypes), ("devices", devices)) if value]
    pairs += [] if seed is None else [f"seed={seed}"]
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name.isidentifier() or not text:
            raise InputError(f"--set takes NAME=VALUE or NAME=VALUE,VALUE, not {pair!r}")
        if name in found:
            raise InputError(f"{name} is given twice; separate several values by commas")
        values = tuple(_value(part) for part in text.split(","))
        found[name] = values if len(values) > 1 else values[0]
    return found


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
