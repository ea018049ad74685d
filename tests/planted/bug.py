"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx import ModelProto

from driftscope.records.verdict import Verdict

FLOAT, HALF = "float32", "float16"
Plant = Callable[[ModelProto], str]

BUG = frozenset({Verdict.DIFFERENT})
CHEAPER = frozenset({Verdict.PRECISION, Verdict.DIFFERENT})
HONEST = frozenset({Verdict.IDENTICAL, Verdict.ROUNDING})


@dataclass(frozen=True)
class Bug:
    """One way in which an exported file is not its module any more.

    Parameters
    ----------
    id : str
        What a reader would call it.
    architecture : str
    plant : callable
        Edits the exported ModelProto in place and returns the name of the guilty node (of the node that uses the
        guilty value, for a weight).
    note : str
        What was done, in a few words.
    dtypes : tuple of str
        The model's dtypes in which the bug changes stored bits.
    expected : frozenset of Verdict
        The verdicts that are right.
    """

    id: str
    architecture: str
    plant: Plant
    note: str
    dtypes: tuple[str, ...] = (FLOAT, HALF)
    expected: frozenset[Verdict] = BUG
