"""The law of causes: what is "explained by" something was run again with it, and made the errors that were measured."""

from __future__ import annotations

from typing import Any

from driftscope.comparison.thresholds import THRESHOLDS


def unreproduced(comparison: Any) -> list[str]:
    """The sentences of a comparison that name a cause without a replay that predicts the native error."""
    replays = comparison.evidence.get("replays", {})
    found = []
    for output in comparison.outputs:
        replay = replays.get(output.path, {})
        fits = replay.get("correlation", 0.0) >= THRESHOLDS.replay and replay.get("rest", 1e9) <= THRESHOLDS.rounding
        if "explained by" in output.reason and not fits:
            found.append(f"{output.path}: {output.reason}")
    return found
