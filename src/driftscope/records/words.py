"""The words of an answer that are not everybody's: what each means, with the numbers that decide something."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """A word that answers use.

    Parameters
    ----------
    name : str
    meaning : str
        One line.
    text : str
        Two or three paragraphs.
    """

    name: str
    meaning: str
    text: str

    @property
    def page(self) -> str:
        """The whole explanation as Markdown."""
        return f"# {self.name}\n\n{self.meaning}\n\n{self.text}\n"


_TABLE = (
    Word(
        "floors",
        "The difference of two results in units of ordinary rounding: about 1 is what rounding alone makes.",
        """\
floors = rms(B - A) / sqrt(floor_A^2 + floor_B^2), where the floor of a side is the root-mean-square
error that ordinary rounding of this very program, in its own dtype, causes at that value. It is
measured: the program is run in float64 with the noise of one rounding added after each step.

Up to 1.5 floors is ROUNDING, up to 2.5 is rounding but unusual, more needs a cause. A bug can be
smaller than a floor (in float16 it often is): look at `in float64` for that.""",
    ),
    Word(
        "floor",
        "The error that ordinary rounding of this program, in this dtype, causes at a value: its noise floor.",
        """\
It is measured with noise of one rounding after each step of a float64 run, and is an absolute
root-mean-square number. `driftscope rule floors` says what is made of it.""",
    ),
    Word(
        "lifted",
        "Evaluated in float64 with the stored weights, where rounding all but disappears; printed as `in float64`.",
        """\
The lifted drift is rms(B - A) / rms(A) with both programs evaluated in float64, each with its own
graph and its own stored weights. Two programs that compute the same function agree there to about
1e-15; what is left after that is another function, however small the difference in float32 is.

What the exporter rounded when it stored a constant is put back first and noted.""",
    ),
    Word(
        "ulp",
        "Unit in the last place: one step from a floating-point number to the next one of its format.",
        """\
A distance of 3 ulp means that two other numbers of the format lie between the two values. Near 1 an
ulp is 1.2e-07 in float32, 9.8e-04 in float16 and 7.8e-03 in bfloat16; near 0 it is far smaller, so
many ulp there may be nothing at all. Compare with `floors` before you worry.""",
    ),
    Word(
        "exactness",
        "Which side is nearer to its own float64 run; said only where the two errors differ by more than 10 %.",
        """\
It is nothing to choose a runtime by: both are rounding of the same function. Where the verdict is
DIFFERENT it is not said, because the two programs have different exact results.""",
    ),
)

WORDS = {word.name: word for word in _TABLE}
#: Other spellings, as they stand in a table's head or in a record.
_SAME_AS = {"in float64": "lifted", "float64": "lifted", "lift": "lifted", "ulps": "ulp", "noise floor": "floor",
            "closer": "exactness", "rho": "floors"}  # fmt: skip


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``"1 pair"``, ``"2 pairs"``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """Return ``"a, b, c and 2 more"``: the first few names and how many follow."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def joined(names: Sequence[str]) -> str:
    """Return ``"a"``, ``"a and b"``, ``"a, b and c"``."""
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1] if names else ""


def all_of(count: int, noun: str) -> str:
    """Return ``"the one pair"``, ``"all 2 pairs"``."""
    return f"the one {noun}" if count == 1 else f"all {counted(count, noun)}"


def agreeing(count: float, singular: str, plural: str) -> str:
    """Return the form of a verb that agrees with a number: ``"differs"`` with 1, ``"differ"`` with 2."""
    return singular if count == 1 else plural


def part_of(part: int, whole: int, noun: str, singular: str, plural: str) -> str:
    """Return ``"1 of 3 pairs differs"``, with the verb in both its forms."""
    return f"{part} of {counted(whole, noun)} {agreeing(part, singular, plural)}"


def beside_whole(value: float, digits: int = 3) -> str:
    """Write a number; one that few digits cannot tell from one, as 1 - 3e-08; from another whole one, with six."""
    whole = float(round(value)) if abs(value) < 1e15 else 0.0
    if whole and value != whole and abs(value - whole) < 0.5 * 10.0 ** (1 - digits) * abs(whole):
        if abs(whole) == 1.0:
            return f"{whole:g} {'+' if value > whole else '-'} {abs(value - whole):.2g}"
        digits = max(digits, 6)
    return f"{value:.{digits}g}"


def floors(value: float, digits: int = 2) -> str:
    """Return ``"1 floor"``, ``"0.98 floors"``: what is printed decides, not what is behind it."""
    text = f"{value:.{3 if abs(value) >= 100 else digits}g}"
    if 1e3 <= abs(value) < 1e7:
        text = f"{float(text):,.0f}"
    return f"{text} floor" + ("" if text == "1" else "s")


def percent(share: float, digits: int = 0) -> str:
    """Write a share of something that is there: ``"48%"``, and ``"under 1%"`` rather than a zero."""
    least = 10.0 ** -(digits + 2)
    if 0.0 < share <= least / 2:
        return f"under {least:.{digits}%}"
    if 1.0 - least / 2 <= share < 1.0:
        return f"over {1.0 - least:.{digits}%}"
    return f"{share:.{digits}%}"


def word(name: str) -> Word | None:
    """Return the explanation of a word, however it is spelled; None for one that is not explained."""
    plain = " ".join(name.lower().replace("_", " ").replace("-", " ").split())
    return WORDS.get(_SAME_AS.get(plain, plain))


def clean(text: object) -> str:
    """Return ``text`` with every control and direction character spelled out.

    Names come from models, and a model may come from anyone: an escape sequence in a node's name must not reach
    a terminal, nor may a right-to-left mark turn a sentence round.
    """
    kept = []
    for char in str(text):
        category = unicodedata.category(char)
        hostile = category in ("Cc", "Cs") or (category == "Cf" and char not in "\u200c\u200d\ufeff\u00ad")
        kept.append(char if not hostile or char == "\n" else f"\\u{ord(char):04x}")
    return "".join(kept)


def escaped(text: str) -> str:
    """Return text for Markdown. Names come from models: none may become a link or an element where it is shown."""
    for char in "\\`*_[]<>":
        text = text.replace(char, f"\\{char}")
    return text
