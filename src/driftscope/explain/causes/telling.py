"""How a finding says where two programs part and why, for an edit of B and for one of A."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.explain.causes.alterations import FOLD_ULPS, exchange_words, shortest, told_apart
from driftscope.explain.causes.computed import Lacking, OtherIndices, OtherNumber
from driftscope.explain.causes.rewiring import Reason, told, where_of
from driftscope.explain.causes.weights import ChangedWeight
from driftscope.explain.locate.divergence import View
from driftscope.explain.locate.fingerprints import Visited
from driftscope.explain.locate.locating import TriedPlace
from driftscope.lift.reconcile.matching import uniform, within_ulps
from driftscope.lift.steps import Constant, Origin
from driftscope.records.finding import Finding, Where
from driftscope.records.first_line import share
from driftscope.records.kinds.output import OutputRecord
from driftscope.records.words import counted, joined

# Share of the program's own drift below which a piece's, in its own unit, says nothing.
_TELLING = 1e-3
#: Marks a finding whose edit is one of the reference, told in the words of the two programs as they were given.
OF_A = "edit of A"
#: Marks one whose edit is a whole piece: something smaller says more.
WHOLE = "whole piece"
_SIDES = {"A": "B", "B": "A"}


# Steps that a sentence names.
_SHOWN = 3


def _same_numbers(one: Constant, other: Constant) -> bool:
    alike = (one.value.shape, one.value.dtype) == (other.value.shape, other.value.dtype)
    return alike and torch.equal(one.value, other.value)


@dataclass(frozen=True, slots=True)
class Telling:
    """What every finding about a pair of programs says of it.

    Parameters
    ----------
    output : OutputRecord
        The output at which they were seen to differ.
    numbers : mapping
        Evidence that all findings carry.
    own : sequence of Constant
        The constants of the program that is edited.
    of_a : bool
        Whether that is the reference, searched as if it were B.
    without : str
        What was taken from the pair before it was searched.
    theirs : sequence of Constant
        The constants of the other one.
    """

    output: OutputRecord
    numbers: Mapping[str, Any]
    own: Sequence[Constant]
    of_a: bool = False
    without: str = ""
    theirs: Sequence[Constant] = ()

    def at_the_end(self) -> str:
        """By how much the program's output is off, as the end of a sentence."""
        lifted = self.output.lifted_size
        left = f"{self.without} " if self.without else ""
        return "" if lifted is None or lifted != lifted else f"; {left}the program's output is off by {share(lifted)}"

    def weight(
        self, change: ChangedWeight, place: TriedPlace | None = None, more: Sequence[ChangedWeight] = (),
        first: Visited | None = None,
    ) -> Finding:  # fmt: skip
        """Say of a tensor that it is not the other program's; ``first`` is where it is computed, here or else there."""
        constant, partner = change.constant, change.partner
        owner = partner.name.rpartition(".")[0] or None
        own, theirs = (partner.where, constant.where) if self.of_a else (constant.where, partner.where)
        source = own if own.file else theirs
        where = Where(
            output=self.output.path, node=own.node, operator=own.operator, module=own.module or owner,
            file=source.file, line=source.line, expression=source.expression,
        )  # fmt: skip
        if first is not None and not self.of_a:
            here = constant.origin is Origin.COMPUTED
            module = first.where.module or where.module
            where = where_of(first, None, self.output.path) if here else replace(where, module=module)
        words = change.alteration.words
        names = constant.name, f"the reference's {partner.name}"
        if self.of_a:
            names, words = (f"{constant.name} of A", f"B's {partner.name}"), exchanged(words)
        why = "The two programs hold other numbers here"
        what = f"{names[0]} is not {names[1]}: it is that tensor, {words}"
        fixes = [f"Store {c.partner.name} of A in {c.constant.name} again." for c in (change, *more)]
        if not more and (taken := self._taken_otherwise(change, words)):
            what, why = f"{where.node} {taken.format(*names)}", "Both programs hold the same numbers"
            fixes = [f"Let {where.node} read {partner.name} as A reads it."]
        return Finding(
            change.alteration.code,
            what,
            f"{why}{self.at_the_end()}.",
            " ".join(_in_a(fix) if self.of_a else fix for fix in fixes),
            where,
            {**self.numbers, "weight": constant.name, "reference": partner.name, "what was done": words,
             "created": place.created if place else None, **self._mark()},
            verified=True,
        )  # fmt: skip

    def _taken_otherwise(self, change: ChangedWeight, words: str) -> str:
        """Say that a tensor is stored as it should be, and read otherwise, or in the place of another; else nothing."""
        constant, partner = change.constant, change.partner
        if _same_numbers(constant, partner):
            return f"reads {{0}} otherwise than {{1}} is read, which holds the same numbers: {words}"
        if any(c.name == constant.name and c is not partner and _same_numbers(constant, c) for c in self.theirs):
            return "reads {0} where the other program reads {1}"
        return ""

    def other_weights(self, others: Sequence[ChangedWeight], strange: int) -> Finding:
        """Say of several tensors what a list of them would hide; so many have nothing in common with A's."""
        first = self.weight(others[0])
        # What both sides compute of numbers in their code, as angles of positions, is in no checkpoint.
        made = all(c.constant.origin is c.partner.origin is Origin.COMPUTED for c in others)
        own = [c for c in self.own if c.value.dtype.is_floating_point and c.value.numel() > 1]
        tensors = len([c for c in own if not made or c.origin is Origin.COMPUTED])
        holds = "computes other numbers ahead of its inputs" if made else "holds other weights"
        kind, name = "computed tensor" if made else "stored tensor", others[0].constant.name
        fix = "Give both the same weights: load one checkpoint into both, or set the seed before each is made."
        alike = "have nothing in common with" if strange == len(others) else "are not"
        some = f" ({strange} have nothing in common with them)" if 0 < strange < len(others) else ""
        return replace(
            first,
            code="W004",
            what=f"B {holds}: {len(others)} of {counted(tensors, kind)} {alike} A's{some}, {name} first",
            why=f"With A's numbers in them the two are the same function{self.at_the_end()}.",
            fix=f"Compute {name} as A does, and what differs with it." if made else fix,
            # It is said of B alone.
            evidence={k: v for k, v in first.evidence.items() if k != OF_A}
            | {"weights": [c.constant.name for c in others]},
        )

    def tables(self, changed: Sequence[ChangedWeight], source: str, theirs: bool) -> Finding:
        """Say of tensors that one side, A where ``theirs``, computes from one stored tensor that they are others."""
        first, names = self.weight(changed[0], None, changed[1:]), ", ".join(c.constant.name for c in changed[1:])
        who = "A" if theirs != self.of_a else "B"
        too = f"{names} {'differ' if changed[2:] else 'differs'} too, and {who} computes them all from {source}"
        return replace(
            first,
            what=f"{first.what}; {too}",
            where=replace(first.where, module=source.rpartition(".")[0] or first.where.module),
            evidence={**first.evidence, "weights": [c.constant.name for c in changed], "computed from": source},
        )

    def exchanged_weights(self, changed: Sequence[ChangedWeight], names: Sequence[tuple[str, str]]) -> Finding:
        """Say of tensors that each is another one of A's, and which."""
        what, fix = exchange_words(names)
        if self.of_a:
            what, fix = f"in A, {exchanged(what)}", _in_a(fix)
        return replace(
            self.weight(changed[0]),
            code="W010",
            what=what,
            why=f"With their numbers exchanged the two are the same function{self.at_the_end()}.",
            fix=fix,
        )

    def index(self, change: ChangedWeight, moved: OtherIndices) -> Finding:
        """Say of a lookup that it takes other positions than A's does."""
        step, place, own = moved.step, moved.place.where, change.constant.where
        where = Where(
            output=self.output.path, node=moved.place.name if step else own.node,
            operator=moved.place.operator if step else own.operator, module=place.module or own.module,
            file=place.file, line=place.line, expression=place.expression,
        )  # fmt: skip
        if step is not None:
            what = f"{step.name} ({step.operator}) looks up {moved.given} here, and {moved.wanted} in A"
        else:
            what = f"{change.constant.name} holds rows {moved.given} of {moved.table}; A looks up {moved.wanted}"
        return Finding(
            "W011",
            what,
            f"The rows are A's; the positions are not{self.at_the_end()}.",
            f"Let {step.name if step else change.constant.name} take rows {moved.wanted}, as A does.",
            where,
            {**self.numbers, "weight": change.constant.name, "reference": change.partner.name},
            verified=True,
        )

    def number(self, found: OtherNumber) -> Finding:
        """Say of constants that hold one number which number makes the two one function."""
        first, *others = found.constants
        what = f"not the same function from {first.where.node} ({first.where.operator}) on{self.at_the_end()}"
        here, meant = told_apart(found.held, found.number)
        cause = f"its constant {first.name} is {here}; with {meant} it gives A's values"
        fix = f"Set {first.name}{f' and {len(others)} more' if others else ''} to {meant}."
        where, evidence = replace(first.where, output=self.output.path), {**self.numbers, "cause": cause}
        return Finding("N001", what, f"{cause[0].upper()}{cause[1:]}.", fix, where, evidence, verified=True)

    def term(self, found: Lacking, beside: bool = False) -> Finding:
        """Say of small terms that one side adds and the other leaves out, ``beside`` what else differs."""
        terms, side, other = found.terms, found.side, _SIDES[found.side]
        numbers = joined(list(dict.fromkeys(shortest(uniform(c) or 0.0) for c in terms)))
        places = joined([c.where.node or c.name for c in terms[:_SHOWN]])
        places += f" and {len(terms) - _SHOWN} more" if len(terms) > _SHOWN else ""
        cause = f"{side} adds {numbers} in {places}, and {other} does not"
        fix = f"Add {numbers} in B too." if side == "A" else f"Leave out {numbers} in B."
        off = f"; alone it moves the output by {share(found.alone)}" if beside else self.at_the_end()
        rest = "without it, and with what else is reported here mended," if beside else "without it"
        return Finding(
            "N001", f"not the same function from {terms[0].where.node} of {side} on{off}",
            f"{cause}; {rest} the two are the same function.", fix,
            replace(terms[0].where, output=self.output.path), {**self.numbers, "cause": cause}, verified=True,
        )  # fmt: skip

    def parting(self, place: TriedPlace, cause: Reason | None, counterpart: Visited | None = None) -> Finding:
        """Say where the programs part and why; ``counterpart`` is that of the step that the cause names."""
        parting = place.parting
        step, other = cause_step(place, cause), parting.counterpart
        tried = {"created": place.created, "tried": place.tried, "piece": [s.name for s in parting.piece]}
        numbers = {**self.numbers, **tried, **({"cause": cause.why} if cause is not None and cause.why else {})}
        numbers |= {WHOLE: True} if cause is not None and cause.whole else {}
        lacks = None if cause is None else cause.lacks
        if self.of_a and counterpart is not None and cause is not None:
            what = f"not the same function from {counterpart.name} ({counterpart.operator}) on{self.at_the_end()}"
            turned = replace(cause, why=_said_of(cause.why, step), fix=_in_a(cause.fix))
            why, fix, verified = told(turned, step, seen=place.tried)
            where = where_of(counterpart, step, self.output.path)
            return Finding("N001", what, why, fix, where, {**numbers, "cause": turned.why, **self._mark()},
                           verified=verified)  # fmt: skip
        # What is measured, and what has a counterpart, is the end of the piece.
        end = "" if step.name == parting.step.name else parting.step.name
        what = f"not the same function from {step.name} ({step.operator}) on{self._off(place, end)}{self.at_the_end()}"
        why, fix, verified = told(cause, other if lacks is None else None, end, place.tried)
        where = where_of(step, lacks or other, self.output.path, lacks)
        return Finding("N001", what, why, fix, where, numbers, verified=verified)

    def _mark(self) -> dict[str, Any]:
        return {OF_A: True} if self.of_a else {}

    def _off(self, place: TriedPlace, end: str) -> str:
        """What the piece is off by, where that says something: beside a mask of -1e9 all else is nothing."""
        whole, created = self.output.lifted_size, place.created
        finite = whole is not None and whole == whole
        if not finite or created is None or created < _TELLING * (whole or 0.0):
            return ""
        return f": given A's inputs, {end or 'its output'} is off by {share(created)}"


