"""Fit inputs to a program, by name or by order, and to two programs at once; misfits are one clear sentence."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.programs.arrays import dtype_name
from driftscope.programs.feeding.feeds import Inputs, make_inputs
from driftscope.programs.protocol import Bound, Program, Slot
from driftscope.programs.value_trees import flatten
from driftscope.records.finding import Finding, Where
from driftscope.records.paths import Attribute
from driftscope.records.words import counted


def ready(program: Program, inputs: Any) -> Inputs:
    """Return inputs with every tensor drawn: what was given, or what came with the program.

    Raises
    ------
    InputError
        If there are none.
    """
    if isinstance(inputs, Bound):
        inputs = inputs.inputs  # fitted to another program; fitted anew here
    if inputs is None:
        inputs = program.default_inputs or inputs_of_slots(program)
    made = make_inputs(inputs)
    return made.settle(limits(made, program)).realise()


def limits(inputs: Inputs, *programs: Program) -> dict[str, int]:
    """Rows of the tables that integers still to be drawn are looked up in: the smallest where programs differ."""
    if all(leaf.settled for _, leaf in inputs.wanted()):
        return {}
    found: dict[str, int] = {}
    for program in programs:
        for name, limit in program.index_ranges(inputs).items():
            found[name] = min(limit, found.get(name, limit))
    return found


def inputs_of_slots(program: Program, seed: int = 0) -> Inputs:
    """Make inputs from what a program declares, when all its shapes are fixed.

    Raises
    ------
    InputError
        Naming the first dimension that needs a value.
    """
    declared = program.slots()
    if declared is None:
        raise InputError(
            f"{program.name} does not say what its inputs look like; give inputs, for example x=4x64:float32"
        )
    specs: dict[str, Any] = {}
    for slot in declared:
        if slot.optional:
            continue
        free = slot.shape is None or any(not isinstance(size, int) for size in slot.shape)
        if free or slot.dtype is None or slot.kind != "tensor":
            raise InputError(
                f"{program.name} does not fix the shape of its input {slot};"
                f" give it, for example {slot.name}={_example(slot)}"
            )
        specs[slot.name] = f"{'x'.join(map(str, slot.shape or ())) or '()'}:{slot.dtype}"
    return make_inputs(specs, seed=seed)


def _example(slot: Slot) -> str:
    sizes = "4x64" if slot.shape is None else "x".join(str(s) if isinstance(s, int) else "4" for s in slot.shape)
    return f"{sizes}:{slot.dtype or 'float32'}"


# --- programs that are called ---------------------------------------------------------------------------------


def signature_of(function: Any) -> inspect.Signature:
    """Return a callable's signature; anything goes where it has none (built-in functions)."""
    try:
        return inspect.signature(function)
    except (ValueError, TypeError):
        return inspect.Signature(
            [_var("args", inspect.Parameter.VAR_POSITIONAL), _var("kwargs", inspect.Parameter.VAR_KEYWORD)]
        )


def _var(name: str, kind: Any) -> inspect.Parameter:
    return inspect.Parameter(name, kind)


def bind_call(program: Program, signature: inspect.Signature, inputs: Inputs) -> Bound:
    """Fit inputs to a program that is called with arguments.

    Raises
    ------
    InputError
        If names are missing or unknown, or if there are too many or too few.
    """
    args, kwargs = _by_position_where_needed(signature, inputs)
    try:
        fitted = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{program.name} takes ({_parameters(signature)}),"
            f" but was given {_given(inputs.args, inputs.kwargs)}: {error}"
        ) from error
    arguments: dict[str, Any] = {}
    for name, value in fitted.arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            arguments |= {str(i): item for i, item in enumerate(value, start=len(arguments))}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= value
        else:
            arguments[name] = value
    notes = _range_notes(inputs)
    return Bound(program, tuple(fitted.args), dict(fitted.kwargs), arguments, leaf_feeds(arguments), notes, inputs)


