"""One run of a function over a group of examples that decide alike.

Inside the run, whatever turns a mapped tensor into something Python decides with (``if``, ``.item()``, ``int()``,
``math.sqrt``, the size of ``nonzero``) is answered for the whole group. Where the examples of the group disagree the
run ends with :class:`Split`, which names the groups to run instead. What cannot be answered ends it with
:class:`Unbatchable`. Both are no ``Exception``: a user's ``except Exception`` must not swallow them.
"""

from __future__ import annotations

import copy
import pickle
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from driftscope.programs import pytrees as pytree
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.guard import DECISIONS, OF_THE_WRAPPER, kind_of, unlike_the_loop
from driftscope.transforms.world.places import is_own_mistake


class Split(BaseException):
    """Examples of the group decide differently.

    Parameters
    ----------
    before : tuple
        Every answer of the run up to here, on which the whole group agrees.
    parts : list of (answer, list of int)
        The answers given here, each with the positions in the group that give it.
    """

    def __init__(self, before: tuple[Any, ...], parts: list[tuple[Any, list[int]]]):
        self.before = before
        self.parts = parts
        super().__init__(f"{len(parts)} ways")


class Unbatchable(BaseException):
    """This run cannot be made for a whole group; the loop can."""


class OwnCopies(BaseException):
    """A tensor that the function made for one example is written to by all: every example needs its own."""

    def __init__(self, call: int):
        self.call = call
        super().__init__(f"call {call}")


_T: Any = torch.Tensor
_REQUIRES_GRAD = _T.requires_grad.__get__

#: Of these, those that refuse a tensor whose derivative is wanted, as they do in the loop.
_WITHOUT_GRADIENT: frozenset[Any] = frozenset({_T.numpy, _T.__array__})
#: Calls that copy values and cut the derivative, or whose result has none.
_VALUES_ONLY: frozenset[Any] = frozenset(
    {
        torch.tensor, torch.nonzero, _T.nonzero, torch.argwhere, _T.argwhere, torch.arange, torch.zeros, torch.ones,
        torch.empty, torch.full, torch.eye, torch.linspace, _T.new_zeros, _T.new_ones, _T.new_full, _T.new_tensor,
        torch.bincount, _T.bincount, torch.tril_indices, torch.triu_indices,
    }
)  # fmt: skip
#: The same where no derivative is wanted.
_VALUES_UNLESS_TRACKED: frozenset[Any] = frozenset(
    {
        torch.unique, _T.unique, torch.unique_consecutive, _T.unique_consecutive, torch.as_tensor, _T.__deepcopy__,
        torch.from_numpy, torch.histc, _T.histc,
    }
)  # fmt: skip
#: Arguments that are sizes: mapped 0-dim integers among them are decisions.
_SIZED: frozenset[Any] = frozenset(
    {
        _T.view, _T.reshape, torch.reshape, _T.repeat, _T.expand, _T.narrow, torch.narrow, torch.roll, _T.roll,
        torch.split, _T.split, torch.chunk, _T.chunk, torch.select, _T.select, torch.topk, _T.topk,
        torch.unflatten, _T.unflatten, _T.unfold, torch.diagonal, _T.diagonal, _T.tril, _T.triu, torch.tril, torch.triu,
    }
)  # fmt: skip


