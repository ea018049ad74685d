"""Whether a finding names the guilty node: itself, or as part of the piece between aligned values that it blames."""

from __future__ import annotations

from driftscope.records.finding import Finding


def names(finding: Finding | None, guilty: str) -> bool:
    """Return whether a finding's place is the guilty node or the aligned piece that holds it."""
    return finding is not None and (finding.where.node == guilty or guilty in finding.evidence.get("piece", ()))
