"""A search for the optimiser that moved a result, as a sheet: the answer, the line to paste, and the whole table."""

from __future__ import annotations

from driftscope.records.kinds.left_out import Blame, Suspect, operators_in_words
from driftscope.report import wording
from driftscope.report.sheet import Listing, Mark, Section, Sheet, Table
from driftscope.report.terminal.lines import folded


def sheet_of(blame: Blame) -> Sheet:
    """Draw a search."""
    sections: list[Section] = []
    if blame.paste:
        sections.append(Listing("To paste", f"{blame.paste}\n{blame.program_line}", "It was run: the result is right."))
    sections.append(_table(blame))
    return Sheet(
        title=blame.program or "Optimisers",
        tone="good" if not blame.wrong else "bad" if blame.guilty else "unsure",
        headline=" and ".join(blame.guilty) or ("nothing to blame" if not blame.wrong else "not an optimiser"),
        reason=blame.answer,
        figures=_figures(blame),
        sections=tuple(sections),
    )


def _figures(blame: Blame) -> tuple[tuple[str, str, str], ...]:
    figures = [("Floors from the reference", wording.number(blame.floors), blame.reference)]
    if blame.lifted is not None:
        figures.append(("Lifted drift", wording.number(blame.lifted), "of the graph that runs, from its file"))
    if blame.floors_without is not None:
        figures.append(("Floors without", wording.number(blame.floors_without), "what is blamed left out"))
    figures.append(("Runs", str(blame.runs), "" if blame.complete else "the budget ended the search"))
    return tuple(figures)


def _table(blame: Blame) -> Table:
    return Table(
        "Left out one at a time",
        ("run instead", "bits", "largest change", "floors from the reference", "lifted drift", "in the graph"),
        tuple(_row(suspect) for suspect in blame.suspects),
        note="In the order in which they acted. Floors are those of the run without; up to 2.5 is rounding.",
    )


def _row(suspect: Suspect) -> tuple[str | int | float | Mark | None, ...]:
    if suspect.refused:
        return (suspect.trial, Mark("refused", "unsure", tip=suspect.refused), None, None, None, suspect.refused)
    bits = Mark("the same", "good", 0.2) if suspect.same_bits else Mark("other", "fair", 0.4)
    floors: Mark | float | None = suspect.floors
    if suspect.explains:
        floors = Mark(wording.number(suspect.floors), "good", 1.0, "without it the result is right", suspect.floors)
    lifted = suspect.lifted
    return (suspect.trial, bits, suspect.moved, floors, lifted, operators_in_words(suspect.operators))


def render(blame: Blame, *, width: int, color: bool) -> str:
    """Write a search for a terminal."""
    return folded(wording.clean(blame), width, whole=(blame.paste, blame.program_line))