def in_reading_order(changed: Sequence[ChangedWeight], steps: Sequence[Visited]) -> list[ChangedWeight]:
    """Changed tensors as a reader takes them: those of which only the last digits differ behind all others.

    Else they stand in the order in which they run. Two folds of the same numbers differ in their last digits.
    """
    at = {s.name: s.index for s in steps}

    def place(change: ChangedWeight) -> tuple[bool, int]:
        held, own = change.constant.value, change.value
        slight = held.dtype.is_floating_point and within_ulps(held.to(own), own, own, held.dtype, FOLD_ULPS)
        return slight, at.get(change.constant.where.node or "", len(at))

    return sorted(changed, key=place)


def cause_step(place: TriedPlace, cause: Reason | None) -> Visited:
    """The step that a finding about a place names."""
    if cause is None:
        return place.parting.first or place.parting.step
    return cause.step or place.parting.step


def exchanged(words: str) -> str:
    """The same sentence with A and B exchanged, as a search with the two exchanged has it."""
    return re.sub(r"(?<![\w./-])[AB](?![\w/-]|\.\w)", lambda found: _SIDES[found[0]], words)


def of_one_kind(found: Sequence[Finding]) -> list[Finding]:
    """Places that differ in one way, told as one finding where they are one line, or one module that has its own.

    A function that is called twice, as a rotation of queries and of keys, is wrong twice.
    """
    groups: dict[object, list[Finding]] = {}
    # What one edit mends is one place, however many pieces it is seen in.
    edits = {each.fix: each for each in reversed(found) if each.fix and each.verified}
    for k, each in enumerate(f for f in found if edits.get(f.fix, f) is f):
        where, cause = each.where, re.sub(r"_\d+\b", "", str(each.evidence.get("cause", "")))
        place = where.module or (where.file, where.line)
        alike = each.code == "N001" and bool(cause) and place != (None, None)
        groups.setdefault((place, where.operator, each.verified, cause) if alike else k, []).append(each)
    return [_and_more(first, more) for first, *more in groups.values()]


