"""Records one native run as a flat tape of ATen calls.

The recorder stands below autograd and functorch, so it sees what kernels are called with: no gradients, no
batching, no decomposition left to do. It learns three things of every value: whether it depends on the inputs'
values, which memory it shares, and what it natively was where it depends on nothing.

In-place calls are taped in their functional form. Where no other live tensor shares the memory, the result is
simply a new value; otherwise the replay writes into memory that it shares in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from driftscope.errors import CannotLift
from driftscope.lift.tape_entries import (
    Entry,
    Facts,
    Place,
    Ref,
    Value,
    facts_of,
    functional_form,
    tensors_in,
)

# Results of these are the same tensor under another name.
_SAME = frozenset({"detach", "alias", "lift_fresh", "lift", "detach_", "resolve_conj", "resolve_neg"})
_SHAPE_ONLY = frozenset(
    {"zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like", "new_zeros"}
    | {"new_ones", "new_full", "new_empty", "new_empty_strided", "_shape_as_tensor", "new_tensor"}
)
_GUARDS = ("_assert", "sym_constrain", "_functional_assert", "record_function", "_record_function")
_RESIZING = frozenset({"resize_", "set_", "resize_as_", "resize_output_", "_resize_output_"})
_MATERIALISE = torch.ops.aten.alias.default


@dataclass(slots=True)
class Member:
    """A tensor object that looks at a storage, held weakly; the weak reference keeps its address unique."""

    value: int
    address: int
    weak: Any
    python: TensorWeakRef

    @property
    def alive(self) -> bool:
        return not self.weak.expired()

    def tensor(self) -> torch.Tensor | None:
        return self.python() if self.alive else None


@dataclass(slots=True)
class Memory:
    """One native storage during a recording."""

    id: int
    dependent: bool = False
    written: bool = False
    fixed: bool = False  # captured or an input: restored at the end of the recording
    roots: int = 0
    members: list[Member] = field(default_factory=list)
    reference: Any = None


@dataclass(slots=True)
class Tape:
    """A recorded run."""

    entries: list[Entry] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    snapshots: dict[int, tuple[torch.Tensor, list[int]]] = field(default_factory=dict)


class Recorder(TorchDispatchMode):
    """Writes a tape of the calls made under it.

    Parameters
    ----------
    names : callable
        Gives the name of a captured tensor, None where it has none.
    place : callable
        Gives the place of the call in progress.
    """

    def __init__(self, names: Callable[[torch.Tensor], str | None], place: Callable[[], Place]):
        super().__init__()
        self.tape = Tape()
        self.place = place
        self.provisional = False  # entries are renamed after a graph's nodes
        self._names = names
        self._tensors: dict[int, Member] = {}
        self._memories: dict[int, Memory] = {}
        self._by_id: dict[int, Memory] = {}
        self._used_names: dict[str, int] = {}
        self._saved: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._stored: dict[int, set[int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True, torch's default, imports all of torch._dynamo on the first call: 3 s, to no use here.
        return False

    # -- values ------------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, name: str) -> None:
        """Make `tensor` an input, on whose value things depend."""
        value = self._register(tensor, name, dependent=True, root=True)
        value.stored = tensor
        memory = self._by_id[value.storage]
        memory.dependent = memory.fixed = True
        self.tape.inputs.append(value.id)

    def id_of(self, tensor: torch.Tensor) -> int:
        """Give the number of a tensor's value; a tensor not seen before is captured."""
        known = self._tensors.get(tensor._cdata)
        if known is not None:
            return known.value
        _refuse_odd(tensor)
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is not None and memory.members:
            return self._alias_of(tensor, memory)
        name = self._names(tensor) or f"captured_{sum(1 for c in self.tape.captured)}"
        value = self._register(tensor, self._unique(name), dependent=False, root=True)
        value.stored = tensor
        self._by_id[value.storage].fixed = True
        self._stored.setdefault(value.storage, set()).add(value.id)
        self.tape.captured.append(value.id)
        return value.id

    def depends(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's value depends on the inputs."""
        known = self._tensors.get(tensor._cdata)
        if known is not None:
            return self._is_dependent(known.value)
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        return memory is not None and memory.dependent

    def _is_dependent(self, value: int) -> bool:
        v = self.tape.values[value]
        return v.dependent or self._by_id[v.storage].dependent

    def _register(self, tensor: torch.Tensor, name: str, dependent: bool, root: bool = False) -> Value:
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is None:
            memory = Memory(len(self._memories), reference=StorageWeakRef(storage))
            self._memories[storage._cdata] = memory
            self._by_id[memory.id] = memory
        memory.dependent |= dependent
        memory.roots += root
        number = len(self.tape.values)
        value = Value(
            number, name, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device, memory.id, dependent
        )
        self.tape.values.append(value)
        self._bind(tensor, value)
        return value

    def _bind(self, tensor: torch.Tensor, value: Value) -> None:
        member = Member(value.id, tensor._cdata, torch._C._WeakTensorRef(tensor), TensorWeakRef(tensor))
        self._tensors[tensor._cdata] = member
        self._by_id[value.storage].members.append(member)

    def _alias_of(self, tensor: torch.Tensor, memory: Memory) -> int:
        """Give a value for a tensor that shares known memory but came by no call (`x.data`)."""
        base: tuple[Value, torch.Tensor] | None = None
        for member in memory.members:
            value, original = self.tape.values[member.value], member.tensor()
            if value.format != tensor.dtype or original is None:
                continue
            base = value, original
            if (original.shape, original.stride()) == (tensor.shape, tensor.stride()) and (
                original.storage_offset() == tensor.storage_offset()
            ):
                self._bind(tensor, value)
                return value.id
        if base is None:
            raise CannotLift("A tensor shares memory in a way that torch does not show; its origin is not known.")
        shift = tensor.storage_offset() - base[1].storage_offset()
        value = self._register(tensor, self._unique("as_strided"), dependent=memory.dependent)
        function = torch.ops.aten.as_strided.default
        args = (Ref(base[0].id), list(tensor.shape), list(tensor.stride()), shift)
        self._append(function, function, args, {}, [value.id], not memory.dependent, frozenset(), value.name)
        return value.id

    # -- calls -------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = facts_of(func)
        if facts.name.startswith(_GUARDS):
            return func(*args, **kwargs)
        if facts.name in _SAME:
            return self._same(func, args, kwargs)
        if facts.name in _RESIZING and any(self.depends(t) for t in tensors_in(args) if t is not None):
            raise CannotLift(f"aten.{facts.name} changes the memory of a value that depends on the inputs.")
        call_args, call_kwargs = self._encode(args), {k: self._encode(v) for k, v in kwargs.items()}
        targets = _targets(facts, args, kwargs)
        dependent = self._depends_on_inputs(facts, args, kwargs)
        if dependent:
            call_args, call_kwargs = self._freeze(facts, args, kwargs, call_args, call_kwargs)
            self._keep_constants(tensors_in((*args, *kwargs.values())))
        if targets:
            self._before_write(targets, dependent)
        # The name comes before the call, so that the place is that of the call and errors can say it.
        result = func(*args, **kwargs)
        self._tape_call(func, facts, (call_args, call_kwargs), result, targets, dependent)
        return result

    def _same(self, func: Any, args: Any, kwargs: Any) -> Any:
        value = self.tape.values[self.id_of(args[0])]
        result = func(*args, **kwargs)
        if result._cdata != args[0]._cdata:
            self._bind(result, value)
        return result

    def _encode(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return Ref(self.id_of(tree))
        if isinstance(tree, (list, tuple)):
            return type(tree)(self._encode(t) for t in tree) if type(tree) in (list, tuple) else list(tree)
        return tree

    def _depends_on_inputs(self, facts: Facts, args: Any, kwargs: Any) -> bool:
        given: Iterable[Any] = (*args, *kwargs.values())
        if facts.name in _SHAPE_ONLY:
            given = (*args[1:], *kwargs.values())
        return any(self.depends(t) for t in tensors_in(tuple(given)) if t is not None)

    def _freeze(self, facts: Facts, args: Any, kwargs: Any, call_args: Any, call_kwargs: Any) -> Any:
        """Take boolean index masks as they natively are: they decide shapes, which the tape holds as numbers."""
        if facts.name not in ("index", "index_put", "index_put_", "_index_put_impl_"):
            return call_args, call_kwargs
        frozen = list(call_args)
        if len(args) > 1:
            frozen[1] = [
                self._frozen(t) if t is not None and t.dtype in (torch.bool, torch.uint8) else encoded
                for t, encoded in zip(args[1], call_args[1], strict=True)
            ]
        return tuple(frozen), call_kwargs

    def _frozen(self, tensor: torch.Tensor) -> Ref:
        if not self.depends(tensor):
            return Ref(self.id_of(tensor))
        copy = tensor.clone()
        value = self._register(copy, self._unique("mask"), dependent=False)
        self._keep(value, copy)
        return Ref(value.id)

    def _tape_call(
        self, func: Any, facts: Facts, call: Any, result: Any, targets: list[torch.Tensor], dependent: bool
    ) -> None:
        outputs = tensors_in(result)
        made = [t for t in outputs if t is not None]
        if not made and not targets:
            return
        name = self._unique(f"~{facts.name}" if self.provisional else facts.name)
        args, kwargs = call
        function = func
        if targets and facts.name not in ("_native_batch_norm_legit",):
            returned = {t._cdata for t in targets}
            functional = functional_form(func)
            if functional is not None:
                function, kwargs = functional, _without_out(func, kwargs)
                outputs = [t for t in outputs if t is None or t._cdata not in returned]
        frozen = dependent and _is_drawn(facts)
        ids, writes = self._outputs(name, outputs, targets, dependent and not frozen, facts)
        if frozen:
            for number, tensor in zip(ids, outputs, strict=False):
                if number is not None and tensor is not None:
                    self._keep(self.tape.values[number], tensor)
        self._append(func, function, args, kwargs, ids, not dependent or frozen, writes, name)

    def _append(
        self, operator: Any, function: Any, args: Any, kwargs: Any, outputs: list[int | None], constant: bool,
        writes: frozenset[int], name: str,
    ) -> None:  # fmt: skip
        entry = Entry(
            len(self.tape.entries),
            name,
            operator,
            function,
            tuple(args),
            kwargs,
            outputs,
            constant,
            self.place(),
            writes,
        )
        self.tape.entries.append(entry)

    def _outputs(
        self, name: str, outputs: list[Any], targets: list[torch.Tensor], dependent: bool, facts: Facts
    ) -> tuple[list[int | None], frozenset[int]]:
        """Give the numbers of an entry's results: those it returns, then those it writes."""
        ids: list[int | None] = []
        several = sum(t is not None for t in outputs) + len(targets) > 1
        label = lambda: f"{name}.{len(ids)}" if several and ids else name  # noqa: E731
        for tensor in outputs:
            if tensor is None:
                ids.append(None)
                continue
            ids.append(self._register(tensor, label(), dependent).id)
        writes = set()
        for tensor in targets:
            if dependent and self._shared(tensor):
                memory = self._memories[tensor.untyped_storage()._cdata]
                memory.written = True
                self.tape.written.add(memory.id)
                writes.add(len(ids))
                ids.append(self._tensors[tensor._cdata].value)
            else:
                ids.append(self._register(tensor, label(), dependent).id)
        return ids, frozenset(writes)

    # -- memory ------------------------------------------------------------------------------------------------

    def _shared(self, tensor: torch.Tensor) -> bool:
        """Tell whether another live tensor would see a write to this one."""
        memory = self._memories[tensor.untyped_storage()._cdata]
        memory.members = [m for m in memory.members if m.alive]
        return any(m.address != tensor._cdata for m in memory.members)

    def _before_write(self, targets: list[torch.Tensor], dependent: bool) -> None:
        for tensor in targets:
            self.id_of(tensor)
            memory = self._memories[tensor.untyped_storage()._cdata]
            if memory.fixed and not any(_covers(kept, tensor) for kept, _ in self._saved):
                self._saved.append((tensor, _whole(tensor).clone()))
            self._settle_stored(memory)
            if dependent and (not memory.dependent or memory.roots > 1) and self._shared(tensor):
                self._materialise(memory, tensor)
            elif not dependent:
                self._renew(memory)

    def _settle_stored(self, memory: Memory) -> None:
        """Copy native bits that were kept by reference, before they change."""
        for number in self._stored.pop(memory.id, set()):
            value = self.tape.values[number]
            if value.stored is not None:
                value.stored = value.stored.clone()

    def _renew(self, memory: Memory) -> None:
        """Give the live members of constant memory new numbers: what was read before keeps its old value."""
        members, memory.members = memory.members, []
        for member in members:
            tensor = member.tensor()
            if tensor is not None:
                self._register(tensor, self.tape.values[member.value].name, dependent=False)

    def _materialise(self, memory: Memory, tensor: torch.Tensor) -> None:
        """Bring constant memory into the replay, where it will be written with values that depend on inputs."""
        whole = _whole(tensor).clone()
        members, memory.members = memory.members, []
        name = self._unique("memory")
        ids: list[int | None] = []
        offsets = []
        for member in members:
            alias = member.tensor()
            if alias is None:
                continue
            if alias.dtype != tensor.dtype:
                raise CannotLift("Memory that is read in two formats is written; it has no float64 meaning.")
            ids.append(self._register(alias, self._unique(name), dependent=True).id)
            offsets.append(alias.storage_offset())
        memory.dependent, memory.roots = True, 1
        self.tape.snapshots[len(self.tape.entries)] = (whole, offsets)
        self._append(_MATERIALISE, _MATERIALISE, (), {}, ids, False, frozenset(), name)

    # -- constants ---------------------------------------------------------------------------------------------

    def _keep_constants(self, tensors: Iterable[Any]) -> None:
        """Keep the native bits of the constants that a dependent call uses."""
        for tensor in tensors:
            if tensor is None:
                continue
            value = self.tape.values[self.id_of(tensor)]
            if value.stored is None and not self._is_dependent(value.id):
                self._keep(value, tensor)

    def _keep(self, value: Value, tensor: torch.Tensor) -> None:
        value.stored = tensor
        self._stored.setdefault(value.storage, set()).add(value.id)

    def keep_output(self, tensor: torch.Tensor) -> int:
        """Keep what an output needs and give its number."""
        number = self.id_of(tensor)
        value = self.tape.values[number]
        if value.stored is None and not self._is_dependent(number):
            self._keep(value, tensor)
        return number

    def rename(self, first: int, name: str) -> None:
        """Name the entries from `first` on after a graph node: the last is the node's result."""
        entries = self.tape.entries[first:]
        for entry in entries:
            new = self._unique(name if entry is entries[-1] else f"{name}.{entry.facts.name}")
            for number in entry.outputs:
                value = None if number is None else self.tape.values[number]
                if value is not None and (value.name == entry.name or value.name.startswith(f"{entry.name}.")):
                    value.name = new + value.name[len(entry.name) :]
            entry.name = new

    def restore(self) -> None:
        """Give captured tensors and inputs back the values they had before the recording."""
        for tensor, _ in self._saved:
            self._settle_stored(self._memories[tensor.untyped_storage()._cdata])
        with torch.no_grad():
            for tensor, before in reversed(self._saved):
                _whole(tensor).copy_(before)

    def _unique(self, name: str) -> str:
        seen = self._used_names.get(name)
        self._used_names[name] = 0 if seen is None else seen + 1
        return name if seen is None else self._unique(f"{name}_{seen + 1}")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's whole storage as one dimension."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)  # type: ignore[call-overload,no-any-return]


def _covers(kept: torch.Tensor, tensor: torch.Tensor) -> bool:
    return bool(kept.untyped_storage()._cdata == tensor.untyped_storage()._cdata)


def _targets(facts: Facts, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """List the tensors that a call writes to."""
    if not facts.writes:
        return []
    if "training" in facts.types and not facts.pick("training", args, kwargs):
        return []
    picked = [facts.pick(name, args, kwargs) for name in facts.writes]
    return [t for t in tensors_in(picked) if t is not None]


def _without_out(operator: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    out = {a.name for a in operator._schema.arguments if a.kwarg_only and a.alias_info is not None}
    return {k: v for k, v in kwargs.items() if k not in out}


def _is_drawn(facts: Facts) -> bool:
    """Tell samplers, whose result is frozen, from kernels that only might drop out."""
    return facts.random and facts.name in ("bernoulli", "multinomial", "poisson", "binomial", "normal", "rand_like")


def _refuse_odd(tensor: torch.Tensor) -> None:
    kind = type(tensor)
    plain = torch.Tensor.__torch_dispatch__
    if kind.__torch_dispatch__ != plain:
        raise CannotLift(f"A tensor of class {kind.__name__} has rules of its own; only plain tensors can be lifted.")
    if tensor.layout is not torch.strided:
        raise CannotLift(f"A tensor of layout {tensor.layout} cannot be lifted; make it dense first.")
    if tensor.is_nested or tensor.device.type == "meta":
        raise CannotLift("Nested tensors and tensors without values cannot be lifted.")
