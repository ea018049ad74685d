"""What torch is asked to do during one run: every call with its user place, and its values peeled of wrappers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from driftscope.transforms.places import Place


@dataclass
class Event:
    """One torch call.

    Parameters
    ----------
    name : str
        ``"Tensor.add_"``, ``"torch.zeros"``; ``"(out=)"`` at the end when an out tensor was given.
    place : Place or None
        The user's expression that led to it.
    inputs : tuple
        Tensor arguments in order, detached clones taken before the call, peeled of every wrapper with the mapped
        axis moved to the front (``mapped`` says which have one).
    outputs : tuple
        The same of the results, taken after the call.
    mapped_inputs, mapped_outputs : tuple of bool
        Whether a value carries a mapped axis.
    plain_arguments : str
        The non-tensor arguments, as text.
    input_ids, output_ids : tuple of int
        Identities of the tensors (of the base for views): which call made which tensor.
    raised : bool
        The call did not return.
    """

    name: str
    place: Place | None
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    mapped_inputs: tuple[bool, ...] = ()
    mapped_outputs: tuple[bool, ...] = ()
    plain_arguments: str = ""
    input_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    raised: bool = True
    extra: dict[str, Any] = field(default_factory=dict)
