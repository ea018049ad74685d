"""Rewrites of a model's code that torch traces better, tried on a copy of the model before they are recommended."""

from __future__ import annotations

import ast
import copy
import inspect
import math
import textwrap
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One expression, said differently.

    Parameters
    ----------
    old, new : str
        Python expressions.
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
    ``max`` and ``min`` of sizes are decided while tracing.

    Returns
    -------
    list of Rewrite
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
    for number in range(_count(tree)):
        changed = copy.deepcopy(tree)
        change = _Change(number)
        changed = ast.fix_missing_locations(change.visit(changed))
        made = _remade(model, plain, changed)
        if made is not None and change.old != change.new:
            found.append(Rewrite(change.old, change.new, first + change.line - 1, made))
    return found


class _Change(ast.NodeTransformer):
    """Rewrites the expression with one number and leaves the others."""

    def __init__(self, number: int):
        self.number = number
        self.seen = 0
        self.old = self.new = ""
        self.line = 0

    def visit_Call(self, node: ast.Call) -> ast.AST:
        better = _better(node)
        if better is None:
            return self.generic_visit(node)
        self.seen += 1
        if self.seen - 1 != self.number:
            return self.generic_visit(node)
        self.old, self.new, self.line = ast.unparse(node), ast.unparse(better), node.lineno
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
        return ast.parse(
            f"torch.sym_{name}({ast.unparse(node.args[0])}, {ast.unparse(node.args[1])})", mode="eval"
        ).body
    return None


def _whole(quotient: ast.expr, *, up: bool) -> ast.expr | None:
    """``a / b`` in whole numbers, rounded up or down."""
    if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
        return None
    a, b = ast.unparse(quotient.left), ast.unparse(quotient.right)
    words = f"(({a}) + ({b}) - 1) // ({b})" if up else f"({a}) // ({b})"
    return ast.parse(words, mode="eval").body


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
