"""The containers around inputs and outputs (``in_spec``, ``out_spec``): known classes, contexts of names and numbers.

torch imports what a context names (an enum, the factory of a defaultdict) and hands it to what unflattens the class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from driftscope.programs import pytrees as pytree
from driftscope.records.json_text import parse_json

_PROTOCOL = 1
_DEEPEST = 40
_NAME = re.compile(r"[^'\"\\\x00-\x1f\x7f]{0,200}")
_DOTTED = re.compile(r"[A-Za-z_][\w.]{0,200}", re.ASCII)
_FACTORIES = frozenset({"list", "dict", "tuple", "set", "int", "float", "str", "bool"})


class NotContainer(ValueError):
    """A description of containers is damaged, or names what is not known; its message is one clause."""


def container_text(text: str) -> str:
    """Return a description of containers, parsed, checked and written again.

    Raises
    ------
    NotContainer
        If a class is not registered, or its context holds more than names and numbers.
    """
    try:
        parsed = parse_json(text, deepest=3 * _DEEPEST)
    except ValueError as error:
        raise NotContainer(f"a description of its inputs or outputs is damaged: {error}") from error
    if not isinstance(parsed, list) or len(parsed) != 2 or parsed[0] != _PROTOCOL or isinstance(parsed[0], bool):
        raise NotContainer("a description of its inputs or outputs is of an unknown form")
    return json.dumps([_PROTOCOL, _checked(parsed[1])])


def container_name(text: str) -> str:
    """Return the name of a registered class of containers.

    Raises
    ------
    NotContainer
        If it is not one.
    """
    if not _DOTTED.fullmatch(text):
        raise NotContainer(f"{text[:80]!r} is not the name of a class")
    return text


def _checked(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, Mapping) or set(spec) != {"type", "context", "children_spec"}:
        raise NotContainer("a description of its inputs or outputs is damaged")
    children = spec["children_spec"]
    if not isinstance(children, list):
        raise NotContainer("a description of its inputs or outputs is damaged")
    name = spec["type"]
    if name is None:
        if spec["context"] is not None or children:
            raise NotContainer("a leaf among its inputs or outputs has children")
        return {"type": None, "context": None, "children_spec": []}
    return {
        "type": _known(name),
        "context": _context(name, spec["context"], len(children)),
        "children_spec": [_checked(child) for child in children],
    }


def _known(name: Any) -> str:
    if not isinstance(name, str) or name not in pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
        raise NotContainer(
            f"its inputs or outputs are held in {str(name)[:80]!r}, a class that is not registered here; import the"
            " library it belongs to first, as transformers, or export with tuples, lists and dicts"
        )
    return name


def _context(name: str, context: Any, count: int) -> Any:
    if name == "collections.namedtuple":
        known = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(context) if isinstance(context, str) else None
        if not isinstance(known, type) or not _is_namedtuple(known):
            raise NotContainer(f"its namedtuple {str(context)[:80]!r} is not registered here")
        return context
    if name == "collections.defaultdict":
        return _factory(context)
    definition = pytree.SUPPORTED_SERIALIZED_TYPES[pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name]]
    if definition.from_dumpable_context is not None:
        raise NotContainer(f"its container {name[:80]!r} reads its context with code of its own")
    if not isinstance(context, str):
        raise NotContainer(f"the context of its container {name[:80]!r} is damaged")
    try:
        parsed = parse_json(context, deepest=4)
    except ValueError as error:
        raise NotContainer(f"the context of its container {name[:80]!r} is damaged") from error
    _names_and_numbers(parsed, name)
    if name in ("builtins.dict", "collections.OrderedDict") and not (isinstance(parsed, list) and len(parsed) == count):
        raise NotContainer(f"its {name} has {count} values and other keys")
    return json.dumps(parsed)


def _is_namedtuple(known: type) -> bool:
    return issubclass(known, tuple) and hasattr(known, "_fields")


def _factory(context: Any) -> dict[str, Any]:
    wanted = {"default_factory_module", "default_factory_name", "dict_context"}
    if not isinstance(context, Mapping) or set(context) != wanted:
        raise NotContainer("the context of its defaultdict is damaged")
    factory = context["default_factory_name"]
    if context["default_factory_module"] != "builtins" or factory not in _FACTORIES:
        raise NotContainer("its defaultdict makes its values with something other than a builtin")
    _names_and_numbers(context["dict_context"], "collections.defaultdict")
    return {
        "default_factory_module": "builtins",
        "default_factory_name": factory,
        "dict_context": context["dict_context"],
    }


def _names_and_numbers(value: Any, name: str) -> None:
    """Names, numbers and lists of them. A dict would be an instruction: "make this class", "take this enum"."""
    if isinstance(value, list):
        for part in value:
            _names_and_numbers(part, name)
    elif isinstance(value, str):
        if not _NAME.fullmatch(value):
            raise NotContainer(f"a key of its {name[:80]} could become code: {value[:40]!r}")
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise NotContainer(f"the context of its container {name[:80]!r} holds more than names and numbers")