class PathMode(TorchFunctionMode):
    """Answers decisions for a group of examples.

    Parameters
    ----------
    level : int
        Of the ``vmap`` that maps the group.
    size : int
        Examples in the group.
    decisions : sequence
        Answers the group is known to agree on, in order; what comes after is found out.
    own : frozenset of int
        Calls (counted from 0) whose result every example gets a copy of.
    """

    def __init__(self, level: int, size: int, decisions: Sequence[Any], own: frozenset[int]):
        super().__init__()
        self.level = level
        self.size = size
        self.decisions = list(decisions)
        self.own = own
        self.asked = 0
        self.calls = 0
        self.births: dict[int, tuple[int, torch.Tensor]] = {}
        self.steps: list[Any] = []
        self.ended: BaseException | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self.ended is not None:
            if func in internals.SWITCHES:
                return func(*args, **(kwargs or {}))
            raise self.ended  # a bare `except:` of the function caught it
        try:
            result = self.answered(func, args, dict(kwargs or {}))
        except BaseException as ended:
            self.ended = ended
            raise
        self.steps.append((func, kind_of(result)))
        return result

    def answered(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Make one call of torch for the group."""
        if func in OF_THE_WRAPPER and self.any_mapped(args, keywords):
            raise Unbatchable(f"{internals.torch_name(func)} answers for the batch, not for an example")
        if why := unlike_the_loop(func, args, keywords):
            raise Unbatchable(why)
        if func is _REQUIRES_GRAD and self.mapped(args[0]):
            return internals.example_requires_grad(args[0])
        if func in DECISIONS and self.any_mapped(args, keywords):
            return self.decided(func, args, keywords)
        rewrite = REWRITES.get(func)
        if rewrite is not None and self.any_mapped(args, keywords):
            return rewrite(self, func, args, keywords)
        return self.native(func, args, keywords)

    # --- values ----------------------------------------------------------------------------------------------------

    def value(self, tensor: torch.Tensor) -> tuple[torch.Tensor, bool, bool]:
        """Return (plain value, whether it is mapped, whether its derivative is wanted)."""
        found = internals.peel_level(tensor, self.level)
        if found is None:
            raise Unbatchable("another vmap maps this tensor")
        return found

    def mapped(self, value: Any) -> bool:
        """Whether a value is a tensor that this run maps."""
        if not isinstance(value, torch.Tensor):
            return False
        found = internals.peel_level(value, self.level)
        return found is not None and found[1]

    def any_mapped(self, args: Any, keywords: Any) -> bool:
        """Whether anything among the arguments is mapped."""
        return any(self.mapped(leaf) for leaf in leaves_of((args, keywords)))

    def tracked(self, args: Any, keywords: Any) -> bool:
        """Whether the derivative of an argument is wanted."""
        tensors = [leaf for leaf in leaves_of((args, keywords)) if isinstance(leaf, torch.Tensor)]
        return torch.is_grad_enabled() and any(self.value(leaf)[2] for leaf in tensors)

    def per_example(self, func: Any, args: Any, keywords: Any) -> list[Any]:
        """Call ``func`` on the plain values of one example after another."""
        leaves, spec = pytree.tree_flatten((args, keywords))
        plain: list[tuple[Any, bool]] = []
        for leaf in leaves:
            value, mapped, _ = self.value(leaf) if isinstance(leaf, torch.Tensor) else (leaf, False, False)
            plain.append((value, mapped))
        found = []
        with internals.beneath_transforms():
            for i in range(self.size):
                given, named = pytree.tree_unflatten([v[i] if mapped else v for v, mapped in plain], spec)
                found.append(func(*given, **named))
        return found

    # --- decisions -------------------------------------------------------------------------------------------------

    def settled(self) -> tuple[bool, Any]:
        """Return whether the next answer is already known, and it."""
        if self.asked < len(self.decisions):
            answer = self.decisions[self.asked]
            self.asked += 1
            return True, _kept(answer)
        return False, None

    def agree(self, answers: Sequence[Any]) -> Any:
        """Return the answer that all examples give; otherwise end the run."""
        groups: dict[Any, tuple[Any, list[int]]] = {}
        for i, answer in enumerate(answers):
            groups.setdefault(identity(answer), (answer, []))[1].append(i)
        if len(groups) > 1:
            raise Split(tuple(self.decisions), list(groups.values()))
        self.decisions.append(_kept(answers[0]))
        self.asked += 1
        return answers[0]

    def decided(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Answer a call that hands a value to Python."""
        if func in _WITHOUT_GRADIENT and self.tracked(args, keywords):
            raise Unbatchable("the loop refuses this for a tensor whose derivative is wanted")
        known, answer = self.settled()
        if known:
            return answer
        try:
            answers = self.quick(func, args[0]) if len(args) == 1 and not keywords else None
            answers = self.per_example(func, args, keywords) if answers is None else answers
        except Exception as error:  # whatever torch or the example raises, the loop shall raise
            if is_own_mistake(error):
                raise
            raise Unbatchable(str(error)) from error
        return self.agree(answers)

    def quick(self, func: Any, tensor: Any) -> Sequence[Any] | None:
        """All answers at once where each example holds one number; None for the rest."""
        value = self.value(tensor)[0]
        if value.numel() != self.size:
            return None
        numbers = value.reshape(self.size)
        with internals.beneath_transforms():
            if func in (_T.__bool__, _T.is_nonzero, torch.is_nonzero):
                return numbers.bool().tolist()
            if func is _T.item or (func is _T.__float__ and value.is_floating_point()):
                return numbers.tolist()
            if func in (_T.__int__, _T.__index__) and value.dtype in _INTEGERS:
                return numbers.tolist()
        return None

    def values_only(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Compute a result without derivative for each example; examples with results of one shape stay together."""
        results = self.per_example(func, args, keywords)
        flat = [pytree.tree_flatten(result) for result in results]
        shapes = [(str(s), *((tuple(t.shape), str(t.dtype)) for t in leaves)) for leaves, s in flat]
        known, _ = self.settled()
        if not known:
            self.agree(shapes)
        columns = zip(*(leaves for leaves, _ in flat), strict=True)
        with internals.beneath_transforms():
            stacked = [torch.stack([t.detach() for t in column]) for column in columns]
        return pytree.tree_unflatten([internals.map_over(t, self.level) for t in stacked], flat[0][1])

    # --- everything else -------------------------------------------------------------------------------------------

    def native(self, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Leave a call to torch; where torch refuses, mend it if that is possible."""
        self.calls += 1
        call = self.calls
        try:
            result = func(*args, **keywords)
        except Exception as error:
            self.blame_shared(func, args)
            raise Unbatchable(f"{internals.torch_name(func)}: {error}") from error
        if isinstance(result, torch.Tensor) and self.is_new(result, args, keywords):
            if call in self.own:
                copies = self.value(result)[0].expand(self.size, *result.shape).clone()
                return internals.map_over(copies, self.level)
            self.births[_storage(result)] = (call, result)
        return result

    def blame_shared(self, func: Any, args: tuple[Any, ...]) -> None:
        """End the run with :class:`OwnCopies` if ``func`` writes into a tensor that this run made for all examples."""
        name = getattr(func, "__name__", "")
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        target = args[0] if args else None
        if writes and isinstance(target, torch.Tensor) and not self.mapped(target):
            born = self.births.get(_storage(target))
            if born is not None and born[0] not in self.own:
                raise OwnCopies(born[0])

    def is_new(self, result: torch.Tensor, args: Any, keywords: Any) -> bool:
        """Whether a result is unmapped memory of its own, neither a view nor the argument written to."""
        value, mapped, tracked = self.value(result)
        if mapped or tracked or value.layout != torch.strided:
            return False
        storage = _storage(result)
        given = (leaf for leaf in leaves_of((args, keywords)) if isinstance(leaf, torch.Tensor))
        return storage not in self.births and all(_storage(tensor) != storage for tensor in given)


def _kept(answer: Any) -> Any:
    """Return an answer that stays as it is: a list or an array that the function received may be changed by it."""
    return answer if isinstance(answer, (bool, int, float, str)) else copy.deepcopy(answer)


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def leaves_of(tree: Any) -> list[Any]:
    """Return the leaves of arguments, the bounds of slices included."""
    found = []
    for leaf in pytree.tree_leaves(tree):
        found += [leaf.start, leaf.stop, leaf.step] if isinstance(leaf, slice) else [leaf]
    return found


def _storage(tensor: torch.Tensor) -> int:
    """Identify the memory of a tensor, under whatever wrappers."""
    with internals.beneath_transforms():
        value = internals.peel(tensor)[0]
        return int(value.untyped_storage()._cdata) if value.layout == torch.strided else -id(value)


def identity(answer: Any) -> Any:
    """Return a key that is equal exactly for answers that are the same bits (NaN is itself, -0.0 is not 0.0)."""
    if isinstance(answer, (bool, int, str)):
        return (type(answer).__name__, answer)
    if isinstance(answer, float):
        return struct.pack("d", answer)
    return (type(answer).__name__, pickle.dumps(answer))


Rewrite = Callable[[PathMode, Any, tuple[Any, ...], dict[str, Any]], Any]

#: Calls that are made otherwise when an argument is mapped; ``rewrites.py`` fills it.
REWRITES: dict[Any, Rewrite] = {}


def rewrites(*functions: Any) -> Callable[[Rewrite], Rewrite]:
    """Register how ``functions`` are made for a group."""

    def register(rewrite: Rewrite) -> Rewrite:
        REWRITES.update(dict.fromkeys(functions, rewrite))
        return rewrite

    return register


@rewrites(*_VALUES_ONLY)
def _values(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return mode.values_only(func, args, keywords)


@rewrites(*_VALUES_UNLESS_TRACKED)
def _values_untracked(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if mode.tracked(args, keywords):
        raise Unbatchable("its derivative is wanted")
    return mode.values_only(func, args, keywords)


@rewrites(*_SIZED)
def _sized(mode: PathMode, func: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Decide the sizes among the arguments, then leave the call to torch."""

    def settle(leaf: Any) -> Any:
        whole = isinstance(leaf, torch.Tensor) and leaf.dim() == 0 and not leaf.is_floating_point()
        return mode.decided(_T.__index__, (leaf,), {}) if whole and mode.mapped(leaf) else leaf

    rest, named = pytree.tree_map(settle, (args[1:], keywords))
    return mode.native(func, (*args[:1], *rest), named)
