"""The values of a graph in order: each is described and made before it is used, and no whole number grows without end.

torch finds a value that is missing only after it has built every node before it, 3 ms each. And Python's own numbers
have no largest value: a chain of squares, or one power, would fill the memory, so what a file multiplies is bounded
beforehand, as in shape expressions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from driftscope.programs.loading.pt2.fields import FieldRefused

_MOST_BITS = 2_048
_SIZE = 64  # bits of a size, and of whatever a kernel makes
_LARGEST_SCALE = 64
_SCALES = ("_operator.pow", "_operator.lshift", "_operator.rshift")
_OF_LISTS = ("_operator.getitem", "torch.sym_sum", "torch.fx.experimental.sym_node.sym_sum")
#: Of `torch.vmap`, as torch.export writes it: its beginning, with how it draws at random, and its end.
_OPENS, _CLOSES = (f"torch._functorch.predispatch._vmap_{step}_nesting" for step in ("increment", "decrement"))
_RANDOMNESS = ("error", "different", "same")
_TABLES = ("tensor_values", "sym_int_values", "sym_float_values", "sym_bool_values")
_TEXTS = ("as_string", "as_strings")
_LISTS = ("as_int_lists", "as_float_lists", "as_nested_tensors", "as_string_to_argument")
_FLAT_LISTS = ("as_ints", "as_floats", "as_bools", "as_tensors", "as_optional_tensors", "as_sym_ints",
               "as_sym_floats", "as_sym_bools")  # fmt: skip


def check_values(graph: Mapping[str, Any], given: int = _SIZE) -> int:
    """Follow the values of a graph, and of the graphs that its operators take.

    Parameters
    ----------
    graph : dict
        A ``Graph`` of torch's schema, checked field by field.
    given : int
        Bits that the whole numbers among its inputs can have.

    Returns
    -------
    int
        Bits that the whole numbers among its outputs can have.

    Raises
    ------
    FieldRefused
        If a value is used before it is made, made twice or not described, if a number could have more than 2,048
        bits, if numbers are computed from texts and lists, or if a mapped part does not end.
    """
    _check_nesting(graph)
    described = {name for table in _TABLES for name in graph.get(table) or ()}
    made = {name: given for argument in graph["inputs"] for name in _names(argument)}
    for node in graph["nodes"]:
        arguments = [named["arg"] for named in node["inputs"]]
        bits = _bits_made(node["target"], arguments, made)
        for name in (n for output in node["outputs"] for n in _names(output)):
            if name in made or name not in described:
                why = "made twice" if name in made else "not described"
                raise FieldRefused(f"its value {name[:80]!r} is {why}; the file is damaged")
            made[name] = bits
        if node["target"].startswith("torch.ops.higher_order."):
            made.setdefault(node.get("name") or "", bits)  # what it returns as a whole has no other name
    return max((_bits_of(output, made) for output in graph["outputs"]), default=_SIZE)


def _check_nesting(graph: Mapping[str, Any]) -> None:
    """What is left open would map whatever torch does next in this process."""
    depth = 0
    for node in graph["nodes"]:
        depth += (node["target"] == _OPENS) - (node["target"] == _CLOSES)
        if depth < 0:
            break
    if depth:
        raise FieldRefused("a part of it that is mapped (torch.vmap) does not begin and end; the file is damaged")


def _bits_made(target: str, arguments: list[Mapping[str, Any]], made: Mapping[str, int]) -> int:
    sizes = [_bits_of(argument, made) for argument in arguments]
    graphs = [graph for argument in arguments for graph in _graphs(argument)]
    if graphs:
        return max(check_values(graph, max(sizes)) for graph in graphs)
    if target.startswith("torch.ops."):
        return max(sizes, default=_SIZE) if target.startswith("torch.ops.higher_order.") else _SIZE
    for argument in arguments:
        kind = next(iter(argument))
        if target == _OPENS and kind == "as_string":
            if argument[kind] not in _RANDOMNESS:
                raise FieldRefused(f"its {target!r} draws in a way that torch.vmap does not know")
        elif kind in _TEXTS + _LISTS or (kind in _FLAT_LISTS and target not in _OF_LISTS):
            raise FieldRefused(f"its {target!r} computes with a text or a list")
    bits = _grown(target, sizes, arguments)
    if bits > _MOST_BITS:
        raise FieldRefused(
            f"its {target!r} would make a number of {bits:,} bits, and {_MOST_BITS:,} are computed at most"
        )
    return bits


def _grown(target: str, sizes: list[int], arguments: list[Mapping[str, Any]]) -> int:
    if target in _SCALES and len(arguments) == 2:
        scale = abs(_literal(target, arguments[1]))
        return int(sizes[0] * max(1, scale)) if target == "_operator.pow" else int(sizes[0] + scale)
    if target == "_operator.mul":
        return sum(sizes)
    if target.endswith(".sym_sum"):
        terms = len(next(iter(arguments[0].values()))) if arguments else 0
        return max(sizes, default=_SIZE) + terms.bit_length()
    return max(sizes, default=_SIZE) + (0 if target == "_operator.getitem" else 1)


def _literal(target: str, argument: Mapping[str, Any]) -> float:
    ((kind, value),) = argument.items()
    if kind in ("as_sym_int", "as_sym_float"):
        value = next((part for name, part in value.items() if name in ("as_int", "as_float")), None)
    if not isinstance(value, (int, float)) or not abs(value) <= _LARGEST_SCALE:
        raise FieldRefused(f"its {target!r} has an exponent or a shift that is not a small number")
    return value


def _bits_of(argument: Mapping[str, Any], made: Mapping[str, int]) -> int:
    """Bits of the largest whole number that an argument holds or names; a name must be known."""
    most = 1
    for kind, value in _leaves(argument):
        if kind == "name":
            if value not in made:
                raise FieldRefused(f"its value {value[:80]!r} is used and nothing before makes it; the file is damaged")
            most = max(most, made[value])
        else:
            most = max(most, value.bit_length() if type(value) is int else _SIZE)
    return most


def _names(argument: Mapping[str, Any]) -> Iterator[str]:
    return (value for kind, value in _leaves(argument) if kind == "name")


def _leaves(argument: Any) -> Iterator[tuple[str, Any]]:
    """Names of values (``"name"``) and literals (``""``) of an argument of torch's schema, of any nesting."""
    if isinstance(argument, list):
        for part in argument:
            yield from _leaves(part)
    elif not isinstance(argument, Mapping):
        yield "", argument
    elif "as_string_to_argument" in argument:
        yield from _leaves(list(argument["as_string_to_argument"].values()))
    elif "name" in argument:  # a TensorArgument; a GraphArgument has names of its own
        if "graph" not in argument:
            yield "name", argument["name"]
    else:
        for kind, value in argument.items():
            if kind == "as_name":
                yield "name", value
            else:
                yield from _leaves(value)


def _graphs(argument: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    ((kind, value),) = argument.items()
    if kind == "as_graph":
        yield value["graph"]
    elif kind == "as_string_to_argument":
        for part in value.values():
            yield from _graphs(part)
