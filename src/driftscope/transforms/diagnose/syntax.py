"""The syntax tree around a place: what the failing expression is part of. Read only where something failed."""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Iterator
from types import CodeType
from typing import Any

from driftscope.transforms.world.places import Place

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.Module)


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> tuple[ast.Module, dict[ast.AST, ast.AST]] | None:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return tree, parents


def _tree(file: str) -> tuple[ast.Module, dict[ast.AST, ast.AST]] | None:
    return _parsed("".join(linecache.getlines(file)))


def node_at(place: Place) -> ast.AST | None:
    """Return the innermost node whose span is exactly the place, or None without source or columns."""
    found = _tree(place.file)
    if found is None or place.column < 0:
        return None
    return _by_span(found[0]).get((place.line, place.column, place.end_line, place.end_column))


@functools.lru_cache(maxsize=64)
def _by_span(tree: ast.Module) -> dict[tuple[int, int, int | None, int | None], ast.AST]:
    return {
        (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset): node
        for node in ast.walk(tree)
        if isinstance(node, (ast.expr, ast.stmt, ast.arg, ast.keyword, ast.excepthandler, ast.alias))
    }


def enclosing(place: Place) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield ``(child, parent)`` from the place outwards, up to the innermost function scope and not beyond."""
    found = _tree(place.file)
    node = node_at(place)
    if found is None or node is None:
        return
    parents = found[1]
    while node in parents and not isinstance(node, _SCOPES):
        parent = parents[node]
        yield node, parent
        node = parent


def context_of(place: Place) -> str:
    """Say what the value of the expression at a place decides: the nearest deciding construct, "" when none.

    Returns
    -------
    str
        ``"if"``, ``"while"``, ``"assert"``, ``"conditional"``, ``"for"``, ``"and"``, ``"comprehension"``,
        ``"slice"``, or the name of a builtin it is an argument of (``"max"``, ``"range"``, ``"sorted"``).
    """
    for child, parent in _with_self(place):
        named = _decides(child, parent)
        if named:
            return named
        if isinstance(parent, ast.stmt):
            return ""
    return ""


def _with_self(place: Place) -> Iterator[tuple[ast.AST | None, ast.AST]]:
    node = node_at(place)
    if node is not None:
        yield None, node
    yield from enclosing(place)


_DECIDING_BUILTINS = frozenset(
    ("max", "min", "sorted", "any", "all", "range", "bool", "filter", "reversed", "set", "dict")
)


def _decides(child: ast.AST | None, parent: ast.AST) -> str:
    if isinstance(parent, (ast.If, ast.While, ast.Assert, ast.IfExp)):
        test = {ast.If: "if", ast.While: "while", ast.Assert: "assert", ast.IfExp: "conditional"}[type(parent)]
        return test if child is None or child is parent.test else ""
    if isinstance(parent, (ast.For, ast.AsyncFor)):
        return "for" if child is parent.iter else ""
    if isinstance(parent, ast.comprehension):
        return "comprehension" if child in parent.ifs or child is parent.iter else ""
    if isinstance(parent, ast.BoolOp) or (isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)):
        return "and"
    if isinstance(parent, ast.Compare) and len(parent.ops) > 1:
        return "and"
    if isinstance(parent, ast.Slice):
        return "slice"
    if isinstance(parent, ast.Subscript) and child is None and any(isinstance(n, ast.Slice) for n in _parts(parent)):
        return "slice"
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and child is not parent.func:
        return parent.func.id if parent.func.id in _DECIDING_BUILTINS else ""
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr == "sort":
        return "sorted"
    return ""


def _parts(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def handler_around(place: Place) -> ast.Try | None:
    """Return the ``try`` with an ``except`` whose body holds the place, or None."""
    for child, parent in enclosing(place):
        if isinstance(parent, ast.Try) and parent.handlers and child in parent.body:
            return parent
    return None


def scope_of(place: Place) -> ast.AST | None:
    """Return the function definition or lambda that holds a place."""
    found = _tree(place.file)
    if found is None:
        return None
    best: ast.AST | None = None
    for node in ast.walk(found[0]):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and _holds(node, place):
            best = node
    return best


def _holds(node: ast.FunctionDef | ast.Lambda, place: Place) -> bool:
    last = node.end_lineno or node.lineno
    if not node.lineno <= place.line <= last:
        return False
    if node.lineno == last and place.column >= 0:
        return node.col_offset <= place.column < (node.end_col_offset or 0)
    return True


def no_grad_above(place: Place) -> Place | None:
    """Return the place of the ``with torch.no_grad()`` item around a place, or None."""
    for _, parent in enclosing(place):
        if isinstance(parent, ast.With):
            for item in parent.items:
                if "no_grad" in ast.unparse(item.context_expr) or "inference_mode" in ast.unparse(item.context_expr):
                    return place_of_node(place, item.context_expr)
    return None


def place_of_node(near: Place, node: ast.AST) -> Place:
    """Return the place of a node of the same file as ``near``."""
    return Place(
        near.file,
        node.lineno,  # type: ignore[attr-defined]
        node.col_offset,  # type: ignore[attr-defined]
        node.end_lineno,  # type: ignore[attr-defined]
        node.end_col_offset,  # type: ignore[attr-defined]
        near.code,
    )


def nodes_of_function(code: CodeType) -> Iterator[ast.AST]:
    """Yield every node of the function that was compiled to this code; of several lambdas of one line, that one."""
    found = _tree(code.co_filename)
    scopes = _scopes(found[0]).get((code.co_name, code.co_firstlineno), ()) if found else ()
    if len(scopes) > 1:
        inside = [scope for scope in scopes if _is_source_of(scope, code)]
        scopes = inside[-1:]  # an inner one comes after its outer one
    for scope in scopes:
        yield from ast.walk(scope)


def returned_by(code: CodeType) -> list[ast.expr]:
    """List what the function that was compiled to this code returns, as written; functions inside it are their own."""
    found: list[ast.expr] = []
    waiting = list(itertools.islice(nodes_of_function(code), 1))
    for node in waiting:
        if isinstance(node, ast.Lambda) and node is waiting[0]:
            found.append(node.body)
        elif isinstance(node, ast.Return) and node.value is not None:
            found.append(node.value)
        elif node is waiting[0] or not isinstance(node, (ast.Lambda, ast.FunctionDef, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
    return found


def _is_source_of(scope: Any, code: CodeType) -> bool:
    """Whether what a function computes lies inside a piece of source."""
    begin, end = (scope.lineno, scope.col_offset), (scope.end_lineno, scope.end_col_offset)
    spans = [span for span in code.co_positions() if None not in span and span[2:] != (0, 0)]
    return all(begin <= (span[0], span[2]) and (span[1], span[3]) <= end for span in spans)


@functools.lru_cache(maxsize=16)
def _scopes(tree: ast.AST) -> dict[tuple[str, int], list[ast.AST]]:
    """Return the functions of a file by name and by each line that they may be said to start at."""
    scopes: dict[tuple[str, int], list[ast.AST]] = {}
    for scope in ast.walk(tree):
        if isinstance(scope, ast.Lambda):
            scopes.setdefault(("<lambda>", scope.lineno), []).append(scope)
        elif isinstance(scope, ast.FunctionDef):
            for line in {scope.lineno, *(d.lineno for d in scope.decorator_list)}:
                scopes.setdefault((scope.name, line), []).append(scope)
    return scopes


def written_name(place: Place | None) -> str:
    """Return the user's name of the tensor that the statement at a place writes to."""
    node = node_at(place) if place is not None else None
    while node is not None and not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            out = next((k.value for k in node.keywords if k.arg == "out"), None)
            node = out if out is not None else node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                return f"self.{node.attr}"
            node = node.value
        elif isinstance(node, ast.AugAssign):
            node = node.target
        elif isinstance(node, ast.Tuple) and node.elts:
            node = node.elts[0]
        else:
            return ""
    return node.id if isinstance(node, ast.Name) else ""
