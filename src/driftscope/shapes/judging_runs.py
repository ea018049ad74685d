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

from driftscope.comparison.leaves import compare_leaves
from driftscope.programs.trees import flatten
from driftscope.records.paths import Path

#: Difference relative to the largest magnitude of a value that rounding in another kernel or order may cause, by the
#: significand bits p of its format: 2**(14 - p), that is 1e-3 in float32 and 2e-12 in float64. A program at a shape
#: it was not made for is off by far more, or has another shape altogether.
SLACK_BITS = 14
_SIGNIFICAND = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53, torch.complex64: 24}
#: No format is so coarse that half of a value may be lost to rounding.
_WIDEST = 0.1


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
    a, _ = flatten(reference)
    b = flat_leaves(other)
    alike = len(a) == len(b) and (other.flat or [path for path, _ in a] == [path for path, _ in b])
    if alike and all(_close(x, y, other.flat) for (_, x), (_, y) in zip(a, b, strict=True)):
        return ""
    told = [leaf for leaf in compare_leaves(a, b, flat=other.flat) if leaf.kind != "same"]
    far = [leaf for leaf in told if leaf.kind not in ("value", "nan") or not _leaf_close(a, b, leaf, other.flat)]
    return f"{far[0].path}: {far[0].detail}" if far else ""


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


def _leaf_close(a: list[tuple[Path, Any]], b: list[tuple[Path, Any]], leaf: Any, flat: bool) -> bool:
    i, j = leaf.index_a, leaf.index_b
    return i is not None and j is not None and _close(a[i][1], b[j][1], flat)


def _close(x: Any, y: Any, flat: bool) -> bool:
    if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
        return _tensors_close(x, y)
    if isinstance(x, (int, float)) and isinstance(y, torch.Tensor) and flat and y.numel() == 1:
        # A runtime without Python numbers returns a tensor for them.
        return _numbers_close(float(x), float(y))
    if isinstance(x, float) and isinstance(y, float):
        return _numbers_close(x, y)
    return type(x) is type(y) and not isinstance(x, torch.Tensor) and bool(x == y)


def _numbers_close(x: float, y: float) -> bool:
    return x == y or (x != x and y != y) or abs(x - y) <= 1e-6 * max(abs(x), abs(y))


def _tensors_close(x: torch.Tensor, y: torch.Tensor) -> bool:
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if x.layout is not torch.strided or y.layout is not torch.strided:
        return x.layout is y.layout and _tensors_close(x.to_dense(), y.to_dense())
    x, y = x.detach().cpu(), y.detach().cpu()
    if torch.equal(x, y):
        return True
    if not (x.is_floating_point() or x.is_complex()):
        return False
    wide = torch.complex128 if x.is_complex() else torch.float64
    p, q = x.to(wide), y.to(wide)
    largest = p[torch.isfinite(p)].abs().max().item() if torch.isfinite(p).any() else 0.0
    allowed = min(_WIDEST, 2.0 ** (SLACK_BITS - _SIGNIFICAND.get(x.dtype, 24)))
    return torch.allclose(q, p, rtol=allowed, atol=allowed * largest, equal_nan=True)
