"""Records to plain JSON data and back: dataclasses, enums and tuples, nothing else."""

from __future__ import annotations

import dataclasses
import enum
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from driftscope.errors import RecordError

T = TypeVar("T")

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any) -> Any:
    """Turn a record into JSON data.

    JSON has no NaN or infinity; they become the strings ``"nan"``, ``"inf"`` and ``"-inf"`` so that any parser
    can read the file.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "item"):
        return to_plain(value.item())
    raise TypeError(f"a record holds plain data only, not {type(value).__name__}")


def from_plain(cls: type[T], data: Mapping[str, Any], schema: str) -> T:
    """Read a record of class ``cls`` from JSON data.

    Raises
    ------
    RecordError
        If ``data`` does not carry ``schema`` or does not have the record's fields.
    """
    found = data.get("schema") if isinstance(data, Mapping) else None
    if found != schema:
        raise RecordError(f"this is not a record of schema {schema!r} (found {found!r}); was it written by driftscope?")
    try:
        result: T = _build(cls, data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RecordError(f"the record is damaged: {error}") from error
    return result


def _build(kind: Any, data: Any) -> Any:
    """Build a value of type ``kind``; a record from a file is not trusted to hold what it should."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _build_optional(kind, data)
    if origin is tuple:
        return _build_tuple(typing.get_args(kind), data)
    if isinstance(kind, type) and issubclass(kind, tuple):  # one of our own, as Outputs(tuple[OutputRecord, ...])
        return kind(_build_tuple(tuple_of(kind), data))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _build_record(kind, data)
    if kind is float and isinstance(data, str):
        return _NOT_FINITE[data]
    expected = _ACCEPTED.get(origin or kind)
    if expected is not None and (not isinstance(data, expected) or (isinstance(data, bool) and kind is not bool)):
        raise TypeError(f"{data!r:.60} stands where {getattr(kind, '__name__', kind)} belongs")
    if kind is float:
        float(data)  # a whole number may be too large to be one
    return data


def tuple_of(kind: type[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return what a class derived from a tuple holds, as the arguments of ``tuple``."""
    (base,) = getattr(kind, "__orig_bases__", (tuple[Any, ...],))
    return typing.get_args(base)


_ACCEPTED: dict[Any, tuple[type, ...]] = {
    str: (str,),
    bool: (bool,),
    int: (int,),
    float: (float, int),
    Mapping: (Mapping,),
}


def _build_record(kind: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"{data!r:.60} stands where a {kind.__name__} belongs")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    needed = [f.name for f in dataclasses.fields(kind) if _needed(f) and f.name not in data]
    if needed:
        raise TypeError(f"a {kind.__name__} has no {', '.join(needed)}")
    # Fields of a newer minor version are additions; an older reader leaves them out.
    return kind(**{k: _build(hints[k], v) for k, v in data.items() if k in known})


def _needed(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _build_optional(kind: Any, data: Any) -> Any:
    if data is None:
        return None
    inner, *others = [a for a in typing.get_args(kind) if a is not type(None)]
    for other in others:
        try:
            return _build(inner, data)
        except TypeError:
            inner = other
    return _build(inner, data)


def _build_tuple(args: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    if not isinstance(data, (list, tuple)):
        raise TypeError(f"{data!r:.60} stands where a list belongs")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_build(args[0], item) for item in data)
    return tuple(_build(kind, item) for kind, item in zip(args, data, strict=True))
