"""What an exported program does at given sizes, told without running it.

Three questions, in this order. Does the original run? It is walked through on shapes alone: every operator computes
the shape of its result and no value. Does the exported program let the sizes pass? Its recorded relations say so, and
its graph is walked through on shapes as well, because not every impossible size is guarded. If it passes: do the two
give the same shapes, and did probing show that the program is wrong at sizes of this kind?
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.fx import Graph, Node

from driftscope.errors import InputError
from driftscope.programs import pytrees as pytree
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.private_torch import shapes_alone
from driftscope.shapes.probe.domain import INVALID, LOST, RIGHT, WRONG, Domain
from driftscope.shapes.probe.judging_runs import Answer, Ran, Refused, ask, silence
from driftscope.shapes.probe.original import Original, Point

#: Points at which walking on shapes is held against what really happened, before it is believed.
_CALIBRATION = 48

#: Classes of errors by which torch says that a shape depends on values, so that shapes alone decide nothing.
_VALUES_NEEDED = ("DataDependentOutputException", "DynamicOutputShapeException", "UnsupportedOperatorException",
                  "GuardOnDataDependentSymNode", "UnsupportedFakeTensorException")  # fmt: skip


#: Operators that refuse an index beyond their table, with the argument that the index is.
_LOOKING_UP = {
    "aten.embedding": 1, "aten.index": 1, "aten.index_select": 2, "aten.gather": 2, "aten.embedding_bag": 1,
    "aten.take": 1,
}  # fmt: skip


def looks_up_positions(graph: Graph) -> bool:
    """Whether a graph looks something up at places that it counts from sizes, as a table of positions is."""
    for node in graph.nodes:
        place = _LOOKING_UP.get(str(getattr(node.target, "overloadpacket", "")))
        if place is None or len(node.args) <= place:
            continue
        index = node.args[place]
        if any(_counts(each) for each in (index if isinstance(index, list | tuple) else (index,))):
            return True
    return False


def _counts(index: Any) -> bool:
    """Whether a value is made of sizes, and of nothing that is given to the program."""
    waiting, sized = [index] if isinstance(index, Node) else [], False
    for node in waiting:
        if str(getattr(node.target, "overloadpacket", "")) == "aten.sym_size":
            sized = True
        elif node.op == "placeholder":
            return False
        else:
            waiting.extend(n for n in node.all_input_nodes if n not in waiting)
    return sized


class Predictor:
    """Predicts ``.program.module()`` against the original.

    Parameters
    ----------
    original : Original
    capture : Capture
    domain : Domain
        Probed points; ``target`` is the exported program with its checks.
    target : str
    """

    def __init__(self, original: Original, capture: Capture, domain: Domain, target: str):
        self.original = original
        self.capture = capture
        self.domain = domain
        self.target = target

    def status(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Say what the exported program does at these arguments.

        Returns
        -------
        str
            ``"right"``, ``"lost"`` (the original runs, the program refuses), ``"wrong"`` or ``"invalid"`` (the original
            refuses). Where the original's shapes depend on values, the original itself is run; the exported program
            never is.

        Raises
        ------
        InputError
            If the arguments are not built like the example.
        """
        point = self.original.builder.point_of(args, kwargs)
        if point is None:
            names = ", ".join(self.original.builder.arguments.names)
            raise InputError(f"the arguments are not built like the example; give {names} of the same kinds and ranks")
        with silence():
            return self._status(point, args, kwargs)

    def _status(self, point: Point, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        # Everything that is run or walked may write into a cache or a tensor that it is given.
        reference = self._reference(_fresh(args), _fresh(kwargs))
        if isinstance(reference, Refused):
            return INVALID
        if not self.capture.relations.admits(np.asarray([point], np.int64))[0]:
            return LOST
        walked = self._walked(self.capture.unguarded, _fresh(args), _fresh(kwargs))
        if isinstance(walked, Refused):
            if walked.kind not in _VALUES_NEEDED and self._walks_are_true and not _empty(args, kwargs):
                return LOST
        elif isinstance(reference, Ran) and isinstance(walked, Ran) and _outline(walked) != _outline(reference):
            # Shape rules and kernels do not always agree on what comes of nothing.
            believed = self._walks_are_true and not _empty(args, kwargs)
            return WRONG if believed else self._learned(point)
        return self._learned(point)

    def _reference(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """What the original does, by shapes where these tell it."""
        # Shape rules refuse some empty inputs that kernels take, and running on nothing costs nothing.
        if self._shapes_tell and not _empty(args, kwargs):
            walked = self._walked(self.original.model, args, kwargs)
            if not (isinstance(walked, Refused) and walked.kind in _VALUES_NEEDED):
                return walked
        return self.original.ask(self.original.model, _fresh(args), _fresh(kwargs))

    def _walked(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        with self.original.state.kept():
            return on_shapes(function, args, kwargs)

    @cached_property
    def _sample(self) -> list[Point]:
        """Probed points, as many at which the original refuses as at which it runs."""
        running = [p for p in self.domain.points if self.domain.valid[p]]
        refused = [p for p in self.domain.points if not self.domain.valid[p]]
        half = _CALIBRATION // 2
        return _evenly(running, half) + _evenly(refused, half)

    @cached_property
    def _shapes_tell(self) -> bool:
        """Whether walking the original on shapes agreed with running it wherever both were done.

        Which row of a table a position is looked up in, no shape tells: a longer input than it has rows is refused.
        """
        if looks_up_positions(self.capture.exported.graph):
            return False
        for point in self._sample:
            args, kwargs = self.original.inputs(point)
            walked = self._walked(self.original.model, args, kwargs)
            if isinstance(walked, Refused) and _empty(args, kwargs):
                continue
            if isinstance(walked, Ran) != self.domain.valid[point]:
                return False
        return True

    @cached_property
    def _walks_are_true(self) -> bool:
        """Whether walking the exported graph on shapes agreed with running it at the points it lets pass."""
        seen = self.domain.seen.get(self.target, {})
        let_pass = [p for p in _evenly(list(seen), _CALIBRATION) if seen[p].outcome in (RIGHT, WRONG)]
        return all(
            isinstance(self._walked(self.capture.unguarded, *self.original.inputs(point)), Ran) for point in let_pass
        )

    def _learned(self, point: Point) -> str:
        """The outcome of probed points of the same kind: those that break the same unchecked assumptions."""
        assumed = self._unchecked(point)
        if not assumed and not self._wrong_unexplained:
            return RIGHT
        seen = self.domain.seen.get(self.target, {})
        alike = [p for p, s in seen.items() if s.outcome in (RIGHT, WRONG) and self._unchecked(p) == assumed]
        if not alike:
            return RIGHT
        nearest = min(alike, key=lambda p: _distance(p, point))
        return seen[nearest].outcome

    @cached_property
    def _wrong_unexplained(self) -> bool:
        """Whether the program was wrong somewhere that breaks nothing the trace assumed."""
        return any(not self._unchecked(p) for p in self.domain.of(self.target, WRONG))

    def _unchecked(self, point: Point) -> frozenset[str]:
        return frozenset(clause.text for clause in self.capture.relations.violated(point) if not clause.enforced)


def on_shapes(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
    """Run a torch program on shapes alone, every operator saying which shape it would return.

    Returns
    -------
    Answer
        The tree of fake tensors, or what was said instead.
    """
    mode = shapes_alone()
    fake_args, fake_kwargs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
    with mode:
        return ask(function, fake_args, fake_kwargs)


def _outline(answer: Ran) -> list[Any]:
    leaves = pytree.tree_leaves(answer.value)
    return [(tuple(leaf.shape), leaf.dtype) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _empty(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    leaves = pytree.tree_leaves((args, kwargs))
    return any(isinstance(leaf, torch.Tensor) and not leaf.numel() for leaf in leaves)


def _fresh(tree: Any) -> Any:
    from driftscope.programs.value_trees import flatten, unflatten

    leaves, spec = flatten(tree)
    return unflatten([leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for _, leaf in leaves], spec)


def _evenly(points: Sequence[Point], count: int) -> list[Point]:
    step = max(len(points) // max(count, 1), 1)
    return list(points[::step][:count])


def _distance(a: Point, b: Point) -> tuple[int, float]:
    """How unlike two points are: first in zeros and ones, then in size."""
    kinds = sum(min(x, 2) != min(y, 2) for x, y in zip(a, b, strict=True))
    return kinds, sum(abs(x - y) / (1 + max(x, y)) for x, y in zip(a, b, strict=True))
