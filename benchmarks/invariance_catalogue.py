"""How often a check of invariance is right, on every program whose dependence is known: outcome, place, silence.

The catalogue is that of the tests: modules, functions, exported programs and ONNX files, each with the axis that is
asked and what is right along it; those that depend on something more than rounding name the operator in which that
comes in. Silent is a dependence that is answered with *same*, *rounding* or *not-applicable*.

Run: ``python -m benchmarks invariance_catalogue`` (about a minute)
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import driftscope as ds

OUTCOMES, PLACES = 0.98, 0.95


@dataclass(frozen=True)
class Row:
    """One program of the catalogue and what was said of it."""

    name: str
    axis: str
    right: frozenset[str]
    place: str
    outcome: str
    said: str

    @property
    def is_right(self) -> bool:
        """Whether the outcome is one of the right ones."""
        return self.outcome in self.right

    @property
    def is_placed(self) -> bool:
        """Whether the operator is the one in which the dependence comes in, where that is known."""
        return not self.place or any(part in self.said for part in self.place.split("|"))

    @property
    def is_silent(self) -> bool:
        """Whether a dependence was passed over."""
        return self.right == {"different"} and self.outcome not in ("different", "refused")


def programs() -> Iterator[tuple[str, Any, Any, str, frozenset[str], str, dict[str, Any]]]:
    """Yield name, program, inputs, axis, right outcomes, place and options of each."""
    from invariance.invariance_modules import ALL
    from invariance.known_programs import PROGRAMS
    from invariance.test_padding import TWINS, given

    for known in ALL:
        torch.manual_seed(1)
        x = torch.randn(known.shape, generator=torch.Generator().manual_seed(0))
        yield known.id, known.make(), x, "batch", known.batch, known.place, {}
    honest, other = frozenset({"same", "rounding"}), frozenset({"different"})
    for twins in TWINS:
        yield f"pad-{twins.id}", twins.leaking, given(twins), "padding", other, twins.place, {}
        yield f"pad-{twins.id}, twin", twins.honest, given(twins), "padding", honest, "", {}
    for program in PROGRAMS:
        yield program.id, program.make(), program.inputs, program.axis, program.right, program.place, program.options


def measured() -> Iterator[Row]:
    """Ask of every program of the catalogue."""
    for name, program, inputs, axis, right, place, options in programs():
        report = ds.check_invariance(program, inputs, axes=(axis,), explain=bool(place), **options)
        first = next((f for f in report.findings if f.axis == axis), None)
        said = str(first.where.operator or "") if first is not None else ""
        yield Row(name, axis, right, place, report.outcomes[axis], said)


def table(rows: list[Row]) -> list[str]:
    """Return the figures by axis as a Markdown table."""
    lines = [
        "| axis | programs | outcome right | with a known place | place right | silent |",
        "|---|---|---|---|---|---|",
    ]
    axes = list(dict.fromkeys(row.axis for row in rows))
    for axis in [*axes, "all"]:
        own = [row for row in rows if axis in (row.axis, "all")]
        placed = [row for row in own if row.place]
        right, found = sum(row.is_right for row in own), sum(row.is_placed for row in placed)
        cells = [axis, len(own), _share(right, len(own)), len(placed), _share(found, len(placed)),
                 sum(row.is_silent for row in own)]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def _share(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.1f} %)" if of else ""


def main() -> int:
    """Print the figures and every program that was answered wrongly; return how many goals are missed."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows = list(measured())
    print("\n".join(table(rows)))
    for row in rows:
        if not row.is_right or not row.is_placed:
            wanted = "|".join(sorted(row.right))
            print(f"{row.name} along {row.axis}: {row.outcome} at {row.said}, right is {wanted} at {row.place}")
    placed = [row for row in rows if row.place]
    shares = (sum(r.is_right for r in rows) / len(rows), sum(r.is_placed for r in placed) / len(placed))
    return (shares[0] < OUTCOMES) + (shares[1] < PLACES) + any(row.is_silent for row in rows)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
