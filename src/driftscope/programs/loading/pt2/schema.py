"""A parsed JSON tree held against the dataclasses of torch's own schema, field by field."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

from torch._export.serde import schema as torch_schema
from torch._export.serde.union import _Union

from driftscope.programs.loading.pt2.fields import CLASSES, FieldRefused, checked_text, kept_metadata
from driftscope.programs.loading.pt2.graphs import check_values

# Seen in torch 2.13: dataclasses with Annotated fields, unions that are one-field objects, IntEnums, str, int, float,
# bool, list and dict.
_LARGEST = 2**64
_NOT_FINITE = ("Infinity", "-Infinity", "NaN")


def checked_program(data: Any) -> dict[str, Any]:
    """Return the data of an exported program (``models/model.json``) with every field checked and rewritten.

    Raises
    ------
    FieldRefused
        If a field is of another type than torch's schema says, or not what may stand there.
    """
    found: dict[str, Any] = _checked(torch_schema.ExportedProgram, data, "", "")
    check_values(found["graph_module"]["graph"])
    return found


def checked_payloads(data: Any) -> dict[str, Any]:
    """Return the data of a list of stored tensors (``model_weights_config.json``), checked likewise."""
    found: dict[str, Any] = _checked(torch_schema.PayloadConfig, data, "", "")
    return found


def _checked(kind: Any, data: Any, owner: str, field: str) -> Any:
    """Return ``data`` if it is of type ``kind``; ``owner`` and ``field`` say where it stands."""
    kind = _plain_kind(kind)
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        (inner,) = (part for part in typing.get_args(kind) if part is not type(None))
        return None if data is None else _checked(inner, data, owner, field)
    if origin is list:
        (inner,) = typing.get_args(kind)
        return [_checked(inner, part, owner, field) for part in _of(list, data, owner, field)]
    if origin is dict:
        return _mapping(kind, data, owner, field)
    if isinstance(kind, type) and issubclass(kind, _Union):
        return _union(kind, data, owner, field)
    if dataclasses.is_dataclass(kind):
        return _record(kind, data, owner, field)
    return _scalar(kind, data, owner, field)


@functools.cache
def _plain_kind(kind: Any) -> Any:
    while typing.get_origin(kind) is typing.Annotated:
        kind = kind.__origin__
    if isinstance(kind, typing.ForwardRef):
        kind = kind.__forward_arg__
    return getattr(torch_schema, kind) if isinstance(kind, str) else kind


def _of(kind: type, data: Any, owner: str, field: str) -> Any:
    if type(data) is not kind:
        raise FieldRefused(f"its {owner}.{field} is a {type(data).__name__} where a {kind.__name__} belongs")
    return data


def _mapping(kind: Any, data: Any, owner: str, field: str) -> dict[str, Any]:
    if field == "metadata":
        return kept_metadata(owner, data)
    _, inner = typing.get_args(kind)
    return {
        checked_text(owner, field, key): _checked(inner, value, owner, field)
        for key, value in _of(dict, data, owner, field).items()
    }


def _union(kind: type, data: Any, owner: str, field: str) -> dict[str, Any]:
    hints = _hints(kind)
    if not isinstance(data, Mapping) or len(data) != 1 or next(iter(data)) not in hints:
        raise FieldRefused(f"its {owner}.{field} is not a {kind.__name__}")
    ((name, value),) = data.items()
    return {name: _checked(hints[name], value, kind.__name__, name)}


def _record(kind: Any, data: Any, owner: str, field: str) -> dict[str, Any]:
    if kind.__name__ in CLASSES:
        raise FieldRefused(CLASSES[kind.__name__])
    if not isinstance(data, Mapping):
        raise FieldRefused(f"its {owner}.{field} is a {type(data).__name__} where a {kind.__name__} belongs")
    hints = _hints(kind)
    made = {}
    # Fields that this torch does not know are left out, as torch leaves them out.
    for part in dataclasses.fields(kind):
        if part.name in data:
            made[part.name] = _checked(hints[part.name], data[part.name], kind.__name__, part.name)
        elif part.default is dataclasses.MISSING and part.default_factory is dataclasses.MISSING:
            raise FieldRefused(f"its {kind.__name__} has no {part.name}")
    return made


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, globalns=vars(torch_schema), include_extras=False)
    return {name: hint for name, hint in hints.items() if not name.startswith("_")}


def _scalar(kind: Any, data: Any, owner: str, field: str) -> Any:
    if kind is str:
        return checked_text(owner, field, _of(str, data, owner, field))
    if kind is bool:
        return _of(bool, data, owner, field)
    if kind is float:
        return _number(data, owner, field)
    whole = _of(int, data, owner, field)
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        if whole not in kind._value2member_map_:
            raise FieldRefused(f"its {owner}.{field} is {whole}, which is not one of {kind.__name__}")
    elif not abs(whole) <= _LARGEST:
        raise FieldRefused(f"its {owner}.{field} has a number of more than 64 bits")
    return whole


def _number(data: Any, owner: str, field: str) -> Any:
    if isinstance(data, str) and data in _NOT_FINITE:
        return data
    if isinstance(data, bool) or not isinstance(data, (int, float)) or (isinstance(data, int) and abs(data) > _LARGEST):
        raise FieldRefused(f"its {owner}.{field} is {str(data)[:40]!r} where a number belongs")
    if not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    return data
