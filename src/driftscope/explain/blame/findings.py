"""A search for the guilty optimiser put into findings, with the place in the graph and in the user's source."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.explain.native.program_kernels import SourceLines
from driftscope.lift.steps import Lifted
from driftscope.programs.protocol import Bound
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.left_out import Blame, operators_in_words


def blame_findings(blame: Blame, side: str, *, asked: bool, where: Where | None = None) -> list[Finding]:
    """Put a search into findings: the guilty ones with the line to paste, or that there are none.

    Parameters
    ----------
    blame : Blame
    side : str
        ``"A"`` or ``"B"``.
    asked : bool
        Whether somebody asked for the search; else one that finds nothing wrong says nothing.
    where : Where or None
        The first operator that the guilty ones made.
    """
    evidence = {"side": side, "blame": timeless(blame)}
    if blame.guilty:
        changes = [
            f"{s.name} {operators_in_words(s.operators)}"
            for s in blame.suspects
            if s.name in blame.guilty and s.operators
        ]
        fix = f"Leave it out: {blame.paste}, here {blame.program_line}."
        if not blame.floors or blame.floors <= THRESHOLDS.large:
            fix += " On these inputs the results agree within rounding: there is nothing to report yet."
        return [
            Finding(
                "O013", blame.answer, f"{'; '.join(changes)}." if changes else "", fix if blame.paste else "",
                where or Where(operator=made_by(blame)), evidence, verified=blame.verified,
            )
        ]  # fmt: skip
    if blame.wrong and blame.complete:
        return [Finding("O014", blame.answer, evidence=evidence, note=True)]
    return [Finding("O018", blame.answer, evidence=evidence, note=True)] if asked or blame.wrong else []


def made_by(blame: Blame) -> str | None:
    """The type of operator that the guilty optimisers put into the graph."""
    made = (n for s in blame.suspects if s.name in blame.guilty for n, k in s.operators.items() if k > 0)
    return next(made, None)


def place_of(blame: Blame, bound: Bound, file: Lifted | None) -> Where | None:
    """The first operator that the guilty ones made, with the source line that the file has for its result."""
    operator = made_by(blame)
    try:
        source = bound.program.optimized_source(bound) if operator is not None else None
    except (CannotLift, RuntimeRefused):
        source = None
    if source is None:
        return None
    node = next((n for n in source.model.graph.node if n.op_type == operator), None)
    if node is None:
        return None
    places = SourceLines()
    if file is not None:
        file.run(observe=places)
    known = next((places.found[name] for name in node.output if name in places.found), Where())
    return replace(known, output=None, node=node.name or node.output[0], operator=operator)


def timeless(blame: Blame) -> dict[str, Any]:
    """A search as plain data without its times: a finding is the same every time it is made."""
    untimed = replace(blame, seconds=0.0, suspects=tuple(replace(s, seconds=0.0) for s in blame.suspects))
    return untimed.to_dict()
