"""Several comparisons kept together, each with a title and a comment: what ``driftscope demo`` shows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from driftscope.records.kinds.comparison import Comparison
from driftscope.records.plain import from_plain, to_plain
from driftscope.records.showing import Shown
from driftscope.records.verdict import Verdict, worst

COLLECTION_SCHEMA = "driftscope/collection/1"


@dataclass(frozen=True, slots=True)
class Entry:
    """One comparison with what a person should take from it."""

    title: str
    comment: str
    comparison: Comparison


@dataclass(frozen=True, slots=True, repr=False)
class Collection(Shown):
    """Comparisons in the order they are read."""

    title: str
    entries: tuple[Entry, ...]
    schema: str = COLLECTION_SCHEMA

    @property
    def verdict(self) -> Verdict:
        """The most severe verdict among the entries."""
        return worst(entry.comparison.verdict for entry in self.entries)

    def to_dict(self) -> dict[str, Any]:
        """Return the collection as plain JSON data."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Collection:
        """Read a collection back.

        Raises
        ------
        RecordError
            If ``data`` is not a collection of a known schema.
        """
        return from_plain(cls, data, COLLECTION_SCHEMA)
