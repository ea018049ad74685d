"""Replays a tape in float64.

Values are lifted where they are used and freed after their last use. Constants stay in their native formats until a
dependent entry needs them in float64; only small ones are kept lifted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.constant_cache import LiftedConstants, Rooms
from driftscope.lift.counting import counted
from driftscope.lift.formulas.quantisation import undoing
from driftscope.lift.kept import KeptNode, Reuse, bare, equal
from driftscope.lift.steps import Kind, Observer, Rounding, Step
from driftscope.lift.torch.call import Call, StepInputs, TensorArgument, default_dtype, lift_native, split_arguments
from driftscope.lift.torch.entries import AtenCall, Ref, Tape, TensorValue, lifted_dtype, references
from driftscope.lift.torch.ops import rules
from driftscope.lift.torch.ops.quantised import left_out

# What quantised integers are stored as, and what sums of their products are.
_QUANTISED = (torch.int8, torch.uint8, torch.int32)
# What a part of a fused kernel would be called on its own.
_OPERATORS = {Kind.DOT: "aten.matmul", Kind.SOFTMAX: "aten._softmax"}


class Replay:
    """One float64 run of a tape.

    Parameters
    ----------
    tape : Tape
    observe : Observer or None
    replacements : mapping of int to torch.Tensor
        Lifted values to use instead of stored constants.
    literals : mapping of (entry index, argument name) to torch.Tensor
        0-dim values to use instead of numbers in calls.
    active : set of int
        Constant entries to evaluate all the same, because something they use was replaced.
    cache : LiftedConstants
    reuse : Reuse or None
        What another run of this tape gave, or where this one is kept.
    """

    def __init__(
        self, tape: Tape, observe: Observer | None, replacements: Mapping[int, torch.Tensor],
        literals: Mapping[tuple[int, str], torch.Tensor], active: set[int], cache: LiftedConstants,
        reuse: Reuse | None = None,
    ):  # fmt: skip
        self.tape = tape
        # Values that are written into do not stay what they were.
        self._reuse = None if tape.written or tape.snapshots else reuse
        self.observe = observe
        self.literals = literals
        self.active = active
        self.values: dict[int, torch.Tensor] = {}
        self._natives: dict[int, torch.Tensor] = {}  # of constants that are evaluated in float64
        self.replacements = replacements
        self.native_default = torch.get_default_dtype()
        self._cache = cache
        self.rooms = Rooms()
        self._steps = 0
        self._literal_entries = {index for index, _ in literals}

    def run(self, wanted: set[int], last_uses: Mapping[int, Sequence[int]]) -> None:
        """Evaluate every entry; afterwards :meth:`result` gives the values in `wanted`."""
        for number in self.tape.inputs:
            self.values[number] = self._input(self.tape.values[number])
        self.values.update(self.replacements)
        with default_dtype(torch.float64):
            for entry in counted(self.tape.entries):
                if not entry.constant or entry.index in self.active:
                    self._evaluate(entry)
                for number in last_uses.get(entry.index, ()):
                    if number not in wanted:
                        self.values.pop(number, None)

    def run_constants(self, entries: Sequence[AtenCall]) -> dict[int, torch.Tensor]:
        """Evaluate constant entries in float64 and give their real results; what cannot be evaluated is left out.

        What they choose (a whole number, a sign, a place) is what they natively choose of their native values: integers
        that the program made of the same choice are constants that stay as they are.
        """
        found: dict[int, torch.Tensor] = {}
        chooses = any(rules.decides(entry.facts.name, entry.function.namespace) for entry in entries)
        self.values.update(self.replacements)
        with default_dtype(torch.float64):
            for entry in entries:
                known = all(n in self.values or self.tape.values[n].stored is not None for n in _used(entry))
                outputs = [o for o in entry.outputs if o is not None and o not in self.replacements]
                if not known or entry.writes:
                    continue
                if chooses:
                    self._keep_natives(entry)
                try:
                    self._evaluate(entry)
                except CannotLift:
                    for number in outputs:
                        self.values.pop(number, None)
                    continue
                found.update((o, self.values[o]) for o in outputs if _is_real(self.values.get(o)))
        return found

    def _keep_natives(self, entry: AtenCall) -> None:
        """Keep what a constant entry natively gives, for those that choose by it."""
        stored = {o: self.tape.values[o].stored for o in entry.outputs if o is not None}
        if any(v is None for v in stored.values()) and not entry.facts.random:
            formats = [None if o is None else self.tape.values[o].format for o in entry.outputs]
            with contextlib.suppress(RuntimeError, TypeError, LookupError, ValueError, CannotLift):
                results = Call(entry.function, *self._resolve(entry), formats, self, entry).natively()
                made = zip(entry.outputs, results, strict=False)
                stored.update((o, v) for o, v in made if o is not None and stored[o] is None)
        self._natives.update((o, v) for o, v in stored.items() if v is not None)

    def result(self, number: int) -> torch.Tensor:
        """Give a value after the run."""
        return self.operand(number).lifted()

    def literal(self, entry: AtenCall, name: str, default: Any) -> Any:
        """Give a number of a call, or what replaces it."""
        if entry.index in self._literal_entries:
            return self.literals.get((entry.index, name), default)
        return default

    # -- one entry -----------------------------------------------------------------------------------------------

    def _evaluate(self, entry: AtenCall) -> None:
        if entry.index in self.tape.snapshots:
            self._materialise(entry)
            return
        formats = [None if o is None else self.tape.values[o].format for o in entry.outputs]
        before = None if self._reuse is None else self._reuse.begin(entry)
        args, kwargs = self._resolve(entry)
        call = Call(entry.function, args, kwargs, formats, self, entry)
        fed = () if self._reuse is None else self._fed(entry)
        again = before is not None and self._reuse is not None and self._reuse.same(before, fed)
        if before is not None and again:
            made, rounding = list(before.made), before.rounding
            for step in before.inner:
                self._ask(step)
        else:
            made, rounding = self._computed(entry, call, formats)
        inner = before.inner if before is not None and again else tuple(self._reuse.inner) if self._reuse else ()
        shown = self.show(entry, call, entry.name, made, formats, rounding)
        if before is None or not again or before.replaced or shown is not made:
            self._settle(entry, shown)
        self._settle_as_before(entry, before)
        if self._reuse is not None:
            after = [None if o is None else self.values.get(o) for o in entry.outputs]
            kept = KeptNode(fed, made, bare(rounding), inner, after, shown is not made)
            self._reuse.keep(entry, kept, [*made, *after])

    def _computed(
        self, entry: AtenCall, call: Call, formats: list[torch.dtype | None]
    ) -> tuple[list[torch.Tensor | None], Rounding]:
        try:
            outputs, rounding = left_out(call) or rules.evaluate(call)
            rounding = rounding if self.tape.rounds is None else self.tape.rounds(call, rounding)
        except (RuntimeError, TypeError, LookupError, ValueError, AssertionError, ArithmeticError) as error:
            words = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise CannotLift(f"{entry.where} cannot be evaluated in float64: {words}") from error
        self._check(entry, outputs, formats)
        return outputs[: len(formats)], rounding

    def _fed(self, entry: AtenCall) -> tuple[Any, ...]:
        """What the result of an entry depends on: values on the way, and what replaces constants."""
        numbers = [v for (index, _), v in self.literals.items() if index == entry.index] if self.literals else ()
        named = [self.replacements.get(o) for o in entry.outputs if o is not None] if self.replacements else ()
        edited = self.values.get(self.tape.edited.get(entry.index, -1))
        return (*(self.values.get(n) for n in _used(entry)), edited, *numbers, *named)

    def _settle_as_before(self, entry: AtenCall, before: KeptNode | None) -> None:
        """Put the objects of another run in the place of results that are the same."""
        for number, old in zip(entry.outputs, () if before is None else before.after, strict=False):
            if number is not None and old is not None and equal(self.values.get(number, old), old):
                self.values[number] = old

    def _resolve(self, entry: AtenCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = tuple(self._template(a) for a in entry.args)
        kwargs = {k: self._template(v) for k, v in entry.kwargs.items()}
        if entry.index in self._literal_entries:
            given = list(args)
            for (index, name), value in self.literals.items():
                position = entry.facts.positions.get(name)
                if index != entry.index:
                    continue
                if position is not None and position < len(given):
                    given[position] = _in_place_of(given[position], value)
                elif name in entry.facts.types:
                    kwargs[name] = _in_place_of(kwargs.get(name), value)
            args = tuple(given)
        return args, kwargs

    def _template(self, tree: Any) -> Any:
        if isinstance(tree, Ref):
            return self.operand(tree.value)
        if isinstance(tree, (list, tuple)):
            return [self._template(t) for t in tree]
        return tree

    def operand(self, number: int) -> TensorArgument:
        """Give a value as an argument of a call.

        Raises
        ------
        CannotLift
            If the tape did not keep it.
        """
        value = self.tape.values[number]
        lifted = self.values.get(number)
        if lifted is not None:
            return TensorArgument(value.name, value.format, self._natives.get(number), lifted)
        if value.stored is None:
            raise CannotLift(f"The value {value.name} was not kept; the program cannot be replayed.")
        held, widens = self._cache.get(number), lifted_dtype(value.format) != value.format
        if held is None and widens and self._cache.takes(number, value.stored.numel()):
            self._cache.hold(number, held := lift_native(value.stored))
        return TensorArgument(value.name, value.format, value.stored, held, self._lift)

    def _lift(self, stored: torch.Tensor) -> torch.Tensor:
        room = self.rooms.up_cast(stored, lifted_dtype(stored.dtype))
        return lift_native(stored) if room is None else room

    def show(
        self, entry: AtenCall, call: Call, name: str, outputs: list[torch.Tensor | None],
        formats: list[torch.dtype | None], rounding: Rounding,
    ) -> list[torch.Tensor | None]:  # fmt: skip
        """Let the observer see a step; give what it makes of the outputs."""
        index, self._steps = self._steps, self._steps + 1
        if self.observe is None or (outputs and outputs[0] is not None and outputs[0].is_meta):
            return outputs  # forward derivatives make tensors for their shapes alone
        operands, attributes = split_arguments(call)
        inner = name != entry.name
        names = [name if i == 0 else f"{name}.{i}" for i in range(len(outputs))] if inner else self._names(entry)
        step = Step(
            index, name, f"{call.function.namespace}.{call.facts.name}", entry.where,
            ["" if o is None else o.name for o in operands], names, StepInputs(operands), outputs, formats,
            rounding, attributes, entry.constant, held=[o is not None and o.stored is not None for o in operands],
            device=self.tape.device_of(entry),
        )  # fmt: skip
        if inner and self._reuse is not None:
            self._reuse.saw(step, StepInputs(operands).anew())
        replaced = self.observe(step)
        return outputs if replaced is None else list(replaced)

    def evaluate(self, call: Call, name: str) -> torch.Tensor:
        """Evaluate an inner step of a fused kernel by its own rule and show it to the observer."""
        results, rounding = rules.evaluate(call)
        shown = self.show(call.entry, call, name, results[:1], call.formats, rounding)[0]
        if shown is None:
            raise CannotLift(f"{name} has no result in float64.")
        return shown

    def show_inner(
        self, entry: AtenCall, part: str, output: torch.Tensor, format: torch.dtype | None, rounding: Rounding,
        inputs: Sequence[torch.Tensor | None],
    ) -> torch.Tensor:  # fmt: skip
        """Let the observer see a step of a formula inside a fused kernel."""
        index, self._steps = self._steps, self._steps + 1
        if self.observe is None:
            return output
        name = f"{entry.name}.{part}"
        step = Step(
            index, name, _OPERATORS.get(rounding.kind, f"aten.{part}"), entry.where, [""] * len(inputs), [name], inputs,
            [output], [format], rounding, {}, device=self.tape.device_of(entry),
        )  # fmt: skip
        if self._reuse is not None:
            self._reuse.saw(step, [None] * len(inputs))
        replaced = self.observe(step)
        shown = output if replaced is None else replaced[0]
        return output if shown is None else shown

    def _ask(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        return None if self.observe is None else self.observe(step)

    def _names(self, entry: AtenCall) -> list[str]:
        return ["" if o is None else self.tape.values[o].name for o in entry.outputs]

    def _check(self, entry: AtenCall, outputs: list[torch.Tensor | None], formats: list[torch.dtype | None]) -> None:
        """Hold rules to what they promise: float64 where the native value is a float, the native shape."""
        if len(outputs) < len(formats):
            raise CannotLift(f"{entry.where} gave {len(outputs)} results in float64 instead of {len(formats)}.")
        for tensor, number, native in zip(outputs, entry.outputs, formats, strict=False):
            if tensor is None or number is None or native is None:
                continue
            value = self.tape.values[number]
            if tensor.dtype != lifted_dtype(native) and lifted_dtype(native).is_floating_point:
                raise CannotLift(f"{entry.where} has no float64 evaluation: its result is {tensor.dtype}.")
            if tuple(tensor.shape) != value.shape:
                raise CannotLift(
                    f"{entry.where} depends on values in its shape: {tuple(tensor.shape)} in float64, "
                    f"natively {value.shape}."
                )

    def _settle(self, entry: AtenCall, outputs: list[torch.Tensor | None]) -> None:
        for position, number in enumerate(entry.outputs):
            tensor = outputs[position]
            if number is None or tensor is None:
                continue
            if number in self.replacements and position not in entry.writes:
                continue  # the entry runs for another of its results
            value = self.tape.values[number]
            if tensor.dtype != lifted_dtype(value.format) and not _unrounded(tensor, value):
                tensor = tensor.to(lifted_dtype(value.format))
            if position in entry.writes:
                self.values[number].copy_(tensor)
            else:
                self.values[number] = self._lay_out(entry, value, tensor)

    def _lay_out(self, entry: AtenCall, value: TensorValue, tensor: torch.Tensor) -> torch.Tensor:
        """Give a result the native strides, and memory of its own where a write could otherwise be seen."""
        if tuple(tensor.shape) != value.shape:  # another program's value in the place of this one's
            raise CannotLift(f"{entry.where} has shape {value.shape}, and was given {tuple(tensor.shape)}.")
        if not _same_layout(tensor, value):
            if entry.facts.view and value.storage in self.tape.written:
                raise CannotLift(f"{entry.where} views memory that is written, in a layout that float64 does not have.")
            laid = torch.empty_strided(value.shape, value.strides, dtype=tensor.dtype, device=tensor.device)
            return laid.copy_(tensor)
        if self.tape.written and not entry.facts.view and self._borrowed(value, tensor):
            return tensor.clone()
        return tensor

    def _borrowed(self, value: TensorValue, tensor: torch.Tensor) -> bool:
        memory = tensor.untyped_storage()._cdata
        return any(
            other.untyped_storage()._cdata == memory and self.tape.values[number].storage != value.storage
            for number, other in self.values.items()
        )

    def _input(self, value: TensorValue) -> torch.Tensor:
        """The lifted input, the object of another run where there is one."""
        own = self._own(value, value.stored)
        before = None if self._reuse is None else self._reuse.begin(value)
        if before is not None and equal(own, before.after[0]):
            own = before.after[0]
        if self._reuse is not None:
            self._reuse.keep(value, KeptNode((), (), Rounding(), (), (own,)), [own])
        return own

    def _own(self, value: TensorValue, stored: torch.Tensor | None) -> torch.Tensor:
        if stored is None:
            raise CannotLift(f"The input {value.name} has no value.")
        tensor = lift_native(stored)
        return tensor.clone() if value.storage in self.tape.written and tensor is stored else tensor

    def _materialise(self, entry: AtenCall) -> None:
        whole, offsets = self.tape.snapshots[entry.index]
        root = lift_native(whole)
        root = root.clone() if root is whole else root
        for ref, offset in zip(entry.args, offsets, strict=True):
            if ref.value in self.values:
                value = self.tape.values[ref.value]
                root.as_strided(value.shape, value.strides, offset).copy_(self.values[ref.value])
        for number, offset in zip(entry.outputs, offsets, strict=True):
            if number is not None:
                value = self.tape.values[number]
                self.values[number] = root.as_strided(value.shape, value.strides, offset)


def _used(entry: AtenCall) -> list[int]:
    return references(entry.args, entry.kwargs)


def _is_real(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not tensor.is_meta and (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _unrounded(tensor: torch.Tensor, value: TensorValue) -> bool:
    """Whether a float stands where a program keeps a quantised integer, or a sum of products of such integers."""
    return tensor.is_floating_point() and value.format in _QUANTISED and undoing() is not None


def _same_layout(tensor: torch.Tensor, value: TensorValue) -> bool:
    strides = tensor.stride()
    if strides == value.strides or tensor.numel() == 0 or tensor.is_quantized:
        return True
    pairs = [(n, a, b) for n, a, b in zip(value.shape, strides, value.strides, strict=True) if n > 1]
    # Overlapping memory cannot be written into; only views have it and those keep it by themselves.
    return all(a == b for _, a, b in pairs) or any(b == 0 for _, _, b in pairs)


def _in_place_of(given: Any, value: torch.Tensor) -> Any:
    """What a rule is given where another value takes the place of an argument: a tensor where it was one."""
    if not isinstance(given, TensorArgument):
        return value
    return TensorArgument(given.name, given.format, None, lift_native(value))
