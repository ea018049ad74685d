"""torch.export: exported programs, from memory or from .pt2 files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind

from driftscope.errors import InputError
from driftscope.programs import pytrees as pytree
from driftscope.programs.arrays import dtype_name
from driftscope.programs.feeding.binding import bind_slots, ready
from driftscope.programs.feeding.feeds import Inputs
from driftscope.programs.inspection.graph_modes import modes_of_export
from driftscope.programs.protocol import Bound, Program, Slot, TorchSource
from driftscope.programs.torch_run import FlushingProgram, can_flush, fresh, run_torch
from driftscope.records.finding import Finding, Where

if TYPE_CHECKING:
    from torch.fx import Node

# Calls that hand integers on unchanged, as far as an index range is concerned.
_CARRIERS = (
    "aten.view",
    "aten.reshape",
    "aten.unsqueeze",
    "aten.squeeze",
    "aten._to_copy",
    "aten.expand",
    "aten.clone",
)


class ExportedTorchProgram(Program):
    """An ``ExportedProgram``, run through its unflattened module."""

    kind = "exported"

    def __init__(self, exported: ExportedProgram, name: str = "", default_inputs: Inputs | None = None):
        super().__init__(name or "ExportedProgram", default_inputs)
        self.exported = exported
        self._module: torch.nn.Module | None = None
        self._slots = _slots(exported)

    @property
    def module(self) -> torch.nn.Module:
        """The runnable module, made on first use."""
        if self._module is None:
            self._module = self.exported.module()
        return self._module

    @property
    def runtime(self) -> str:
        return f"torch {torch.__version__} export"

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("strides", "alignment")

    def flushing_denormals(self) -> Program | None:
        return FlushingProgram(self) if can_flush() else None

    def slots(self) -> list[Slot]:
        return self._slots

    def bind(self, inputs: Any = None) -> Bound:
        """Fit inputs: a tree of the exported structure, the same leaves in order, or a mapping by name."""
        if isinstance(inputs, Bound) and inputs.program is self:
            return inputs
        made = ready(self, inputs)
        by_argument = self._as_tree(made)
        if by_argument is not None:
            return by_argument
        flat = bind_slots(self, made)
        # Non-tensor leaves were constants of the export; bind_slots has only the tensors.
        return self._from_leaves(flat)

    def _as_tree(self, inputs: Inputs) -> Bound | None:
        """Return a binding when the inputs have the very structure that was exported."""
        spec = self.exported.call_spec.in_spec
        names = self.argument_names()
        kwargs = {n: inputs.kwargs[n] for n in names if n in inputs.kwargs}
        if inputs.by_name and len(kwargs) == len(inputs.kwargs) == len(names):
            positional = len(pytree.children_of(pytree.children_of(spec)[0]))
            args = tuple(kwargs[n] for n in names[:positional])
            kwargs = {n: kwargs[n] for n in names[positional:]}
        else:
            args, kwargs = inputs.args, inputs.kwargs
        leaves, given = pytree.tree_flatten((args, kwargs))
        if given != spec:
            return None
        feeds = dict(zip(self._leaf_names(), leaves, strict=True))
        tops = [*args, *kwargs.values()]
        arguments = dict(zip(names, tops, strict=False)) if len(names) == len(tops) else feeds
        self._fit(feeds)
        return Bound(self, args, kwargs, arguments, feeds, (), inputs)

    def _from_leaves(self, flat: Bound) -> Bound:
        leaves = [flat.feeds.get(name, constant) for name, constant in self._leaves()]
        spec = self.exported.call_spec.in_spec
        if spec is None or spec.num_leaves != len(leaves):
            raise InputError(
                f"{self.name} was exported with a structure of inputs that cannot be rebuilt; give that structure"
            )
        args, kwargs = pytree.tree_unflatten(leaves, spec)
        return Bound(self, tuple(args), dict(kwargs), flat.arguments, flat.feeds, flat.notes, flat.inputs)

    def _fit(self, feeds: dict[str, Any]) -> None:
        from driftscope.programs.feeding.binding import fit

        for slot in self._slots:
            fit(self, slot, feeds[slot.name])

    def argument_names(self) -> list[str]:
        """Names of the top-level arguments, in order, as far as the export kept them."""
        names = self.exported.module_call_graph[0].signature
        found = list(getattr(names, "forward_arg_names", None) or [])
        return found or self._leaf_names()

    def _leaves(self) -> list[tuple[str, Any]]:
        """Name of each input leaf, and its value when it was a constant of the export."""
        found = []
        for spec in self.exported.graph_signature.input_specs:
            if spec.kind is InputKind.USER_INPUT:
                constant = spec.arg.value if isinstance(spec.arg, ConstantArgument) else None
                found.append((spec.arg.name, constant))
        return found

    def _leaf_names(self) -> list[str]:
        return [name for name, _ in self._leaves()]

    def index_ranges(self, inputs: Inputs) -> dict[str, int]:
        rows: dict[str, int] = {}
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                for count in _tables(node):
                    rows[node.name] = min(count, rows.get(node.name, count))
        return rows

    def __call__(self, inputs: Any = None) -> Any:
        return run_torch(self.module, self.bind(inputs), runtime="torch.export")

    def check(self, inputs: Any = None) -> list[Finding]:
        nodes = {node.name: node for node in self.exported.graph.nodes if node.op == "placeholder"}
        return modes_of_export(self.exported, self.name) + [
            Finding(
                "O002",
                f"input {slot.name!r} of {self.name} is used by nothing: no output depends on it",
                why="what used it was constant or dead code when the program was exported",
                fix="export with an example in which this input matters, or leave it out",
                where=Where(output=f"in[{slot.name!r}]"),
            )
            for slot in self._slots
            if slot.name in nodes and not nodes[slot.name].users
        ]

    def describe(self) -> dict[str, Any]:
        return super().describe() | {
            "torch": torch.__version__,
            "nodes": sum(node.op == "call_function" for node in self.exported.graph.nodes),
            "dialect": self.exported.dialect,
            "inputs": [str(slot) for slot in self._slots],
        }

    def lift_source(self, inputs: Any = None) -> TorchSource:
        args, kwargs = fresh(self.bind(inputs))
        return TorchSource(self.module, args, kwargs, self.module, self.exported)


def _slots(exported: ExportedProgram) -> list[Slot]:
    """Return the tensor inputs of an exported program, in order."""
    nodes = {node.name: node for node in exported.graph.nodes if node.op == "placeholder"}
    slots = []
    for spec in exported.graph_signature.input_specs:
        value = (
            nodes[spec.arg.name].meta.get("val")
            if spec.kind is InputKind.USER_INPUT and spec.arg.name in nodes
            else None
        )
        if isinstance(value, torch.Tensor):
            shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
            slots.append(Slot(spec.arg.name, dtype_name(value.dtype), shape))
    return slots


def _tables(node: Node) -> list[int]:
    """Rows of every stored table that this node's values are looked up in."""
    found = []
    for user in node.users:
        target = str(user.target)
        if target.startswith("aten.embedding") and user.args[1] is node:
            weight: Any = user.args[0]
            found.append(int(weight.meta["val"].shape[0]))
        elif target.startswith(_CARRIERS) and user.args[0] is node:
            found += _tables(user)
    return found
