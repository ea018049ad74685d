"""What a page shows of any record: a headline, a few figures, findings, and sections of five kinds.

Each kind of record has one function that turns it into a :class:`Sheet`; drawing a sheet is done once, for all of them,
on the page, in a notebook and as Markdown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.records.finding import Finding


@dataclass(frozen=True, slots=True)
class Mark:
    """A value that is coloured.

    Parameters
    ----------
    text : str
        What is read; short, since it stands in a cell.
    tone : str
        ``good``, ``fair``, ``bad`` or ``unsure``; empty for none. The text says the same: colour is never alone.
    level : float or None
        Depth of the colour, 0 to 1; None for the full one.
    tip : str
        Said when pointed at, and to screen readers.
    sort : float or None
        What a table is sorted by instead of the text.
    link : str
        Name of a file beside the page; empty for none.
    """

    text: str
    tone: str = ""
    level: float | None = None
    tip: str = ""
    sort: float | None = None
    link: str = ""


Cell = str | int | float | None | Mark


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that can be sorted by each column and filtered by words; thousands of them are drawn as one scrolls.

    ``aside`` is for what few look at: a narrow screen begins with it folded.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    aside: bool = False


@dataclass(frozen=True, slots=True)
class HeatMap:
    """A grid of marks with a name for each row and column; ``aside`` as of a :class:`Table`."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    squares: tuple[tuple[Mark, ...], ...]
    note: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    aside: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing: SVG text. ``note`` says what it shows; it is also what is read aloud."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Text in a fixed pitch: code to paste, relations, a tree."""

    title: str
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Points:
    """A short list of sentences: conclusions."""

    title: str
    items: tuple[str, ...]
    note: str = ""


Section = Table | HeatMap | Picture | Listing | Points


@dataclass(frozen=True, slots=True)
class Sheet:
    """All that is shown of one record, the answer first.

    Parameters
    ----------
    title : str
        Of the page: what was asked about.
    tone : str
        One of :data:`TONES`.
    headline : str
        The answer in one to four words.
    reason : str
        The sentence behind it.
    figures : tuple of (str, str, str)
        The few numbers to read first: label, number, remark.
    findings : tuple of Finding
        In order of weight; notes are folded away.
    sections : tuple of Section
    command : str
        What reproduces the record.
    panels : mapping of str to JSON values
        Details drawn as lists: environment, options.
    sign : str
        One character before the headline; that of the tone where it is empty.
    meaning : str
        What the headline means, in a few words.
    sides : tuple of (str, str, str)
        What was compared: key, name, runtime. Drawn in place of the title.
    """

    title: str
    tone: str
    headline: str
    reason: str
    figures: tuple[tuple[str, str, str], ...] = ()
    findings: tuple[Finding, ...] = ()
    sections: tuple[Section, ...] = ()
    command: str = ""
    panels: Mapping[str, Any] = field(default_factory=dict)
    sign: str = ""
    meaning: str = ""
    sides: tuple[tuple[str, str, str], ...] = ()
