"""Rewrites of a model's code that torch traces better, tried on a copy of the model before they are recommended."""

from __future__ import annotations

import ast
import copy
import inspect
import math
import textwrap
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One expression, said differently.

    Parameters
    ----------
    old, new : str
        Python expressions, or statements on one line.
    line : int
        In the file.
    model : callable
        A copy of the model that says it the new way; parameters are shared.
    """

    old: str
    new: str
    line: int
    model: Callable[..., Any]


def rewrites(model: Callable[..., Any]) -> list[Rewrite]:
    """Find expressions in a model's ``forward`` that make torch fix a size, each with a copy that avoids it.

    ``math.ceil(a / b)`` and ``int(a / b)`` go through a float, on which torch guards with the number of the example;
    ``max`` and ``min`` of sizes are decided while tracing; ``torch.linspace`` and ``torch.triu_indices`` take numbers;
    a list of rows that is stacked, and a loop that adds rows up, are unrolled.

    Returns
    -------
    list of Rewrite
        One expression each, then all of them together.
        Empty where the source is not at hand.
    """
    function = model.forward if isinstance(model, torch.nn.Module) else model
    plain = getattr(function, "__func__", function)
    if not inspect.isfunction(plain) or plain.__closure__:
        return []
    try:
        lines, first = inspect.getsourcelines(plain)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return []
    found = []
    count = _count(tree)
    for number in (*range(count), *([None] if count > 1 else [])):
        changed = copy.deepcopy(tree)
        change = _Change(number)
        changed = ast.fix_missing_locations(change.visit(changed))
        made = _remade(model, plain, changed)
        if made is not None and change.old != change.new:
            found.append(Rewrite(change.old, change.new, first + change.line - 1, made))
    return found


class _Change(ast.NodeTransformer):
    """Rewrites the expression with one number and leaves the others; None rewrites all of them."""

    def __init__(self, number: int | None):
        self.number = number
        self.seen = 0
        self.old = self.new = ""
        self.line = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return self._exchanged(node, _better(node))

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._exchanged(node, _summed(node))

    def _exchanged(self, node: ast.Call | ast.For, better: ast.expr | ast.stmt | None) -> ast.AST:
        if better is None:
            return self.generic_visit(node)
        self.seen += 1
        if self.number is not None and self.seen - 1 != self.number:
            return self.generic_visit(node)
        old, new = (" ".join(ast.unparse(part).split()) for part in (node, better))
        self.old = f"{self.old}, {old}" if self.old else old
        self.new = f"{self.new}, {new}" if self.new else new
        self.line = self.line or node.lineno
        return ast.copy_location(better, node)


def _count(tree: ast.AST) -> int:
    counting = _Change(-1)
    counting.visit(copy.deepcopy(tree))
    return counting.seen


def _better(node: ast.Call) -> ast.expr | None:
    name = _called(node)
    if name == "int" and len(node.args) == 1:
        inner = node.args[0]
        if isinstance(inner, ast.Call):
            return _better(inner) if _called(inner) in ("math.ceil", "ceil", "math.floor", "floor") else None
        return _whole(inner, up=False)
    if name in ("math.ceil", "ceil") and len(node.args) == 1:
        return _whole(node.args[0], up=True)
    if name in ("math.floor", "floor") and len(node.args) == 1:
        return _whole(node.args[0], up=False)
    if name in ("max", "min") and len(node.args) == 2 and not node.keywords:
        return _parsed(f"torch.sym_{name}({ast.unparse(node.args[0])}, {ast.unparse(node.args[1])})")
    if name in ("torch.linspace", "linspace"):
        return _counted_out(node)
    if name in ("torch.triu_indices", "torch.tril_indices"):
        return _triangle(node, name.removeprefix("torch.").removesuffix("_indices"))
    if name == "torch.stack" and node.args and isinstance(node.args[0], ast.ListComp):
        return _mapped(node, node.args[0])
    return None


def _parsed(words: str) -> ast.expr:
    return ast.parse(words, mode="eval").body


def _given(node: ast.Call, names: Sequence[str]) -> dict[str, str] | None:
    """Arguments by name, as text; None where some cannot be told."""
    if any(isinstance(part, ast.Starred) for part in node.args) or len(node.args) > len(names):
        return None
    found = {name: ast.unparse(part) for name, part in zip(names, node.args, strict=False)}
    return found | {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg is not None}


def _counted_out(node: ast.Call) -> ast.expr | None:
    """``torch.linspace`` fixes its steps; ``torch.arange`` keeps them."""
    given = _given(node, ("start", "end", "steps"))
    if given is None or not {"start", "end", "steps"} <= set(given):
        return None
    start, end, steps = (given.pop(name) for name in ("start", "end", "steps"))
    device = f", device={given.pop('device')}" if "device" in given else ""
    dtype = given.pop("dtype", "torch.get_default_dtype()")
    if given:
        return None
    return _parsed(
        f"({start}) + (({end}) - ({start})) / torch.sym_max(({steps}) - 1, 1)"
        f" * torch.arange({steps}, dtype={dtype}{device})"
    )


def _triangle(node: ast.Call, half: str) -> ast.expr | None:
    """``torch.triu_indices`` fixes its sizes; places of a mask keep them."""
    given = _given(node, ("row", "col", "offset"))
    if given is None or not {"row", "col"} <= set(given):
        return None
    row, col, offset = given.pop("row"), given.pop("col"), given.pop("offset", "0")
    device = f", device={given.pop('device')}" if "device" in given else ""
    if given:
        return None
    return _parsed(f"torch.ones({row}, {col}, dtype=torch.bool{device}).{half}({offset}).nonzero().T")


def _mapped(node: ast.Call, rows: ast.ListComp) -> ast.expr | None:
    """``torch.stack([f(row) for row in x])`` is unrolled for the example's rows; ``torch.vmap`` keeps their number.

    ``f(x[i]) for i in range(n)`` likewise, where ``i`` is used for nothing else; whether ``n`` is all of ``x`` shows
    when the rewrite is tried.
    """
    given = _given(node, ("tensors", "dim"))
    loop = rows.generators[0]
    each = None if given is None or len(rows.generators) > 1 or loop.ifs else _each(loop.target, loop.iter, rows.elt)
    if given is None or each is None:
        return None
    out_dims = f", out_dims={given['dim']}" if "dim" in given else ""
    return _parsed(f"torch.vmap({each[0]}{out_dims})({each[1]})")


def _each(target: ast.expr, over: ast.expr, element: ast.expr) -> tuple[str, str] | None:
    """What a loop computes of one row, as a function, and what it goes over; None where it asks for more."""
    if not isinstance(target, ast.Name):
        return None
    name, rows = target.id, ast.unparse(over)
    if isinstance(over, ast.Call):
        if _called(over) != "range":
            return None
        indexed = _Indexed(name)
        element = indexed.visit(copy.deepcopy(element))
        if _names(element, name) or len(indexed.bases) != 1:
            return None
        name, rows = "row", indexed.bases.pop()
    return f"lambda {name}: {ast.unparse(element)}", rows


def _names(tree: ast.AST, name: str) -> bool:
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(tree))


def _summed(loop: ast.For) -> ast.stmt | None:
    """``for row in x: total += f(row)`` is unrolled; a sum over ``torch.vmap`` keeps the number of rows."""
    step = loop.body[0] if len(loop.body) == 1 and not loop.orelse else None
    total: ast.expr
    term: ast.expr
    if isinstance(step, ast.AugAssign) and isinstance(step.op, ast.Add):
        total, term = step.target, step.value
    elif isinstance(step, ast.Assign) and isinstance(step.value, ast.BinOp) and isinstance(step.value.op, ast.Add):
        total, term = step.targets[0], step.value.right
        if len(step.targets) > 1 or ast.unparse(step.value.left) != ast.unparse(total):
            return None
    else:
        return None
    each = _each(loop.target, loop.iter, term)
    if each is None or not isinstance(total, ast.Name) or _names(term, total.id):
        return None  # what it has so far goes into the next step
    return ast.parse(f"{total.id} = {total.id} + torch.vmap({each[0]})({each[1]}).sum(0)").body[0]


class _Indexed(ast.NodeTransformer):
    """Puts ``row`` in the place of every ``x[i]``, or ``x[:, i]``, and remembers each ``x`` with that axis in front."""

    def __init__(self, index: str):
        self.index = index
        self.bases: set[str] = set()

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        *before, last = node.slice.elts if isinstance(node.slice, ast.Tuple) and node.slice.elts else [node.slice]
        whole = all(isinstance(part, ast.Slice) and not any((part.lower, part.upper, part.step)) for part in before)
        if whole and isinstance(last, ast.Name) and last.id == self.index:
            moved = f".movedim({len(before)}, 0)" if before else ""
            self.bases.add(ast.unparse(node.value) + moved)
            return ast.copy_location(ast.Name("row", ast.Load()), node)
        return self.generic_visit(node)


def _whole(quotient: ast.expr, *, up: bool) -> ast.expr | None:
    """``a / b``, or ``a * 0.5``, in whole numbers, rounded up or down."""
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, (ast.Div, ast.Mult)):
        return None
    a, b = ast.unparse(quotient.left), ast.unparse(quotient.right)
    if isinstance(quotient.op, ast.Mult):
        factor = quotient.right.value if isinstance(quotient.right, ast.Constant) else None
        if not isinstance(factor, float) or not 0 < factor < 1 or not (1 / factor).is_integer():
            return None
        b = str(int(1 / factor))
    return _parsed(f"(({a}) + ({b}) - 1) // ({b})" if up else f"({a}) // ({b})")


def _called(node: ast.Call) -> str:
    return ast.unparse(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else ""


def _remade(model: Callable[..., Any], plain: types.FunctionType, tree: ast.Module) -> Callable[..., Any] | None:
    """A copy of the model with another forward."""
    (definition,) = tree.body[:1]
    if not isinstance(definition, ast.FunctionDef):
        return None
    definition.decorator_list = []
    room: dict[str, Any] = {}
    known = {**plain.__globals__, "torch": torch, "math": math}
    try:
        # The user's own code with one expression exchanged; it ran already when the model was called.
        exec(compile(tree, inspect.getsourcefile(plain) or "<forward>", "exec"), known, room)  # noqa: S102
    except (SyntaxError, NameError, TypeError):
        return None
    function = room[definition.name]
    function.__defaults__, function.__kwdefaults__ = plain.__defaults__, plain.__kwdefaults__
    if not isinstance(model, torch.nn.Module):
        return function  # type: ignore[no-any-return]
    made = copy.copy(model)
    object.__setattr__(made, "forward", types.MethodType(function, made))
    return made
