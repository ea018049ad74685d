"""Edits of single calls: a buffer made for each example, ``out=``, and values that need not become Python's."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from driftscope.transforms.repairs.source import Edit, Replacement, Source
from driftscope.transforms.subject import Subject, Suspicion

_SIZED = {"zeros": "new_zeros", "ones": "new_ones", "empty": "new_empty", "full": "new_full"}
_WHOLE = frozenset(("tensor", "eye", "arange", "linspace", "diag", "as_tensor"))  # made whole: nothing to make it like
_LIKE = {"zeros_like": "new_zeros", "ones_like": "new_ones", "empty_like": "new_empty", "full_like": "new_full"}

# math's functions that torch has under a name of its own, on one number, with the same meaning.
_MATH = frozenset(
    ("sqrt", "exp", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
     "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "lgamma")
)  # fmt: skip
_MATH_OF_TWO = frozenset(("pow", "atan2", "hypot", "fmod", "copysign"))


def outside_each_other(replacements: list[Replacement]) -> list[Replacement]:
    """Leave out replacements inside of others: they can only be made together where they do not overlap."""

    def begin(r: Replacement) -> tuple[int, int]:
        return (r.first.lineno, r.first.col_offset)  # type: ignore[attr-defined]

    def end(r: Replacement) -> tuple[int, int]:
        return (r.last.end_lineno, r.last.end_col_offset)  # type: ignore[attr-defined]

    return [
        one
        for one in replacements
        if not any(begin(o) <= begin(one) and end(one) <= end(o) and o is not one for o in replacements)
    ]


def deepcopy_to_clone(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``copy.deepcopy(x)`` -> ``x.detach().clone()``.

    Sound for a tensor: a deep copy is a leaf of its own, without the derivative of what was copied.
    """
    for call in ast.walk(source.scope):
        if isinstance(call, ast.Call) and called_name(call) == "deepcopy" and len(call.args) == 1:
            yield replaced(call, f"{_tight(source, call.args[0])}.detach().clone()")
            yield replaced(call, f"{_tight(source, call.args[0])}.clone()")


def replaced(node: ast.AST, text: str, caution: str = "") -> Edit:
    """Return the edit that writes ``text`` for one node."""
    return Edit((Replacement(node, node, text),), caution)


def called_name(node: ast.AST) -> str:
    """Return the last name of what a call calls: ``zeros`` of ``torch.zeros(3)``; "" for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# --- a buffer for each example ------------------------------------------------------------------------------


def batched_factory(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``torch.zeros(n)`` -> ``x.new_zeros(n)`` where ``x`` is mapped.

    Sound when the buffer is made inside the function: then it belongs to one example, and giving each example its own
    changes nothing. The factory that made the refused tensor is tried first, then all of the function.
    """
    calls = [n for n in ast.walk(source.scope) if called_name(n) in (*_SIZED, *_LIKE, *_WHOLE, "clone")]
    born = source.node_at(suspect.birthplace) if suspect.birthplace is not None else None
    first = [born] if born in calls else []
    for like in _mapped_names(source, suspect, subject):
        for chosen in (first, [c for c in calls if called_name(c) in (*_SIZED, *_LIKE)], calls):
            for keep_dtype in (False, True):
                texts = [(call, _on(source, call, like, keep_dtype)) for call in chosen]
                if texts and all(text for _, text in texts):
                    yield Edit(tuple(Replacement(call, call, text) for call, text in texts))


def _mapped_names(source: Source, suspect: Suspicion, subject: Subject) -> list[str]:
    """Names of tensors that are mapped where the buffer is made: parameters, those of the refused statement first."""
    names = [n for n in source.parameters if n not in ("self", "cls", "ctx")]
    if source.scope is source.outer and len(names) == len(subject.in_dims):
        names = [n for n, dim in zip(names, subject.in_dims, strict=True) if dim is not None]
    node = source.node_at(suspect.place) if suspect.place is not None else None
    statement = source.enclosing(node, ast.stmt) if node is not None else None
    near = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)} if statement is not None else set()
    return sorted(names, key=lambda name: name not in near)


def _on(source: Source, call: ast.AST, like: str, keep_dtype: bool) -> str:
    """Write a factory call as a method of ``like``."""
    if not isinstance(call, ast.Call):
        return ""
    name = called_name(call)
    if name == "clone" and isinstance(call.func, ast.Attribute):
        original = source.segment(call.func.value)
        return f"{like}.new_empty({original}.shape, dtype={original}.dtype).copy_({original})"
    if name in _WHOLE:
        # A zero without axes neither changes the values nor the dtype of what has axes.
        return f"{like}.new_zeros(()) + {source.segment(call)}"
    given = [source.segment(a) for a in call.args]
    if name in _LIKE:
        if not given:
            return ""
        original, *given = given
        method, given = _LIKE[name], [f"{original}.shape", *given, f"dtype={original}.dtype"]
    else:
        method = _SIZED[name]
    named = {k.arg or "": source.segment(k.value) for k in call.keywords if k.arg != "out"}
    if named.get("dtype") == f"{like}.dtype":
        named.pop("dtype")
    elif keep_dtype and "dtype" not in named and name in _SIZED and source.torch_name:
        named["dtype"] = f"{source.torch_name}.get_default_dtype()"
    if named.get("device") == f"{like}.device":
        named.pop("device")
    return f"{like}.{method}({', '.join([*given, *(f'{k}={v}' for k, v in named.items())])})"


