"""Several comparisons kept together, each with a title and a comment: what ``driftscope demo`` shows."""

from __future__ import annotations

from dataclasses import dataclass

from driftscope.records.kinds.comparison import Comparison
from driftscope.records.showing import Record
from driftscope.records.verdict import Verdict, worst

COLLECTION_SCHEMA = "driftscope/collection/1"


@dataclass(frozen=True, slots=True)
class Entry:
    """One comparison with what a person should take from it."""

    title: str
    comment: str
    comparison: Comparison


@dataclass(frozen=True, slots=True, repr=False)
class Collection(Record):
    """Comparisons in the order they are read."""

    title: str
    entries: tuple[Entry, ...]
    schema: str = COLLECTION_SCHEMA

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict among the entries."""
        return worst(entry.comparison.verdict for entry in self.entries)
