"""Walks an exported program's graph so that each call knows its node, source line and module."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.fx import GraphModule, Node

from driftscope.lift.torch.control import control_flow
from driftscope.lift.torch.entries import CallPlace
from driftscope.lift.torch.places import is_internal
from driftscope.lift.torch.record import Recorder
from driftscope.records.user_code import innermost

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?:\s+(?P<code>[^\n]+))?')
_SKIPPED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
            "sym_constrain_range_for_size", "_guards_fn")  # fmt: skip


class GraphWalk:
    """Runs a graph node by node under a recorder.

    Parameters
    ----------
    recorder : Recorder
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._place = CallPlace()

    def place(self) -> CallPlace:
        """Give the place of the node in progress."""
        return self._place

    def run(self, graph: GraphModule, arguments: list[Any]) -> Any:
        """Run a graph on flat arguments and return what its output node returns."""
        values: dict[Node, Any] = {}
        remaining = iter(arguments)
        uses = {n: len(n.users) for n in graph.graph.nodes}
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = _attribute(graph, str(node.target))
            elif node.op == "output":
                return torch.fx.map_arg(node.args[0], lambda n: values[n])
            else:
                values[node] = self._call(graph, node, values)
            for used in node.all_input_nodes:
                uses[used] -= 1
                if uses[used] == 0:
                    del values[used]
        return None

    def _call(self, graph: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
        name = getattr(node.target, "__name__", str(node.target))
        if any(s in name or s in str(node.target) for s in _SKIPPED):
            return None
        args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: values[n])
        outer, self._place = self._place, place_of(node, self._place)
        try:
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                return self._higher_order(node, args, kwargs)
            if node.op == "call_module":
                return self.run(_attribute(graph, str(node.target)), list(args))
            before = len(self._recorder.tape.entries)
            if node.op == "call_method":
                result = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                result = node.target(*args, **kwargs)  # type: ignore[operator]
            self._recorder.rename(before, node.name)
            return result
        finally:
            self._place = outer

    def _higher_order(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        operator: Any = node.target
        name = operator.name()
        if name == "wrap_with_set_grad_enabled":
            # Nothing here needs gradients, so both settings compute the same.
            return self.run(args[1], list(args[2:]))
        if name == "wrap_with_autocast":
            device, dtype, enabled, cache, body, *rest = args
            with torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cache):
                return self.run(body, rest)
        before = len(self._recorder.tape.entries)
        handled, result = control_flow(operator, args, kwargs, self.run)
        if not handled:
            result = operator(*args, **kwargs)
        self._recorder.rename(before, node.name)
        return result


def _attribute(graph: torch.nn.Module, path: str) -> Any:
    value: Any = graph
    for part in path.split("."):
        value = getattr(value, part)
    return value


def place_of(node: Node, outer: CallPlace) -> CallPlace:
    """Read a node's source line and module from what the exporter kept; else keep the enclosing node's."""
    frames = [m for m in _FRAME.finditer(node.meta.get("stack_trace") or "") if not is_internal(m["file"])]
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    module = str(stack[-1][0]) if stack else outer.module
    if not frames:
        return CallPlace(module, outer.file, outer.line, outer.expression)
    own = innermost([m["file"] for m in frames])
    last = frames[-1 if own is None else own]
    return CallPlace(module, last["file"], int(last["line"]), (last["code"] or "").strip() or None)


def graph_arguments(
    exported: torch.export.ExportedProgram, leaves: list[Any]
) -> tuple[list[Any], dict[str, torch.Tensor], list[int]]:
    """Lay out a graph's flat arguments.

    Parameters
    ----------
    exported : torch.export.ExportedProgram
    leaves : list
        The user's inputs, flat, in the exported order.

    Returns
    -------
    arguments : list
        One per placeholder.
    names : dict of str to torch.Tensor
        Parameters, buffers and constants by their qualified names.
    users : list of int
        Which of the graph's outputs are the user's.
    """
    signature = exported.graph_signature
    kinds = torch.export.graph_signature.InputKind
    remaining = iter(leaves)
    arguments: list[Any] = []
    names: dict[str, torch.Tensor] = {}
    for spec in signature.input_specs:
        if spec.kind is kinds.USER_INPUT:
            arguments.append(next(remaining))
            continue
        target = str(spec.target)
        stored = exported.state_dict.get(target, exported.constants.get(target))
        if isinstance(stored, torch.Tensor):
            names[target] = stored
        arguments.append(stored)
    user = torch.export.graph_signature.OutputKind.USER_OUTPUT
    return arguments, names, [i for i, s in enumerate(signature.output_specs) if s.kind is user]
