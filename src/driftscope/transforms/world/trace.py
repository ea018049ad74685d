"""What torch is asked to do during one run: every call with its user place, and its values peeled of wrappers."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from driftscope.records.user_code import is_users
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.world.places import Place, place_of

# A run that asks more of torch than this is recorded without values from there on.
MAX_EVENTS = 20_000
# Values above this many elements are not kept: they would double the memory of a large run.
MAX_ELEMENTS = 4_000_000

_OURS = str(Path(__file__).resolve().parents[1])
_AUTOGRAD_FUNCTION = str(Path("torch") / "autograd" / "function.py")

# Calls that only ask about a tensor. They are recorded with what they answered and never count as operations.
QUESTIONS = frozenset((
    "size", "dim", "ndimension", "stride", "storage_offset", "numel", "nelement", "element_size", "is_contiguous",
    "__len__", "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg", "get_device", "is_same_size",
    "data_ptr", "untyped_storage", "storage", "storage_type", "has_names", "is_shared", "is_pinned", "is_inference",
    "is_tensor", "is_storage", "__hash__", "type", "is_set_to",
))  # fmt: skip
_ASKING_GETTERS = frozenset((
    "shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu", "is_sparse", "is_quantized", "is_meta",
    "is_leaf",
    "requires_grad", "grad_fn", "grad", "itemsize", "nbytes", "names", "output_nr", "retains_grad", "name", "is_nested",
    "_version",
))  # fmt: skip
CONVERSIONS = frozenset((
    "item", "__bool__", "__float__", "__int__", "__index__", "__complex__", "tolist", "numpy", "__array__",
    "__format__",
    "__repr__", "__str__", "__contains__", "is_nonzero", "allclose", "equal", "tensor", "as_tensor", "__dlpack__",
))  # fmt: skip


@dataclass
class Event:
    """One torch call.

    Parameters
    ----------
    name : str
        ``"Tensor.add_"``, ``"torch.zeros"``; ``"(out=)"`` at the end when an out tensor was given.
    place : Place or None
        The user's expression that led to it.
    inputs, outputs : tuple
        Tensor arguments (before the call) and results in order: detached clones, peeled of every wrapper, with the
        mapped axes in front. An entry is None where a value was too large to keep or could not be read.
    mapped_inputs, mapped_outputs : tuple of bool
        Whether a value carries a mapped axis.
    plain_arguments, plain_result : str
        The arguments and results that are no tensors, as text.
    input_ids, output_ids : tuple of int
        Identities of the tensors (of the base for views), valid during the run: which call made which tensor.
    question : bool
        The call only asks about a tensor (``x.shape``).
    function_place : Place or None
        Where the user applied a ``torch.autograd.Function`` whose code made this call.
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
    plain_result: str = ""
    input_ids: tuple[int, ...] = ()
    output_ids: tuple[int, ...] = ()
    question: bool = False
    function_place: Place | None = None
    raised: bool = True
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def operation(self) -> str:
        """The bare name: ``"add_"`` of ``"Tensor.add_"``."""
        return self.name.removesuffix("(out=)").rsplit(".", 1)[-1]

    @property
    def in_place(self) -> bool:
        """Whether the call writes to its first argument."""
        name = self.operation
        return name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or _is_iadd(name)


def _is_iadd(name: str) -> bool:
    plain = ("__index__", "__int__", "__invert__", "__iter__")
    return name.startswith("__i") and name.endswith("__") and name not in plain


def peeled(tensor: torch.Tensor) -> tuple[Any, bool]:
    """Return a detached clone of the value under the wrappers, mapped axes in front, and whether it has any."""
    if type(tensor) is torch.Tensor and not internals.stack_depth() and not internals.is_wrapped(tensor):
        if tensor.numel() > MAX_ELEMENTS:
            return None, False
        with internals.unseen():
            return tensor.detach().clone(), False
    with internals.beneath_transforms():
        plain, mapped = internals.peel(tensor)
        if plain.numel() > MAX_ELEMENTS or internals.is_fake(plain):
            return None, bool(mapped)
        return plain.detach().clone(), bool(mapped)


