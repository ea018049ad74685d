"""One run of a TorchScript program as a graph: what torch's dispatcher sees of it, in order, with this run's decisions.

torch's own converter (``torch._export.converter``, torch 2.13) stops at loops, at lists and at arguments left out; the
interpreter calls the dispatcher like any program of torch, so that it is recorded like one.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.programs import pytrees as pytree

# Records no more than this: a loop without end has no graph.
MOST_CALLS = 200_000


class TooLong(RuntimeError):
    """A run makes more calls than a graph is made of."""


def recorded_graph(module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> fx.GraphModule:
    """Run a module once and return the graph of its calls.

    Parameters
    ----------
    module : torch.nn.Module
    args, kwargs
        Its arguments.

    Returns
    -------
    torch.fx.GraphModule
        Takes the tensors among the arguments, flat and in order, and returns the tensors and values among the
        outputs, flat.
    """
    recording = _Recording(module)
    tensors = [leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
    recording.take(tensors)
    with torch.no_grad(), recording:
        outputs = module(*args, **kwargs)
    recording.graph.output(tuple(recording.node_of(leaf) for leaf in pytree.tree_leaves(outputs)))
    return fx.GraphModule(recording.root, recording.graph)


class _Recording(TorchDispatchMode):
    def __init__(self, module: torch.nn.Module):
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self._nodes: dict[int, fx.Node] = {}
        self._calls = 0
        # Tensors are known by their identity, which lasts as long as they are held.
        self._held: list[torch.Tensor] = []
        self._names: dict[int, str] = {}
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            self._held.append(tensor)
            self._names.setdefault(id(tensor), name)

    def take(self, tensors: list[torch.Tensor]) -> None:
        for number, tensor in enumerate(tensors):
            self._remember(tensor, self.graph.placeholder(f"input_{number}"))

    def node_of(self, leaf: Any) -> Any:
        """Return the node that makes a tensor; anything else as it is."""
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if id(leaf) not in self._nodes:
            self._remember(leaf, self._constant(leaf))
        return self._nodes[id(leaf)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise TooLong(f"it makes more than {MOST_CALLS:,} calls")
        given, given_by_name = pytree.tree_map(self.node_of, (args, kwargs))
        outputs = func(*args, **kwargs)
        if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(outputs)):
            # Strides of a fused kernel's result are not those that tracing the graph gives: a view may not fit there.
            called = torch.ops.aten.reshape.default if func is torch.ops.aten.view.default else func
            node = self.graph.call_function(called, given, given_by_name)
            self._keep(outputs, node)
        return outputs

    def _keep(self, outputs: Any, node: fx.Node) -> None:
        if isinstance(outputs, torch.Tensor):
            self._remember(outputs, node)
        elif isinstance(outputs, (tuple, list)):
            for number, item in enumerate(outputs):
                if isinstance(item, (torch.Tensor, tuple, list)):
                    self._keep(item, self.graph.call_function(operator.getitem, (node, number)))

    def _remember(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._held.append(tensor)
        self._nodes[id(tensor)] = node

    def _constant(self, tensor: torch.Tensor) -> fx.Node:
        """Store a tensor of the program in the graph's module, under its own name where it has one."""
        name = self._names.get(id(tensor), f"constant_{len(self._held)}")
        owner = self.root
        *path, last = name.split(".")
        for step in path:
            if not hasattr(owner, step):
                owner.add_module(step, torch.nn.Module())
            owner = getattr(owner, step)
        if isinstance(tensor, torch.nn.Parameter):
            owner.register_parameter(last, tensor)
        else:
            owner.register_buffer(last, tensor.detach())
        return self.graph.get_attr(name)