def _by_position_where_needed(signature: inspect.Signature, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move named inputs to their positions where a parameter takes no name."""
    if not inputs.by_name:
        return inputs.args, inputs.kwargs
    only = [p.name for p in signature.parameters.values() if p.kind is inspect.Parameter.POSITIONAL_ONLY]
    if not only or any(name not in inputs.kwargs for name in only):
        return inputs.args, inputs.kwargs
    return tuple(inputs.kwargs[n] for n in only), {n: v for n, v in inputs.kwargs.items() if n not in only}


def _parameters(signature: inspect.Signature) -> str:
    return ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in signature.parameters.values())


def leaf_feeds(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return every leaf of named trees under a dotted name: ``cache.layers.0.keys``."""
    return {".".join(_step(k) for k in path.keys): leaf for path, leaf in flatten(dict(arguments), "in")[0]}


def _step(key: str | int | Attribute) -> str:
    return key.name if isinstance(key, Attribute) else str(key)


# --- programs that declare slots ------------------------------------------------------------------------------


def bind_slots(program: Program, inputs: Inputs) -> Bound:
    """Fit inputs to a program that declares named, typed slots; a mapping by name, anything else by order.

    Raises
    ------
    InputError
        If names, count, dtype, rank or a fixed size do not fit.
    """
    slots = program.slots() or []
    if inputs.by_name:
        feeds = _slots_by_name(program, slots, inputs)
    else:
        given = [(str(path), leaf) for path, leaf in inputs.leaves if leaf is not None]
        feeds = _slots_by_order(program, slots, given)
    return Bound(program, (), {}, dict(feeds), feeds, _range_notes(inputs), inputs)


def _slots_by_name(program: Program, slots: Sequence[Slot], inputs: Inputs) -> dict[str, Any]:
    names = {slot.name for slot in slots}
    given = dict(inputs.kwargs)
    if not names.issuperset(given):
        given = {name: leaf for name, leaf in leaf_feeds(given).items() if leaf is not None}
    extra = [name for name in given if name not in names]
    missing = [slot.name for slot in slots if slot.name not in given and not slot.optional]
    if extra or missing:
        problem = (
            f"has no input {', '.join(map(repr, extra))}" if extra else f"needs {', '.join(map(repr, missing))} too"
        )
        raise InputError(f"{program.name} {problem}; it takes {_wants(slots)}, and was given {_given((), given)}")
    return {slot.name: fit(program, slot, given[slot.name]) for slot in slots if slot.name in given}


def _slots_by_order(program: Program, slots: Sequence[Slot], given: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    required = [slot for slot in slots if not slot.optional]
    if len(given) not in (len(required), len(slots)):
        tensors = [(name, leaf) for name, leaf in given if isinstance(leaf, torch.Tensor)]
        if len(tensors) not in (len(required), len(slots)):
            raise InputError(
                f"{program.name} takes {counted(len(required), 'input')}, {_wants(required)};"
                f" {len(given)} were given, {_given([leaf for _, leaf in given], {})}"
            )
        given = tensors
    chosen = slots if len(given) == len(slots) else required
    return {slot.name: fit(program, slot, leaf) for slot, (_, leaf) in zip(chosen, given, strict=True)}


def fit(program: Program, slot: Slot, value: Any) -> Any:
    """Return ``value`` if it fits ``slot``; Python numbers become tensors, nothing else is converted.

    Raises
    ------
    InputError
        Naming the dtype, rank or size that does not fit.
    """
    if slot.kind != "tensor":
        return value
    tensor = _number(slot, value)
    if not isinstance(tensor, torch.Tensor):
        if slot.dtype == "string":
            return tensor
        raise InputError(f"input {slot.name!r} of {program.name} is a tensor, {slot}; {words_for(value)} was given")
    _check_memory(program, slot, tensor)
    given = dtype_name(tensor.dtype)
    if slot.dtype is not None and given != slot.dtype:
        raise InputError(
            f"input {slot.name!r} of {program.name} is {slot.dtype}, but {given} was given;"
            f" convert it, for example with .to(torch.{slot.dtype})"
        )
    if slot.shape is None:
        return tensor
    if len(slot.shape) != tensor.dim():
        raise InputError(
            f"input {slot.name!r} of {program.name} has {counted(len(slot.shape), 'dimension')}, {slot},"
            f" but the shape {tuple(tensor.shape)} was given"
        )
    for axis, (wants, has) in enumerate(zip(slot.shape, tensor.shape, strict=True)):
        if isinstance(wants, int) and wants != has:
            raise InputError(
                f"input {slot.name!r} of {program.name} has the fixed size {wants} in dimension {axis}, {slot},"
                f" but the shape {tuple(tensor.shape)} was given"
            )
    return tensor


def _check_memory(program: Program, slot: Slot, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise InputError(
            f"input {slot.name!r} of {program.name} is dense, but a {layout} tensor was given; give x.to_dense()"
        )
    if tensor.device.type == "meta":
        raise InputError(f"input {slot.name!r} of {program.name} was given on the meta device, which holds no values")


def _number(slot: Slot, value: Any) -> Any:
    """Turn a Python number into a tensor of the slot's dtype, when it is a number of that kind."""
    if not isinstance(value, (bool, int, float)) or slot.dtype is None or not hasattr(torch, slot.dtype):
        return value
    dtype: torch.dtype = getattr(torch, slot.dtype)
    if isinstance(value, bool):
        fits = dtype is torch.bool
    elif isinstance(value, int):
        fits = dtype is not torch.bool
    else:
        fits = dtype.is_floating_point
    return torch.tensor(value, dtype=dtype) if fits else value


def _wants(slots: Sequence[Slot]) -> str:
    return ", ".join(map(str, slots)) or "no inputs"


def _given(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    parts = [words_for(value) for value in args] + [f"{name} {words_for(value)}" for name, value in kwargs.items()]
    return ", ".join(parts) or "nothing"


def words_for(value: Any) -> str:
    """Return a value's format and shape, ``float32[2, 3]``, or its class."""
    if isinstance(value, torch.Tensor):
        return f"{dtype_name(value.dtype)}{list(value.shape)}"
    return type(value).__name__


def _range_notes(inputs: Inputs) -> tuple[Finding, ...]:
    return tuple(
        Finding(
            "O010",
            f"integers of input {name!r} are drawn from 0 and 1: no table tells their range",
            fix=f"give the range: {name}=...:randint(low, high)",
            where=Where(output=f"in[{name!r}]"),
            note=True,
        )
        for name in inputs.guessed
    )
