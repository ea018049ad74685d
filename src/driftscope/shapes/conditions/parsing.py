"""Read conditions on sizes, from the Python text of torch's guards and from sympy, into one kind of tree."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from driftscope.shapes.conditions.expressions import Number, Term, operation


class Inexpressible(ValueError):
    """A condition uses something this tree has no word for; the message quotes it."""


_COMPARISONS: Mapping[type, str] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_BINARY: Mapping[type, str] = {
    ast.Add: "+",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Div: "/",
    ast.Mod: "%",
    ast.Pow: "**",
}

#: Functions of guard texts (torch's printers) and classes of sympy expressions (torch.utils._sympy.functions).
_CALLS: Mapping[str, str] = {
    "Max": "max",
    "max": "max",
    "Min": "min",
    "min": "min",
    "Mod": "%",
    "PythonMod": "%",
    "FloorDiv": "//",
    "CleanDiv": "//",
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "PowByNatural": "**",
    "FloatPow": "**",
    "Pow": "**",
    "Add": "+",
    "Mul": "*",
    "And": "and",
    "Or": "or",
    "Not": "not",
    "Abs": "abs",
    "abs": "abs",
    "Where": "where",
    "ToFloat": "float",
    "float": "float",
    "CeilToInt": "ceil",
    "ceiling": "ceil",
    "ceil": "ceil",
    "CeilDiv": "ceildiv",
    "FloorToInt": "floor",
    "floor": "floor",
    "TruncToInt": "trunc",
    "TruncToFloat": "trunc",
    "trunc": "trunc",
    "int": "trunc",
    "RoundToInt": "round",
    "round": "round",
    "sqrt": "sqrt",
    "OpaqueUnaryFn_sqrt": "sqrt",
    "OpaqueUnaryFn_log2": "log2",
    "log2": "log2",
    "Eq": "==",
    "Equality": "==",
    "Ne": "!=",
    "Unequality": "!=",
    "Lt": "<",
    "StrictLessThan": "<",
    "Le": "<=",
    "LessThan": "<=",
    "Gt": ">",
    "StrictGreaterThan": ">",
    "Ge": ">=",
    "GreaterThan": ">=",
    "Identity": "identity",
}


def _apply(name: str, terms: list[Term]) -> Term:
    word = _CALLS.get(name)
    if word is None:
        raise Inexpressible(f"{name}(...)")
    if word == "identity":
        return terms[0]
    if word == "ceildiv":
        return operation("//", operation("+", terms[0], terms[1], -1), terms[1])
    return operation(word, *terms)


def parse_text(guard: str, source: Callable[[str], Term | None]) -> Term:
    """Read the text of a guard.

    Parameters
    ----------
    guard : str
        As ``((1 + L['z'].size()[1]) // 2) != 1``.
    source : callable
        From the text of a source (``L['z'].size()[1]``) to its term; None for what is no size of an input.

    Raises
    ------
    Unreadable
        Quoting the part that has no reading.
    """
    try:
        return _ConditionReader(source).read(ast.parse(guard, mode="eval").body)
    except SyntaxError as error:
        raise Inexpressible(guard) from error


class _ConditionReader:
    def __init__(self, source: Callable[[str], Term | None]):
        self._source = source

    def read(self, node: ast.expr) -> Term:
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            return Number(node.value)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.BoolOp):
            word = "and" if isinstance(node.op, ast.And) else "or"
            return operation(word, *(self.read(value) for value in node.values))
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        if isinstance(node, ast.IfExp):
            return operation("where", self.read(node.test), self.read(node.body), self.read(node.orelse))
        return self._named(node)

    def _named(self, node: ast.expr) -> Term:
        term = self._source(ast.unparse(node))
        if term is not None:
            return term
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            return _apply(name, [self.read(argument) for argument in node.args])
        raise Inexpressible(ast.unparse(node))

    def _binary(self, node: ast.BinOp) -> Term:
        left, right = self.read(node.left), self.read(node.right)
        if isinstance(node.op, ast.Sub):
            return operation("+", left, operation("*", -1, right))
        word = _BINARY.get(type(node.op))
        if word is None:
            raise Inexpressible(ast.unparse(node))
        return operation(word, left, right)

    def _compare(self, node: ast.Compare) -> Term:
        terms = [self.read(node.left), *(self.read(c) for c in node.comparators)]
        links = []
        for op, left, right in zip(node.ops, terms, terms[1:], strict=False):
            word = _COMPARISONS.get(type(op))
            if word is None:
                raise Inexpressible(ast.unparse(node))
            links.append(operation(word, left, right))
        return operation("and", *links)

    def _unary(self, node: ast.UnaryOp) -> Term:
        inner = self.read(node.operand)
        if isinstance(node.op, ast.Not):
            return operation("not", inner)
        return operation("*", -1, inner) if isinstance(node.op, ast.USub) else inner


def from_sympy(expression: Any, symbols: Mapping[str, Term]) -> Term:
    """Read a sympy expression of torch's.

    Parameters
    ----------
    expression : sympy expression, bool or number
    symbols : mapping of str to Term
        What each symbol stands for, by its name.

    Raises
    ------
    Unreadable
        For symbols that stand for no size of an input (data-dependent ones), and for functions without a word.
    """
    if isinstance(expression, (bool, int, float)):
        return Number(expression)
    if getattr(expression, "is_Symbol", False):
        if str(expression) not in symbols:
            raise Inexpressible(str(expression))
        return symbols[str(expression)]
    name = type(expression).__name__
    if name in ("BooleanTrue", "BooleanFalse"):
        return Number(bool(expression))
    if getattr(expression, "is_Integer", False):
        return Number(int(expression))
    if getattr(expression, "is_Rational", False):
        return operation("/", int(expression.p), int(expression.q))
    if getattr(expression, "is_Float", False):
        return Number(float(expression))
    if name in ("IntInfinity", "Infinity"):
        return Number(float("inf"))
    return _apply(name, [from_sympy(part, symbols) for part in expression.args])
