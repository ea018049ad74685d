"""What a recording knows of tensors: which value each holds, what memory it shares, what its native bits were."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

from driftscope.errors import CannotLift
from driftscope.lift.torch.entries import Ref, Tape, TensorValue

_ALIAS = torch.ops.aten.as_strided.default
_MATERIALISE = torch.ops.aten.alias.default
_SCATTER = torch.ops.aten.as_strided_scatter.default
#: Elements that writes into parts of constants may move when they are evaluated again, in a whole recording: a table
#: filled row by row is copied once for every row, and every copy is kept.
_SCATTERED = 1 << 23
_PLAIN = torch.Tensor.__torch_dispatch__


@dataclass(slots=True)
class Viewer:
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


@dataclass(frozen=True, slots=True)
class _Renewed:
    """A write into constant memory: what is written to, by which entry, and all that saw it before."""

    target: torch.Tensor
    entry: int
    members: list[tuple[torch.Tensor, int]]


@dataclass(slots=True)
class Memory:
    """One native storage during a recording.

    Parameters
    ----------
    id : int
    reference : StorageWeakRef or None
        Keeps its address from being given to another storage.
    dependent : bool
        Whether a value that depends on the inputs was written into it.
    fixed : bool
        Captured or an input: restored at the end of the recording.
    roots : int
        How many of its values came by no call.
    members : list of Viewer
    """

    id: int
    reference: Any = None
    dependent: bool = False
    fixed: bool = False
    roots: int = 0
    members: list[Viewer] = field(default_factory=list)


class Ledger:
    """The tensors of one recording.

    Parameters
    ----------
    tape : Tape
        Gets the values, and the entries that no call makes.
    names : callable
        Gives the name of a captured tensor, None where it has none.
    append : callable
        ``append(name, function, args, outputs, constant)`` puts such an entry on the tape.
    """

    def __init__(self, tape: Tape, names: Callable[[torch.Tensor], str | None], append: Callable[..., None]):
        self.tape = tape
        self._names = names
        self._append = append
        self._tensors: dict[int, Viewer] = {}
        self._memories: dict[int, Memory] = {}
        self._by_id: dict[int, Memory] = {}
        self._used_names: dict[str, int] = {}
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._stored: dict[int, set[int]] = {}
        self._renewed: list[_Renewed] = []
        self._scattered = 0

    # -- values ------------------------------------------------------------------------------------------------

    def add_input(self, tensor: torch.Tensor, name: str) -> None:
        """Make `tensor` an input, on whose value things depend."""
        refuse_odd(tensor)
        value = self.register(tensor, name, dependent=True, root=True)
        value.stored = tensor
        memory = self._by_id[value.storage]
        memory.dependent = memory.fixed = True
        self.tape.inputs.append(value.id)

    def id_of(self, tensor: torch.Tensor) -> int:
        """Give the number of a tensor's value; a tensor not seen before is captured."""
        known = self._tensors.get(tensor._cdata)
        if known is not None:
            return known.value
        refuse_odd(tensor)
        name = self._names(tensor)
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        if memory is not None and memory.members and (name is None or memory.dependent):
            return self._alias_of(tensor, memory)
        unique = self.unique(name or f"captured_{len(self.tape.captured)}")
        value = self.register(tensor, unique, dependent=False, root=True)
        if name is None:
            self.tape.unnamed.add(value.id)
        self._by_id[value.storage].fixed = True
        self.keep(value, tensor)
        self.tape.captured.append(value.id)
        return value.id

    def depends(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor's value depends on the inputs."""
        known = self._tensors.get(tensor._cdata)
        if known is not None:
            return self.is_dependent(known.value)
        if tensor.layout is not torch.strided:
            return False
        memory = self._memories.get(tensor.untyped_storage()._cdata)
        return memory is not None and memory.dependent

    def is_dependent(self, number: int) -> bool:
        """Tell whether a value depends on the inputs, by itself or through its memory."""
        value = self.tape.values[number]
        return value.dependent or self._by_id[value.storage].dependent

    def register(self, tensor: torch.Tensor, name: str, dependent: bool, root: bool = False) -> TensorValue:
        """Give a tensor a new value."""
        if tensor.layout is not torch.strided:
            refuse_odd(tensor)
        storage = tensor.untyped_storage()
        memory = self._memories.get(storage._cdata)
        if memory is None:
            memory = self._new_memory(StorageWeakRef(storage))
            self._memories[storage._cdata] = memory
        memory.dependent |= dependent
        memory.roots += root
        shape, strides = tuple(tensor.shape), tensor.stride()
        number = len(self.tape.values)
        offset = int(tensor.storage_offset())
        value = TensorValue(number, name, tensor.dtype, shape, strides, tensor.device, memory.id, dependent, offset)
        self.tape.values.append(value)
        self.bind(tensor, value)
        return value

    def register_unseen(self, name: str, like: TensorValue, shape: tuple[int, ...]) -> TensorValue:
        """Make a dependent value that no native tensor holds in this form."""
        memory = self._new_memory(None)
        memory.dependent = True
        strides = torch.empty(shape, device="meta").stride()
        number = len(self.tape.values)
        value = TensorValue(number, name, like.format, shape, strides, like.device, memory.id, True)
        self.tape.values.append(value)
        return value

    def _new_memory(self, reference: Any) -> Memory:
        memory = Memory(len(self._by_id), reference)
        self._by_id[memory.id] = memory
        return memory

    def bind(self, tensor: torch.Tensor, value: TensorValue) -> None:
        """Let a tensor object hold a value."""
        alive = torch._C._WeakTensorRef(tensor)  # type: ignore[attr-defined]
        member = Viewer(value.id, tensor._cdata, alive, TensorWeakRef(tensor))
        self._tensors[tensor._cdata] = member
        self._by_id[value.storage].members.append(member)

    def _alias_of(self, tensor: torch.Tensor, memory: Memory) -> int:
        """Give a value to a tensor that shares known memory but came by no call (`x.data`)."""
        base: TensorValue | None = None
        for member in memory.members:
            value, original = self.tape.values[member.value], member.tensor()
            if value.format != tensor.dtype or original is None:
                continue
            base = value
            if _same_view(original, tensor):
                self.bind(tensor, value)
                return value.id
        if base is None:
            # What first held this memory is gone, as the tensor that a parameter is made of. What is written into
            # values that depend on the inputs they hold; a constant that was written into is another value.
            held = [self.tape.values[m.value] for m in memory.members]
            held = [value for value in held if value.dependent == memory.dependent]
            last = next((v for v in reversed(held) if v.format == tensor.dtype and _lies_as(v, tensor)), None)
            if last is not None:
                self.bind(tensor, last)
                return last.id
        if base is None:
            raise CannotLift("A tensor shares memory in a way that torch does not show; its origin is not known.")
        value = self.register(tensor, self.unique("as_strided"), dependent=memory.dependent)
        args = (Ref(base.id), list(tensor.shape), list(tensor.stride()), tensor.storage_offset())
        self._append(value.name, _ALIAS, args, [value.id], not memory.dependent)
        return value.id

    def unique(self, name: str) -> str:
        """Make a name unique in the tape: ``add``, ``add_1``, ..."""
        seen = self._used_names.get(name)
        self._used_names[name] = 0 if seen is None else seen + 1
        return name if seen is None else self.unique(f"{name}_{seen + 1}")

    # -- writes ------------------------------------------------------------------------------------------------

    def number_now(self, tensor: torch.Tensor) -> int:
        """Give the number of the value that a known tensor holds now."""
        return self._tensors[tensor._cdata].value

    def shared(self, tensor: torch.Tensor) -> bool:
        """Tell whether another live tensor would see a write to this one."""
        memory = self._memories[tensor.untyped_storage()._cdata]
        memory.members = [m for m in memory.members if m.alive]
        if any(m.address != tensor._cdata for m in memory.members):
            return True
        # A part of memory from outside may be seen through another part that the program has not touched yet.
        whole = tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        return memory.fixed and not whole

    def mark_written(self, tensor: torch.Tensor) -> None:
        """Note that the replay writes into this tensor's memory."""
        self.tape.written.add(self._memories[tensor.untyped_storage()._cdata].id)

    def before_write(self, tensor: torch.Tensor, dependent: bool) -> None:
        """Save what a write is about to change; :meth:`after_write` has to follow it."""
        self.id_of(tensor)
        memory = self._memories[tensor.untyped_storage()._cdata]
        if memory.fixed and memory.id not in self._saved:
            self._saved[memory.id] = (tensor, _whole(tensor).clone())
        self._settle_stored(memory)
        if dependent and (not memory.dependent or memory.roots > 1) and self.shared(tensor):
            self._materialise(memory, tensor)
        elif not dependent:
            self._renewed.append(_Renewed(tensor, len(self.tape.entries), self._renew(memory)))

    def _settle_stored(self, memory: Memory) -> None:
        """Copy native bits that were kept by reference, before they change."""
        for number in self._stored.pop(memory.id, set()):
            value = self.tape.values[number]
            if value.stored is not None:
                value.stored, value.copied = value.stored.clone(), True

    def _renew(self, memory: Memory) -> list[tuple[torch.Tensor, int]]:
        """Give the live members of constant memory new numbers: what was read before keeps its old value.

        Returns the members with their old numbers.
        """
        members, memory.members = [m for m in memory.members if m.alive], []
        renewed = []
        for member in members:
            tensor = member.tensor()
            if tensor is not None:
                renewed.append((tensor, member.value))
                self.register(tensor, self.unique(self.tape.values[member.value].name), dependent=False)
        return renewed

    def after_write(self) -> None:
        """Tell how the others that see constant memory follow from what was written into it."""
        renewed, self._renewed = self._renewed, []
        for write in renewed:
            others = [(t, old) for t, old in write.members if t._cdata != write.target._cdata]
            if others and not (len(renewed) == 1 and self._follow(write.target, others)):
                self.tape.folded.add(write.entry)

    def _follow(self, target: torch.Tensor, others: list[tuple[torch.Tensor, int]]) -> bool:
        """Put the others on the tape as views of the whole, which is the target or one of them with it written in."""
        if any(t.dtype != target.dtype or t.is_conj() or t.is_neg() for t in (target, *(t for t, _ in others))):
            return False
        whole, number = target, self.number_now(target)
        if not _is_whole(target):
            found = next(((t, old) for t, old in others if _is_whole(t)), None)
            if found is None or self._scattered + found[0].numel() > _SCATTERED:
                return False
            self._scattered += found[0].numel()
            whole, number = found[0], self.number_now(found[0])
            part = list(target.shape), list(target.stride()), int(target.storage_offset())
            args = (Ref(found[1]), Ref(self.number_now(target)), *part)
            self._append(self.tape.values[number].name, _SCATTER, args, [number], True)
        for tensor, _ in others:
            if tensor is not whole:
                view = self.number_now(tensor)
                place = list(tensor.shape), list(tensor.stride()), int(tensor.storage_offset())
                self._append(self.tape.values[view].name, _ALIAS, (Ref(number), *place), [view], True)
        return True

    def _materialise(self, memory: Memory, tensor: torch.Tensor) -> None:
        """Bring constant memory into the replay, where it will be written with values that depend on inputs."""
        whole = _whole(tensor).clone()
        members, memory.members = memory.members, []
        name = self.unique("memory")
        numbers: list[int | None] = []
        offsets = []
        origins = []
        for member in members:
            alias = member.tensor()
            if alias is None:
                continue
            if alias.dtype != tensor.dtype:
                raise CannotLift("Memory that is read in two formats is written; it has no float64 meaning.")
            origins.append(member.value)
            value = self.tape.values[member.value]
            if value.stored is None:  # each is a constant by itself, whichever is written first
                value.stored, value.copied = alias.detach().clone(), True
            numbers.append(self.register(alias, self.unique(name), dependent=True).id)
            offsets.append(int(alias.storage_offset()))
        memory.dependent, memory.roots = True, 1
        self.tape.snapshots[len(self.tape.entries)] = (whole, offsets)
        self._append(name, _MATERIALISE, tuple(Ref(o) for o in origins), numbers, False)

    # -- constants ---------------------------------------------------------------------------------------------

    def keep_constants(self, tensors: Iterable[Any]) -> None:
        """Keep the native bits of the constants that a dependent call uses."""
        for tensor in tensors:
            if tensor is None:
                continue
            value = self.tape.values[self.id_of(tensor)]
            if value.stored is None and not self.is_dependent(value.id):
                self.keep(value, tensor)

    def keep(self, value: TensorValue, tensor: torch.Tensor) -> None:
        """Keep a value's native bits, by reference as long as nothing writes to them."""
        # Detached: a differentiable replay must not reach the program's own parameters.
        value.stored = tensor.detach()
        self._stored.setdefault(value.storage, set()).add(value.id)

    def keep_output(self, tensor: torch.Tensor) -> int:
        """Keep what an output needs and give its number."""
        number = self.id_of(tensor)
        self.keep_constants([tensor])
        return number

    def restore(self) -> None:
        """Give captured tensors and inputs back the values they had before the recording."""
        for memory in self._saved:
            self._settle_stored(self._by_id[memory])
        with torch.no_grad():
            for tensor, before in self._saved.values():
                _whole(tensor).copy_(before)


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds every element of its memory, each once."""
    sizes = sorted((stride, n) for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    dense = all(stride == math.prod(n for _, n in sizes[:k]) for k, (stride, _) in enumerate(sizes))
    return dense and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.stride(), a.storage_offset()) == (b.shape, b.stride(), b.storage_offset())


def _lies_as(value: TensorValue, tensor: torch.Tensor) -> bool:
    return (value.shape, value.strides, value.offset) == (tensor.shape, tensor.stride(), tensor.storage_offset())


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """View a tensor's whole storage as one dimension."""
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage())


def refuse_odd(tensor: torch.Tensor) -> None:
    """Refuse tensors that are not plain strided memory.

    Raises
    ------
    CannotLift
    """
    kind = type(tensor)
    if tensor.layout is not torch.strided:
        raise CannotLift(f"A tensor of layout {tensor.layout} cannot be lifted; make it dense first.")
    if kind.__torch_dispatch__ != _PLAIN:
        raise CannotLift(f"A tensor of class {kind.__name__} has rules of its own; only plain tensors can be lifted.")
    if tensor.is_nested or tensor.device.type == "meta":
        raise CannotLift("Nested tensors and tensors without values cannot be lifted.")
