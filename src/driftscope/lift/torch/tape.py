"""Any torch program in float64, at the cost of one native run and one float64 run.

The program runs once, natively, under a recorder; the tape is then evaluated in float64 as often as is asked.
An exported program is walked node by node, so that its tape has the graph's names and source lines; a module or
function is simply called, and its tape has module paths and the lines that the frames show.

What a recording leaves behind: nothing. Buffers, parameters and inputs that the program writes to get their values
back, module attributes that it rebinds are bound as before, and the random generators continue where they stood.
Python containers that a program keeps and changes in place stay changed. The tape refers to the weights and inputs;
whoever changes them in place changes what later runs see.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from driftscope.errors import CannotLift, DriftscopeError
from driftscope.lift.constant_cache import LiftedConstants
from driftscope.lift.kept import reuse
from driftscope.lift.steps import Constant, LiftedOutput, Observer, Step
from driftscope.lift.torch.bits import edited_floats
from driftscope.lift.torch.constants import Constants
from driftscope.lift.torch.entries import AtenCall, CallPlace, Tape, references
from driftscope.lift.torch.exported import GraphWalk, graph_arguments
from driftscope.lift.torch.ops.quantised import dequantised_exactly
from driftscope.lift.torch.ops.tables import hidden_tables
from driftscope.lift.torch.origin import changed, doubtful, moved
from driftscope.lift.torch.places import Places
from driftscope.lift.torch.record import Recorder
from driftscope.lift.torch.replay import Replay
from driftscope.lift.torch.state import compilation_off, escapes_refused, generators_kept
from driftscope.programs.pytrees import tree_unflatten
from driftscope.programs.state.effects import contained
from driftscope.programs.state.module_tree import members_of, modules_in
from driftscope.programs.state.threads import own_threads
from driftscope.programs.value_trees import Spec, flatten, unflatten
from driftscope.records.paths import Path


class TorchTape:
    """A recorded torch program: implements :class:`driftscope.lift.steps.Lifted`.

    Parameters
    ----------
    tape : Tape
    outputs : list of (Path, int or None)
        Path and value number of each output leaf; None for leaves that are no tensors.
    """

    kind = "torch"

    def __init__(self, tape: Tape, outputs: list[tuple[Path, int | None]]):
        tape.edited = edited_floats(tape)
        self.tape = tape
        self._outputs = outputs
        self._constants = Constants(tape)
        self._cache = LiftedConstants(sum(v.stored.numel() for v in tape.values if v.stored is not None))
        self._last_uses = _last_uses(tape)

    @property
    def largest(self) -> int:
        """Elements of its largest value."""
        return max((math.prod(value.shape) for value in self.tape.values), default=0)

    def constants(self) -> Sequence[Constant]:
        """Every constant: stored, literal, hidden in a fused kernel, natively computed."""
        return self._constants.listed

    def run(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> list[LiftedOutput]:
        """Evaluate once in float64.

        The tensors that an observer sees are the run's own: a program that writes in place may change them after
        the observer returns.

        Parameters
        ----------
        observe : Observer or None
        replace : mapping of constant name to torch.Tensor or None
            Constants that need gradients make the result differentiable in them.

        Raises
        ------
        CannotLift
            Naming the operator that has no float64 evaluation, or a constant that does not exist.
        """
        replacements, literals, active = self._constants.resolve(replace or {})
        differentiable = any(t.requires_grad for t in (replace or {}).values())
        how = None if differentiable else reuse()
        replay = Replay(self.tape, observe, replacements, literals, active, self._cache, how)
        wanted = {number for _, number in self._outputs if number is not None}
        with torch.enable_grad() if differentiable else torch.no_grad():
            replay.run(wanted, self._last_uses)
            found = [self._output(replay, path, number) for path, number in self._outputs]
        replay.rooms.clear()
        return found

    def constant_values(
        self, *, observe: Observer | None = None, replace: Mapping[str, torch.Tensor] | None = None
    ) -> dict[str, torch.Tensor]:
        """Evaluate the constant subgraphs alone, in float64 (see :meth:`~driftscope.lift.steps.Lifted`)."""
        replacements, literals = self._constants.named(replace or {})
        seen = None if observe is None else _as_dependent(observe)
        replay = Replay(self.tape, seen, replacements, literals, set(), LiftedConstants())
        with torch.no_grad():
            found = replay.run_constants(self._constants.subgraphs())
            hidden = hidden_tables(self.tape, seen)
        return {**{self.tape.values[number].name: value for number, value in found.items()}, **hidden}

    def with_attribute(self, step: str, name: str, value: object) -> TorchTape:
        """Give the tape with another literal argument of one call (see :class:`driftscope.lift.steps.Lifted`)."""
        index, entry = self._entry(step)
        args, kwargs = list(entry.args), dict(entry.kwargs)
        position = entry.facts.positions.get(name)
        if position is not None and position < len(args):
            args[position] = value
        elif name in entry.facts.types:
            kwargs[name] = value
        else:
            raise CannotLift(f"{step!r} has no argument {name!r}")
        return self._edited(index, tuple(args), kwargs)

    def with_inputs(self, step: str, order: Sequence[int]) -> TorchTape:
        """Give the tape with the tensors of one call in another order (see :class:`driftscope.lift.steps.Lifted`)."""
        index, entry = self._entry(step)
        joined = bool(entry.args) and isinstance(entry.args[0], (list, tuple))
        given = list(entry.args[0] if joined else entry.args)
        if len(given) < len(order):
            raise CannotLift(f"{step!r} has no {len(order)} tensors that could be exchanged")
        given[: len(order)] = [given[k] for k in order]
        args = (given, *entry.args[1:]) if joined else tuple(given)
        return self._edited(index, args, dict(entry.kwargs))

    def with_operator(self, step: str, operator: str) -> TorchTape:
        """Refused: what could stand for a call of torch takes other arguments."""
        raise CannotLift(f"{operator} is not tried in {step!r}")

    def with_values(self, change: Callable[[torch.Tensor], torch.Tensor]) -> TorchTape:
        """Give the tape on other inputs (see :class:`driftscope.lift.steps.Lifted`)."""
        values = list(self.tape.values)
        for value in (values[number] for number in self.tape.inputs):
            if value.stored is not None:
                values[value.id] = dataclasses.replace(value, stored=change(value.stored))
        moved = copy.copy(self)  # of the same constants
        moved.tape = dataclasses.replace(self.tape, values=values)
        return moved

    def _entry(self, step: str) -> tuple[int, AtenCall]:
        found = next(((k, e) for k, e in enumerate(self.tape.entries) if e.name == step and not e.constant), None)
        if found is None:
            raise CannotLift(f"the tape has no step {step!r} that could be changed")
        return found

    def _edited(self, index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TorchTape:
        edited = dataclasses.replace(self.tape.entries[index], args=args, kwargs=kwargs)
        entries = [*self.tape.entries[:index], edited, *self.tape.entries[index + 1 :]]
        return TorchTape(dataclasses.replace(self.tape, entries=entries), self._outputs)

    def _output(self, replay: Replay, path: Path, number: int | None) -> LiftedOutput:
        if number is None:
            return LiftedOutput(path, "", None, None)
        value = self.tape.values[number]
        result, native = replay.result(number), value.format
        if result is not None and result.is_quantized:  # what it stands for, as its program's own result is taken
            result, native = dequantised_exactly(result), torch.float32
        return LiftedOutput(path, value.name, result, native)


def _as_dependent(observe: Observer) -> Observer:
    """Let an observer see constant steps as those that depend on the inputs: here they are evaluated in float64."""

    def see(step: Step) -> Sequence[torch.Tensor | None] | None:
        step.constant = False
        return observe(step)

    return see


def lift_torch(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    module: torch.nn.Module | None = None,
    exported: torch.export.ExportedProgram | None = None,
    names: Callable[[torch.Tensor], str | None] | None = None,
    operation: Callable[[], str] = str,
    place: Callable[[], CallPlace] | None = None,
) -> TorchTape:
    """Record a torch program on given inputs, ready to be evaluated in float64.

    Parameters
    ----------
    function : callable
        What is called; not called where `exported` is given.
    args, kwargs
        Inputs: any trees. Tensors in them are what the result may depend on.
    module : torch.nn.Module or None
        Names parameters, buffers and places. A module that `function` calls is found by itself.
    exported : torch.export.ExportedProgram or None
        Walked node by node instead of calling `function`.
    names : callable or None
        Gives the name of a captured tensor that is no module's.
    operation : callable
        What the call in progress is named in the user's own words; empty for torch's name.
    place : callable or None
        Gives the place of the call in progress, where Python's own frames do not tell it.

    Raises
    ------
    CannotLift
        If the program leaves torch, uses tensors with rules of their own, or an unknown higher-order operator.
    """
    leaves, spec = flatten((args, dict(kwargs)), "in")
    program = _Program(function, module, exported, names, operation, place)
    recorded = program.record(leaves, spec)
    doubted = doubtful(recorded.tape, function) if exported is None else []
    if doubted:
        integers = not any(isinstance(v, torch.Tensor) and v.is_floating_point() for _, v in leaves)
        other = program.record([(path, moved(value, integers)) for path, value in leaves], spec)
        lost = changed(recorded.tape, doubted, other.tape)
        if lost is not None:
            raise CannotLift(
                f"A tensor of shape {lost.shape} depends on the inputs, but what computes it does not go through "
                "torch's dispatcher; register it as a torch operator, or compare by results alone."
            )
    return recorded


@dataclass(frozen=True, slots=True)
class _Program:
    """What is recorded: a callable with its module, or an exported program."""

    function: Callable[..., Any]
    module: torch.nn.Module | None
    exported: torch.export.ExportedProgram | None
    names: Callable[[torch.Tensor], str | None] | None
    operation: Callable[[], str]
    place: Callable[[], CallPlace] | None

    def record(self, leaves: list[tuple[Path, Any]], spec: Spec) -> TorchTape:
        """Run once on fresh containers and return the tape."""
        try:
            return self._record(leaves, spec, gradients=False)
        except _NeedsGradients:
            # Only a program that calls backward itself needs gradients; without them, fused kernels are taken.
            return self._record(leaves, spec, gradients=True)

    def _record(self, leaves: list[tuple[Path, Any]], spec: Spec, gradients: bool) -> TorchTape:
        fresh = [_fresh(value) for _, value in leaves]
        inputs = [(str(p), v) for (p, _), v in zip(leaves, fresh, strict=True) if isinstance(v, torch.Tensor)]
        args, kwargs = unflatten(fresh, spec)
        with torch.set_grad_enabled(gradients):
            if self.exported is not None:
                return _record_exported(self.exported, args, kwargs, inputs)
            return self._record_call(args, kwargs, inputs)

    def _record_call(self, args: Any, kwargs: Any, inputs: list[tuple[str, torch.Tensor]]) -> TorchTape:
        places = Places(self.module, self.operation)
        names = self.names or _Names(places)
        recorder = Recorder(names, self.place or (lambda: places.here(_call_natively.__code__)))
        with places.following(), contained(self.function if self.module is None else self.module):
            return _record(recorder, inputs, lambda: _call_natively(self.function, args, kwargs))


class _NeedsGradients(CannotLift):
    """The program asks for derivatives while it runs."""


def _fresh(value: Any) -> Any:
    """Give an input as a tensor object of its own, so that what happens to it does not reach the caller's."""
    return value.detach().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value


