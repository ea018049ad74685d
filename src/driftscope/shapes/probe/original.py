"""The original model as an oracle: at which sizes does it run? Every answer is remembered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch

from driftscope.programs.value_trees import flatten
from driftscope.shapes.model_state import ModelState
from driftscope.shapes.private_torch import transforms_left
from driftscope.shapes.probe.building import InputBuilder
from driftscope.shapes.probe.floors import Floors
from driftscope.shapes.probe.judging_runs import Answer, Ran, Refused, ask, difference
from driftscope.shapes.run_work import RunWork

Point = tuple[int, ...]

#: Above this many elements in all inputs together a point is left out: probing looks at shapes, not at memory.
LARGEST = 4_000_000
#: Elements of answers that are kept in all, so that each candidate is held against them without another run.
KEPT = 16_000_000
#: Seconds per run below which a model is asked as often as there is something to ask.
_CHEAP = 0.005
_TIMED = 5
#: How many times its kernels' share a run must take before its time is believed to go elsewhere than into kernels.
_ELSEWHERE = 16


class Original:
    """The model itself, asked at points.

    Parameters
    ----------
    model : callable
        Takes what ``builder`` builds.
    builder : InputBuilder
    seed : int
        Of the values at every point.
    """

    def __init__(self, model: Callable[..., Any], builder: InputBuilder, seed: int = 0):
        self.model = model
        self.builder = builder
        self.seed = seed
        self.calls = 0
        #: What the model holds: every call starts from it, and it is put back after every call.
        self.state = ModelState(model)
        #: Set where two runs on the same inputs differ, so that other runtimes cannot give the same values.
        self.random = False
        #: Masks of ones in the example, by leaf: targets are asked with an element of them hidden as well.
        self.masks: tuple[int, ...] = ()
        #: Where the model changed something of itself: by path, the first point at which it did.
        self.changed_at: dict[str, Point] = {}
        self._floors = Floors(model, self.inputs)
        self._known: dict[Point, bool | None] = {}
        self._answers: dict[Point, Answer] = {}
        self._room = KEPT

    @property
    def example(self) -> Point:
        """The point at which the example stands."""
        return tuple(axis.size for axis in self.builder.axes)

    def inputs(self, point: Point) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Build fresh inputs at a point, with the values with which the model was found to run there."""
        return self.builder.at(point, seed=self.seed, small=bool(self._known.get(point)))

    def hiding(self, point: Point, masks: Sequence[int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Build inputs at a point with the last element of these leaves 0, where they have any."""
        args, kwargs = self.inputs(point)
        leaves = self.builder.leaves_of(args, kwargs)
        for number in masks:
            if leaves[number].numel():
                leaves[number][tuple(size - 1 for size in leaves[number].shape)] = 0
        return args, kwargs

    def answer(self, point: Point, *, again: bool = False) -> Answer:
        """Run the model at a point, or return what it answered there before.

        Where it refuses values drawn like the example's, integers are drawn again from 0 and 1: an index or a
        length that is too large for this size says nothing about the size.

        Parameters
        ----------
        point : Point
        again : bool
            Run it in any case.
        """
        if not again and point in self._answers:
            return self._answers[point]
        found = self._run(point)
        elements = _elements_of(found)
        if elements <= self._room:
            self._room -= elements if point not in self._answers else 0
            self._answers[point] = found
        return found

    def _run(self, point: Point) -> Answer:
        if not fits(self.builder, point):
            return Refused("this size is too large to be probed", "TooLarge")
        drawn = (False, True) if self.builder.draws_integers else (False,)
        tries = (self._known[point],) if point in self._known else drawn
        found: Answer = Refused("a size is negative", "ValueError")
        for small in tries:
            args, kwargs = self.builder.at(point, seed=self.seed, small=bool(small))
            found = self.ask(self.model, args, kwargs)
            self.calls += 1
            for path in self.state.changes.keys() - self.changed_at.keys():
                self.changed_at[path] = point
            if isinstance(found, Ran):
                self._known[point] = small
                return found
        self._known[point] = None
        return found

    def ask(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """Call a program with the random numbers that the model itself is given; the model stays as it was."""
        # torch.manual_seed visits every kind of device and keeps the stack of each visit: 100 times as slow.
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(self.seed)
        try:
            with self.state.kept(), transforms_left():
                return ask(function, args, kwargs)
        finally:
            generator.set_state(before)

    def repeats_itself(self) -> bool:
        """Whether two runs of the example, without a seed between them, give the same."""
        answers = []
        for _ in range(2):
            with self.state.kept():
                answers.append(ask(self.model, *self.builder.arguments.call()))
        first, second = answers
        return not (isinstance(first, Ran) and isinstance(second, Ran)) or not difference(first.value, second)

    def after(self, point: Point) -> str:
        """Say how the model's answer to its example differs once it has run at a point, nothing put back between.

        Returns
        -------
        str
            "" where it does not differ.
        """
        plain = self.answer(self.example)
        args, kwargs = self.inputs(point)
        with self.state.kept():
            ask(self.model, args, kwargs)
            again = ask(self.model, *self.inputs(self.example))
        if isinstance(again, Refused):
            return f"it fails on its own example ({again.words})"
        if isinstance(plain, Ran) and isinstance(again, Ran) and not self.random:
            told = difference(plain.value, again)
            return f"it gives its own example another answer ({told})" if told else ""
        return ""

    def rounds_as_far(self, point: Point, other: Ran) -> bool:
        """Whether ordinary rounding of the model moves its answer at a point as far as another answer is from it."""
        reference = self.answer(point)
        with self.state.kept():
            return isinstance(reference, Ran) and self._floors.explain(point, reference.value, other)

    def runs(self, point: Point) -> bool:
        """Whether the model runs at these sizes."""
        if point not in self._known:
            self.answer(point)
        return self._known.get(point) is not None

    @property
    def known(self) -> dict[Point, bool]:
        """Every point that was asked, and whether the model runs there."""
        return {point: small is not None for point, small in self._known.items()}

    @cached_property
    def cost(self) -> float:
        """About how many seconds of processor time one run of the example takes, at least 5 ms.

        How many points are tried follows from it, and the same check must try the same points when the machine is
        busier: so it is counted. Only what takes far longer than its kernels do is timed, in steps of four.
        """
        work = RunWork()
        with work:
            self.ask(self.model, *self.inputs(self.example))
        counted, fastest = max(_CHEAP, work.seconds), math.inf
        for _ in range(_TIMED):
            args, kwargs = self.inputs(self.example)
            started = time.process_time()
            self.ask(self.model, args, kwargs)
            fastest = min(fastest, time.process_time() - started)
            if fastest <= _ELSEWHERE * counted:
                return counted
        return float(counted * 4 ** math.ceil(math.log(fastest / counted, 4)))


def _elements_of(answer: Answer) -> int:
    leaves = flatten(answer.value)[0] if isinstance(answer, Ran) else []
    return 1 + sum(leaf.numel() for _, leaf in leaves if isinstance(leaf, torch.Tensor))


def fits(builder: InputBuilder, point: Point) -> bool:
    """Whether inputs at a point can be made: no negative size, and not too many elements."""
    elements: dict[int, int] = {}
    for axis, size in zip(builder.axes, point, strict=True):
        if axis.dim is None:
            continue
        if size < 0:
            return False
        elements[axis.leaf] = elements.get(axis.leaf, 1) * size
    largest = max(LARGEST, 2 * int(np.prod(_example_elements(builder)) if elements else 0))
    return sum(elements.values()) <= largest


def _example_elements(builder: InputBuilder) -> list[int]:
    return [sum(leaf.numel() for _, leaf in builder.arguments.leaves if isinstance(leaf, torch.Tensor))]
