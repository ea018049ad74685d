"""One comparison of many: a row with its verdict, and where and why the programs part."""

from __future__ import annotations

import math
from typing import Any

from driftscope.studies.comparison_study.pairs import known_listing


def compare_pair(pair: str, source: str, digest: str, explain: bool = True, seed: int = 0) -> dict[str, Any]:
    """Compare one pair of a list.

    Parameters
    ----------
    pair : str
        Its name.
    source, digest : str
        The list, and what it said when the study was planned.
    explain : bool
    seed : int

    Returns
    -------
    dict
        ``verdict``, ``finding`` (its code), ``what`` (the answer, with place and cause), ``fix`` (one that was
        tried and works), ``node``, ``module``, ``floors`` (native drift), ``lifted`` (drift in float64), ``max_abs``;
        ``functions_differ`` where the bits are the same by chance.
    """
    from driftscope.inquiry import compare

    found = known_listing(source, digest).pairs[pair]
    record = compare(found.a, found.b, list(found.inputs) or None, explain=explain, seed=seed)
    first = next((f for f in record.findings if not f.note), None)
    return {
        "verdict": str(record.verdict),
        "functions_differ": record.functions_differ,
        "finding": "" if first is None else first.code,
        "what": record.answer or record.reason,
        "fix": "" if first is None or not first.verified else first.fix,
        "node": "" if first is None else str(first.where.node or ""),
        "module": "" if first is None else str(first.where.module or ""),
        "floors": _largest(o.floors for o in record.outputs),
        "lifted": _largest(o.lifted_size for o in record.outputs),
        "max_abs": _largest(o.max_abs for o in record.outputs),
    }


def _largest(values: Any) -> float | None:
    known = [float(v) for v in values if v is not None and math.isfinite(v)]
    return max(known, default=None)
