"""The edit of a function that keeps a tensor outside of itself: it returns the tensor instead."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from driftscope.transforms.repairs.source import Edit, Replacement, Source
from driftscope.transforms.repairs.values import called_name
from driftscope.transforms.subject import Subject, Suspicion

_ADDING = frozenset(("append", "add"))


def returned_instead(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``acts.append(h)``, ``self.last = h`` or ``global last; last = h`` -> a second result.

    Sound where the tensor is kept once, by a statement of the function's own block, and the function returns at its
    end alone. Whoever calls it takes two results then; a derivative takes the second with ``has_aux=True``.
    """
    body = getattr(source.scope, "body", None)
    place = suspect.place
    if not isinstance(body, list) or place is None or not body or not isinstance(body[-1], ast.Return):
        return
    returns = [n for n in ast.walk(source.scope) if isinstance(n, (ast.Return, ast.Yield, ast.YieldFrom))]
    result = body[-1].value
    if len(returns) != 1 or result is None:
        return
    name = _fresh(source.scope)
    for k, statement in enumerate(body[:-1]):
        if statement.lineno <= place.line <= (statement.end_lineno or 0):
            made = _kept_here(source, body, k, name)
            if made is None:
                continue
            replacements, kept = made
            text = source.segment(result)
            text = f"({text})" if isinstance(result, ast.Tuple) and not text.startswith("(") else text
            last = Replacement(body[-1], body[-1], f"return {text}, {kept}")
            yield Edit((*replacements, last), caution=_TWO.format(suspect.subject_name), returns=True)


_TWO = "it has two results then: whoever reads `{}` takes the second, a derivative with has_aux=True"


def _kept_here(source: Source, body: list[ast.stmt], k: int, name: str) -> tuple[list[Replacement], str] | None:
    """Return what stands for a statement that keeps a tensor, and the name of the tensor."""
    statement = body[k]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if called_name(call) not in _ADDING or len(call.args) != 1 or call.keywords:
            return None
        return [Replacement(statement, statement, f"{name} = {source.segment(call.args[0])}")], name
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    if isinstance(target, ast.Name):
        return _without_global(source, body, k, target.id)
    if not isinstance(target, (ast.Attribute, ast.Subscript)):
        return None
    written = source.segment(target)
    read = [
        node
        for later in body[k + 1 : -1]
        for node in ast.walk(later)
        if isinstance(node, type(target)) and source.segment(node) == written
    ]
    if any(source.segment(n) == written for n in ast.walk(body[-1]) if isinstance(n, type(target))):
        return None  # the return statement is written anew as a whole
    return [Replacement(node, node, name) for node in (target, *read)], name


def _without_global(source: Source, body: list[ast.stmt], k: int, name: str) -> tuple[list[Replacement], str] | None:
    """Take a name out of the statement that declares it global, together with the statement behind."""
    for i, statement in enumerate(body[:k]):
        if isinstance(statement, (ast.Global, ast.Nonlocal)) and name in statement.names:
            others = [n for n in statement.names if n != name]
            if others:
                kind = "global" if isinstance(statement, ast.Global) else "nonlocal"
                return [Replacement(statement, statement, f"{kind} {', '.join(others)}")], name
            return [Replacement(statement, body[i + 1], source.segment(body[i + 1]))], name
    return None


def _fresh(scope: ast.AST) -> str:
    """A name that the function does not use."""
    used = {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)} | {
        n.arg for n in ast.walk(scope) if isinstance(n, ast.arg)
    }
    return next(name for name in ("kept", *(f"kept_{i}" for i in range(len(used) + 1))) if name not in used)