# --- out= ---------------------------------------------------------------------------------------------------


def without_out(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``torch.sin(x, out=o)`` -> ``o = torch.sin(x)``.

    Sound when ``o`` is a local name that nothing else holds: the caller of a captured ``out`` would miss the result.
    """
    node = source.node_at(suspect.place) if suspect.place is not None else None
    if not isinstance(node, ast.Call):
        return
    out = next((k.value for k in node.keywords if k.arg == "out"), None)
    targets = out.elts if isinstance(out, ast.Tuple) else [out] if out is not None else []
    local = _assigned_names(source.scope)
    if not targets or not all(isinstance(t, ast.Name) and t.id in local for t in targets):
        return
    kept = [source.segment(a) for a in node.args]
    kept += [f"{k.arg}={source.segment(k.value)}" for k in node.keywords if k.arg not in ("out", None)]
    plain = f"{source.segment(node.func)}({', '.join(kept)})"
    names = ", ".join(source.segment(t) for t in targets)
    parent = source.parent(node)
    if isinstance(parent, ast.Expr):
        yield replaced(parent, f"{names} = {plain}")
    elif len(targets) == 1:
        yield replaced(node, f"({names} := {plain})")


def _assigned_names(scope: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(scope) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


# --- values that stay tensors -------------------------------------------------------------------------------


def item_to_tensor(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """``x.max().item()`` -> ``x.max().detach()``, ``math.sqrt(t)`` -> ``torch.sqrt(t.detach())``.

    Sound when the value is only used in tensor arithmetic. ``detach`` keeps the derivative what it was: a Python number
    has none.
    """
    yield from _kept_tensors(source, suspect, ".detach()")


def item_to_tracked(source: Source, suspect: Suspicion, subject: Subject) -> Iterator[Edit]:
    """The same where the missing derivative is what was found: without ``detach``."""
    yield from _kept_tensors(source, suspect, "")
    node = source.node_at(suspect.place) if suspect.place is not None else None
    if called_name(node or ast.Pass()) == "detach" and isinstance(node, ast.Call):
        yield replaced(node, source.segment(node.func.value))  # type: ignore[attr-defined]


def _kept_tensors(source: Source, suspect: Suspicion, cut: str) -> Iterator[Edit]:
    node = source.node_at(suspect.place) if suspect.place is not None else None
    for call in _conversions_at(source, node):
        text = _as_tensor(source, call, cut)
        if text:
            yield replaced(call, text)
    calls = [n for n in ast.walk(source.scope) if isinstance(n, ast.Call)]
    texts = [(call, _as_tensor(source, call, cut)) for call in calls]
    outermost = outside_each_other([Replacement(call, call, text) for call, text in texts if text])
    if len(outermost) > 1:
        yield Edit(tuple(outermost))


def _conversions_at(source: Source, node: ast.AST | None) -> list[ast.Call]:
    """The call at the place, or the conversions of the statement when the place is wider than one."""
    if isinstance(node, ast.Call):
        return [node]
    statement = source.enclosing(node, ast.stmt) if node is not None else None
    return [n for n in ast.walk(statement) if isinstance(n, ast.Call)] if statement is not None else []


def _as_tensor(source: Source, call: ast.Call, cut: str) -> str:
    torch, name = source.torch_name, called_name(call)
    if name == "item" and isinstance(call.func, ast.Attribute) and not call.args:
        return f"{_tight(source, call.func.value)}{cut}"
    if name == "float" and isinstance(call.func, ast.Name) and len(call.args) == 1:
        return f"{_tight(source, call.args[0])}{cut}"
    if torch is None or not call.args or call.keywords:
        return ""
    argument = call.args[0]
    if isinstance(call.func, ast.Attribute) and source.segment(call.func.value) == "math" and name in _MATH_OF_TWO:
        both = [source.segment(a) if isinstance(a, ast.Constant) else f"{_tight(source, a)}{cut}" for a in call.args]
        return f"{torch}.{name}({', '.join(both)})"
    if len(call.args) != 1:
        return ""
    if isinstance(call.func, ast.Attribute) and source.segment(call.func.value) == "math" and name in _MATH:
        return f"{torch}.{name}({_tight(source, argument)}{cut})"
    if name == "tensor" and isinstance(argument, (ast.List, ast.Tuple)):
        return f"{torch}.stack([{', '.join(_tight(source, e) + cut for e in argument.elts)}])"
    if name == "tensor":
        return f"{_tight(source, argument)}{cut}.clone()"
    return ""


def _tight(source: Source, node: ast.AST) -> str:
    """Return the source of a node so that a method can be called on it."""
    text = source.segment(node)
    return text if isinstance(node, (ast.Name, ast.Call, ast.Attribute, ast.Subscript)) else f"({text})"
