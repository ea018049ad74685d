"""Sizes that torch knew only by running, as the nodes of the graph that make them: ``item``, ``nonzero.shape[0]``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from driftscope.programs import pytrees as pytree
from driftscope.shapes.capture.source_lines import parse_line
from driftscope.shapes.conditions.expressions import Size, Term
from driftscope.shapes.conditions.parsing import Inexpressible, from_sympy
from driftscope.shapes.conditions.relations import SourceLine

_BY_VALUES = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


class UnbackedSizes:
    """The unbacked symbols of one exported program.

    Parameters
    ----------
    exported : ExportedProgram

    Attributes
    ----------
    names : dict of str to Term
        What each symbol is called in sentences: its node, and what of the node it is. No axis of an input has such
        a name.
    """

    def __init__(self, exported: ExportedProgram):
        self._makers: dict[str, Node] = {}
        self.names: dict[str, Term] = {}
        for node in exported.graph.nodes:
            for symbol, path in (node.meta.get("unbacked_bindings") or {}).items():
                self._makers[str(symbol)] = node
                self.names[str(symbol)] = Size(node.name + _of_it(pytree.keystr(path)))

    def defined_by(self, expression: Any, symbols: Mapping[str, Term]) -> dict[str, Term]:
        """What an assertion says a symbol is: ``Eq(s21//2, u0)`` makes ``u0`` a size of the inputs after all."""
        if type(expression).__name__ in ("Eq", "Equality"):
            for symbol, meaning in (expression.args, expression.args[::-1]):
                if str(symbol) in self._makers and str(symbol) not in symbols:
                    with contextlib.suppress(Inexpressible):
                        return {str(symbol): from_sympy(meaning, symbols)}
        return {}

    def is_no_news(self, expression: Any) -> bool:
        """Whether a condition says only that a size is not negative."""
        if type(expression).__name__ not in ("GreaterThan", "Ge"):
            return False
        size, least = expression.args
        name = self.names.get(str(size))
        return isinstance(name, Size) and "." in name.name and str(least) == "0"

    def by_values(self, expression: Any) -> bool:
        """Whether one of an expression's symbols depends on the values of the inputs, not on their sizes."""
        return any(_reads_values(maker) for maker in self._of(expression))

    def line(self, expression: Any) -> SourceLine | None:
        """The model's line that made the first of an expression's symbols."""
        for maker in self._of(expression):
            return parse_line(maker.meta.get("stack_trace") or "")
        return None

    def _of(self, expression: Any) -> Iterator[Node]:
        symbols = sorted(map(str, getattr(expression, "free_symbols", ())))
        return (self._makers[symbol] for symbol in symbols if symbol in self._makers)


def _of_it(path: str) -> str:
    """``.size()[1]`` as users write it."""
    return path.replace(".size()[", ".shape[")


def _reads_values(maker: Node) -> bool:
    """Whether a node makes a size of values: by itself, or through the numbers that it is given."""
    waiting, seen = [maker], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        tags = getattr(node.target, "tags", ())
        if any(tag in tags for tag in _BY_VALUES):
            return True
        waiting += [given for given in node.all_input_nodes if not isinstance(given.meta.get("val"), torch.Tensor)]
    return False
