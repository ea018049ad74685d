"""Sheets made by hand: one with every kind of section, one with thousands of rows, one as hostile as it can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from driftscope.records.finding import Finding, Where
from driftscope.report.pages import sheet_view, shell
from driftscope.report.sheet import HeatMap, Listing, Mark, Picture, Sheet, Table

HOSTILE = "</script><img src=x onerror='window.pwned=1'>|`*[link](javascript:alert(1))"
SVG = "<svg xmlns='http://www.w3.org/2000/svg' width='80' height='30'><rect width='80' height='30'/></svg>"


@dataclass(frozen=True)
class Drawn:
    """A sheet that can be saved as a page, as records can."""

    sheet: Sheet

    def save(self, path: Any) -> Any:
        drawn = sheet_view.document(self.sheet)
        path.write_text(shell.page({"schema": "example"}, drawn["title"], [drawn]))
        return path


def everything(name: str = "encoder.layers[0]") -> Sheet:
    """Return a sheet with every kind of section, in which ``name`` stands wherever a name can."""
    finding = Finding("N001", f"{name} differs", f"because of {name}", f"change {name}",
                      Where(output=name, node=name, operator=name, module=name, file=name, line=3, expression=name),
                      {name: name})  # fmt: skip
    note = Finding("O002", f"{name} is not used", note=True)
    return Sheet(
        title=name,
        tone="bad",
        headline="DIFFERENT",
        reason=f"{name} is another function",
        figures=((name, "3", name),),
        findings=(finding, note),
        sections=(
            Table(name, ("node", "floors", "verdict"), ((name, 0.5, Mark("bad", "bad", tip=name)), ("b", None, ""),
                                                       ("c", 12.0, Mark("good", "good")))),
            HeatMap(name, (name, "y"), ("x", name), ((Mark("=", "good", 0.2), Mark("7", "bad", tip=name)),) * 2,
                    legend=(("good", name),)),
            Picture(name, SVG, name),
            Listing(name, f"x = {name}", name),
        ),
        command=f"driftscope compare {name}",
        panels={name: {name: [name]}},
    )  # fmt: skip


def long(count: int = 20_000) -> Sheet:
    """Return a sheet whose table has ``count`` rows."""
    rows = tuple((f"layers[{i}]", ("Gemm", "Add")[i % 2], (i * 7919 % count) / 100) for i in range(count))
    return Sheet(
        "many", "good", "ROUNDING", "ordinary rounding", sections=(Table("Nodes", ("node", "op", "floors"), rows),)
    )
