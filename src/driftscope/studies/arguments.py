"""What a user asks a study for, checked once: one clear sentence for a name or a number that cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from driftscope.errors import InputError


def one_of(what: str, given: Any, known: Iterable[str], *, references: bool = False) -> tuple[str, ...]:
    """Return names that are known, or references to the user's own code where these are taken.

    Raises
    ------
    InputError
        For any other; the nearest known name is suggested.
    """
    names = tuple(known)
    wanted = tuple(str(name) for name in _several(given))
    for name in wanted:
        if name not in names and not (references and _is_reference(name)):
            import difflib

            near = difflib.get_close_matches(name, names, n=1)
            own = ", or one of your own as module:function" if references else ""
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}{own}"
            raise InputError(f"there is no {what} {name!r}{hint}")
    if not wanted:
        raise InputError(f"give at least one {what}")
    return wanted


def some_of(what: str, given: Any, known: Iterable[str]) -> tuple[str, ...]:
    """The same for dtypes, which may be given as torch's, numpy's or by name."""
    return one_of(what, [_plain_dtype(value) for value in _several(given)], known)


def whole(what: str, given: Any, *, least: int) -> tuple[int, ...]:
    """Return whole numbers.

    Raises
    ------
    InputError
        For anything else, or one below ``least``.
    """
    values = _several(given)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{what} is a whole number of at least {least}, not {value!r}")
    if not values:
        raise InputError(f"give at least one {what}")
    return tuple(values)


def _is_reference(name: str) -> bool:
    from driftscope.programs.loading.references import is_reference

    return is_reference(name)


def _several(given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, int)) or not isinstance(given, Iterable):
        return (given,)
    return tuple(value.item() if hasattr(value, "item") else value for value in given)


def _plain_dtype(value: Any) -> str:
    name = getattr(value, "__name__", None) or getattr(value, "name", None) or str(value)
    return str(name).removeprefix("torch.")