def _and_more(first: Finding, more: Sequence[Finding]) -> Finding:
    nodes = [each.where.node for each in more if each.where.node]
    if not nodes:
        return first
    what = f"{first.what}; {', '.join(nodes)} {'differ' if nodes[1:] else 'differs'} alike"
    lines = {(each.where.file, each.where.line) for each in (first, *more)}
    # One line is edited once; the nodes of a file are one by one.
    one = len(lines) == 1 and first.where.line is not None and (first.where.operator or "").startswith("aten.")
    fix = first.fix if one else " ".join(dict.fromkeys(each.fix for each in (first, *more)))
    return replace(first, what=what, fix=fix, evidence={**first.evidence, "also": nodes})


def ambiguous(view: View, *constants: Sequence[Constant]) -> bool:
    """Whether something in the programs is itself called A or B, so that a sentence could not be exchanged."""
    steps = [*view.a.steps, *view.b.steps]
    names = {n for s in steps for n in (s.name, *s.inputs, *s.outputs)} | {c.name for side in constants for c in side}
    return not names.isdisjoint(_SIDES)


def _said_of(why: str, step: Visited) -> str:
    """A cause in A in the words of the given order: what is "here" is in that step of A."""
    words = exchanged(why)
    if " here" in words:
        return words.replace(" here", f" in A's {step.name}", 1)
    return words if words != why else f"in A, {words}"  # one that names the sides says whose it is


def _in_a(fix: str) -> str:
    return f"In A, {fix[0].lower()}{exchanged(fix[1:])}" if fix else ""


def optimiser_finding(paths: str, guilty: Sequence[OutputRecord], numbers: dict[str, Any]) -> Finding:
    """Say that the runtime's optimiser made another function of a file that is A's."""
    shown = any((o.floors or 0.0) > THRESHOLDS.large for o in guilty)
    seen = "the runtime's own outputs differ from A's" if shown else "it was seen between the graphs, in float64"
    return Finding(
        "O006",
        "the file is the same function as A, but the graph that the runtime's optimiser made of it is not",
        why="A graph transformer of the runtime rewrote the file into another function.",
        fix="Lower the graph optimisation level, or disable the transformer that fired; before you report it, compare "
        f"the outputs of a session with it and of one without: {seen}.",
        where=Where(output=paths),
        evidence=numbers,
    )
