"""What torch's verifier measured, as a sheet: the numbers, and that they do not tell rounding from a bug."""

from __future__ import annotations

from driftscope.records.kinds.verification import Verification
from driftscope.records.words import listed
from driftscope.report import wording
from driftscope.report.sheet import Mark, Sheet, Table


def sheet_of(record: Verification) -> Sheet:
    """Draw a list of verification infos."""
    odd = record.suspicious
    worst = max(record.values, key=lambda v: v.max_abs_diff, default=None)
    reason = "largest differences alone do not tell rounding from a bug; ds.compare(model, file) does"
    if odd:
        names = listed([wording.one_line(v.name) for v in odd])
        reason = f"NaN, infinite or in another dtype: {names}"
    columns = ("value", "max abs", "max rel", "expected", "actual")
    rows = tuple(
        (Mark(v.name, "bad" if v in odd else ""), v.max_abs_diff, v.max_rel_diff, v.expected_dtype, v.actual_dtype)
        for v in record.values
    )
    return Sheet(
        title="torch.onnx.verification",
        tone="bad" if odd else "unsure",
        headline="DIFFERENT" if odd else "INCONCLUSIVE",
        reason=reason,
        figures=(
            ("Values", str(len(record.values)), "compared by torch's verifier"),
            *((("Largest", wording.number(worst.max_abs_diff), f"at {worst.name}"),) if worst is not None else ()),
        ),
        sections=(Table("Values", columns, rows, "In the order of the verifier."),),
    )
