"""A user's function as source: found, edited, compiled again, and shown as a unified diff."""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

import torch

from driftscope.transforms.repairs.patches import patched_path
from driftscope.transforms.subject import Subject
from driftscope.transforms.world.places import Place
from driftscope.transforms.world.reach import codes_of

# Bits of co_flags that __future__ imports set: the edited function is compiled as its file was.
_FUTURES = 0x1FE0000


@dataclass(frozen=True)
class Replacement:
    """New text for the span of a node, or of several nodes from the first to the last."""

    first: ast.AST
    last: ast.AST
    text: str


@dataclass(frozen=True)
class Edit:
    """A change of a user's file.

    Parameters
    ----------
    replacements : tuple of Replacement
    caution : str
        What changes beside the refusal, said with the fix; "" when nothing does.
    branches : bool
        The edit makes a choice between two values of ``torch.where``: both must have one shape and dtype, also for
        examples that only took one of them.
    returns : bool
        The edited function has a second result: what it kept outside of itself before.
    """

    replacements: tuple[Replacement, ...]
    caution: str = ""
    branches: bool = False
    returns: bool = False


@dataclass(frozen=True)
class Source:
    """The file of a function and the function in it.

    Parameters
    ----------
    file, text : str
    tree : ast.Module
    function : FunctionType
        The live function that holds the place; an inner one is reached through the one around it.
    scope : FunctionDef or Lambda
        The innermost function around the place.
    outer : FunctionDef or Lambda
        The definition of ``function``.
    """

    file: str
    text: str
    tree: ast.Module
    function: FunctionType
    scope: Any
    outer: Any

    def segment(self, node: ast.AST) -> str:
        """Return the source of a node as the user wrote it."""
        starts = _line_starts(self.text)
        return self.data[_begin(starts, node) : _end(starts, node)].decode()

    def node_at(self, place: Place) -> ast.AST | None:
        """Return the innermost node whose span is exactly the place."""
        wanted = (place.line, place.column, place.end_line, place.end_column)
        exact = None
        for node in ast.walk(self.outer):
            span = tuple(getattr(node, a, None) for a in ("lineno", "col_offset", "end_lineno", "end_col_offset"))
            if span == wanted:
                exact = node
        return exact

    def enclosing(self, node: ast.AST, kinds: type | tuple[type, ...]) -> Any:
        """Return the nearest node of ``kinds`` around ``node`` within the innermost function, itself included."""
        parents = _parents(self.tree)
        current: ast.AST | None = node
        while current is not None and current is not self.scope:
            if isinstance(current, kinds):
                return current
            current = parents.get(current)
        return None

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node directly around ``node``."""
        return _parents(self.tree).get(node)

    def block_of(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """Return the list of statements that holds ``statement``, and its index there."""
        parent = self.parent(statement)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(parent, name, None)
            if isinstance(block, list) and statement in block:
                return block, block.index(statement)
        return [statement], 0

    @functools.cached_property
    def data(self) -> bytes:
        """The file as bytes: columns of ``ast`` count those."""
        return self.text.encode()

    @property
    def parameters(self) -> list[str]:
        """Names of the innermost function's positional parameters."""
        return [a.arg for a in (*self.scope.args.posonlyargs, *self.scope.args.args)]

    @property
    def torch_name(self) -> str | None:
        """What the file calls torch; None when it does not import it by name."""
        names = [name for name, value in self.function.__globals__.items() if value is torch]
        cells = zip(self.function.__code__.co_freevars, self.function.__closure__ or (), strict=True)
        names += [name for name, cell in cells if _cell_holds_torch(cell)]
        return "torch" if "torch" in names else next(iter(names), None)


def _cell_holds_torch(cell: Any) -> bool:
    try:
        return cell.cell_contents is torch
    except ValueError:
        return False


@functools.lru_cache(maxsize=16)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


@functools.lru_cache(maxsize=16)
def _parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def source_of(subject: Subject, place: Place | None) -> Source | None:
    """Return the source around a place of the subject's code, or None where there is no file to edit."""
    if place is None or not os.path.isfile(place.file):
        return None
    text = "".join(linecache.getlines(place.file))
    tree = _parse(text)
    holder = _holder(subject, place)
    if tree is None or holder is None:
        return None
    outer = _definition(tree, holder.__code__)
    if outer is None:
        return None
    inside = [
        node
        for node in ast.walk(outer)
        if isinstance(node, (ast.FunctionDef, ast.Lambda)) and _starts_before(node, place) and _ends_after(node, place)
    ]
    return Source(place.file, text, tree, holder, inside[-1] if inside else outer, outer)


def _starts_before(node: Any, place: Place) -> bool:
    return (node.lineno, node.col_offset) <= (place.line, max(place.column, 0))


def _ends_after(node: Any, place: Place) -> bool:
    return (node.end_lineno, node.end_col_offset) >= (place.end_line, place.end_column)


def _holder(subject: Subject, place: Place) -> FunctionType | None:
    """Return the live function whose code, or an inner function's, is at the place."""
    functions = subject.world.functions
    for function in functions:
        if place.code is not None and any(code is place.code for code in codes_of(function.__code__)):
            return function
    for function in functions:
        lines = [line for code in codes_of(function.__code__) for _, _, line in code.co_lines() if line]
        if function.__code__.co_filename == place.file and min(lines) <= place.line <= max(lines):
            return function
    return None


