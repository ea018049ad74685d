"""Lines for a terminal, wrapped and coloured, and a finding written in them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from driftscope.records.finding import Finding
from driftscope.report import wording

MAX_LINES = 25
MIN_WIDTH = 40
_JOINT = "\ue000"  # stands for a space at which no line breaks
_LABEL = 11  # the column in which labels such as "tolerance" stand


class Lines:
    """Finished lines of one width, kept apart so that they can be counted before they are printed."""

    def __init__(self, width: int, color: bool):
        self.width = width
        self.color = color
        self.lines: list[str] = []

    def add(self, content: Text | Table, limit: int | None = None) -> None:
        """Append rendered content, cut to ``limit`` lines."""
        stream = io.StringIO()
        console = Console(
            file=stream, width=self.width, highlight=False, markup=False, emoji=False, force_terminal=self.color,
            color_system="standard" if self.color else None, no_color=not self.color, legacy_windows=False,
        )  # fmt: skip
        console.print(content, soft_wrap=False)
        rendered = [line.rstrip() for line in stream.getvalue().replace(_JOINT, " ").rstrip("\n").split("\n")]
        self.lines.extend(rendered[:limit])

    def blank(self) -> None:
        """Append an empty line."""
        self.lines.append("")

    def paragraph(self, text: str, style: str, indent: int = 0, limit: int | None = None) -> None:
        """Append wrapped text."""
        self.labelled("", text, style, indent=indent, limit=limit)

    def labelled(
        self, label: str, text: str, style: str = "", *, indent: int | None = None, limit: int | None = None
    ) -> None:
        """Append ``label`` and, beside it, wrapped text with a hanging indent."""
        column = _LABEL if indent is None else indent
        width = max(self.width - column, 12)
        if limit is not None:
            text = shorten(text, width, limit)
        for index, line in enumerate(wrap(text, width)):
            head = label if index == 0 else ""
            self.add(Text.assemble((head.ljust(column), "dim"), (line, style)))

    def finding(self, finding: Finding, said: str, *, fix: bool = True) -> None:
        """Append one finding, place and fix whole.

        Parameters
        ----------
        finding : Finding
        said : str
            What the first line of the answer said already.
        fix : bool
            False where the fix stands elsewhere.
        """
        head = f"{finding.code} note" if finding.note else finding.code
        style = "dim" if finding.note else "bold red"
        for index, line in enumerate(wrap(wording.place(finding.where), self.width - len(head) - 1)):
            self.add(Text.assemble((head if index == 0 else " " * len(head), style), " ", line))
        advice = wording.fix_of(finding) if fix else ""
        for label, text in (("what", finding.what), ("why", finding.why), ("fix", advice)):
            # What the first line of all says already is not said again, if anything else is left to say.
            repeated = label == "what" and text == said and (finding.why or finding.fix)
            if text and not repeated and not (finding.note and label != "what"):
                self.labelled(f"  {label}", wording.one_line(text), indent=7, limit=MAX_LINES)


def room(lines: int, width: int) -> int:
    """Return how many lines of ``width`` columns hold what ``lines`` of 100 hold: text is wrapped and not cut."""
    return max(lines, lines * 100 // max(width, MIN_WIDTH))


def joined(text: str) -> str:
    """Keep each number and its percent sign on one line; :meth:`Lines.add` and :func:`wrap` put the space back."""
    return text.replace(" %", f"{_JOINT}%")


def wrap(text: str, width: int) -> list[str]:
    """Break ``text`` at words into lines of ``width`` columns."""
    lines = Text(joined(text)).wrap(Console(width=width, file=io.StringIO()), width)
    return [line.plain.rstrip().replace(_JOINT, " ") for line in lines] or [""]


_LEAD = re.compile(r"\s*(?:\S+(?: \S+)*?\s{2,})?")


def folded(text: str, width: int, whole: Iterable[str] = ()) -> str:
    """Wrap the lines of a finished text that are too wide, under the column where what they say begins.

    Parameters
    ----------
    text : str
        Lines as ``  label      what it says``.
    width : int
        Columns to fit, at least 40.
    whole : iterable of str
        Lines that stay as they are: code to paste.
    """
    width, kept, found = max(width, MIN_WIDTH), {line.strip() for line in whole}, []
    for line in text.split("\n"):
        lead = _LEAD.match(line).group()  # type: ignore[union-attr]  # it matches the empty string too
        if len(line) <= width or line.strip() in kept:
            found.append(line)
            continue
        lead = lead if len(lead) <= width // 2 else line[: len(line) - len(line.lstrip())]
        indent = len(lead) if lead.strip() or not lead else len(lead) + 2
        first, *rest = wrap(line[len(lead) :], width - indent)
        found += [f"{lead}{first}", *(" " * indent + part for part in rest)]
    return "\n".join(found)


def shorten(text: str, width: int, lines: int) -> str:
    """Cut ``text`` at a word so that it fills at most ``lines`` lines."""
    wrapped = wrap(text, width)
    if len(wrapped) <= lines:
        return text
    kept = wrapped[:lines]
    last = kept[-1][: width - 2].rsplit(" ", 1)[0] if " " in kept[-1] else kept[-1][: width - 2]
    return " ".join([*kept[:-1], f"{last} …"])
