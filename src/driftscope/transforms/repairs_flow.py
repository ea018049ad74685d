"""Edits of control flow: ``if`` to ``torch.where``, ``max`` to ``torch.maximum``, masked writes to ``where``."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from driftscope.transforms.repairs_source import Edit, Replacement, Source
from driftscope.transforms.repairs_values import called_name, outside_each_other, replaced
from driftscope.transforms.subject import Subject, Suspect

_EXTREMES = {"max": "maximum", "min": "minimum"}


def if_to_where(source: Source, suspect: Suspect, subject: Subject) -> Iterator[Edit]:
    """``if t: return a`` ... ``return b`` -> ``return torch.where(t, a, b)``.

    Sound when both branches are pure and total, and of one shape and dtype. The derivative is tried as well: a branch
    that is not taken may still be NaN there.
    """
    node = source.node_at(suspect.place) if suspect.place is not None else None
    torch = source.torch_name
    if node is None or torch is None:
        return
    choice = source.enclosing(node, (ast.IfExp, ast.If))
    while isinstance(choice, ast.If) and isinstance(source.parent(choice), ast.If) and _is_elif(source, choice):
        choice = source.parent(choice)
    extreme = source.enclosing(node, ast.Call)
    if extreme is not None and called_name(extreme) in _EXTREMES and len(extreme.args) > 1:
        yield replaced(extreme, _extreme(source, torch, extreme))
    edits = list(_one_choice(source, torch, choice))
    yield from edits
    if edits:
        # The next choice may be refused as well: all that can be rewritten, at once.
        choices = [n for n in ast.walk(source.scope) if isinstance(n, (ast.If, ast.IfExp))]
        parts = [
            r for c in choices if not _is_elif(source, c) for e in _one_choice(source, torch, c) for r in e.replacements
        ]
        together = outside_each_other(parts)
        if len(together) > 1:
            yield Edit(tuple(together), branches=True)


def _one_choice(source: Source, torch: str, choice: ast.AST | None) -> Iterator[Edit]:
    if isinstance(choice, ast.IfExp):
        text = _where(source, torch, choice.test, _text(source, choice.body), _text(source, choice.orelse))
        yield Edit((Replacement(choice, choice, text),), branches=True)
    elif isinstance(choice, ast.If):
        yield from _statement(source, torch, choice)


def _extreme(source: Source, torch: str, call: ast.Call) -> str:
    text = source.segment(call.args[0])
    for argument in call.args[1:]:
        text = f"{torch}.{_EXTREMES[called_name(call)]}({text}, {source.segment(argument)})"
    return text


def _is_elif(source: Source, node: ast.AST) -> bool:
    parent = source.parent(node)
    return isinstance(parent, ast.If) and parent.orelse == [node]


def _text(source: Source, node: ast.expr) -> str:
    if isinstance(node, ast.IfExp) and source.torch_name:
        return _where(source, source.torch_name, node.test, _text(source, node.body), _text(source, node.orelse))
    return source.segment(node)


def _where(source: Source, torch: str, test: ast.expr, chosen: str, other: str) -> str:
    return f"{torch}.where({_truth(source, test)}, {chosen}, {other})"


def _truth(source: Source, test: ast.expr) -> str:
    """Write a test so that it works element by element: ``and`` is ``&``, ``not`` is ``~``, chains are taken apart."""
    if isinstance(test, ast.BoolOp):
        sign = " & " if isinstance(test.op, ast.And) else " | "
        return sign.join(f"({_truth(source, value)})" for value in test.values)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"~({_truth(source, test.operand)})"
    if isinstance(test, ast.Compare) and len(test.ops) > 1:
        ends = [test.left, *test.comparators]
        pairs = zip(ends, test.ops, ends[1:], strict=False)
        return " & ".join(f"({ast.unparse(ast.Compare(a, [op], [b]))})" for a, op, b in pairs)
    if isinstance(test, ast.Call) and called_name(test) == "bool" and len(test.args) == 1:
        return source.segment(test.args[0])
    if isinstance(test, ast.Call) and called_name(test) == "is_nonzero" and len(test.args) == 1:
        return f"{source.segment(test.args[0])} != 0"
    return source.segment(test)


def _statement(source: Source, torch: str, choice: ast.If) -> Iterator[Edit]:
    block, index = source.block_of(choice)
    indent = " " * choice.col_offset
    returned = _returned(source, torch, choice, block[index + 1 :])
    if returned is not None:
        text, last = returned
        yield Edit((Replacement(choice, last, f"return {text}"),), branches=True)
        return
    assigned = _assigned(source, torch, choice)
    if assigned is not None:
        lines = f"\n{indent}".join(f"{name} = {text}" for name, text in assigned)
        yield Edit((Replacement(choice, choice, lines),), branches=True)


def _returned(source: Source, torch: str, choice: ast.If, after: list[ast.stmt]) -> tuple[str, ast.stmt] | None:
    """Return the value of ``if``/``elif``/``else`` that all return, and the last statement it replaces."""
    if len(choice.body) != 1 or not isinstance(choice.body[0], ast.Return) or choice.body[0].value is None:
        return None
    chosen = _text(source, choice.body[0].value)
    last: ast.stmt = choice
    rest = choice.orelse
    if not rest and after:
        rest, last = after[:1], after[0]
        after = after[1:]
    if len(rest) != 1:
        return None
    other = rest[0]
    if isinstance(other, ast.Return) and other.value is not None:
        text = _text(source, other.value)
    elif isinstance(other, ast.If):
        inner = _returned(source, torch, other, after)
        if inner is None:
            return None
        text, last = inner[0], (inner[1] if inner[1] is not other or last is not choice else last)
    else:
        return None
    return _where(source, torch, choice.test, chosen, text), last


def _assigned(source: Source, torch: str, choice: ast.If) -> list[tuple[str, str]] | None:
    """Return what each name becomes when branches only assign; None when they do more."""
    branches = [_assignments(source, torch, choice.body)]
    if choice.orelse:
        branches.append(_assignments(source, torch, choice.orelse))
    if any(branch is None for branch in branches):
        return None
    chosen, other = branches[0] or {}, (branches[1] if len(branches) > 1 else {}) or {}
    names = [*chosen, *(n for n in other if n not in chosen)]
    # A value that reads a name assigned before it in the same branch would read the chosen value instead.
    if len(names) > 1 and any(_reads(text, set(names)) for text in (*chosen.values(), *other.values())):
        return None
    return [(n, _where(source, torch, choice.test, chosen.get(n, n), other.get(n, n))) for n in names]


def _assignments(source: Source, torch: str, body: list[ast.stmt]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ast.If) and len(body) == 1:
            nested = _assigned(source, torch, statement)
            return None if nested is None else dict(nested)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], _text(source, statement.value)
        elif isinstance(statement, ast.Pass):
            continue
        else:
            # Also ``y += 1``: it writes in place, which whoever holds the same tensor sees.
            return None
        if not isinstance(target, ast.Name) or target.id in found:
            return None
        found[target.id] = value
    return found


def _reads(text: str, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(ast.parse(text, mode="eval")))


def masked_write(source: Source, suspect: Suspect, subject: Subject) -> Iterator[Edit]:
    """``x[m] = s`` -> ``x = torch.where(m, s, x)``.

    Sound when ``x`` is a local name that nothing else holds, and ``s`` has the shape of ``x`` or is one number.
    """
    node = source.node_at(suspect.place) if suspect.place is not None else None
    statement = source.enclosing(node, ast.stmt) if node is not None else None
    torch = source.torch_name
    if torch is None or not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    target = targets[0]
    if len(targets) == 1 and isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
        if not _made_here(source, target.value.id):
            return
        name, mask, value = target.value.id, source.segment(target.slice), source.segment(statement.value)
        if isinstance(statement, ast.AugAssign):
            value = ast.unparse(ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value))
        yield replaced(statement, f"{name} = {torch}.where({mask}, {value}, {name})")


def _made_here(source: Source, name: str) -> bool:
    """Whether a name is given the result of a call in the function: an argument would be seen by the caller."""
    assigned = (
        n for n in ast.walk(source.scope) if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Call, ast.BinOp))
    )
    return any(isinstance(t, ast.Name) and t.id == name for n in assigned for t in n.targets)
