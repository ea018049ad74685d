"""What a file rounds on the way to a size or to a position, as its operators and the expressions of its sizes say it.

torch takes row ``floor(i * (rows / wanted))`` when it resizes to the nearest pixel, onnxruntime
``floor(i / (wanted / rows))``, both in float32: where ``i * rows / wanted`` is whole, rounding may turn one of them to
the row before. The two are the same where the factor is a power of two, because no step of either rounds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftscope.shapes.conditions.expressions import Number, Operation, Size, Term, evaluate, operation
from driftscope.shapes.conditions.parsing import Inexpressible, parse_text
from driftscope.shapes.probe.axes import Axis

_SYMBOL = re.compile(r"\b[a-zA-Z_]\w*\b(?!\()")
_FACTOR = re.compile(r"\b\d+\.\d+\b")
#: Sizes at which two expressions are held against each other.
_TRIED = (2, 3, 5, 7, 12, 30, 97)
#: A factor with so few bits times any size here is exact in float32.
_FEW_BITS = 1 << 8
#: A size whose expression is not in the file.
_UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class RoundedSizes:
    """Sizes that a file rounds.

    Parameters
    ----------
    axes : frozenset of str
        Names of the axes whose size decides what is rounded: nothing is known of a size that was not asked.
    ties : tuple of Term
        Conditions under which two sizes of the call that are resized to one another round nothing.
    """

    axes: frozenset[str]
    ties: tuple[Term, ...]


def rounded_sizes_of(path: Path, places: Mapping[str, int], axes: Sequence[Axis]) -> RoundedSizes | None:
    """Return what a file rounds; None where it rounds nothing.

    Parameters
    ----------
    path : Path
        An ONNX file with the expressions of its sizes, as torch writes it.
    places : mapping of str to int
        Which leaf of the call each input is.
    axes : sequence of Axis
        The call's.
    """
    import onnx

    graph = onnx.load(str(path), load_external_data=False).graph
    shapes = {v.name: _shape(v) for v in (*graph.input, *graph.value_info, *graph.output)}
    tensors = {one.name: one for one in graph.initializer}
    at = {(axis.leaf, axis.dim): axis for axis in axes}
    symbols = {
        symbol: at[places[name], dim]
        for name, shape in shapes.items()
        if name in places
        for dim, symbol in enumerate(shape)
        if isinstance(symbol, str) and (places[name], dim) in at
    }
    pairs = [pair for node in graph.node if _takes_nearest(node) for pair in _resized(node, shapes, tensors)]
    rounded = {size for shape in shapes.values() for size in shape if isinstance(size, str) and not _exact(size)}
    if not pairs and not rounded and not any(node.op_type in ("Floor", "Ceil", "Round") for node in graph.node):
        return None
    ties = [_tied(pair, symbols) for pair in pairs]
    rounded.update(text for pair, tied in zip(pairs, ties, strict=True) if not tied for text in pair)
    everywhere = _UNKNOWN in rounded
    named = {axis.name for symbol, axis in symbols.items() if everywhere or any(symbol in _named(t) for t in rounded)}
    return RoundedSizes(frozenset(named), tuple(term for tied in ties for term in tied))


def _shape(value: Any) -> list[str | int]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _takes_nearest(node: Any) -> bool:
    modes = {attribute.name: attribute.s for attribute in node.attribute}
    return node.op_type in ("Resize", "Upsample") and modes.get("mode", b"nearest") == b"nearest"


def _resized(node: Any, shapes: Mapping[str, list[str | int]], tensors: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Sizes before and after, where the factor between them varies or is no power of two."""
    before, after = shapes.get(node.input[0], []), shapes.get(node.output[0], [])
    factors = _stored(tensors.get(node.input[2])) if len(node.input) > 2 else []
    if not before or len(before) != len(after):
        yield _UNKNOWN, _UNKNOWN
        return
    for number, (one, other) in enumerate(zip(map(str, before), map(str, after), strict=True)):
        factor = factors[number] if len(factors) == len(before) else _factor(one, other)
        if _named(one + " " + other) and not _power_of_two(factor):
            yield one, other


def _stored(tensor: Any) -> Sequence[float]:
    """The numbers of a tensor; none where they are not in the file itself."""
    import onnx

    if tensor is None or onnx.external_data_helper.uses_external_data(tensor):
        return []
    return [float(number) for number in onnx.numpy_helper.to_array(tensor)]


def _factor(before: str, after: str) -> float:
    """What an expression is to another at every size tried; nan where that varies."""
    names = _named(before)
    if before == after or names != _named(after):
        return 1.0 if before == after else math.nan
    try:
        one, other = parse_text(before, Size), parse_text(after, Size)
        factors = {evaluate(other, at) / evaluate(one, at) for at in (dict.fromkeys(names, n) for n in _TRIED)}
    except (Inexpressible, KeyError, ZeroDivisionError):
        return math.nan
    return float(factors.pop()) if len(factors) == 1 else math.nan


def _named(text: str) -> set[str]:
    return set(_SYMBOL.findall(text))


def _power_of_two(factor: float) -> bool:
    return factor > 0 and math.frexp(factor)[0] == 0.5


def _tied(pair: tuple[str, str], symbols: Mapping[str, Axis]) -> list[Term]:
    """Two sizes of the call that are resized to one another: the example's factor, or the example's sizes."""
    named = sorted(_named(" ".join(pair)) & set(symbols))
    if len(named) < 2:
        return []
    if set(pair) <= set(symbols):
        small, large = sorted((symbols[symbol] for symbol in pair), key=lambda axis: axis.size)
        factor = large.size // max(small.size, 1)
        if small.size * factor == large.size and _power_of_two(factor):
            return [Operation("==", (Size(large.name), operation("*", factor, Size(small.name))))]
    return [Operation("==", (Size(axis.name), Number(axis.size))) for axis in (symbols[s] for s in named)]


def _exact(size: str) -> bool:
    """Whether no step of an expression rounds in float32: its factors have few bits, and it divides by nothing."""
    factors = [float(factor) * _FEW_BITS for factor in _FACTOR.findall(size)]
    return "Float" not in size or (all(f == int(f) for f in factors) and "/" not in size.replace("//", ""))
