"""What the nodes of one float64 run gave, for runs that differ from it in a few places.

Looking for a cause runs a program again and again with another value, number or attribute in one place. A node that is
fed the very objects that it was fed before gives what it gave before: only what lies behind a change is computed, and
where a value comes out the same again nothing behind it is. Observers see every step all the same.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, overload, runtime_checkable

import torch

from driftscope.lift.choices import choices_are_exact
from driftscope.lift.readings import readings_kept
from driftscope.lift.steps import Lifted, LiftedOutput, Observer, Rounding, Step
from driftscope.programs.isolation.memory import available_bytes
from driftscope.programs.state.threads import threads_to_suit


@dataclass(frozen=True, slots=True)
class KeptNode:
    """One node of a run.

    Parameters
    ----------
    fed : tuple
        The objects that its result depends on, compared by identity.
    made : sequence
        What it gave, before an observer replaced anything.
    rounding : Rounding
    inner : sequence of Step
        The steps inside it that the observer saw.
    after : sequence
        What is read of it: ``made`` laid out, or what stands in its place.
    replaced : bool
        Whether something else stood in its place.
    """

    fed: tuple[Any, ...]
    made: Sequence[Any]
    rounding: Rounding
    inner: Sequence[Step]
    after: Sequence[Any]
    replaced: bool = False


class MemoryShare:
    """The memory that kept runs may take together; values that several of them hold count once."""

    def __init__(self, free: float):
        self.free = free
        self._held: Counter[int] = Counter()

    def take(self, storages: Mapping[int, int]) -> bool:
        """Count memory, by its address and size, where there is room for it; say whether there is."""
        new = sum(size for address, size in storages.items() if not self._held[address])
        if new > self.free:
            return False
        self.free -= new
        self._held.update(storages.keys())
        return True

    def give_back(self, storages: Mapping[int, int]) -> None:
        """Count memory no more that one run does not hold any more."""
        self._held.subtract(storages.keys())
        self.free += sum(size for address, size in storages.items() if not self._held[address])


@dataclass(slots=True)
class KeptRun:
    """The nodes of a run, as far as there is room, by the objects that planned them."""

    room: MemoryShare
    nodes: dict[int, tuple[object, KeptNode]] = field(default_factory=dict)
    _storages: dict[int, int] = field(default_factory=dict)

    def of(self, plan: object) -> KeptNode | None:
        """What a node gave; None where it was not kept."""
        return self.nodes.get(id(plan), (None, None))[1]

    def keep(self, plan: object, node: KeptNode, tensors: Sequence[torch.Tensor]) -> None:
        """Keep a node with the tensors that it holds, if there is room."""
        storages = {s._cdata: s.nbytes() for s in (t.untyped_storage() for t in tensors)}
        new = {address: size for address, size in storages.items() if address not in self._storages}
        if self.room.take(new):
            self._storages.update(new)
            self.nodes[id(plan)] = plan, node

    def forget(self) -> None:
        """Keep nothing any more."""
        self.room.give_back(self._storages)
        self.nodes.clear()
        self._storages.clear()


@dataclass(slots=True)
class Reuse:
    """How the runs inside use kept ones.

    Parameters
    ----------
    base : KeptRun or None
        What is taken from.
    into : KeptRun or None
        What they are kept in.
    forced : collection of str
        Names of values that the observer will replace.
    """

    base: KeptRun | None = None
    into: KeptRun | None = None
    forced: Collection[str] = ()
    inner: list[Step] = field(default_factory=list)

    def begin(self, plan: object) -> KeptNode | None:
        """What this node gave before, whatever it was fed."""
        self.inner = []
        return None if self.base is None else self.base.of(plan)

    def same(self, node: KeptNode, fed: Sequence[Any]) -> bool:
        """Whether it gives that again, fed with these."""
        if len(node.fed) != len(fed) or any(x is not y for x, y in zip(node.fed, fed, strict=True)):
            return False
        return not any(name in self.forced for step in node.inner for name in step.output_names)

    def saw(self, step: Step, inputs: Sequence[torch.Tensor | None]) -> None:
        """Remember a step inside the node, with what is kept of its inputs."""
        if self.into is not None:
            self.inner.append(replace(step, inputs=inputs, rounding=bare(step.rounding)))

    def keep(self, plan: object, node: KeptNode, tensors: Sequence[torch.Tensor | None]) -> None:
        """Keep the node, where runs are kept."""
        replaced = any(name in self.forced for step in node.inner for name in step.output_names)
        if self.into is not None and not replaced:
            inner = [t for step in node.inner for t in step.outputs]
            self.into.keep(plan, node, [t for t in (*tensors, *inner) if t is not None and t.layout is torch.strided])


class Later(Sequence[torch.Tensor | None]):
    """The inputs of a step, made only if an observer looks at them."""

    def __init__(self, make: Callable[[], Sequence[torch.Tensor | None]], length: int):
        self._make, self._length = make, length
        self._made: Sequence[torch.Tensor | None] | None = None

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> torch.Tensor | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Tensor | None]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | Sequence[torch.Tensor | None] | None:
        if self._made is None:
            self._made = self._make()
        return self._made[index]


def bare(rounding: Rounding) -> Rounding:
    """How rounding enters a step, without what holds its values."""
    return Rounding(rounding.kind, rounding.length)


def equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two values hold the same numbers in the same layout; NaN is never the same."""
    if one is None or other is None or one.layout is not torch.strided or other.layout is not torch.strided:
        return one is other
    alike = one.dtype == other.dtype and one.shape == other.shape and one.stride() == other.stride()
    return one is other or (alike and torch.equal(one, other))


