"""Edits of derivatives taken inside: torch.autograd to torch.func, ``no_grad`` to ``detach``, BatchNorm."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from driftscope.transforms.repairs.source import Edit, Replacement, Source
from driftscope.transforms.repairs.values import called_name, replaced
from driftscope.transforms.subject import Subject, Suspicion

_FUNCTIONAL = {"jacobian": "jacrev", "hessian": "hessian"}


def functional_to_func(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``torch.autograd.functional.jacobian(f, x)`` -> ``torch.func.jacrev(f)(x)``; hessian, jvp, vjp, hvp likewise.

    Sound with the default options.
    """
    torch = source.torch_name
    for call in ast.walk(source.scope) if torch else ():
        if not isinstance(call, ast.Call) or call.keywords or "functional." not in source.segment(call.func):
            continue
        name, given = called_name(call), [source.segment(a) for a in call.args]
        if name in _FUNCTIONAL and len(given) == 2:
            inputs = given[1][1:-1] if isinstance(call.args[1], ast.Tuple) else given[1]
            text = f"{torch}.func.{_FUNCTIONAL[name]}({given[0]})({inputs})"
            yield replaced(call, text)
            # torch.autograd.functional cuts the graph unless asked; the other form does not.
            yield Edit((Replacement(call, call, f"{text}.detach()"),), caution=_CUT)
        elif len(given) == 3 and not isinstance(call.args[1], ast.Tuple):
            f, x, v = given
            forms = {
                "jvp": f"{torch}.func.jvp({f}, ({x},), ({v},))",
                "vjp": f"(lambda out, pull: (out, pull({v})[0]))(*{torch}.func.vjp({f}, {x}))",
                "hvp": f"(({f})({x}), {torch}.func.jvp({torch}.func.grad({f}), ({x},), ({v},))[1])",
                "vhp": f"(({f})({x}), {torch}.func.vjp({torch}.func.grad({f}), {x})[1]({v})[0])",
            }
            if name in forms:
                yield replaced(call, forms[name])
                whole = f"tuple(part.detach() for part in {forms[name]})"
                yield Edit((Replacement(call, call, whole),), caution=_CUT)


#: Said with an edit that keeps a derivative cut where torch.autograd.functional cut it.
_CUT = "its result stays cut, as without create_graph=True: a derivative of it is zero; leave .detach() out to have one"


