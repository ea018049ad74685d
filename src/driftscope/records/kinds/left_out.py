"""The record of a search for the optimiser that moved a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driftscope.errors import InputError
from driftscope.records.showing import Record
from driftscope.records.words import floors

BLAME_SCHEMA = "driftscope/blame/1"


@dataclass(frozen=True, slots=True)
class Suspect:
    """One optimisation, and what the same run gives without it.

    Parameters
    ----------
    name : str
        As the runtime calls it: ``"SkipLayerNormFusion"``, ``"emulate_precision_casts"``.
    kind : str
        ``"transformer"``, ``"rule"`` (a rewrite rule of onnxruntime), ``"stage"`` (of ``torch.compile``), ``"option"``
        (a setting of a compiler) or ``"exporter"``.
    operators : mapping of str to int
        Operators of the graph with it minus without it: ``{"Gelu": 4, "Erf": -4}``.
    same_bits : bool
        Whether leaving it out changes no bit of any output.
    moved : float or None
        Largest absolute difference that it makes to any output.
    floors : float or None
        Drift of the run *without* it from the reference, in floors.
    lifted : float or None
        Lifted drift of the graph without it, of whole outputs, where that was in question.
    explains : bool
        Whether the run without it is within the limits.
    refused : str
        What the runtime said when it would not run without it.
    seconds : float
        What building and running that session took.
    """

    name: str
    kind: str
    operators: Mapping[str, int] = field(default_factory=dict)
    same_bits: bool = True
    moved: float | None = None
    floors: float | None = None
    lifted: float | None = None
    explains: bool = False
    refused: str = ""
    seconds: float = 0.0

    @property
    def trial(self) -> str:
        """What was run instead, in words."""
        if self.kind == "stage":
            return f"only {self.name}"
        if self.kind == "exporter":
            return f"without {self.name.partition('=')[0]}"
        return f"with {self.name}" if "=" in self.name else f"without {self.name}"


@dataclass(frozen=True, slots=True, repr=False)
class Blame(Record):
    """Which optimisation moved a result, as far as leaving each one out can tell.

    Parameters
    ----------
    answer : str
        One sentence.
    guilty : tuple of str
        The optimisations without which the result is right: usually one; several where only together; empty where
        none is to blame or nothing is wrong.
    suspects : tuple of Suspect
        Everything that was left out in turn, in the order in which it acted.
    program, reference : str
        What was examined, and what its results were held against.
    wrong : bool
        Whether the result as it stands is outside the limits at all.
    floors, lifted : float or None
        Drift from the reference as it stands; lifted, of whole outputs, only where the graph's function was in
        question.
    floors_without, lifted_without : float or None
        The same without the guilty ones.
    paste : str
        The line that leaves the guilty ones out, in the runtime's own words.
    program_line : str
        The same as a driftscope program.
    verified : bool or None
        Whether ``paste`` was run and the result was within the limits; None when there was nothing to run.
    runs : int
        Sessions or compilations that were made.
    complete : bool
        False when the budget ended the search.
    seconds : float
    """

    answer: str
    guilty: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    program: str = ""
    reference: str = ""
    wrong: bool = False
    floors: float | None = None
    lifted: float | None = None
    floors_without: float | None = None
    lifted_without: float | None = None
    paste: str = ""
    program_line: str = ""
    verified: bool | None = None
    runs: int = 0
    complete: bool = True
    seconds: float = 0.0
    schema: str = BLAME_SCHEMA

    def __getitem__(self, name: str) -> Suspect:
        for suspect in self.suspects:
            if suspect.name == name:
                return suspect
        known = ", ".join(s.name for s in self.suspects) or "nothing"
        raise InputError(f"{name!r} was not left out in this search; {known} was")

    def __str__(self) -> str:
        rows = [self.answer]
        if self.paste:
            rows += [f"  {self.paste}", f"  {self.program_line}"]
        width = max((len(s.trial) for s in self.suspects), default=0)
        rows += [f"  {s.trial:<{width}}  {_effect(s)}" for s in self.suspects]
        return "\n".join(rows)


def _effect(suspect: Suspect) -> str:
    """What leaving it out does, in words."""
    if suspect.refused:
        return f"refused: {suspect.refused}"
    numbers = "the same bits" if suspect.same_bits else f"moves by {suspect.moved:.2g}" if suspect.moved else "moves"
    if suspect.floors is not None:
        numbers += f", {floors(suspect.floors)} from the reference"
    if suspect.lifted is not None:
        numbers += f", lifted drift {suspect.lifted:.1e}"
    return f"{numbers}{'  [explains it]' if suspect.explains else ''}  {operators_in_words(suspect.operators)}".rstrip()


def operators_in_words(operators: Mapping[str, int]) -> str:
    """Write what an optimisation made of what, as ``"made Gelu x4 of Div x4, Erf x4"``."""
    made = ", ".join(f"{n} x{k}" for n, k in operators.items() if k > 0)
    gone = ", ".join(f"{n} x{-k}" for n, k in operators.items() if k < 0)
    if made and gone:
        return f"made {made} of {gone}"
    return f"added {made}" if made else f"removed {gone}" if gone else ""
