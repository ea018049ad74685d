"""A revealed order of additions as a sheet: in words, as a pattern, as a picture, and how sure it is."""

from __future__ import annotations

from driftscope.records.kinds.accumulation import AccumulationRecord
from driftscope.report import wording
from driftscope.report.sheet import Listing, Picture, Section, Sheet, Table

_FMA = {True: "added unrounded (FMA)", False: "rounded first", None: "", "mixed": "some added unrounded (FMA)"}


def sheet_of(record: AccumulationRecord) -> Sheet:
    """Draw an accumulation."""
    sections: list[Section] = [Listing("Pattern", record.pattern, record.family)]
    if record.drawing:
        sections.append(Picture("The tree", record.drawing, f"{record.family}; depth {record.depth}"))
    if record.map:
        orders = [("A", record.applies, record.family, record.pattern)]
        orders += [(chr(ord("B") + i), o.applies, o.family, o.pattern) for i, o in enumerate(record.others)]
        sections.append(Table("Orders in this result", ("order", "elements", "in words", "pattern"), tuple(orders)))
        sections.append(Listing("Which element in which order", "\n".join(record.map), "? where it is not known"))
    sections.append(Table("Arithmetic", ("what", "how"), tuple(_facts(record))))
    return Sheet(
        title=f"{record.kernel}, {wording.counted(record.n, 'term')} of {record.dtype}",
        tone="good",
        headline="Revealed",
        reason=record.family,
        figures=(
            ("Depth", f"{record.depth:,}", f"additions in a row, of {record.additions:,}"),
            ("Accumulator", record.accumulator, f"result {record.output}"),
            (
                "Verified",
                wording.counted(record.verified.rows, "row"),
                f"a local change unnoticed with p < {record.verified.miss:.0e}",
            ),
            (
                "Asked",
                wording.counted(record.calls, "call"),
                f"{wording.counted(record.rows, 'row')}, {1e3 * record.seconds:.3g} ms",
            ),
        ),
        sections=tuple(sections),
        sign="Σ",
    )


def _facts(record: AccumulationRecord) -> list[tuple[str, str]]:
    facts = (
        ("kernel", f"{record.kernel} ({record.library})"),
        ("shape", "x".join(map(str, record.shape or ()))),
        ("threads", "" if record.threads is None else str(record.threads)),
        ("partial sums in", record.accumulator),
        ("products", _FMA.get(record.fma, str(record.fma))),
        ("mean", "" if record.mean == "none" else record.mean),
        ("subnormal numbers", record.subnormals),
        ("applies to", record.applies),
    )
    return [(what, how) for what, how in facts if how]
