"""The record of one check of function transforms: what each does to a function, and what a person should know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.showing import Record

SCHEMA = "driftscope/transforms/1"

# From harmless to serious; the order in which outcomes are listed and the worst of several is chosen.
OUTCOMES: dict[str, str] = {
    "same": "the bits of the plain program",
    "rounding": "the plain program's values up to rounding",
    "random": "other random numbers of the same distribution, as was asked for",
    "plain-refuses": "refused, and the plain program refuses as well",
    "not-reproducible": "the plain program does not repeat itself, so its values decide nothing",
    "refused": "refused, although the plain program runs",
    "wrong": "other values, dtypes, shapes or structure than the plain program",
}


@dataclass(frozen=True, slots=True, repr=False)
class TransformFinding(Finding):
    """One thing a person should know about a function under a transform.

    Parameters
    ----------
    transform : str
        The transform it was seen under, as it was asked for: ``"vmap"``, ``"vmap(grad)"``.
    cause : str
        The catalogue entry that explains it, a T code: ``"T006"``. ``"T099"``: cause not identified.
    transforms : tuple of str
        Every transform that shows the same thing at the same place, ``transform`` first.
    patch : str
        The fix as a unified diff of the user's file, where an edit was made; empty otherwise.
    """

    transform: str = ""
    cause: str = ""
    transforms: tuple[str, ...] = ()
    patch: str = ""


@dataclass(frozen=True, slots=True)
class TransformRun:
    """How one transform compared with the plain program.

    Parameters
    ----------
    transform : str
        As it was asked for.
    outcome : str
        A key of :data:`OUTCOMES`.
    reason : str
        One sentence.
    message : str
        What torch said where it refused, its first line; empty otherwise.
    path : str or None
        Place of the worst difference in the output tree, as ``out[0]``.
    max_abs, max_rel : float or None
        Largest differences there, transform - plain.
    worst : tuple of two str or None
        The plain value and the transform's value there.
    """

    transform: str
    outcome: str
    reason: str
    message: str = ""
    path: str | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    worst: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True, repr=False)
class TransformReport(Record):
    """What function transforms do to one function, compared with the plain program.

    Parameters
    ----------
    function : str
        Its qualified name and place.
    outcomes : mapping of str to str
        Transform, as it was asked for, to a key of :data:`OUTCOMES`.
    findings : tuple of TransformFinding
        Most important first; notes last.
    runs : tuple of TransformRun
        One per transform, in the order they were asked for.
    inputs : mapping
        Shapes, dtypes, in_dims and randomness of the examples.
    environment, thresholds, times
        As in :class:`~driftscope.records.kinds.comparison.Comparison`.
    """

    function: str
    outcomes: Mapping[str, str]
    findings: tuple[TransformFinding, ...] = ()
    runs: tuple[TransformRun, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    command: str = ""
    schema: str = SCHEMA

    @property
    def first(self) -> TransformFinding | None:
        """The most important finding, or None."""
        return self.findings[0] if self.findings else None

    @property
    def worst(self) -> str:
        """The most serious outcome of all transforms."""
        order = list(OUTCOMES)
        return max(self.outcomes.values(), key=order.index, default="same")

    def __str__(self) -> str:
        told = ", ".join(f"{name} {outcome}" for name, outcome in self.outcomes.items())
        return f"{self.function}: {told}"
