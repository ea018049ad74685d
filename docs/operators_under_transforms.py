"""Write the table of torch's own operators that a transform refuses, runs one by one, or changes silently.

Each operator of torch's database (``torch.testing._internal``, needs ``expecttest``) is checked on its first sample, in
float64 where it has it, by ``check_transforms``; ``python docs/operators_under_transforms.py`` takes some minutes and
writes ``docs/reference/operators-under-transforms.md``.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from driftscope.transforms.checking import check_transforms  # noqa: E402
from transforms.operators import operators  # noqa: E402

PAGE = HERE / "reference" / "operators-under-transforms.md"
TRANSFORMS = ("vmap", "grad", "vjp", "jvp", "jacrev", "jacfwd")


def sweep() -> tuple[dict[str, dict[str, list[str]]], Counter[tuple[str, str]], int]:
    """Return operator names by outcome and transform, the number of each outcome, and how many were checked."""
    kinds = ("refused", "wrong", "slow")
    found: dict[str, dict[str, list[str]]] = {kind: {t: [] for t in TRANSFORMS} for kind in kinds}
    counts: Counter[tuple[str, str]] = Counter()
    checked = 0
    for operator in operators():
        report = check_transforms(operator.function, operator.batch, transforms=TRANSFORMS)
        checked += 1
        for transform, outcome in report.outcomes.items():
            counts[transform, outcome] += 1
            if outcome in ("refused", "wrong"):
                found[outcome][transform].append(operator.name)
        if any(finding.cause == "T016" for finding in report.findings):
            found["slow"]["vmap"].append(operator.name)
    return found, counts, checked


def table(counts: Counter[tuple[str, str]]) -> list[str]:
    """Return the outcomes by transform as a Markdown table."""
    outcomes = ("same", "rounding", "random", "plain-refuses", "refused", "wrong")
    lines = ["| transform | " + " | ".join(outcomes) + " |", "|---|" + "---|" * len(outcomes)]
    return lines + [f"| {t} | " + " | ".join(str(counts[t, o]) for o in outcomes) + " |" for t in TRANSFORMS]


def listing(title: str, names: dict[str, list[str]]) -> list[str]:
    """Return the operators of one kind, by transform."""
    lines = ["", f"## {title}", ""]
    for transform, found in names.items():
        if found:
            lines.append(f"* **{transform}** ({len(found)}): {', '.join(f'`{name}`' for name in sorted(found))}")
    return lines


def main() -> None:
    """Sweep and write."""
    warnings.simplefilter("ignore")
    found, counts, checked = sweep()
    lines = [
        "# Operators under transforms",
        "",
        f"`driftscope` checked {checked} entries of torch {torch.__version__}'s operator database, each on its first",
        "sample with the first tensor mapped or differentiated. Written by `docs/operators_under_transforms.py`.",
        "",
        *table(counts),
        *listing("Refused although the plain program runs", found["refused"]),
        *listing("Run one by one inside vmap", found["slow"]),
        *listing("Another value than the plain program, without a word", found["wrong"]),
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
