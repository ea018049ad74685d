"""The attributes of steps, the operators' own defaults filled in, and what differs in them."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch

from driftscope.explain.causes.rewiring import Reason
from driftscope.explain.locate.fingerprints import Visited

# The same attribute under the names that torch and ONNX give it.
_SYNONYMS = {
    "eps": "epsilon", "negative_slope": "alpha", "dim": "axis", "stride": "strides", "dilation": "dilations",
    "groups": "group", "num_groups": "group", "padding": "pads",
}  # fmt: skip
_BY_NAME: Mapping[str, Mapping[str, object]] = {
    "BiasGelu": {"approximate": "none"}, "FastGelu": {"approximate": "tanh"},
}  # fmt: skip
# Relative difference of two float attributes that is not the float32 in which ONNX stores them.
_SAME_ATTRIBUTE = 1e-6


def changed_attributes(step: Visited, other: Visited) -> dict[str, object]:
    """The attributes (by ONNX's names) in which a step differs from its counterpart, with the latter's values."""
    ours, wanted = attributes_of(step), attributes_of(other)
    return {name: wanted[name] for name, value in ours.items() if name in wanted and differ(value, wanted[name])}


def attribute_cause(
    step: Visited, changed: Mapping[str, object], verified: bool | None, later: Visited | None
) -> Reason:
    """Say which attributes differ and what to set."""
    ours = attributes_of(step)
    words = "; ".join(f"{name} is {_plain(ours[name])} here and {_plain(v)} in A" for name, v in changed.items())
    settings = " and ".join(f"{name} of {step.name} to {_plain(value)}" for name, value in changed.items())
    fix = f"Set {settings}."
    if changed.keys() <= _implied(step.operator).keys():
        meant = " and ".join(f"{name} {_plain(value)}" for name, value in changed.items())
        fix = f"Put an operator with {meant} in the place of {step.name}, or leave it unfused."
    return Reason(words, fix, verified, later)


def own_name(step: Visited, name: str) -> str:
    """What a step itself calls an attribute of ONNX's name."""
    known = (*step.attributes, *defaults(step.operator))
    return next((own for own in known if _SYNONYMS.get(own, own) == name), name)


def attributes_of(step: Visited) -> dict[str, object]:
    """A step's attributes under ONNX's names, the operator's defaults filled in, axes counted from the front."""
    found = {**defaults(step.operator), **{k: v for k, v in step.attributes.items() if v is not None}}
    named = {_SYNONYMS.get(k, k): v.decode() if isinstance(v, bytes) else v for k, v in found.items()}
    pads = named.get("pads")
    if isinstance(pads, (list, tuple)) and len(pads) == step.rank - 2 and step.operator.startswith("aten."):
        named["pads"] = [*pads, *pads]  # ONNX writes both ends of every axis
    axis = named.get("axis")
    if isinstance(axis, int) and axis < 0 < step.rank:
        named["axis"] = axis + step.rank
    return named


def _implied(operator: str) -> Mapping[str, object]:
    """What an operator of onnxruntime is by its name, where others have an attribute for it."""
    return _BY_NAME.get(operator, {})


@functools.cache
def defaults(operator: str) -> Mapping[str, object]:
    """The defaults of an operator's attributes, from torch's or ONNX's own schema; empty when neither knows it."""
    if _implied(operator):
        return _implied(operator)
    if operator.startswith("aten."):
        packet = getattr(torch.ops.aten, operator.removeprefix("aten.").split(".")[0], None)
        schemas = [getattr(packet, name)._schema for name in packet.overloads()] if packet is not None else []
        return {a.name: a.default_value for s in reversed(schemas) for a in s.arguments if a.has_default_value()}
    import onnx

    domain, _, name = operator.rpartition("::")
    if not onnx.defs.has(name, domain):
        return {}
    schema = onnx.defs.get_schema(name, domain=domain)
    values = {
        n: onnx.helper.get_attribute_value(a.default_value)
        for n, a in schema.attributes.items()
        if a.default_value.name
    }
    return {n: v for n, v in values.items() if v is not None}


def differ(one: object, other: object) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str) or isinstance(other, str):
        return type(one) is type(other) and one != other
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return abs(one - other) > _SAME_ATTRIBUTE * abs(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)) and len(one) == len(other):
        return list(one) != list(other)
    return False


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