def _call_natively(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _record_exported(
    exported: torch.export.ExportedProgram, args: Any, kwargs: Any, inputs: list[tuple[str, torch.Tensor]]
) -> TorchTape:
    leaves = list(exported._get_flat_args_with_check(args, kwargs)[0])
    arguments, named, users = graph_arguments(exported, leaves)
    names = {tensor._cdata: name for name, tensor in named.items()}
    walk: GraphWalk
    recorder = Recorder(lambda t: names.get(t._cdata), lambda: walk.place(), provisional=True)
    walk = GraphWalk(recorder)

    def run() -> Any:
        results = walk.run(exported.graph_module, arguments)
        chosen = [results[i] for i in users]
        return tree_unflatten(chosen, exported.call_spec.out_spec)

    return _record(recorder, inputs, run)


def _record(recorder: Recorder, inputs: list[tuple[str, torch.Tensor]], run: Callable[[], Any]) -> TorchTape:
    ledger = recorder.ledger
    try:
        with own_threads(), generators_kept(), compilation_off(), escapes_refused(ledger.depends):
            for name, tensor in inputs:
                ledger.add_input(tensor, name)
            with recorder:
                tree = run()
            leaves = [
                (path, ledger.keep_output(value) if isinstance(value, torch.Tensor) else None)
                for path, value in flatten(tree)[0]
            ]
    except (CannotLift, DriftscopeError):
        raise
    except Exception as error:
        words = (str(error).strip().splitlines() or [""])[0]
        # torch raises a plain RuntimeError where a program calls backward: its words alone tell it.
        kind = _NeedsGradients if "require grad" in words else CannotLift
        raise kind(f"The program stopped while it was recorded: {type(error).__name__}: {words}") from error
    finally:
        ledger.restore()
    recorder.tape.to_processor()
    return TorchTape(recorder.tape, leaves)


class _Names:
    """Gives captured tensors the names that the modules seen so far give them."""

    def __init__(self, places: Places):
        self._places = places
        self._seen = 0
        self._names: dict[int, str] = {}

    def __call__(self, tensor: torch.Tensor) -> str | None:
        while self._seen < len(self._places.modules):
            module = self._places.modules[self._seen]
            self._seen += 1
            for name, held in _tensors_of(module):
                self._names.setdefault(held._cdata, name.replace("_orig_mod.", ""))
        return self._names.get(tensor._cdata)


def _tensors_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """List a module's tensors with qualified names: parameters, buffers, then plain attributes."""
    modules = modules_in(module)
    found = [pair for table in ("_parameters", "_buffers") for pair in members_of(modules, table)]
    for path, child in modules:
        for name, value in vars(child).items():
            if isinstance(value, torch.Tensor):
                found.append((f"{path}.{name}" if path else name, value))
    return found


def _read_again(tape: Tape, index: int) -> list[int]:
    """The float that an entry's integers were made of."""
    return [tape.edited[index]] if index in tape.edited else []


def _last_uses(tape: Tape) -> dict[int, list[int]]:
    """Tell after which entry each value is used no more."""
    last: dict[int, int] = {}
    for entry in tape.entries:
        for ref in (*references(entry.args, entry.kwargs), *_read_again(tape, entry.index)):
            last[ref] = entry.index
        for number in entry.outputs:
            if number is not None:
                last[number] = max(last.get(number, -1), entry.index)
    by_entry: dict[int, list[int]] = {}
    for number, index in last.items():
        by_entry.setdefault(index, []).append(number)
    return by_entry


__all__ = ["CannotLift", "TorchTape", "lift_torch"]
