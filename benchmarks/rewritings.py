"""Honest rewritings under six input laws in both orders, and twins that really compute cheaper on one side.

Named alone: it takes a while. Printed: false alarms, false causes, and how often the cheaper side is named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

import driftscope as ds
from benchmarks.verdicts.algorithms import ALGORITHMS
from benchmarks.verdicts.layers import LAYERS
from benchmarks.verdicts.rewritten import FAMILIES, LAWS, Written, inputs_of
from benchmarks.verdicts.sweep import Case, sweep, tally, troubles
from benchmarks.verdicts.twins import TWINS, named_side


def cases(group: str) -> Iterator[Case]:
    """Cases of one family and law, ``family/law``, or of the twins of one arithmetic, ``twins/name``."""
    one, two = group.split("/")
    if one == "twins":
        yield from TWINS[two]()
        return
    family = (FAMILIES | ALGORITHMS | LAYERS)[one]
    given = inputs_of(family, two)
    programs = {name: _program(name, written) for name, written in family.writings.items()}
    reference = next(iter(programs))
    for name in list(programs)[1:]:
        yield Case(f"{name}", _asking(programs[reference], programs[name], given))
        yield Case(f"{name}-reversed", _asking(programs[name], programs[reference], given))
    others = list(programs)[1:]
    for first, second in list(itertools.pairwise(others))[:2]:
        yield Case(f"{first}-{second}", _asking(programs[first], programs[second], given))


def _program(name: str, written: Written) -> Any:
    return ds.program(written, framework="numpy") if name.startswith("np") else written


def _asking(a: Any, b: Any, given: tuple[torch.Tensor, ...]) -> Any:
    return lambda: ds.compare(a, b, given, isolate=False)


def main() -> int:
    """Run all; the number of honest pairs answered wrongly and of twins with the wrong side or none."""
    groups = [f"{family}/{law}" for family in FAMILIES | ALGORITHMS | LAYERS for law in LAWS] + [
        f"twins/{name}" for name in TWINS
    ]
    rows = sweep("rewritings", "benchmarks.rewritings", groups)
    found = troubles(rows)
    print("\n".join(found))
    planted = [r for r in rows if r["expected"] not in ("honest", "")]
    wrong = [r for r in planted if named_side(r) != r["expected"].split()[-1]]
    for row in wrong:
        print(f"side  {row['case']}: {row['verdict']} {row['reason'][:150]} | {row['first'][:100]} {row['where'][:60]}")
    print(f"{len(rows)} rows; {tally(rows)}; {len(found)} honest pairs answered wrongly;"
          f" side named in {len(planted) - len(wrong)} of {len(planted)} twins")  # fmt: skip
    return len(found) + len(wrong)
