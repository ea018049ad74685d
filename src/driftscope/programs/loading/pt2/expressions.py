"""Shape expressions and guards: parsed by us, bounded, and written again.

torch hands symbols to ``sympy.sympify``, which is ``eval``, and compiles guards into a function. Both get what
:func:`symbol_text` and :func:`guard_text` return: a text unparsed from a tree whose every node was recognised.
"""

from __future__ import annotations

import ast
import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from driftscope.programs.loading.pt2.vocabulary import ASSUMPTIONS, FUNCTIONS

LONGEST = 20_000
_MOST_NODES = 2_000
_DEEPEST = 60
# What an expression may grow to when it is multiplied out: its terms, and the digits (in bits) of its numbers.
_MOST_TERMS = 4_096
_MOST_BITS = 2_048
_HIGHEST_POWER = 16

_SYMBOL = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
# Bare symbols, as older files have them, must not be the name of anything in sympy.
_BARE_SYMBOL = re.compile(r"[suz]u?f?\d{1,6}", re.ASCII)
_NUMBER_TEXT = re.compile(r"[-+]?\d{1,40}(\.\d{0,40})?([eE][-+]?\d{1,3})?", re.ASCII)
_OPAQUE = re.compile(r"OpaqueUnaryFn_(sqrt|cos|sin|tan|cosh|sinh|tanh|asin|acos|atan|exp|log|log2)", re.ASCII)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow"})
_SHIFTS = frozenset({"LShift", "RShift"})
_CONSTANTS = frozenset({"true", "false", "oo", "int_oo"})
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_GUARD_CALLS = frozenset({"abs", "min", "max", "int", "float", "bool", "round"})
_GUARD_METHODS = frozenset({"size", "stride", "storage_offset", "numel", "dim"})
_GUARD_MATHS = frozenset({"floor", "ceil", "trunc", "sqrt", "inf", "nan"})


class NotArithmetic(ValueError):
    """A text is no arithmetic on symbols, or would grow beyond all bounds; its message is one clause."""


@dataclass(frozen=True, slots=True)
class _Growth:
    """How large an expression may become: terms when multiplied out, bits of its largest number."""

    terms: int = 1
    bits: int = 1

    def checked(self) -> _Growth:
        if self.terms > _MOST_TERMS or self.bits > _MOST_BITS:
            raise NotArithmetic("it would grow too large when it is evaluated")
        return self


def _sum(parts: list[_Growth]) -> _Growth:
    bits = max((p.bits for p in parts), default=1) + len(parts).bit_length()
    return _Growth(sum(p.terms for p in parts), bits).checked()


def _product(parts: list[_Growth]) -> _Growth:
    return _Growth(math.prod(p.terms for p in parts), sum(p.bits for p in parts)).checked()


def _opaque(parts: list[_Growth]) -> _Growth:
    """A function of its parts that is never multiplied out."""
    return _Growth(1, max((p.bits for p in parts), default=1)).checked()


def _power(base: _Growth, exponent: ast.AST) -> _Growth:
    n = abs(_small_number(exponent, "an exponent"))
    # Only the degree is bounded here; a product of n equal factors is bounded like any product.
    return _Growth(base.terms ** math.ceil(n), math.ceil(base.bits * n)).checked()


def _small_number(node: ast.AST, what: str) -> float:
    """The value of a literal like ``2``, ``-1``, ``Integer(2)`` or ``Rational(1, 2)``."""
    value: float | None = None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_small_number(node.operand, what)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        value = float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        numbers = [_small_number(a, what) for a in node.args] if node.func.id in ("Integer", "Rational") else []
        if len(numbers) == 1 and node.func.id == "Integer":
            value = numbers[0]
        if len(numbers) == 2 and node.func.id == "Rational" and numbers[1]:
            value = numbers[0] / numbers[1]
    if value is None or not abs(value) <= (64 if what == "a shift" else _HIGHEST_POWER):
        raise NotArithmetic(f"it has {what} that is not a small number")
    return value


