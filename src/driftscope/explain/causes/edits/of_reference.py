"""Edits of A, where none of B was found: a setting may have its match on one side alone.

A file's one operator that torch writes out in five steps has an attribute, and the five steps have none. So that both
orders of two programs get the same cause, A is searched as B was, with the roles exchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from driftscope.explain.causes.telling import OF_A, WHOLE
from driftscope.lift.evidence import Evidence
from driftscope.lift.reconcile.drifts import Reconciled
from driftscope.records.finding import Finding


def with_edits_of_a(found: list[Finding], search: Callable[[], Sequence[Finding]]) -> list[Finding]:
    """Findings whose fixes were tried: the given ones, or those of the other side where only these all are.

    Parameters
    ----------
    found : list of Finding
        What was found in B.
    search : callable
        Finds the same in A.
    """
    if exact(found):
        return found
    other = list(search())
    told = bool(other) and all(f.verified and f.evidence.get(OF_A) for f in other) and len(other) <= len(found)
    if not told or (not exact(other) and all(f.verified for f in found)):
        return found
    if other[0].evidence.get(WHOLE) and not _inside(other[0], found[0]):
        return found  # a piece that ends elsewhere says less than the place where B was seen to part
    return [other[0] if _nearby(other[0], found[0]) else _placed_as(other[0], found[0]), *other[1:]]


def exact(found: Sequence[Finding]) -> bool:
    """Whether every finding's fix was tried, and none takes a whole piece for another."""
    return all(f.verified and not f.evidence.get(WHOLE) for f in found)


def _nearby(edit: Finding, parted: Finding) -> bool:
    """Whether an edit of A is at the place where B was seen to part, has one of its own, or no other is known."""
    one, other = edit.where, parted.where
    if other.node is None or _inside(edit, parted) or edit.evidence.get("weight"):
        return True
    return one.module is not None and one.module == other.module


def _inside(edit: Finding, parted: Finding) -> bool:
    return edit.where.node == parted.where.node or edit.where.node in parted.evidence.get("piece", ())


def _placed_as(edit: Finding, parted: Finding) -> Finding:
    return replace(edit, where=parted.where, what=parted.what)


def roles_exchanged(evidence: Evidence) -> Evidence:
    """The evidence of the same pair of programs, B the reference."""
    known = evidence.reconciled
    turned = None if known is None else Reconciled(
        known.outputs_b, known.outputs_a, known.plain_b, known.plain_a, known.drifts, known.before,
        known.repairs_b, known.repairs_a, losses=(known.losses[1], known.losses[0]),
    )  # fmt: skip
    pairs = [(j, i) for i, j in evidence.pairs]
    return Evidence(evidence.b, evidence.a, pairs, turned, without=evidence.without)
