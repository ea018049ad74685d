"""Records as pandas tables. pandas is imported only when a table is asked for: it takes a second."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from driftscope.errors import DependencyMissing

if TYPE_CHECKING:
    from driftscope.records.comparison import Comparison
    from driftscope.records.matrix import DriftMatrix


def outputs_frame(record: Comparison) -> Any:
    """Return one row per output of a comparison."""
    pandas = _pandas()
    columns = (
        "path",
        "verdict",
        "kind",
        "count",
        "mismatched",
        "max_ulp",
        "max_abs",
        "max_rel",
        "rms",
        "floors",
        "lifted",
    )
    rows = [{c: getattr(o, c) for c in columns} | {"closer": o.closer, "reason": o.reason} for o in record.outputs]
    return pandas.DataFrame(rows).assign(verdict=lambda t: t["verdict"].astype(str))


def matrix_frame(record: DriftMatrix) -> Any:
    """Return the verdict of every pair as a square table; the diagonal says IDENTICAL."""
    pandas = _pandas()

    def cell(a: str, b: str) -> str:
        return "IDENTICAL" if a == b else str(record[a, b].verdict)

    running = [n for n in record.names if n not in record.refused]
    return pandas.DataFrame([[cell(a, b) for b in running] for a in running], index=running, columns=running)


def _pandas() -> Any:
    if importlib.util.find_spec("pandas") is None:
        raise DependencyMissing("to_pandas()", "pandas", "frames")
    import pandas

    return pandas
