"""JSON Schemas of the records, made from the dataclasses so that they cannot disagree with them."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any

from driftscope.records.plain import tuple_of

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SCALARS: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    # JSON has no NaN and no infinities: records spell them as strings.
    float: {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]},
}


def schema_of(record: type, name: str) -> dict[str, Any]:
    """Return the JSON Schema of a record class.

    Parameters
    ----------
    record : type
        A dataclass of strings, numbers, enums, tuples, mappings and dataclasses.
    name : str
        The value of the record's ``schema`` field, as ``"driftscope/comparison/1"``.

    Returns
    -------
    dict
        Unknown fields are allowed: within a major version fields are only added.
    """
    definitions: dict[str, Any] = {}
    whole = _object(record, definitions)
    whole["properties"]["schema"] = {"const": name}
    return {"$schema": _DIALECT, "$id": name, "title": record.__name__, **whole, "$defs": definitions}


def _object(record: type, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(record)
    fields = dataclasses.fields(record)
    return {
        "type": "object",
        "properties": {f.name: _type(hints[f.name], definitions) for f in fields},
        "required": [f.name for f in fields],
    }


def _type(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [{"type": "null"} if a is type(None) else _type(a, definitions) for a in args]}
    if origin is tuple:
        return _array(args, definitions)
    if origin is Mapping:
        values = {} if args[1] is Any else _type(args[1], definitions)
        return {"type": "object", "additionalProperties": values or True}
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _array(tuple_of(kind), definitions)
    if kind in _SCALARS:
        return _SCALARS[kind]
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # present before its fields are walked, should they come back to it
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    raise TypeError(f"a record has no schema for {kind!r}")


def _array(args: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if len(args) == 2 and args[1] is Ellipsis:
        return {"type": "array", "items": _type(args[0], definitions)}
    items = [_type(a, definitions) for a in args]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
