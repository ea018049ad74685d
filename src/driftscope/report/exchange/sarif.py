"""Findings as SARIF 2.1.0, the format in which code hosts take what an analysis found on a line of source.

Reference: OASIS, *Static Analysis Results Interchange Format (SARIF) Version 2.1.0*.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from driftscope.records.finding import Finding
from driftscope.records.rules import RULES
from driftscope.records.user_code import is_users
from driftscope.report import wording

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif_of(
    findings: Iterable[Finding], root: str | Path | None = None, called: Sequence[tuple[str, int] | None] = ()
) -> dict[str, Any]:
    """Write findings that stand on a line of source as a SARIF log.

    Parameters
    ----------
    findings : iterable of Finding
        Those without file and line are left out: SARIF results are shown on a line.
    root : path or None
        Folder that the files are named relative to; the current one when None.
    called : sequence of (file, line) or None
        For each finding the line that made the comparison: it stands there where no line of the user's own is known.

    Returns
    -------
    dict
        Plain JSON data of one run. Notes have level ``note``, everything else ``warning``.
    """
    base = Path(root or os.getcwd())
    given = list(findings)
    calls = list(called) or [None] * len(given)
    placed = [
        p for f, call in zip(given, calls, strict=True) if (p := at_users_line(f, call)).where.line and p.where.file
    ]
    codes = sorted({f.code for f in placed})
    driver = {"name": "driftscope", "rules": [_rule(code) for code in codes]}
    results = [_result(f, codes.index(f.code), base) for f in placed]
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def at_users_line(finding: Finding, call: tuple[str, int] | None) -> Finding:
    """Place a finding on a line of the user's own: where it stands, else where the comparison was made."""
    where = finding.where
    if call is None or (where.file and where.line and is_users(where.file)):
        return finding
    return replace(finding, where=replace(where, file=call[0], line=call[1], expression=None, column=None))


def _rule(code: str) -> dict[str, Any]:
    known = RULES.get(code)
    if known is None:
        return {"id": code}
    return {
        "id": code,
        "name": "".join(word.capitalize() for word in known.title.replace("-", " ").split() if word.isalnum()) or code,
        "shortDescription": {"text": known.title},
        "fullDescription": {"text": known.meaning},
        "help": {"text": known.page, "markdown": known.page},
    }


def _result(finding: Finding, index: int, base: Path) -> dict[str, Any]:
    where = finding.where
    region: dict[str, Any] = {"startLine": where.line}
    if where.expression:
        region["snippet"] = {"text": where.expression}
    names = ((where.node, "element"), (where.module, "module"), (where.output, "value"))
    location = {
        "physicalLocation": {"artifactLocation": {"uri": relative(str(where.file), base)}, "region": region},
        "logicalLocations": [{"fullyQualifiedName": name, "kind": kind} for name, kind in names if name],
    }
    # The same finding on the same line stays the same alert, whatever its numbers are today.
    identity = "|".join((finding.code, str(where.file), where.expression or str(where.line), where.module or ""))
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": "note" if finding.note else "warning",
        "message": {"text": wording.message(finding)},
        "locations": [location],
        "partialFingerprints": {"driftscope/v1": hashlib.sha256(identity.encode()).hexdigest()[:32]},
    }


def relative(file: str, base: Path) -> str:
    """Name a file relative to ``base`` with forward slashes, as code hosts want it; as it is when it lies elsewhere."""
    path = Path(file)
    try:
        return (path.resolve() if path.is_absolute() else path).relative_to(base.resolve()).as_posix()
    except ValueError:
        return path.as_posix()
