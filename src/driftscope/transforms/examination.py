"""The runs that a check needs, each made once: the loop twice, the plain reference and the transform per question."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.lift.side_lift import measured_call
from driftscope.records.words import counted
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import Difference, differ
from driftscope.transforms.subject import Subject
from driftscope.transforms.transforming import CheckSetting, Level, arguments_for, lift, plain, plain_key, slices_of
from driftscope.transforms.world.running import WatchedRun, cloned, outliving, run_once, timed_out
from driftscope.transforms.world.snapshot import World
from driftscope.transforms.world.trace import Bounded, Trace, peeled

# Three examples show every difference that more would, at a fraction of the time; two could agree by chance.
EXAMPLES = 3
# Steps up to which a run is repeated in float64: a second or two.
_MOST_STEPS = 4000


def subject_of(function: Any, examples: tuple[Any, ...], in_dims: Any, randomness: str) -> Subject:
    """Check what the user passed and narrow the batch to :data:`EXAMPLES`.

    Raises
    ------
    InputError
        If ``function`` cannot be called, ``in_dims`` does not fit, or the mapped axes disagree in size.
    """
    if not callable(function):
        raise InputError(f"check_transforms needs a function as its first argument, not {type(function).__name__}")
    if randomness not in internals.RANDOMNESS:
        raise InputError(f"randomness is one of {', '.join(internals.RANDOMNESS)}; not {randomness!r}")
    if not any(isinstance(leaf, torch.Tensor) for leaf in internals.tree_leaves(examples)):
        raise InputError("check_transforms needs example arguments with at least one tensor, after the function")
    dims = _dims(examples, in_dims)
    narrow, size = _narrowed(examples, dims)
    return Subject(
        function=function,
        examples=narrow,
        in_dims=dims,
        randomness=randomness,
        world=World(function, narrow),
        size=size,
        slices=tuple(slices_of(narrow, dims, size)),
        batch=examples,
    )


def _dims(examples: tuple[Any, ...], in_dims: Any) -> tuple[Any, ...]:
    """One entry per argument; an axis asked of something that is no tensor is dropped, as examples may be anything."""
    if isinstance(in_dims, list):
        in_dims = tuple(in_dims)
    entries = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(examples)
    if len(entries) != len(examples):
        raise InputError(
            f"in_dims has {counted(len(entries), 'entry', 'entries')} for {len(examples)} example arguments;"
            " give one for each"
        )
    found = []
    for i, (arg, entry) in enumerate(zip(examples, entries, strict=True)):
        leaves, spec = internals.tree_flatten(arg)
        flat = internals.broadcast_to(entry, spec)
        if flat is None:
            raise InputError(f"in_dims entry {entry!r} does not fit the structure of argument {i}")
        dims = [d if isinstance(x, torch.Tensor) and x.dim() else None for x, d in zip(leaves, flat, strict=True)]
        for x, d in zip(leaves, dims, strict=True):
            if d is not None and not -x.dim() <= d < x.dim():
                raise InputError(f"in_dims says axis {d} for argument {i}, which has shape {tuple(x.shape)}")
        tidy = [d if d is None or d >= 0 else d + x.dim() for x, d in zip(leaves, dims, strict=True)]
        plain_leaf = len(tidy) == 1 and isinstance(arg, torch.Tensor)
        none = all(d is None for d in tidy)
        found.append(None if none else tidy[0] if plain_leaf else internals.tree_unflatten(tidy, spec))
    if all(d is None for d in found):
        raise InputError("no example has a mapped axis; examples carry the axis that vmap maps, and in_dims names it")
    return tuple(found)


def _narrowed(examples: tuple[Any, ...], dims: tuple[Any, ...]) -> tuple[tuple[Any, ...], int]:
    sizes: set[int] = set()
    found = []
    for arg, entry in zip(examples, dims, strict=True):
        leaves, spec = internals.tree_flatten(arg)
        flat = internals.broadcast_to(entry, spec) or []
        sizes |= {x.shape[d] for x, d in zip(leaves, flat, strict=True) if d is not None}
        kept = [
            x if d is None else x.detach().narrow(d, 0, min(EXAMPLES, x.shape[d]))
            for x, d in zip(leaves, flat, strict=True)
        ]
        found.append(arg if entry is None else internals.tree_unflatten(kept, spec))
    if len(sizes) > 1:
        raise InputError(f"the mapped axes have different sizes: {', '.join(map(str, sorted(sizes)))}")
    if 0 in sizes:
        raise InputError("the mapped axis is empty; give at least one example")
    return tuple(found), min(EXAMPLES, *sizes)


@dataclass
class Question:
    """One transform of a check: its runs and how they differ."""

    name: str
    levels: tuple[Level, ...]
    plain: WatchedRun
    lifted: WatchedRun
    difference: Difference | None = None

    def compared(self) -> Question:
        """Compare what both runs returned, if both did."""
        if self.plain.error is None and self.lifted.error is None:
            derivative = any(level.kind == "derivative" for level in self.levels)
            self.difference = differ(self.plain.result, self.lifted.result, any_float=derivative)
        return self


@dataclass
class Examination:
    """Everything run for one subject.

    Parameters
    ----------
    subject : Subject
    seconds : float or None
        Time limit of one run.
    """

    subject: Subject
    seconds: float | None = None
    traceable: bool = True
    repeats: str = "same"
    loop: WatchedRun = field(default_factory=WatchedRun)
    start_state: dict[str, Any] = field(default_factory=dict)
    _plain: dict[Any, WatchedRun] = field(default_factory=dict)

    @property
    def reproducible(self) -> bool:
        """Whether two plain runs are no further apart than rounding."""
        return self.repeats in ("same", "rounding")

    @property
    def setting(self) -> CheckSetting:
        """What the transforms share."""
        return CheckSetting(self.subject.in_dims, self.subject.randomness, self.subject.size)

    def fresh(self) -> tuple[Any, ...]:
        """Return a copy of the examples."""
        examples: tuple[Any, ...] = cloned(self.subject.examples)
        return examples

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the slices of a copy of the examples: views of it, as a loop over the batch would see them."""
        return slices_of(self.fresh(), self.subject.in_dims, self.subject.size)

    @functools.cached_property
    def runs_unmapped(self) -> bool:
        """Whether the function runs on the arguments as the user gave them, without an axis taken off."""
        return self.run(self.subject.function, [cloned(self.subject.batch)], traced=False).error is None

    def begin(self) -> None:
        """Run the loop twice: does it run, can it be traced, does it repeat itself?"""
        internals.warm()
        self.start_state = self.subject.world.fingerprint()
        function = self.subject.function
        self.loop = self.run(function, self.rows(), traced=True)
        if self.loop.error is not None:
            untraced = self.run(function, self.rows(), traced=False)
            if untraced.error is None:
                # Higher-order operators such as torch.cond refuse to run under a TorchFunctionMode.
                self.traceable, self.loop = False, untraced
        if self.loop.error is None:
            again = self.run(function, self.rows(), traced=False)
            self.repeats = differ(self.loop.value, again.value).kind if again.error is None else "value"

    def run(
        self,
        function: Any,
        arguments: Sequence[tuple[Any, ...]],
        *,
        traced: bool,
        values: bool = True,
        build: Any = None,
        listen: Any = None,
    ) -> WatchedRun:
        """Run ``build(function)`` on each of the arguments in turn; it may write to them."""
        trace = Trace(peeled if values else None) if traced and self.traceable else None
        built = build(Bounded(function, trace)) if build is not None else Bounded(function, trace)
        flat = tuple(argument for call in arguments for argument in call)
        calls = [functools.partial(built, *call) for call in arguments]
        run = run_once(self.subject.world, calls, trace, arguments=flat, seconds=self.seconds, listen=listen)
        if trace is not None:
            calls.clear()
            run.escaped = tuple(outliving(trace.tensors))
            trace.tensors.clear()
        return run

    def question(self, name: str, levels: tuple[Level, ...]) -> Question:
        """Run a transform beside its plain reference; what was called with which values is kept where they differ."""
        plain, lifted = self.plain_run(levels, traced=False), self.lifted_run(levels, values=False)
        question = Question(name, levels, plain, lifted).compared()
        if question.difference is not None and question.difference.agrees:
            return question
        if not timed_out(plain) and any(level.kind != "map" for level in levels):  # the loop was traced before
            plain = self.plain_run(levels)
        return Question(name, levels, plain, lifted if timed_out(lifted) else self.lifted_run(levels)).compared()

    def nearby_run(self, levels: tuple[Level, ...], which: int, *, lifted: bool) -> WatchedRun:
        """Run the transform, or its plain reference, at inputs one rounding away; other numbers ``which``, other way.

        Where an answer is zero but for rounding, this is how far ordinary rounding moves it.
        """
        examples = tuple(internals.tree_map(functools.partial(_one_rounding_away, which=which), self.fresh()))
        arguments = arguments_for(levels, examples, self.setting)
        build = lift if lifted else plain
        return self.run(self.subject.function, arguments, traced=False, build=lambda f: build(f, levels, self.setting))

    def finer_run(self, levels: tuple[Level, ...], *, lifted: bool) -> WatchedRun:
        """Run the transform, or its plain reference, in float64 step by step; the result is a list of ``SideLift``.

        Its noise is that of ordinary rounding in every step, derivatives among them.
        """

        def finer(function: Any) -> Any:
            called = (lift if lifted else plain)(function, levels, self.setting)

            def measured(*arguments: Any) -> Any:
                return measured_call(called, arguments, _MOST_STEPS)

            return measured

        arguments = arguments_for(levels, self.fresh(), self.setting)
        return self.run(self.subject.function, arguments, traced=False, build=finer)

    def wider_run(self, levels: tuple[Level, ...], *, lifted: bool) -> WatchedRun:
        """Run the transform, or its plain reference, on the examples in float64."""
        examples = tuple(internals.tree_map(_in_float64, self.fresh()))
        arguments = arguments_for(levels, examples, self.setting)
        build = lift if lifted else plain
        return self.run(self.subject.function, arguments, traced=False, build=lambda f: build(f, levels, self.setting))

    def plain_run(self, levels: tuple[Level, ...], *, traced: bool = True) -> WatchedRun:
        """Return the run of the plain reference of a composition."""
        arguments = arguments_for(levels, self.fresh(), self.setting)
        key = (plain_key(levels), len(arguments), traced)
        if key not in self._plain:
            self._plain[key] = self.run(
                self.subject.function, arguments, traced=traced, build=lambda f: plain(f, levels, self.setting)
            )
        return self._plain[key]

    def lifted_run(
        self, levels: tuple[Level, ...], *, traced: bool = True, values: bool = True, listen: Any = None
    ) -> WatchedRun:
        """Run the transform; ``values`` of its calls are kept on demand, ``listen`` receives its warnings."""
        arguments = arguments_for(levels, self.fresh(), self.setting)
        eager = all(level.kind not in ("compile", "export") for level in levels)
        function = self.subject.function
        if not eager:
            internals.forget_compiled()

        def build(bounded: Any) -> Any:
            return lift(bounded if eager else function, levels, self.setting)

        run = self.run(function, arguments, traced=traced and eager, values=values, build=build, listen=listen)
        if run.error is not None and traced and eager and self.traceable:
            # Compiled functions and operators that take functions refuse the trace, not the transform.
            arguments = arguments_for(levels, self.fresh(), self.setting)
            untraced = self.run(function, arguments, traced=False, build=build, listen=listen)
            return untraced if untraced.error is None else run
        return run


def _in_float64(leaf: Any) -> Any:
    return leaf.detach().double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf


def _one_rounding_away(leaf: Any, which: int) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
        return leaf
    sign = torch.cos(torch.arange(leaf.numel(), dtype=torch.float64) * (which + 1.7)).sign().reshape(leaf.shape)
    return leaf.detach() * (1 + sign.to(leaf.device, leaf.dtype) * torch.finfo(leaf.dtype).eps)
