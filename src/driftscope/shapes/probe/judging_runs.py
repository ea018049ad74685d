"""What one program does at one shape, held against what the original does there."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.comparison.agreement import agreement
from driftscope.comparison.leaves import compare_leaves
from driftscope.programs.value_trees import flatten
from driftscope.records.paths import Path
from driftscope.records.words import counted


@dataclass(frozen=True, slots=True)
class Ran:
    """A program answered.

    Parameters
    ----------
    value : object
        A tree of tensors and Python values; for flat runtimes the list of leaves.
    flat : bool
        Whether ``value`` is a list of leaves without their containers.
    """

    value: Any
    flat: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """A program raised; ``words`` is the first line of what it said, ``kind`` the class of the error."""

    words: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Crashed:
    """A program took its process down."""

    words: str


@dataclass(frozen=True, slots=True)
class NotAsked:
    """A program was not asked, because calls like this one took its process down before."""


Answer = Ran | Refused | Crashed | NotAsked


def ask(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """Call a torch program once, without gradients, and say what it did.

    Whatever a program raises at a shape is an answer about that shape, so every exception is taken.
    """
    try:
        with torch.no_grad():
            return Ran(function(*args, **kwargs))
    except Exception as error:
        return Refused(first_line(error), type(error).__name__)


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says anything, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keep away what torch prints about every graph that fails: thirty lines per probed shape."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def difference(reference: Any, other: Ran) -> str:
    """Say how an answer differs from the original's; "" when the bits agree or rounding explains the difference.

    Parameters
    ----------
    reference : tree
        What the original returned.
    other : Ran
    """
    a, b = both_leaves(reference, other)
    alike = len(a) == len(b) and (other.flat or [path for path, _ in a] == [path for path, _ in b])
    if not alike:
        told = [leaf for leaf in compare_leaves(a, b, flat=other.flat) if leaf.kind not in ("same", "value")]
        return f"{told[0].path}: {told[0].detail}" if told else f"{counted(len(a), 'output')} against {len(b)}"
    for (path, x), (_, y) in zip(a, b, strict=True):
        if _same_tensor(x, y):
            continue
        found = agreement(x, y, flat=other.flat, path=path)
        if not found.agrees:
            return f"{path}: {found.detail}"
    return ""


def both_leaves(reference: Any, other: Ran) -> tuple[list[tuple[Path, Any]], list[tuple[Path, Any]]]:
    """Return the leaves of the original's answer and of another, as they are to be held against each other."""
    a, b = flatten(reference)[0], flat_leaves(other)
    if other.flat and len(a) != len(b):
        # Runtimes return tensors alone: what the model returns as None is not among their outputs.
        a = [(path, leaf) for path, leaf in a if leaf is not None]
    return a, b


def _same_tensor(x: Any, y: Any) -> bool:
    """The common case, cheaply: most probed points give the very same bits."""
    if not (isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)):
        return False
    alike = x.shape == y.shape and x.dtype == y.dtype and x.layout == y.layout and x.device == y.device
    return alike and torch.equal(x, y)


def difference_in_form(reference: Any, other: Ran) -> str:
    """Say how an answer differs in structure, shape or dtype; its values are random and are not looked at."""
    a, b = [leaf for _, leaf in flatten(reference)[0]], [leaf for _, leaf in flat_leaves(other)]
    forms = [[(tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else None for x in side] for side in (a, b)]
    if other.flat:
        forms = [[form for form in side if form is not None] for side in forms] if len(a) == len(b) else forms
    return "" if forms[0] == forms[1] else f"{forms[0]} against {forms[1]}"


def flat_leaves(answer: Ran) -> list[tuple[Path, Any]]:
    """Return the leaves of an answer with their paths; a flat answer's are numbered."""
    if answer.flat:
        return [(Path((i,), "out"), leaf) for i, leaf in enumerate(answer.value)]
    return flatten(answer.value)[0]