def autograd_to_func(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """A loss built from ``y`` and ``torch.autograd.grad(loss, y)`` -> ``torch.func.grad(objective)(y)``.

    Sound when only plain statements stand between the ``requires_grad_`` and the gradient. ``loss.backward()`` with
    ``y.grad`` read later is the same.
    """
    torch = source.torch_name
    body = getattr(source.scope, "body", None)
    if torch is None or not isinstance(body, list):
        return
    for block in _blocks(source.scope):
        for g, statement in enumerate(block):
            taken = _gradient_taken(source, statement)
            if taken is None:
                continue
            # torch.autograd.grad cuts the graph unless asked, torch.func.grad does not: both are tried.
            for cut in ("", ".detach()"):
                edit = _as_objective(source, torch, block, g, taken, cut)
                if edit is not None:
                    yield edit
    without = [(n, n.func.value) for n in ast.walk(source.scope) if _is_requires_grad(n)]  # type: ignore[attr-defined]
    if without:
        yield Edit(tuple(Replacement(call, call, source.segment(value)) for call, value in without))
    data = [n for n in ast.walk(source.scope) if isinstance(n, ast.Attribute) and n.attr == "data"]
    if data:
        yield Edit(tuple(Replacement(n, n, f"{source.segment(n.value)}.detach()") for n in data))


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(scope):
        for name in ("body", "orelse"):
            block = getattr(node, name, None)
            if isinstance(block, list):
                yield block


def _is_requires_grad(node: ast.AST) -> bool:
    return called_name(node) == "requires_grad_" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def _gradient_taken(source: Source, statement: ast.stmt) -> tuple[str, str, str] | None:
    """Return (loss, variable, how the result is written) of a statement that takes a gradient; None otherwise."""
    for call in ast.walk(statement):
        if not isinstance(call, ast.Call):
            continue
        name = called_name(call)
        if name == "grad" and "autograd" in source.segment(call.func) and len(call.args) >= 2:
            of = call.args[1]
            of = of.elts[0] if isinstance(of, (ast.Tuple, ast.List)) and len(of.elts) == 1 else of
            if isinstance(of, ast.Name):
                return (
                    source.segment(call.args[0]),
                    of.id,
                    source.segment(statement).replace(source.segment(call), "{}"),
                )
        if name == "backward" and isinstance(statement, ast.Expr) and isinstance(call.func, ast.Attribute):
            return source.segment(call.func.value), "", ""
    return None


def _as_objective(
    source: Source, torch: str, block: list[ast.stmt], g: int, taken: tuple[str, str, str], cut: str
) -> Edit | None:
    """Write the statements before a gradient as a function of the variable, and the gradient as torch.func's."""
    loss, variable, result = taken
    leaves = [(k, _leaf_made(source, s)) for k, s in enumerate(block[:g])]
    starts = [(k, made) for k, made in leaves if made is not None and variable in ("", made[0])]
    if not starts:
        return None
    k, (variable, value) = starts[-1]
    between = block[k + 1 : g]
    if not all(isinstance(s, (ast.Assign, ast.AugAssign)) for s in between):
        return None
    indent = " " * block[g].col_offset
    kept = _read_later(source, between, block[g])
    lines = [] if value == variable else [f"{variable} = {value}"]
    lines.append(f"def objective({variable}):")
    lines += [f"    {line}" for s in between for line in source.segment(s).splitlines()]
    lines.append(f"    return {loss}" + (f", ({', '.join(kept)},)" if kept else ""))
    gradient = f"{torch}.func.grad(objective)({variable}){cut}"
    if kept:
        lines.append(f"{variable}_grad, ({', '.join(kept)},) = {torch}.func.grad(objective, has_aux=True)({variable})")
        gradient = f"{variable}_grad{cut}"
    replacements = []
    if result:
        lines.append(_one_of(result.format(f"({gradient},)"), gradient))
    else:
        if gradient != f"{variable}_grad":
            lines.append(f"{variable}_grad = {gradient}")
        for node in (n for s in block[g + 1 :] for n in ast.walk(s)):
            if isinstance(node, ast.Attribute) and node.attr == "grad" and source.segment(node.value) == variable:
                replacements.append(Replacement(node, node, f"{variable}_grad"))
        if not replacements:
            return None
    replacements.append(Replacement(block[k], block[g], f"\n{indent}".join(lines)))
    return Edit(tuple(replacements))


def _read_later(source: Source, between: list[ast.stmt], taken: ast.stmt) -> list[str]:
    """Return the names that the statements before a gradient give a value and that are read after it."""
    nodes = [n for s in between for n in ast.walk(s) if isinstance(n, ast.Name)]
    made = dict.fromkeys(n.id for n in nodes if isinstance(n.ctx, ast.Store))
    end = taken.end_lineno or taken.lineno
    read = {
        n.id
        for n in ast.walk(source.scope)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end
    }
    return [name for name in made if name in read]


def _one_of(text: str, gradient: str) -> str:
    """Drop the tuple that torch.autograd.grad returns and torch.func.grad does not."""
    for tuple_form in (f"({gradient},)[0]",):
        text = text.replace(tuple_form, gradient)
    target, equals, value = text.partition("=")
    if equals and value.strip() == f"({gradient},)" and target.strip().strip("()").rstrip().endswith(","):
        return f"{target.strip().strip('()').rstrip().rstrip(',')} = {gradient}"
    return text


def _leaf_made(source: Source, statement: ast.stmt) -> tuple[str, str] | None:
    """Return (name, value without requires_grad_) of a statement that makes a leaf."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name):
        if _is_requires_grad(statement.value):
            return statement.targets[0].id, source.segment(statement.value.func.value)  # type: ignore[attr-defined]
        return None
    if isinstance(statement, ast.Expr) and _is_requires_grad(statement.value):
        name = source.segment(statement.value.func.value)  # type: ignore[attr-defined]
        return (name, name) if name.isidentifier() else None
    return None


# --- no_grad ------------------------------------------------------------------------------------------------


def no_grad_to_detach(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``with torch.no_grad(): s = f(x)`` -> ``s = f(x).detach()``.

    Sound when the block only assigns: forward mode and nested transforms respect ``detach``, not ``no_grad``.
    """
    for node in ast.walk(source.scope):
        if not isinstance(node, ast.With) or len(node.items) != 1 or node.items[0].optional_vars is not None:
            continue
        if "no_grad" not in source.segment(node.items[0].context_expr):
            continue
        if all(isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) for s in node.body):
            lines = [
                f"{source.segment(s.targets[0])} = {_detached(source, s.value)}"  # type: ignore[attr-defined]
                for s in node.body
            ]
            yield replaced(node, ("\n" + " " * node.col_offset).join(lines))


def _detached(source: Source, value: ast.expr) -> str:
    text = source.segment(value)
    return f"{text}.detach()" if isinstance(value, (ast.Name, ast.Call, ast.Attribute)) else f"({text}).detach()"


# --- BatchNorm ----------------------------------------------------------------------------------------------


def batch_norm_alone(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``F.batch_norm(x, mean, var, training=True)`` -> the same without running statistics.

    The result is the same, since training uses the batch's own statistics; the running ones are no longer updated.
    """
    for call in ast.walk(source.scope):
        if isinstance(call, ast.Call) and called_name(call) == "batch_norm" and len(call.args) >= 3:
            parts = [source.segment(a) for a in call.args]
            parts[1:3] = ["None", "None"]
            parts += [f"{k.arg}={source.segment(k.value)}" for k in call.keywords if k.arg]
            text = f"{source.segment(call.func)}({', '.join(parts)})"
            yield replaced(call, text, "the running statistics are no longer updated")
        elif isinstance(call, ast.Call) and called_name(call).startswith("BatchNorm"):
            text = source.segment(call).rstrip()[:-1].rstrip().rstrip(",")
            yield replaced(call, f"{text}, track_running_stats=False)", "the running statistics are no longer updated")
