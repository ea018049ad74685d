"""Edits of control flow: ``if`` to ``torch.where``, ``max`` to ``torch.maximum``, masked writes to ``where``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from driftscope.transforms.repairs.source import Edit, Replacement, Source
from driftscope.transforms.repairs.values import called_name, outside_each_other, replaced
from driftscope.transforms.subject import Subject, Suspicion

_EXTREMES = {"max": ">", "min": "<"}


@dataclass(frozen=True)
class _Form:
    """How a choice is written: what the file calls torch, and the names that either branch gets a safe value of."""

    torch: str
    guarded: frozenset[str] = frozenset()
    first: bool = True
    second: bool = True


def if_to_where(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``if t: return a`` ... ``return b`` -> ``return torch.where(t, a, b)``.

    Sound when both branches are pure and total, and of one shape and dtype. The derivative is tried as well: a branch
    that is not taken may still be NaN there.
    """
    if source.torch_name is not None:
        yield from _choices(source, suspect, _Form(source.torch_name))


def if_to_guarded_where(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """The same where the branch not taken has no finite derivative: it is given ones instead of what the test reads.

    ``torch.where(t, a(x), b(torch.where(t, torch.ones_like(x), x)))``: the derivative of ``where`` multiplies that of
    the branch not taken by zero, and zero times infinity is NaN.
    """
    if source.torch_name is not None:
        local = {n.id for n in ast.walk(source.scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names = frozenset({*source.parameters, *local} - {source.torch_name})
        for first, second in ((False, True), (True, False), (True, True)):
            yield from _choices(source, suspect, _Form(source.torch_name, names, first, second))


def _choices(source: Source, suspect: Suspicion, form: _Form) -> Iterator[Edit]:
    node = source.node_at(suspect.place) if suspect.place is not None else None
    if node is None:
        return
    choice = source.enclosing(node, (ast.IfExp, ast.If))
    while isinstance(choice, ast.If) and isinstance(source.parent(choice), ast.If) and _is_elif(source, choice):
        choice = source.parent(choice)
    extreme = source.enclosing(node, ast.Call)
    if extreme is not None and called_name(extreme) in _EXTREMES and len(extreme.args) > 1 and not form.guarded:
        yield replaced(extreme, _extreme(source, form.torch, extreme))
    edits = list(_one_choice(source, form, choice))
    yield from edits
    if edits:
        # The next choice may be refused as well: all that can be rewritten, at once.
        choices = [n for n in ast.walk(source.scope) if isinstance(n, (ast.If, ast.IfExp))]
        parts = [
            r for c in choices if not _is_elif(source, c) for e in _one_choice(source, form, c) for r in e.replacements
        ]
        together = outside_each_other(parts)
        if len(together) > 1:
            yield Edit(tuple(together), branches=True)


def _one_choice(source: Source, form: _Form, choice: ast.AST | None) -> Iterator[Edit]:
    if isinstance(choice, ast.IfExp):
        text = _where(source, form, choice.test, _text(source, form, choice.body), _text(source, form, choice.orelse))
        yield Edit((Replacement(choice, choice, text),), branches=True)
    elif isinstance(choice, ast.If):
        yield from _statement(source, form, choice)


def _extreme(source: Source, torch: str, call: ast.Call) -> str:
    # Not torch.maximum: Python keeps the first of two equal ones, and the whole derivative goes to it.
    text = source.segment(call.args[0])
    for argument in call.args[1:]:
        other = source.segment(argument)
        text = f"{torch}.where({other} {_EXTREMES[called_name(call)]} {text}, {other}, {text})"
    return text


def _is_elif(source: Source, node: ast.AST) -> bool:
    parent = source.parent(node)
    return isinstance(parent, ast.If) and parent.orelse == [node]


def _text(source: Source, form: _Form, node: ast.expr) -> str:
    if isinstance(node, ast.IfExp):
        return _where(source, form, node.test, _text(source, form, node.body), _text(source, form, node.orelse))
    return source.segment(node)


def _where(source: Source, form: _Form, test: ast.expr, chosen: str, other: str) -> str:
    truth = _truth(source, test)
    read = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} & form.guarded
    if read:
        one = f"{form.torch}.ones_like({{0}})"
        if form.first:
            chosen = _with_safe(chosen, read, f"{form.torch}.where({truth}, {{0}}, {one})")
        if form.second:
            other = _with_safe(other, read, f"{form.torch}.where({truth}, {one}, {{0}})")
    return f"{form.torch}.where({truth}, {chosen}, {other})"


def _with_safe(text: str, names: set[str], safe: str) -> str:
    """Give an expression the safe value of every name in ``names``; a name alone needs none."""
    tree = ast.parse(text.strip(), mode="eval")
    if isinstance(tree.body, ast.Name):
        return text

    class Guarding(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return ast.parse(safe.format(node.id), mode="eval").body if node.id in names else node

    return ast.unparse(Guarding().visit(tree))


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


def _statement(source: Source, form: _Form, choice: ast.If) -> Iterator[Edit]:
    block, index = source.block_of(choice)
    indent = " " * choice.col_offset
    returned = _returned(source, form, choice, block[index + 1 :])
    if returned is not None:
        text, last = returned
        yield Edit((Replacement(choice, last, f"return {text}"),), branches=True)
        return
    assigned = _assigned(source, form, choice)
    if assigned is not None:
        lines = f"\n{indent}".join(f"{name} = {text}" for name, text in assigned)
        yield Edit((Replacement(choice, choice, lines),), branches=True)


def _returned(source: Source, form: _Form, choice: ast.If, after: list[ast.stmt]) -> tuple[str, ast.stmt] | None:
    """Return the value of ``if``/``elif``/``else`` that all return, and the last statement it replaces."""
    if len(choice.body) != 1 or not isinstance(choice.body[0], ast.Return) or choice.body[0].value is None:
        return None
    chosen = _text(source, form, choice.body[0].value)
    last: ast.stmt = choice
    rest = choice.orelse
    if not rest and after:
        rest, last = after[:1], after[0]
        after = after[1:]
    if len(rest) != 1:
        return None
    other = rest[0]
    if isinstance(other, ast.Return) and other.value is not None:
        text = _text(source, form, other.value)
    elif isinstance(other, ast.If):
        inner = _returned(source, form, other, after)
        if inner is None:
            return None
        text, last = inner[0], (inner[1] if inner[1] is not other or last is not choice else last)
    else:
        return None
    return _where(source, form, choice.test, chosen, text), last


def _assigned(source: Source, form: _Form, choice: ast.If) -> list[tuple[str, str]] | None:
    """Return what each name becomes when branches only assign; None when they do more."""
    branches = [_assignments(source, form, choice.body)]
    if choice.orelse:
        branches.append(_assignments(source, form, choice.orelse))
    if any(branch is None for branch in branches):
        return None
    chosen, other = branches[0] or {}, (branches[1] if len(branches) > 1 else {}) or {}
    names = [*chosen, *(n for n in other if n not in chosen)]
    # A value that reads a name assigned before it in the same branch would read the chosen value instead.
    if len(names) > 1 and any(_reads(text, set(names)) for text in (*chosen.values(), *other.values())):
        return None
    return [(n, _where(source, form, choice.test, chosen.get(n, n), other.get(n, n))) for n in names]


def _assignments(source: Source, form: _Form, body: list[ast.stmt]) -> dict[str, str] | None:
    found: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ast.If) and len(body) == 1:
            nested = _assigned(source, form, statement)
            return None if nested is None else dict(nested)
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], _text(source, form, statement.value)
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


def masked_fill(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``x[m] = 3.0`` -> ``x.masked_fill_(m, 3.0)``.

    The same write, in place, so that whoever holds a view of ``x`` sees it. Sound for one number and one mask.
    """
    found = _masked(source, suspect)
    if found is None or not isinstance(found[0], ast.Assign):
        return
    statement, target = found
    value = statement.value
    if isinstance(value, ast.UnaryOp):
        value = value.operand
    if isinstance(value, (ast.Constant, ast.Name, ast.Attribute)) and _is_view(source, target.value):
        name, mask, filled = (source.segment(part) for part in (target.value, target.slice, statement.value))
        yield replaced(statement, f"{name}.masked_fill_({mask}, {filled})")


def masked_write(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``x[m] = s`` -> ``x = torch.where(m, s, x)``.

    Sound when ``x`` is a local name that nothing else holds, no view of another tensor, and ``s`` has the shape of
    ``x`` or is one number.
    """
    found, torch = _masked(source, suspect), source.torch_name
    if found is None or torch is None:
        return
    statement, target = found
    if not isinstance(target.value, ast.Name) or not _made_here(source, target.value.id):
        return
    if _is_view(source, target.value):
        return
    name, mask, value = target.value.id, source.segment(target.slice), source.segment(statement.value)
    if isinstance(statement, ast.AugAssign):
        value = ast.unparse(ast.BinOp(ast.Name(name, ast.Load()), statement.op, statement.value))
    yield replaced(statement, f"{name} = {torch}.where({mask}, {value}, {name})")


def _masked(source: Source, suspect: Suspicion) -> tuple[ast.Assign | ast.AugAssign, ast.Subscript] | None:
    """Return the write into a subscript at the place, and what it writes to."""
    node = source.node_at(suspect.place) if suspect.place is not None else None
    statement = source.enclosing(node, ast.stmt) if node is not None else None
    if not isinstance(statement, (ast.Assign, ast.AugAssign)):
        return None
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    one = len(targets) == 1 and isinstance(targets[0], ast.Subscript)
    return (statement, targets[0]) if one else None  # type: ignore[return-value]


# Methods whose result shares the memory of their tensor.
_VIEWS = frozenset(
    {
        "view", "reshape", "flatten", "ravel", "squeeze", "unsqueeze", "expand", "expand_as", "permute", "transpose",
        "movedim", "narrow", "select", "diagonal", "detach", "t", "view_as", "unbind", "chunk", "split", "swapaxes",
        "contiguous", "to", "float", "double", "unflatten", "real", "numpy",
    }
)  # fmt: skip


def _is_view(source: Source, target: ast.expr) -> bool:
    """Whether a target is, or may be, a view of another tensor, or another of it."""
    if not isinstance(target, ast.Name):
        return True
    given = [
        n.value
        for n in ast.walk(source.scope)
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == target.id for t in n.targets)
    ]
    held = [n for n in ast.walk(source.scope) if isinstance(n, ast.Assign) and _holds(n.value, target.id)]
    return bool(held) or any(
        isinstance(value, (ast.Subscript, ast.Attribute, ast.Name)) or called_name(value) in _VIEWS for value in given
    )


def _holds(value: ast.expr, name: str) -> bool:
    """Whether an assigned value may be a view of a name, or it itself."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _VIEWS:
        value = value.func.value
    while isinstance(value, (ast.Subscript, ast.Attribute)):
        value = value.value
    return isinstance(value, ast.Name) and value.id == name


def _made_here(source: Source, name: str) -> bool:
    """Whether a name is given the result of a call in the function: an argument would be seen by the caller."""
    assigned = (
        n for n in ast.walk(source.scope) if isinstance(n, ast.Assign) and isinstance(n.value, (ast.Call, ast.BinOp))
    )
    return any(isinstance(t, ast.Name) and t.id == name for n in assigned for t in n.targets)
