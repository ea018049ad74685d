"""Every value inside one run of a program, in the order in which its operators returned them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.errors import CannotLift
from driftscope.explain.native.observation import observe
from driftscope.invariance.orders import SumCall, node_call, sum_call
from driftscope.invariance.running import Runner
from driftscope.invariance.trials.trial import RunVariant
from driftscope.invariance.wrapping import called_by
from driftscope.lift.torch.places import Places
from driftscope.programs.protocol import ArraySource, Bound, OnnxSource, Program, TorchSource
from driftscope.programs.pytrees import tree_leaves
from driftscope.programs.state.effects import contained
from driftscope.programs.value_trees import flatten
from driftscope.records.finding import Where

#: Bytes of intermediate values that one traced run may hold.
HELD = 1 << 29
#: Views that may put elements of several rows into one.
REGROUPING = frozenset(("aten::view", "aten::as_strided", "aten::_reshape_alias"))


@dataclass(frozen=True, slots=True)
class TracedOperator:
    """One operator of a traced run and the tensors it returned."""

    name: str
    operator: str
    where: Where
    outputs: tuple[torch.Tensor, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    call: SumCall | None = None
    pointwise: bool = False


def traced(runner: Runner, variant: RunVariant) -> list[TracedOperator]:
    """Run a variant once more and keep what every operator returned."""
    bound = runner.binding(variant.changed, variant.laid)
    if variant.calling is not None:
        program = called_by(runner.program, variant.calling)
        if program is None:
            raise CannotLift("it is not a function of torch")
        return _operators(program, program.bind(bound.inputs))
    if variant.setting is None:
        return _operators(bound.program, bound)
    with variant.setting(runner.program) as program, getattr(program, "mode", contextlib.nullcontext)():
        return _operators(program, program.bind(bound.inputs))


def _operators(program: Program, bound: Bound) -> list[TracedOperator]:
    source = program.lift_source(bound)
    if isinstance(source, OnnxSource):
        return list(_onnx_values(bound, source))
    if isinstance(source, ArraySource):
        raise CannotLift("the values inside a function on arrays are not kept")
    return _torch_values(source)


def _onnx_values(bound: Bound, source: OnnxSource) -> Iterator[TracedOperator]:
    """Read every value of the graph that the session runs; nothing where reading changes the result."""
    watched = observe(bound)
    values = {name: value for part in watched.values() for name, value in part.items()}
    if not watched.faithful:
        raise CannotLift("reading its values changes the result")
    # In the order of the graph: a session hands its outputs out before the values between.
    for node in watched.graph.graph.node:
        for name in node.output:
            value = values.get(name)
            if isinstance(value, torch.Tensor):
                where = Where(node=node.name or name, operator=node.op_type)
                known = {**watched.bound.feeds, **values}
                call = node_call(watched.graph, node, known)
                yield TracedOperator(name, node.op_type, where, (value,), (tuple(value.shape),), call)


def _torch_values(source: TorchSource) -> list[TracedOperator]:
    module = source.module
    places = Places(module)
    recorder = _Recorder(places)
    with contained(source.function if module is None else module), torch.no_grad():
        recorder.run(source)
    return recorder.seen


class _Recorder(TorchDispatchMode):
    """Keeps what every operator of torch returned, up to a number of bytes."""

    def __init__(self, places: Places):
        super().__init__()  # type: ignore[no-untyped-call]
        self.places, self.seen, self._room = places, list[TracedOperator](), HELD

    def run(self, source: TorchSource) -> Any:
        with self.places.following(), self:
            return flatten(source.function(*source.args, **source.kwargs))[0]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        outputs = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and x.layout is torch.strided]
        if not outputs or "empty" in func._schema.name or (func._schema.name not in REGROUPING and _moves(func)):
            return result  # views hold what is known already
        name = f"{func._schema.name.replace('::', '.')}"
        place = self.places.here(_Recorder.run.__code__)
        kept = tuple(self._copy(x) for x in outputs)
        where = Where(node=f"{name.rpartition('.')[2]}_{len(self.seen)}", operator=name, module=place.module or None,
                      file=place.file, line=place.line)  # fmt: skip
        shapes = tuple(tuple(x.shape) for x in outputs)
        call = sum_call(name, func._schema, args, kwargs or {})
        outputs = [x for x in kept if x is not None]
        single = torch.Tag.pointwise in func.tags
        self.seen.append(TracedOperator(str(where.node), name, where, tuple(outputs), shapes, call, single))
        return result

    def _copy(self, x: torch.Tensor) -> torch.Tensor | None:
        self._room -= x.numel() * x.element_size()
        if self._room < 0:
            return None
        with contextlib.suppress(RuntimeError):
            return x.detach().clone(memory_format=torch.contiguous_format)
        return None


def _moves(func: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
