"""The original model as an oracle: at which sizes does it run? Every answer is remembered."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch

from driftscope.shapes.building import InputBuilder
from driftscope.shapes.judging_runs import Answer, Ran, Refused, ask

Point = tuple[int, ...]

#: Above this many elements in all inputs together a point is left out: probing looks at shapes, not at memory.
LARGEST = 4_000_000
#: Seconds per run below which a model is asked as often as there is something to ask.
_CHEAP = 0.005
_TIMED = 5


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
        #: Set where two runs on the same inputs differ, so that other runtimes cannot give the same values.
        self.random = False
        self._known: dict[Point, bool | None] = {}

    @property
    def example(self) -> Point:
        """The point at which the example stands."""
        return tuple(axis.size for axis in self.builder.axes)

    def inputs(self, point: Point) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Build fresh inputs at a point, with the values with which the model was found to run there."""
        return self.builder.at(point, seed=self.seed, small=bool(self._known.get(point)))

    def answer(self, point: Point) -> Answer:
        """Run the model at a point.

        Where it refuses values drawn like the example's, integers are drawn again from 0 and 1: an index or a
        length that is too large for this size says nothing about the size.
        """
        if not fits(self.builder, point):
            return Refused("this size is too large to be probed", "TooLarge")
        tries = (self._known[point],) if point in self._known else (False, True)
        found: Answer = Refused("a size is negative", "ValueError")
        for small in tries:
            args, kwargs = self.builder.at(point, seed=self.seed, small=bool(small))
            found = self.ask(self.model, args, kwargs)
            self.calls += 1
            if isinstance(found, Ran):
                self._known[point] = small
                return found
        self._known[point] = None
        return found

    def ask(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Answer:
        """Call a program with the random numbers that the model itself is given."""
        # torch.manual_seed visits every kind of device and keeps the stack of each visit: 100 times as slow.
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(self.seed)
        try:
            return ask(function, args, kwargs)
        finally:
            generator.set_state(before)

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
        """About how many seconds one run of the example takes, at least 5 ms.

        In steps of four: how many points are tried follows from it, and the same check must try the same points
        whenever the machine is a little busier. The fastest of a few runs is taken for the same reason.
        """
        fastest = math.inf
        for _ in range(_TIMED):
            args, kwargs = self.inputs(self.example)
            started = time.perf_counter()
            self.ask(self.model, args, kwargs)
            fastest = min(fastest, time.perf_counter() - started)
            if fastest <= _CHEAP:
                return _CHEAP
        return float(_CHEAP * 4 ** math.ceil(math.log(fastest / _CHEAP, 4)))


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