class Trace(TorchFunctionMode):
    """Records every torch call made while it is active.

    Parameters
    ----------
    observe : callable or None
        What to keep of a tensor, ``observe(tensor) -> (value, mapped)``; by default :func:`peeled`. None keeps names
        and places, and which tensors are alive, alone.
    """

    def __init__(self, observe: Callable[[torch.Tensor], tuple[Any, bool]] | None = peeled):
        super().__init__()
        self.events: list[Event] = []
        self.tensors: list[tuple[weakref.ref[torch.Tensor], Event | None]] = []
        self._observe = observe

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = internals.torch_name(func) + ("(out=)" if kwargs.get("out") is not None else "")
        place, function_place = _standing(sys._getframe(1))
        event = Event(name, place, question=is_question(name), function_place=function_place)
        self.events.append(event)
        alive = not event.question and len(self.events) < MAX_EVENTS
        keep = alive and self._observe is not None
        if keep:
            tensors, texts = _flat(args, kwargs)
            event.inputs, event.mapped_inputs = self._look(tensors)
            event.plain_arguments = ", ".join(texts)
            event.input_ids = tuple(map(identity, tensors))
        result = func(*args, **kwargs)
        event.raised = False
        made, answers = _flat((result,), {})
        if keep:
            event.outputs, event.mapped_outputs = self._look(made)
            event.output_ids = tuple(map(identity, made))
        if alive:
            self.tensors += [(weakref.ref(t), event) for t in made]
        event.plain_result = ", ".join(answers)
        return result

    def note_arguments(self, values: Any) -> None:
        """Remember the tensors a function is called with, so that one that is kept can be recognised."""
        self.tensors += [(weakref.ref(t), None) for t in _flat(tuple(values), {})[0]]

    def _look(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], tuple[bool, ...]]:
        values, mapped = [], []
        for tensor in tensors:
            value, is_mapped = self._seen(tensor)
            values.append(value)
            mapped.append(is_mapped)
        return tuple(values), tuple(mapped)

    def _seen(self, tensor: torch.Tensor) -> tuple[Any, bool]:
        try:
            return self._observe(tensor) if self._observe else (None, False)
        except (RuntimeError, NotImplementedError, TypeError):
            # Sparse, quantised and dead tensors cannot all be cloned; the call is recorded without that value.
            return None, False


def identity(tensor: torch.Tensor) -> int:
    """Identify the memory owner of a tensor: a view counts as its base."""
    base = tensor._base if not internals.is_wrapped(tensor) else None
    return id(tensor if base is None else base)


def is_question(name: str) -> bool:
    """Whether a call of this name only asks about a tensor."""
    parts = name.split(".")
    if parts[-1] in ("__get__", "__set__") and len(parts) > 1:
        return parts[-1] == "__get__" and parts[-2] in _ASKING_GETTERS
    return parts[-1] in QUESTIONS


def _standing(frame: FrameType | None) -> tuple[Place | None, Place | None]:
    """Return the innermost user place, and where a user's autograd.Function was applied if it is inside of one."""
    place, function_place, inside = None, None, False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_OURS):
            break
        if code.co_filename.endswith(_AUTOGRAD_FUNCTION) and code.co_name == "apply":
            inside = place is not None
        elif is_users(code.co_filename):
            if place is None:
                place = place_of(code, frame.f_lasti)
            elif inside and function_place is None:
                function_place = place_of(code, frame.f_lasti)
        frame = frame.f_back
    return place, function_place


def _flat(args: Any, kwargs: Any) -> tuple[list[torch.Tensor], list[str]]:
    """Split arguments or results into their tensors and the text of all others, in order."""
    tensors: list[torch.Tensor] = []
    texts: list[str] = []
    _sort(args, tensors, texts)
    if kwargs:
        _sort(kwargs, tensors, texts)
    return tensors, texts


def _sort(value: Any, tensors: list[torch.Tensor], texts: list[str]) -> None:
    # Not a closure that calls itself: such a cycle would keep every tensor alive until the next garbage collection,
    # and a tensor that is alive after its transform counts as escaped.
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _sort(item, tensors, texts)
    elif isinstance(value, dict):
        for key in value:
            texts.append(str(key))
            _sort(value[key], tensors, texts)
    elif isinstance(value, slice):
        _sort((value.start, value.stop, value.step), tensors, texts)
    elif isinstance(value, (int, float, complex, bool, str, type(None), torch.dtype)):
        texts.append(repr(value))
    else:
        texts.append(type(value).__name__)


class Bounded:
    """A function with a trace that is active exactly while the user's code runs.

    Parameters
    ----------
    function : callable
    trace : Trace or None
    """

    def __init__(self, function: Callable[..., Any], trace: Trace | None):
        self.function = function
        self.trace = trace
        # torch names the function that it refuses.
        self.__name__ = internals.name_of(function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.trace is None:
            return self.function(*args, **kwargs)
        self.trace.note_arguments(args)
        with self.trace:
            return self.function(*args, **kwargs)
