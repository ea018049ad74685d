"""Places in the user's code: file, span and expression, from running frames and from tracebacks."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType

from driftscope.records.finding import Where
from driftscope.records.user_code import is_users


@dataclass(frozen=True)
class Place:
    """An expression in a source file.

    Parameters
    ----------
    file : str
        As the code object names it; ``"<stdin>"`` and notebook cells included.
    line, end_line : int
        From 1.
    column, end_column : int
        From 0, in UTF-8 bytes, as ``ast`` and code objects count. -1 when unknown.
    code : CodeType or None
        The function's code object.
    """

    file: str
    line: int
    column: int = -1
    end_line: int = -1
    end_column: int = -1
    code: CodeType | None = field(default=None, compare=False, repr=False)

    @property
    def expression(self) -> str:
        """The source of the span, its whitespace collapsed; the stripped line when columns are unknown; else "".

        Of a statement with a block (``with``, ``if``, ``for``) it is the first line.
        """
        text = linecache.getline(self.file, self.line)
        if not text:
            return ""
        if self.column < 0 or self.end_column < 0:
            return text.strip()
        last = max(self.end_line, self.line)
        lines = [linecache.getline(self.file, n).encode() for n in range(self.line, last + 1)]
        lines[-1] = lines[-1][: self.end_column]
        lines[0] = lines[0][self.column :]
        whole = " ".join(b"".join(lines).decode(errors="replace").split())
        return whole if len(lines) == 1 or _is_expression(whole) else lines[0].decode(errors="replace").strip()

    @property
    def where(self) -> Where:
        """The place as a finding holds it; the column counts characters from 1."""
        column = None
        if self.column >= 0:
            before = linecache.getline(self.file, self.line).encode()[: self.column]
            column = len(before.decode(errors="replace")) + 1
        return Where(file=self.file, line=self.line, expression=self.expression or None, column=column)

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


@functools.lru_cache(maxsize=1024)
def _is_expression(text: str) -> bool:
    try:
        ast.parse(f"({text})", mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True


def definition_of(function: FunctionType) -> Place | None:
    """Return the line where a user's function begins, None for what is not written by the user."""
    code = function.__code__
    return Place(code.co_filename, code.co_firstlineno, code=code) if is_users(code.co_filename) else None


_OWN = str(Path(__file__).resolve().parents[1])


def place_of(code: CodeType, lasti: int) -> Place:
    """Return the span of the instruction at byte offset ``lasti`` of ``code``."""
    try:
        spans = _spans(code)
    except TypeError:
        # Code that a compiler made may hold constants that cannot be hashed, and then no cache can hold it.
        spans = tuple(code.co_positions())
    index = max(lasti, 0) // 2
    line, end_line, column, end_column = spans[index] if index < len(spans) else (None, None, None, None)
    return Place(
        code.co_filename,
        line or code.co_firstlineno,
        -1 if column is None else column,
        -1 if end_line is None else end_line,
        -1 if end_column is None else end_column,
        code,
    )


@functools.lru_cache(maxsize=1024)
def _spans(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    return tuple(code.co_positions())


def calling_place(frame: FrameType | None) -> Place | None:
    """Return where the innermost frame of user code stands, starting from ``frame``."""
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return place_of(frame.f_code, frame.f_lasti)
        frame = frame.f_back
    return None


def raising_place(traceback: TracebackType | None) -> Place | None:
    """Return the innermost place of user code in a traceback, or None."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users(code.co_filename):
            found = place_of(code, traceback.tb_lasti)
        traceback = traceback.tb_next
    return found


#: Functions of this package that call the user's function, or torch in its name: what they raise is not their own.
_CALLING = frozenset(("__torch_function__", "__call__", "run_loop", "per_example", "native"))
_MISTAKES = (TypeError, AttributeError, NameError, LookupError, AssertionError)


def is_own_mistake(error: BaseException) -> bool:
    """Whether an error was raised by a mistake in this package, and not by the user's function or by torch."""
    traceback = error.__traceback__
    if traceback is None or not isinstance(error, _MISTAKES):
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    return code.co_filename.startswith(_OWN) and code.co_name not in _CALLING