_REUSE: ContextVar[Reuse | None] = ContextVar("driftscope_reuse", default=None)


def reuse() -> Reuse | None:
    """How the run that begins here uses kept ones."""
    return _REUSE.get()


@contextlib.contextmanager
def reusing(how: Reuse | None) -> Iterator[None]:
    """Have the float64 runs inside take from a kept run, or be kept."""
    token = _REUSE.set(how)
    try:
        yield
    finally:
        _REUSE.reset(token)


@runtime_checkable
class WithRepairs(Protocol):
    """A lifted program in which constants are replaced in every run."""

    def beneath(self, replace: Mapping[str, torch.Tensor]) -> tuple[Lifted, Mapping[str, torch.Tensor]]:
        """The program as it is stored, and everything that is replaced in it."""
        ...


@dataclass(slots=True)
class SharedRuns:
    """Runs of lifted programs in which nothing was forced, for all who look at the same ones."""

    room: MemoryShare
    runs: dict[Hashable, KeptRun] = field(default_factory=dict)
    held: list[object] = field(default_factory=list)
    seen: dict[Hashable, object] = field(default_factory=dict)

    def of(self, graph: Lifted, replace: Mapping[str, torch.Tensor]) -> tuple[KeptRun | None, KeptRun]:
        """What a run with these replacements may take from, and where it is kept."""
        plain = graph
        if isinstance(graph, WithRepairs):
            plain, replace = graph.beneath(replace)
        plainly = id(plain), choices_are_exact(), frozenset[tuple[str, int]]()
        key = *plainly[:2], frozenset((name, id(value)) for name, value in replace.items())
        own = self.runs.get(key)
        if own is None:
            own = self.runs[key] = KeptRun(self.room)
            # What is known by its address must not make way for another of that address.
            self.held += [plain, *replace.values()]
            return self.runs.get(plainly), own
        return own, own


Seen = TypeVar("Seen")
# Share of the free memory for values of runs that several looks share.
_SHARE = 0.2
_SHARED: ContextVar[SharedRuns | None] = ContextVar("driftscope_shared_runs", default=None)


@contextlib.contextmanager
def sharing_runs() -> Iterator[None]:
    """Let those who look at lifted programs inside share their runs, in a part of the free memory, and readings."""
    shared = SharedRuns(MemoryShare(_SHARE * available_bytes()))
    token = _SHARED.set(shared)
    try:
        with readings_kept(), threads_to_suit():
            yield
    finally:
        _SHARED.reset(token)
        shared.runs.clear()
        shared.held.clear()
        shared.seen.clear()


def shared_run(graph: Lifted, replace: Mapping[str, torch.Tensor]) -> KeptRun | None:
    """What was kept of a run in which nothing was forced, as far as somebody looked at one."""
    shared = _SHARED.get()
    return None if shared is None else shared.of(graph, replace)[0]


def remember(graph: Lifted, seen: object) -> None:
    """Keep what an observer made of a run of a program as it is stored, for the length of a comparison."""
    shared = _SHARED.get()
    if shared is not None:
        shared.held.append(graph)
        shared.seen[id(graph), type(seen)] = seen


def remembered(graph: Lifted, kind: type[Seen]) -> Seen | None:
    """What such an observer made of a run of it, if one has seen it."""
    shared = _SHARED.get()
    found = None if shared is None else shared.seen.get((id(graph), kind))
    return found if isinstance(found, kind) else None


def look(
    graph: Lifted, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None,
    keep: bool = True,
) -> list[LiftedOutput]:  # fmt: skip
    """Run a lifted program under an observer that only looks, on what earlier runs of it gave.

    Parameters
    ----------
    graph : Lifted
    observe : Observer or None
        Replaces nothing, not in a step inside another either; what a step chooses must not depend on the caller.
    replace : mapping of str to Tensor, or None
    keep : bool
        Whether others may look at this run too.
    """
    shared = _SHARED.get()
    if shared is None:
        return graph.run(observe=observe, replace=replace)
    base, own = shared.of(graph, replace or {})
    # Without an observer the steps inside fused ones are not shown, and somebody who looks later would miss them.
    into = own if keep and observe is not None else None
    with reusing(Reuse(base, into) if into is not None or (base is not None and base.nodes) else None):
        return graph.run(observe=observe, replace=replace)
