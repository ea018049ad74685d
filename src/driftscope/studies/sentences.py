"""Parts of the sentences that studies conclude with: counts, sizes, and rankings only of what differs."""

from __future__ import annotations

from driftscope.records.words import agreeing, all_of, counted, floors, joined, part_of, percent

__all__ = ["agreeing", "all_of", "counted", "floors", "is_ranked", "joined", "part_of", "percent"]

#: Two errors are ranked only if they differ by more than this share: less is another draw of the data.
RANKED = 0.1


def is_ranked(smaller: float, larger: float) -> bool:
    """Whether one of two errors is smaller by enough to be said, and by numbers that are printed differently."""
    return larger > smaller * (1 + RANKED) and f"{smaller:.2g}" != f"{larger:.2g}"