def _definition(tree: ast.Module, code: CodeType) -> Any:
    """Return the definition that a code object was compiled from."""
    found = _definitions(tree).get((code.co_name, code.co_firstlineno), [])
    if len(found) < 2:
        return found[0] if found else None
    # Several lambdas on one line: the one that holds the columns of the code's instructions.
    spans = [(line, column) for line, _, column, _ in code.co_positions() if line and column is not None and column > 0]
    low, high = min(spans), max(spans)
    holding = [n for n in found if (n.lineno, n.col_offset) <= low and high <= (n.end_lineno, n.end_col_offset)]
    return holding[-1] if holding else None


@functools.lru_cache(maxsize=16)
def _definitions(tree: ast.Module) -> dict[tuple[str, int], list[Any]]:
    """Return every function by its name and each line a code object may say it begins on."""
    found: dict[tuple[str, int], list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef):
            for line in {node.lineno, *(d.lineno for d in node.decorator_list)}:
                found.setdefault((node.name, line), []).append(node)
    return found


# --- editing ------------------------------------------------------------------------------------------------


def edited_text(source: Source, edit: Edit) -> str:
    """Return the whole file with an edit made."""
    data = source.text.encode()
    for start, end, text in sorted(_spans(source, edit), reverse=True):
        data = data[:start] + text.encode() + data[end:]
    return data.decode()


def _spans(source: Source, edit: Edit) -> list[tuple[int, int, str]]:
    """Return begin and end of each replacement, in bytes of the file."""
    starts = _line_starts(source.text)
    return [(_begin(starts, r.first), _end(starts, r.last), r.text) for r in edit.replacements]


@functools.lru_cache(maxsize=16)
def _line_starts(text: str) -> tuple[int, ...]:
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return tuple(starts)


def _begin(starts: tuple[int, ...], node: Any) -> int:
    return int(starts[node.lineno - 1] + node.col_offset)


def _end(starts: tuple[int, ...], node: Any) -> int:
    return int(starts[node.end_lineno - 1] + node.end_col_offset)


def patch_of(source: Source, edited: str) -> str:
    """Return the edit as a unified diff."""
    path = patched_path(source.file)
    before, after = source.text.splitlines(keepends=True), edited.splitlines(keepends=True)
    return "".join(difflib.unified_diff(_ended(before), _ended(after), f"a/{path}", f"b/{path}"))


def _ended(lines: list[str]) -> list[str]:
    return [line if line.endswith("\n") else f"{line}\n" for line in lines]


def edited_code(source: Source, edited: str) -> CodeType | None:
    """Compile the edited function; None when the edit made something that is no function of the same closure."""
    starts, outer = _line_starts(source.text), source.outer
    begin, behind = _begin(starts, outer), len(source.text.encode()) - _end(starts, outer)
    data = edited.encode()
    segment = data[begin : len(data) - behind].decode()
    # The function alone, on its own line and column, so that texts of several lines keep their indentation.
    if isinstance(outer, ast.Lambda):
        tree = _parse(f"({segment})")
    else:
        tree = _parse(("if True:\n" if outer.col_offset else "\n") + " " * outer.col_offset + segment)
    if tree is None:
        return None
    kind = type(outer)
    definition = next(node for node in ast.walk(tree) if isinstance(node, kind))
    ast.increment_lineno(definition, outer.lineno - definition.lineno)
    return _compiled(definition, source.function.__code__)


def _compiled(definition: Any, old: CodeType) -> CodeType | None:
    names = list(old.co_freevars)
    keep: list[ast.stmt] = [ast.If(ast.Constant(False), [ast.Expr(ast.Name(n, ast.Load())) for n in names], [])]
    if isinstance(definition, ast.Lambda):
        body = ast.IfExp(
            ast.Constant(True), definition.body, ast.Tuple([ast.Name(n, ast.Load()) for n in names], ast.Load())
        )
        inner: ast.stmt = ast.Return(ast.Lambda(definition.args, body))
    else:
        # A variable of the closure that the edit no longer reads must stay in the closure: code is swapped in place.
        inner = ast.FunctionDef(
            definition.name, definition.args, [*(keep if names else []), *definition.body], [], definition.returns
        )
    arguments = ast.arguments([], [ast.arg(n) for n in names], None, [], [], None, [])
    outer = ast.FunctionDef("around", arguments, [inner], [])
    module = ast.fix_missing_locations(ast.copy_location(ast.Module([outer], []), definition))
    try:
        code = compile(module, old.co_filename, "exec", flags=old.co_flags & _FUTURES, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    wanted = "<lambda>" if isinstance(definition, ast.Lambda) else definition.name
    around = next(c for c in code.co_consts if isinstance(c, CodeType))
    found = next((c for c in around.co_consts if isinstance(c, CodeType) and c.co_name == wanted), None)
    return found if found is not None and set(found.co_freevars) == set(names) else None


@contextlib.contextmanager
def swapped(function: FunctionType, code: CodeType) -> Iterator[None]:
    """Give a live function other code for the time of a block: whoever calls it, calls the edited one."""
    kept = function.__code__
    function.__code__ = code
    try:
        yield
    finally:
        function.__code__ = kept
