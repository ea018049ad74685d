"""What the schema of an operator says that it could be set to, and which operators take the same."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from driftscope.explain.causes.counterparts import defaults

# How ONNX's documentation writes the words of a choice.
_QUOTED, _CAPITALS, _MARKED = (re.compile(p) for p in (r"[\"']+(\w+)[\"']+", r"\b[A-Z_]{2,}\b", r"[`*]+(\w+)[`*]+"))
_LISTED = "one of "
_JOINED = frozenset({"or", "default", "the", "and"})
# What says how a result is stored, and no part of what is computed.
_STORAGE = frozenset({"stash_type", "output_datatype", "output_dtype", "dtype", "to", "saturate", "storage_order"})

_FLOAT, _INTEGER = "tensor(float)", "tensor(int64)"

Choice = Callable[[object], Sequence[object]]


@functools.cache
def choices(operator: str) -> Mapping[str, Choice]:
    """For each setting of an operator, under its own name, what else it could be than a given value.

    Flags have two values, a choice has the words of its documentation, other small integers have their neighbours.
    """
    found: dict[str, Choice] = {}
    if operator.startswith("aten."):
        for name, kind in _arguments(operator):
            if kind == "bool":
                found[name] = _flag
            elif kind == "int" and name not in ("dim", "dtype", "groups"):
                found[name] = _near
        return found
    schema = _schema(operator)
    for name, attribute in {} if schema is None else dict(schema.attributes).items():
        if name in _STORAGE or name == "axis":
            continue
        kind, usual = attribute.type.name, defaults(operator).get(name)
        if kind == "STRING":
            words = _words(attribute.description)
            found[name] = functools.partial(_else, words)
        elif kind == "INT":
            found[name] = _flag if usual in (0, 1) else _near
    return found


@functools.cache
def same_signature(operator: str) -> Sequence[str]:
    """The other operators with as many inputs and outputs and attributes of the same names, in ONNX's own set."""
    schema = None if operator.startswith("aten.") else _schema(operator)
    if schema is None or schema.domain:
        return ()
    import onnx

    last = [s for s in onnx.defs.get_all_schemas() if not s.domain and s.name != schema.name and _computes(s)]
    return [s.name for s in last if _signature(s) == _signature(schema)]


def _computes(schema: Any) -> bool:
    """Whether an operator makes tensors of tensors alone: one that unwraps a sequence leaves a tensor as it is."""
    kinds = [kind for p in (*schema.inputs, *schema.outputs) for kind in p.types]
    return all(kind.startswith("tensor(") for kind in kinds)


def _arguments(operator: str) -> list[tuple[str, str]]:
    name = operator.removeprefix("aten.").split(".")[0]
    packet = getattr(torch.ops.aten, name, None)
    schemas = [getattr(packet, o)._schema for o in packet.overloads()] if packet is not None else []
    return list(dict.fromkeys((a.name, str(a.type)) for s in schemas for a in s.arguments))


def _schema(operator: str) -> Any:
    import onnx

    domain, _, name = operator.rpartition("::")
    return onnx.defs.get_schema(name, domain=domain) if onnx.defs.has(name, domain) else None


def _signature(schema: Any) -> tuple[Any, ...]:
    """What two operators share that can stand in each other's places: kinds of inputs, and names of attributes."""
    named = sorted((name, a.type.name) for name, a in schema.attributes.items())
    kinds = [tuple(_FLOAT in p.types or _INTEGER in p.types for p in side) for side in (schema.inputs, schema.outputs)]
    kinds += [tuple(_FLOAT in p.types for p in side) for side in (schema.inputs, schema.outputs)]
    return schema.min_input, schema.max_input, schema.deprecated, tuple(named), *kinds


def _words(description: str) -> Sequence[str]:
    """The words of a choice, as the most explicit way of writing them has them: formulas stand in ticks too."""
    listed = description.partition(_LISTED)[2].partition(".")[0]
    named = [w for w in re.findall(r"\w+", listed) if w not in _JOINED]
    ways = (_QUOTED.findall(description), named, _CAPITALS.findall(description), _MARKED.findall(description))
    return list(dict.fromkeys(next(filter(None, ways), ())))


def _flag(was: object) -> Sequence[object]:
    if isinstance(was, bool):
        return [not was]
    return [1 - was] if isinstance(was, int) and was in (0, 1) else []


def _near(was: object) -> Sequence[object]:
    return [was + 1, was - 1] if isinstance(was, int) and not isinstance(was, bool) else []


def _else(words: Sequence[str], was: object) -> Sequence[object]:
    now = was.decode() if isinstance(was, bytes) else was
    return [word for word in words if word != now]
