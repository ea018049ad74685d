"""What a row of a study is: plain and typed values under plain names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.errors import InputError

Plain = str | int | float | bool | None
Row = dict[str, Any]
_PLAIN_TYPES = frozenset((str, int, float, bool, type(None)))

OK = "ok"

#: Columns that every row carries: how its cell ended, the finding code, and one sentence when it did not end well.
FATE_COLUMNS = ("outcome", "code", "words")
#: Columns of the store alone: they differ between two equal runs, so ``Study.rows`` leaves them out.
STORE_COLUMNS = ("run", "study", "seconds", "attempt", "part", "parts", "writer", "last_words", "cell")
BOOKKEEPING = frozenset((*FATE_COLUMNS, *STORE_COLUMNS))

#: SQL types from narrow to wide; two types of one column become the later one, or text.
_NUMBERS = ("BIGINT", "DOUBLE")
_SQL_TYPE = r"(BOOLEAN|BIGINT|DOUBLE|VARCHAR)(\[\]){0,8}"


@dataclass(frozen=True, slots=True)
class CellRows:
    """The rows of one finished cell, with what the store knows beside them."""

    cell: str
    rows: tuple[Row, ...]
    seconds: float
    attempt: int = 0
    last_words: str = ""


def checked_rows(answer: Any, coordinates: Mapping[str, Plain]) -> list[Row]:
    """Make rows of what a cell function returned.

    Parameters
    ----------
    answer : mapping or iterable of mappings
        One row or several: strings, numbers, booleans, None, or lists of numbers; numpy scalars are taken as numbers.
    coordinates : mapping
        The cell's own place, which every row begins with.

    Raises
    ------
    InputError
        If it is something else, or a column has the name of an axis or of a column driftscope writes itself.
    """
    rows = [answer] if isinstance(answer, Mapping) else list(answer) if isinstance(answer, Iterable) else None
    if not rows or isinstance(answer, str) or not all(isinstance(row, Mapping) for row in rows):
        raise InputError(f"a cell returns a row (a dict) or a list of at least one, not {answer!r:.80}")
    return [dict(coordinates) | {_name(k, coordinates): _value(k, v) for k, v in row.items()} for row in rows]


def _name(name: Any, coordinates: Mapping[str, Plain]) -> str:
    if not isinstance(name, str) or not name:
        raise InputError(f"the column {name!r} needs a name that is text")
    if name in BOOKKEEPING or name in coordinates:
        kind = "an axis of the study" if name in coordinates else "a column driftscope writes itself"
        raise InputError(f"a row cannot have a column {name!r}: that is {kind}")
    return name


def _value(name: str, value: Any) -> Any:
    if type(value) in _PLAIN_TYPES:
        return value
    plain = value.item() if getattr(value, "ndim", None) == 0 or type(value).__module__ == "numpy" else value
    if isinstance(plain, (list, tuple)) or hasattr(plain, "tolist"):
        numbers = plain.tolist() if hasattr(plain, "tolist") else list(plain)
        if set(map(type, numbers)) <= {int, float, bool}:
            return numbers
    elif plain is None or isinstance(plain, (str, bool, int, float)):
        return plain
    raise InputError(
        f"column {name!r} holds {value!r:.60} ({type(value).__name__}); a row holds strings, numbers, booleans, None "
        "and lists of numbers"
    )


def sql_type(value: Any) -> str | None:
    """Return the SQL type of a plain value, None for None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        return "BIGINT" if -(2**63) <= value < 2**63 else "DOUBLE"
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, list):
        kinds = set(map(type, value))  # a list of a thousand numbers has one or two types
        inner = "DOUBLE" if kinds <= {float} else wider(*map(sql_type, value))
        return f"{inner or 'DOUBLE'}[]"
    return "VARCHAR"


def is_sql_type(text: Any) -> bool:
    """Whether a text from a file is a type that :func:`sql_type` gives: it becomes part of a query."""
    return isinstance(text, str) and re.fullmatch(_SQL_TYPE, text) is not None


def wider(*types: str | None) -> str | None:
    """Return the narrowest type that holds values of all the given ones."""
    seen = {t for t in types if t is not None}
    if len(seen) <= 1:
        return next(iter(seen), None)
    if seen <= set(_NUMBERS):
        return "DOUBLE"
    if seen <= {f"{t}[]" for t in _NUMBERS}:
        return "DOUBLE[]"
    return "VARCHAR"


_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def restored(value: Any, kind: str) -> Any:
    """Turn a value read from JSON back into what was written: JSON has no NaN and no infinities."""
    if value is None:
        return None
    if kind == "DOUBLE" and isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if kind == "DOUBLE[]" and isinstance(value, list):
        return [_NOT_FINITE.get(v, v) if isinstance(v, str) else v for v in value]
    return value


def spelled(value: Any) -> Any:
    """Turn a value into what JSON can hold; the opposite of :func:`restored`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, list):
        return [spelled(v) for v in value]
    return value
