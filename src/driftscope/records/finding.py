"""A finding: one thing a person should know, with its place, its cause and the edit that mends it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from driftscope.errors import InputError
from driftscope.records.user_code import written

_CODE = re.compile(r"[A-Z]\d{3}")


@dataclass(frozen=True, slots=True, repr=False)
class Where:
    """A place: as much of it as is known.

    Parameters
    ----------
    output : str or None
        Path in the output tree, as ``out['logits']``; for inputs ``in['mask']``.
    node, operator : str or None
        Name and operator type of the graph node.
    module : str or None
        Path of the torch module, as ``encoder.layers.0.norm1``.
    file, line, expression : str, int, str or None
        The user's source.
    column : int or None
        Column of the expression in its line, from 1, as editors count.
    """

    output: str | None = None
    node: str | None = None
    operator: str | None = None
    module: str | None = None
    file: str | None = None
    line: int | None = None
    expression: str | None = None
    column: int | None = None

    def __repr__(self) -> str:
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        return f"Where({', '.join(f'{name}={value!r}' for name, value in known.items() if value is not None)})"

    def __str__(self) -> str:
        source = f"{self.file}:{self.line}" if self.file and self.line else self.file
        node = f"{self.node} ({self.operator})" if self.node and self.operator else self.node or self.operator
        return ", ".join(p for p in (self.output, node, self.module, source) if p)


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """One thing a person should know.

    Parameters
    ----------
    code : str
        A letter and three digits, stable for ever; ``driftscope rule CODE`` explains it.
    what : str
        One sentence: what was seen, with its numbers.
    why : str
        One sentence: the cause; empty when not known. Never a guess.
    fix : str
        What to change; empty when nothing needs changing.
    where : Where
        Place of it.
    evidence : mapping of str to JSON values
        The measurements behind it.
    note : bool
        True for things worth knowing that need no action. Notes never decide an exit code.
    verified : bool or None
        Whether the fix was tried and worked; None when it was not tried.
    """

    code: str
    what: str
    why: str = ""
    fix: str = ""
    where: Where = field(default_factory=Where)
    evidence: Mapping[str, Any] = field(default_factory=dict)
    note: bool = False
    verified: bool | None = None

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):  # a record that somebody edited: it is printed as it is
            raise InputError(f"the code of a finding is a letter and three digits, not {self.code!r}")

    def __repr__(self) -> str:
        # What a prompt shows of ``c.findings``: one line each, not every measurement.
        return f"<{type(self).__name__}{' (note)' if self.note else ''} {self}>"

    def __str__(self) -> str:
        place = str(replace(self.where, file=written(self.where.file)) if self.where.file else self.where)
        return f"{self.code} {place + ': ' if place else ''}{self.what}"
