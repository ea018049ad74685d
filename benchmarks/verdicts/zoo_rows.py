"""What the rows of the zoo say: per tool and per bug, and which differences are real ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.verdicts.sweep import HONEST

Row = Mapping[str, Any]
_COLUMNS = ("clean", "really wrong", "answered wrongly", "inconclusive", "does not run", "refused by the tool", "crash")


#: What an answer says that has a proof: the rest was run without what is named, or what is named was run alone.
_PROVEN = ("without it the two are the same function", ", run alone, is off by that much")

#: A Relu that a quantiser left out where its range does not do the same: put back, or left out in A, both are one.
_NO_RELU = r"without relu\w* \(aten\.relu\) this piece gives|where A computes relu\w*( \([^)]*\))? of it first"
#: Zeros around an image that an optimiser left to a pooling by the largest element, which pads with less than any.
_NO_ZEROS = r"it reads \w+, which is \w+ in A, where aten\.max_pool\w* in A reads constant_pad_nd\."


def really_wrong(row: Row) -> bool:
    """Whether a tool made another function by something without which it was seen right, or that alone is off."""
    said = " ".join([row["reason"], *row["more"].get("whys", [])[:1]])
    # An attribute that is another one in the file, and with which set right the two are the same function.
    words = rf": \w+ is \S+ here and \S+ in A|{_NO_RELU}|{_NO_ZEROS}"
    told = row["codes"][:1] in (["W012"], ["O013"]) or re.search(words, said)
    named = bool(told) and row["more"].get("verified") is True
    return row["verdict"] == "DIFFERENT" and (named or any(words in said for words in _PROVEN))


def does_not_run(row: Row) -> bool:
    """Whether a runtime refused what a tool made, and the answer says so."""
    refused = row["verdict"] == "INCONCLUSIVE" and row["codes"][:1] in (["R001"], ["R002"])
    return refused or (row["verdict"] == "REFUSED" and "cannot be used: onnxruntime says" in row["reason"])


def tool_of(row: Row) -> str:
    """The tool of an honest pair, the kind of a bug."""
    return str(row["case"]).rpartition("/")[2]


def honest(rows: Iterable[Row]) -> list[Row]:
    """The rows of tools."""
    return [r for r in rows if r["expected"] == "honest"]


def planted(rows: Iterable[Row]) -> list[Row]:
    """The rows of bugs that have an effect."""
    return [r for r in rows if r["expected"].startswith("bug") and r["verdict"] not in ("REFUSED", "END")]


def counts(rows: Iterable[Row]) -> dict[str, int]:
    """How many pairs came out how, by the columns of the table."""
    kinds = {"DIFFERENT": "answered wrongly", "INCONCLUSIVE": "inconclusive", "REFUSED": "refused by the tool",
             "CRASH": "crash", **dict.fromkeys(HONEST, "clean")}  # fmt: skip
    found = dict.fromkeys(_COLUMNS, 0)
    for row in rows:
        kind = kinds[row["verdict"]]
        found["really wrong" if really_wrong(row) else "does not run" if does_not_run(row) else kind] += 1
    return found


def tool_table(rows: Sequence[Row], tools: Iterable[str]) -> list[str]:
    """The tools as a Markdown table, with the middle of the seconds that one comparison took."""
    lines = [f"| tool | {' | '.join(_COLUMNS)} | s |", "|---" * (len(_COLUMNS) + 2) + "|"]
    for tool in tools:
        own = [r for r in honest(rows) if tool_of(r) == tool]
        seconds = sorted(r["seconds"] for r in own if r["verdict"] in (*HONEST, "DIFFERENT"))
        middle = f"{seconds[len(seconds) // 2]:.1f}" if seconds else ""
        if own:
            lines.append(f"| {tool} | {' | '.join(map(str, counts(own).values()))} | {middle} |")
    return lines


def bug_table(rows: Sequence[Row]) -> list[str]:
    """The planted bugs as a Markdown table: found, blamed at the right place, mended by a fix that was tried."""
    lines = ["| bug | planted | found | right place | fix tried |", "|---|---|---|---|---|"]
    kinds = list(dict.fromkeys(tool_of(r) for r in planted(rows)))
    for kind in [*sorted(kinds), ""]:
        own = [r for r in planted(rows) if kind in ("", tool_of(r))]
        found = [r for r in own if r["verdict"] == "DIFFERENT"]
        placed, tried = (sum(r["more"].get(word) is True for r in found) for word in ("placed", "verified"))
        name = kind.replace("bug-", "weights: ").replace("graph-", "graph: ") or "all"
        lines.append(f"| {name} | {len(own)} | {len(found)} | {placed} | {tried} |")
    return lines