class _Walker:
    """Checks every node of an expression and measures its growth.

    Parameters
    ----------
    leaf : callable
        Checks what is not arithmetic: names, calls, subscripts. Gets the node and a function that walks its children.
    """

    def __init__(self, leaf: Callable[[ast.AST, Callable[[ast.AST], _Growth]], _Growth]):
        self._leaf = leaf
        self._count = 0
        self._depth = 0

    def walk(self, node: ast.AST) -> _Growth:
        self._count += 1
        self._depth += 1
        if self._count > _MOST_NODES or self._depth > _DEEPEST:
            raise NotArithmetic("it is too long or too deep")
        growth = self._measured(node)
        self._depth -= 1
        return growth

    def _measured(self, node: ast.AST) -> _Growth:
        if isinstance(node, ast.Constant):
            return _literal(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Not)):
            return self.walk(node.operand)
        if isinstance(node, ast.BinOp) and isinstance(node.op, _OPERATORS):
            return self._binary(node)
        if isinstance(node, ast.Compare) and all(isinstance(op, _COMPARISONS) for op in node.ops):
            return _opaque([self.walk(part) for part in (node.left, *node.comparators)])
        if isinstance(node, ast.BoolOp):
            return _opaque([self.walk(part) for part in node.values])
        return self._leaf(node, self.walk)

    def _binary(self, node: ast.BinOp) -> _Growth:
        left = self.walk(node.left)
        if isinstance(node.op, ast.Pow):
            return _power(left, node.right)
        if isinstance(node.op, (ast.LShift, ast.RShift)):
            return _Growth(left.terms, left.bits + int(abs(_small_number(node.right, "a shift")))).checked()
        right = self.walk(node.right)
        if isinstance(node.op, (ast.Add, ast.Sub)):
            return _sum([left, right])
        return _product([left, right]) if isinstance(node.op, ast.Mult) else _opaque([left, right])


def _literal(value: object) -> _Growth:
    if isinstance(value, bool):
        return _Growth()
    if isinstance(value, int) and abs(value) < 2**64:
        return _Growth(1, max(1, value.bit_length()))
    if isinstance(value, float) and math.isfinite(value) and abs(value) < 1e30:
        return _Growth(1, 64)
    raise NotArithmetic("it has a constant that is not a number of ordinary size")


def _checked(text: str, leaf: Callable[[ast.AST, Callable[[ast.AST], _Growth]], _Growth]) -> str:
    if len(text) > LONGEST:
        raise NotArithmetic(f"it has {len(text):,} characters, and {LONGEST:,} are read at most")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise NotArithmetic("it is not an expression") from error
    _Walker(leaf).walk(tree.body)
    return ast.unparse(tree)


# --- symbols ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def symbol_text(text: str) -> str:
    """Return a shape expression as sympy prints it, parsed and written again.

    Raises
    ------
    NotArithmetic
        If it is anything but integers, symbols and the functions of shape arithmetic, or would grow too large.
    """
    return _checked(text, _symbol_leaf)


def _symbol_leaf(node: ast.AST, walk: Callable[[ast.AST], _Growth]) -> _Growth:
    if isinstance(node, ast.Name):
        if node.id in _CONSTANTS or _BARE_SYMBOL.fullmatch(node.id):
            return _Growth()
        raise NotArithmetic(f"{node.id[:40]!r} is not a symbol")
    if isinstance(node, ast.Tuple):
        return _opaque([walk(part) for part in node.elts])
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise NotArithmetic(f"{type(node).__name__} is not a part of it")
    name = node.func.id
    if name in ("Symbol", "Dummy"):
        return _symbol(node)
    if name == "Float":
        return _float(node)
    if node.keywords:
        raise NotArithmetic(f"{name[:40]} takes no keywords")
    return _call(name, node.args, walk)


def _call(name: str, args: list[ast.expr], walk: Callable[[ast.AST], _Growth]) -> _Growth:
    if name in ("Integer", "Rational"):
        if not 1 <= len(args) <= 2 or any(not isinstance(_signed(a), int) for a in args):
            raise NotArithmetic(f"{name} takes whole numbers")
        return _sum([walk(a) for a in args])
    if name in _POWERS and len(args) == 2:
        return _power(walk(args[0]), args[1])
    if name in _SHIFTS and len(args) == 2:
        base = walk(args[0])
        return _Growth(base.terms, base.bits + int(abs(_small_number(args[1], "a shift")))).checked()
    if name not in FUNCTIONS and not _OPAQUE.fullmatch(name):
        raise NotArithmetic(f"{name[:40]!r} is not a function of shape arithmetic")
    parts = [walk(part) for part in args]
    return _sum(parts) if name == "Add" else _product(parts) if name == "Mul" else _opaque(parts)


