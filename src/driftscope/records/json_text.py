"""JSON that somebody else wrote: parsed within bounds, so that no text can exhaust the stack or the memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate
from typing import Any

DEEPEST = 100
MOST_VALUES = 5_000_000  # lists and dicts of Python take about 100 bytes a value
MOST_CHARACTERS = 256 << 20

# A string to its end, or to the end of the text when it has none: each character is looked at once.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}
_NOT_BRACKETS = re.compile(r"[^\[\]{}]+")


#: Digits of a whole number: what float64 can hold, or a seed.
MOST_DIGITS = 300


class TooMuch(ValueError):
    """A text is JSON perhaps, but larger or deeper than what is read."""


class TooDeep(TooMuch):
    """Its lists and dicts lie too deep."""


def parse_json(
    text: str | bytes, *, deepest: int = DEEPEST, hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Parse JSON of bounded size and depth.

    Parameters
    ----------
    text : str or bytes
    deepest : int
        Lists and dicts inside one another.
    hook : callable or None
        As ``object_hook`` of :func:`json.loads`.

    Raises
    ------
    ValueError
        If it is not JSON, not UTF-8, or beyond a bound (:class:`TooMuch`); its text is one clause.
    """
    words = text.decode("utf-8") if isinstance(text, bytes) else text
    if len(words) > MOST_CHARACTERS:
        raise TooMuch(f"it has {len(words):,} characters, and {MOST_CHARACTERS:,} are read at most")
    frame = _STRING.sub("", words)
    if frame.count(",") + frame.count("[") + frame.count("{") > MOST_VALUES:
        raise TooMuch(f"it has more than {MOST_VALUES:,} values")
    depth = max(accumulate(map(_STEPS.__getitem__, _NOT_BRACKETS.sub("", frame))), default=0)
    if depth > deepest:
        raise TooDeep(f"its lists and dicts lie {depth:,} deep, and {deepest} are read at most")
    return json.loads(words, object_hook=hook, parse_int=_whole)


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise TooMuch(f"it has a number of {len(digits):,} digits, and {MOST_DIGITS} are read at most")
    return int(digits)
