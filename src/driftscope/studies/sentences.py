"""Parts of the sentences that studies conclude with: counts, sizes, and rankings only of what differs."""

from __future__ import annotations

from collections.abc import Sequence

#: Two errors are ranked only if they differ by more than this share: less is another draw of the data.
RANKED = 0.1


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``"1 pair"``, ``"2 pairs"``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def floors(value: float) -> str:
    """Return ``"1 floor"``, ``"0.98 floors"``: what is printed decides, not what is behind it."""
    text = f"{value:.3g}" if value >= 100 else f"{value:.2g}"
    return f"{text} floor" + ("" if text == "1" else "s")


def is_ranked(smaller: float, larger: float) -> bool:
    """Whether one of two errors is smaller by enough to be said, and by numbers that are printed differently."""
    return larger > smaller * (1 + RANKED) and f"{smaller:.2g}" != f"{larger:.2g}"


def listed(words: Sequence[str]) -> str:
    """Return ``"a"``, ``"a and b"``, ``"a, b and c"``."""
    return ", ".join(words[:-1]) + " and " * (len(words) > 1) + words[-1] if words else ""
