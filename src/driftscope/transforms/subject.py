"""The plain data that analysis and repair pass to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driftscope.transforms.world.places import Place
from driftscope.transforms.world.snapshot import World
from driftscope.transforms.world.trace import Event


@dataclass(frozen=True)
class Subject:
    """A function under examination.

    Parameters
    ----------
    function : callable
        What the user passed.
    examples : tuple
        Positional arguments; tensors carry the mapped axis where ``in_dims`` says so. At most three examples.
    in_dims : tuple
        One entry per argument, as ``torch.vmap`` takes them.
    randomness : str
        ``"error"``, ``"different"`` or ``"same"``.
    world : World
        Everything the function reaches beyond its arguments, rewindable.
    size : int
        Number of examples.
    slices : tuple of tuple
        The arguments of each example, as the loop passes them (views of ``examples``; clone before use).
    batch : tuple
        ``examples`` as the user gave them, with all their rows: repairs are tried on more than three.
    """

    function: Callable[..., Any]
    examples: tuple[Any, ...]
    in_dims: tuple[Any, ...]
    randomness: str
    world: World
    size: int
    slices: tuple[tuple[Any, ...], ...]
    batch: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Suspicion:
    """What analysis found: where a repair starts from.

    Parameters
    ----------
    cause : str
        T code, ``"T099"`` when not identified.
    transform, outcome : str
        As in the report.
    place : Place or None
        The user's expression that was refused or diverges.
    operation : str
        The torch call there as the trace names it (``"Tensor.copy_"``, ``"torch.add(out=)"``), or a Python name.
    subject_name : str
        The user's name for the tensor or object involved, "" when it has none.
    birthplace : Place or None
        Where the written-to tensor was created, when a factory of the user's code created it.
    event : Event or None
        The traced call of the transform's run; its values are peeled of wrappers.
    plain_events : tuple of Event
        The calls of the loop at the same position, one per example, where known.
    error : BaseException or None
        What was raised.
    what, evidence
        A sentence for the report, and the numbers behind it.
    """

    cause: str
    transform: str
    outcome: str
    place: Place | None = None
    operation: str = ""
    subject_name: str = ""
    birthplace: Place | None = None
    event: Event | None = None
    plain_events: tuple[Event, ...] = ()
    error: BaseException | None = None
    what: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Proposal:
    """A repair that was tried.

    Parameters
    ----------
    fix : str
        The smallest edit in words, with the user's own names and the line.
    verified : bool or None
        True when the edited function equals the loop on the examples, and its derivative; False when it was tried
        and failed; None when it could not be tried.
    patch : str
        The edit as a unified diff of the user's file, "" where there is no file or no textual edit.
    evidence : mapping
        What was run: number of examples, how they agreed.
    """

    fix: str
    verified: bool | None = None
    patch: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