def _signed(node: ast.AST) -> object:
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    value = inner.value if isinstance(inner, ast.Constant) else None
    return value if type(value) is int else None


def _symbol(node: ast.Call) -> _Growth:
    name = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(name, str) or not _SYMBOL.fullmatch(name):
        raise NotArithmetic("a symbol has no plain name")
    for keyword in node.keywords:
        value = keyword.value.value if isinstance(keyword.value, ast.Constant) else ()
        if keyword.arg not in ASSUMPTIONS or value not in (True, False, None):
            raise NotArithmetic(f"{str(keyword.arg)[:40]!r} is not an assumption about a symbol")
    return _Growth()


def _float(node: ast.Call) -> _Growth:
    """``Float('0.5', precision=53)``."""
    value = node.args[0].value if len(node.args) == 1 and isinstance(node.args[0], ast.Constant) else None
    if not isinstance(value, str) or not _NUMBER_TEXT.fullmatch(value) or not abs(float(value)) < 1e30:
        raise NotArithmetic("a Float is not a number of ordinary size")
    for keyword in node.keywords:
        bits = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
        if keyword.arg not in ("precision", "dps") or type(bits) is not int or not 1 <= bits <= 64:
            raise NotArithmetic("a Float has an unknown precision")
    return _Growth(1, 64)


# --- guards ----------------------------------------------------------------------------------------------------------


def guard_text(text: str) -> str:
    """Return a guard, a condition on sizes of the inputs like ``L['x'].size()[0] <= 64``, parsed and written again.

    Raises
    ------
    NotArithmetic
        If it is anything else than arithmetic on sizes, strides and offsets of the inputs.
    """
    return _checked(text, _guard_leaf)


def _guard_leaf(node: ast.AST, walk: Callable[[ast.AST], _Growth]) -> _Growth:
    if isinstance(node, ast.Call):
        return _guard_call(node, walk)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "math":
        if node.attr in ("inf", "nan"):
            return _Growth()
        raise NotArithmetic(f"math.{node.attr[:40]} is not a number")
    if isinstance(node, ast.Name) and node.id == "inf":
        return _Growth()
    if isinstance(node, ast.Subscript) and isinstance(_signed(node.slice), int) and _is_sizes(node.value):
        return _Growth(1, 64)
    if _is_place(node):
        return _Growth(1, 64)
    raise NotArithmetic("it is not arithmetic on sizes")


def _guard_call(node: ast.Call, walk: Callable[[ast.AST], _Growth]) -> _Growth:
    if node.keywords:
        raise NotArithmetic("a guard takes no keywords")
    if isinstance(node.func, ast.Name):
        if node.func.id in _GUARD_CALLS | {"IsNonOverlappingAndDenseIndicator", "cast_symbool_to_symint_guardless"}:
            return _opaque([walk(part) for part in node.args])
        raise NotArithmetic(f"{node.func.id[:40]!r} is not a function of a guard")
    if isinstance(node.func, ast.Attribute):
        owner = node.func.value
        if isinstance(owner, ast.Name) and owner.id == "math" and node.func.attr in _GUARD_MATHS:
            return _opaque([walk(part) for part in node.args])
        if node.func.attr in _GUARD_METHODS and not node.args and _is_place(owner):
            return _Growth(1, 64)
    raise NotArithmetic("it calls what is not a function of a guard")


def _is_sizes(node: ast.AST) -> bool:
    """Whether a node is ``L['x'].size()``, ``.stride()`` or ``.shape``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not (node.args or node.keywords):
        return node.func.attr in ("size", "stride") and _is_place(node.func.value)
    return isinstance(node, ast.Attribute) and node.attr == "shape" and _is_place(node.value)


def _is_place(node: ast.AST) -> bool:
    """Whether a node names an input: ``L['x']['k'][0].keys``, without underscores in front."""
    for _ in range(_DEEPEST):
        if isinstance(node, ast.Name):
            return node.id == "L"
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            key = node.slice.value
            if type(key) is not int and not (isinstance(key, str) and re.fullmatch(r"[\w.]{0,200}", key, re.ASCII)):
                return False
            node = node.value
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"[A-Za-z]\w{0,100}", node.attr, re.ASCII):
            node = node.value
        else:
            return False
    return False
