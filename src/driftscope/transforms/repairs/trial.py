"""Whether a repair works: the edited function under its transform, and its derivative, against the plain program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import differ
from driftscope.transforms.derivatives import float_leaves, total
from driftscope.transforms.diagnose.traces_left import drifts
from driftscope.transforms.naming import levels_of
from driftscope.transforms.repairs.witnesses import Answers, answers_of, witnessed
from driftscope.transforms.subject import Subject
from driftscope.transforms.transforming import CheckSetting, Level, Ragged, arguments_for, lift, plain, plain_key
from driftscope.transforms.world.running import WatchedRun, cloned, run_once

#: A repair that takes longer than this is not believed to be one.
SECONDS = 20.0
#: Examples at which derivatives that are no part of a batch are tried: they are slow.
MOST_DERIVATIVES = 6
_OTHER_SECOND = "the second result is another one"


@dataclass(frozen=True)
class TrialOutcome:
    """How a trial ended.

    Parameters
    ----------
    works : bool
    examples : int
    agreement : str
        ``"same"`` or ``"rounding"`` for the values.
    derivative : str
        The same for the derivative, ``"none"`` where the plain program has none.
    reason : str
        Why it does not work.
    """

    works: bool
    examples: int = 0
    agreement: str = ""
    derivative: str = ""
    reason: str = ""

    @property
    def evidence(self) -> dict[str, Any]:
        """The verdict as a finding keeps it."""
        return {"examples": self.examples, "values": self.agreement, "derivative": self.derivative}


class PlainAnswers:
    """What the plain program answers on the user's rows and on rows drawn from them, each asked once and when needed.

    Parameters
    ----------
    subject : Subject
        With the user's rows.
    """

    def __init__(self, subject: Subject):
        self._given = subject
        self._runs: dict[Any, WatchedRun] = {}
        self._decided: dict[str, Answers] = {}

    @functools.cached_property
    def subject(self) -> Subject:
        """The subject with rows drawn from the user's beside them."""
        return witnessed(self._given)

    @property
    def setting(self) -> CheckSetting:
        """How they are mapped."""
        return CheckSetting(self.subject.in_dims, self.subject.randomness, self.subject.size)

    def under(self, levels: tuple[Level, ...]) -> WatchedRun:
        """Return the plain reference of a transform."""
        key = (plain_key(levels), len(self.given(levels)))
        if key not in self._runs:
            run = self._runs[key] = self.run(plain(self.subject.function, levels, self.setting), levels)
            run.value = [_with_numbers(value) for value in run.value or ()]
        return self._runs[key]

    def decided(self, file: str) -> Answers:
        """Return what the lines of a file decided by, example by example."""
        if file not in self._decided:
            self._decided[file] = answers_of(self.subject, file)
        return self._decided[file]

    def given(self, levels: tuple[Level, ...]) -> list[tuple[Any, ...]]:
        """Return the arguments of each call of a transform."""
        if all(level.kind == "derivative" for level in levels):
            return list(self.subject.slices[:MOST_DERIVATIVES])
        return list(arguments_for(levels, self.subject.examples, self.setting))

    def run(self, built: Callable[..., Any], levels: tuple[Level, ...]) -> WatchedRun:
        """Run a function that was built for a transform."""
        calls = [lambda args=args: built(*cloned(args)) for args in self.given(levels)]
        try:
            return run_once(self.subject.world, calls, seconds=SECONDS)
        finally:
            self.subject.world.rewind()

    @functools.cached_property
    def twice(self) -> WatchedRun:
        """The function without transforms on every example, two times over, and what it left behind."""
        return self.run_twice(self.subject.function)

    def run_twice(self, function: Callable[..., Any]) -> WatchedRun:
        """Run a function without transforms on every example, two times over, and read what it left behind."""
        given = [cloned(arguments) for _ in range(2) for arguments in self.subject.slices]
        try:
            calls = [functools.partial(function, *arguments) for arguments in given]
            return run_once(self.subject.world, calls, seconds=SECONDS, arguments=given)
        finally:
            self.subject.world.rewind()


class Trial:
    """Repairs tried against the plain program's answers.

    Parameters
    ----------
    answers : PlainAnswers
    transform : str
        Under which the finding was made.
    """

    def __init__(self, answers: PlainAnswers, transform: str):
        self.answers = answers
        self.levels = levels_of(transform)
        self.gradient_levels = self._gradient_levels()

    @property
    def subject(self) -> Subject:
        """See :attr:`PlainAnswers.subject`."""
        return self.answers.subject

    @functools.cached_property
    def expected(self) -> WatchedRun:
        """What the plain program answers; not to be asked first while an edit stands in its place."""
        return self.answers.under(self.levels)

    @functools.cached_property
    def gradient(self) -> WatchedRun | None:
        """Its derivatives; None where they are what is asked for anyway. As for ``expected``."""
        return self.answers.under(self.gradient_levels) if self.gradient_levels else None

    def asked(self) -> Trial:
        """Return the trial with the plain program asked: from here on an edit may stand in its place."""
        _ = (self.expected, self.gradient, self.answers.twice)
        return self

    @property
    def ragged(self) -> bool:
        """Whether the plain program's results do not stack."""
        return self.expected.error is None and any(isinstance(value, Ragged) for value in self.expected.value)

    def _gradient_levels(self) -> tuple[Level, ...]:
        """How the derivative of a repair is tried: in the same way mapped, or as it is."""
        if any(level.kind == "derivative" for level in self.levels):
            return ()
        mapped = any(level.kind == "map" for level in self.levels)
        return levels_of("vmap(grad)" if mapped else "grad")

    def _run(self, function: Callable[..., Any], levels: tuple[Level, ...]) -> WatchedRun:
        if any(level.kind in ("compile", "export") for level in levels):
            internals.forget_compiled()
        return self.answers.run(lift(function, levels, self.answers.setting), levels)

    def of(self, function: Callable[..., Any], *, edited: bool = False) -> TrialOutcome:
        """Try a repaired function in the place of the subject's; ``edited`` says that it is to do what that does."""
        verdict = self._judge(lambda: self._run(function, self.levels), lambda: self._derivative(function))
        told = self._plainly_other(function) if verdict.works and edited else ""
        return replace(verdict, works=False, reason=told) if told else verdict

    def _plainly_other(self, function: Callable[..., Any]) -> str:
        """Say what an edit changes of the plain program: values, a second run, or what it leaves behind."""
        plain, got = self.answers.twice, self.answers.run_twice(function)
        if plain.error is not None or got.error is not None:
            return "" if plain.error is not None else f"without transforms it raises {_first_line(got.error)}"  # type: ignore[arg-type]
        difference = differ(plain.value, got.value)
        if not difference.agrees:
            return f"other values without transforms: {difference.detail}"
        left = drifts(plain.state, got.state)
        if left or plain.printed != got.printed:
            return f"it leaves something else behind: {left[0].path if left else 'what it prints'}"
        return ""

    def returning(self, function: Callable[..., Any]) -> TrialOutcome:
        """Try a function with a second result, which it kept outside of itself before: the first is to be as it was,
        nothing is to be left outside, and the second is to be what it is without the transform."""

        def first(*args: Any) -> Any:
            return function(*args)[0]

        verdict = self.of(first)
        if not verdict.works:
            return verdict
        plain, got = self.answers.twice, self.answers.run_twice(first)
        if plain.error is not None or got.error is not None or not differ(plain.value, got.value).agrees:
            return replace(verdict, works=False, reason="other values without transforms")
        if any(drift.escaped for drift in drifts(got.state, self._run(first, self.levels).state)):
            return replace(verdict, works=False, reason="a tensor is still kept outside")
        return verdict if self._second_agrees(function) else replace(verdict, works=False, reason=_OTHER_SECOND)

    def _second_agrees(self, function: Callable[..., Any]) -> bool:
        """Whether the second result of a function is the same under the transform as without it."""

        def alone(*args: Any) -> Any:
            return function(*args)[1]

        if not any(level.kind == "derivative" for level in self.levels):
            got = self._run(alone, self.levels)
            expected = self.answers.run(plain(alone, self.levels, self.answers.setting), self.levels)
        else:
            # What torch.func hands out beside a derivative, of the function as it would be written.
            given = self.subject.slices[:MOST_DERIVATIVES]
            got = self._calling(lambda: [torch.func.vjp(function, *cloned(args), has_aux=True)[-1] for args in given])
            expected = self._calling(lambda: [alone(*cloned(args)) for args in given])
        return got.error is None and expected.error is None and differ(expected.value, got.value).agrees

    def branches_agree(self, function: Callable[..., Any]) -> bool:
        """Whether every ``torch.where`` of a repaired function chooses between values of one shape and dtype."""
        watch = _Choices()

        def watched(*args: Any) -> Any:
            with watch:
                return function(*args)

        for arguments in self.subject.slices:
            self._calling(functools.partial(watched, *cloned(arguments)))
        return watch.agree

    def replacing(self, mapped: Callable[..., Any]) -> TrialOutcome:
        """Try a repair that takes the place of ``torch.vmap(function)`` itself."""
        examples = self.subject.examples
        return self._judge(lambda: self._calling(lambda: mapped(*cloned(examples))), lambda: self._through(mapped))

    def _through(self, mapped: Callable[..., Any]) -> str:
        """Compare the derivative of the mapped function's results with the plain derivative of each example."""
        examples = self.subject.examples
        alone = self.subject.in_dims[0] is None  # its derivative is a sum over examples, not one for each
        if alone or self.gradient is None or self.gradient.error is not None:
            return "none"

        def taken() -> Any:
            floats = [leaf.requires_grad_() for leaf in float_leaves(cloned(examples)[0])]
            out = total(mapped(*_with_floats(examples, floats)))
            if not out.requires_grad:
                return tuple(map(torch.zeros_like, floats))
            return torch.autograd.grad(out, floats, allow_unused=True, materialize_grads=True)

        return self._compared(self._calling(taken))

    def _calling(self, call: Callable[[], Any]) -> WatchedRun:
        try:
            return run_once(self.subject.world, [call], seconds=SECONDS)
        finally:
            self.subject.world.rewind()

    def _judge(self, values: Callable[[], WatchedRun], derivative: Callable[[], str]) -> TrialOutcome:
        if self.expected.error is not None:
            return TrialOutcome(False, reason="the plain program refuses as well")
        got = values()
        if got.error is not None:
            return TrialOutcome(False, reason=f"still refused: {_first_line(got.error)}")
        expected = [list(value.results) for value in self.expected.value] if self.ragged else self.expected.value
        difference = differ(expected, got.value)
        if not difference.agrees:
            return TrialOutcome(False, reason=f"other values: {difference.detail}")
        slope, size = derivative(), self.subject.size
        if slope.startswith("other"):
            return TrialOutcome(False, size, difference.kind, slope, slope)
        return TrialOutcome(True, size, difference.kind, slope)

    def _derivative(self, function: Callable[..., Any]) -> str:
        if self.gradient is None or self.gradient.error is not None:
            return "none"
        got = self._run(function, self.gradient_levels)
        if got.error is not None and self.gradient_levels[0].kind == "map":
            # The derivative of each example may be refused where the derivative of all of them is not.
            return self._through(torch.vmap(function, self.subject.in_dims, randomness=self.subject.randomness))
        return self._compared(got)

    def _compared(self, got: WatchedRun) -> str:
        if got.error is not None:
            return f"other derivative: refused ({_first_line(got.error)})"
        difference = differ(self.gradient.value if self.gradient else (), got.value, any_float=True)
        return difference.kind if difference.agrees else f"other derivative: {difference.detail}"


def _with_numbers(value: Any) -> Any:
    """Stack what some examples return as a tensor without axes and others as a number."""
    if isinstance(value, tuple):
        return tuple(map(_with_numbers, value))
    tensors = [item for item in value if isinstance(item, torch.Tensor)] if isinstance(value, list) else []
    if not tensors or any(tensor.dim() for tensor in tensors):
        return value
    dtypes = [torch.result_type(tensors[0], item) for item in value if isinstance(item, (torch.Tensor, int, float))]
    if len(dtypes) < len(value):
        return value
    return torch.stack([torch.as_tensor(item, dtype=dtype) for item, dtype in zip(value, dtypes, strict=True)])


class _Choices(TorchFunctionMode):
    """Sees whether the two values of every ``torch.where`` are of one shape and dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.agree = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.where and len(args) == 3:
            tensors = [value for value in args[1:] if isinstance(value, torch.Tensor)]
            shapes = {value.shape if isinstance(value, torch.Tensor) else () for value in args[1:]}
            self.agree &= len(set(map(tuple, shapes))) == 1 and len({tensor.dtype for tensor in tensors}) < 2
        return func(*args, **(kwargs or {}))


def _with_floats(examples: tuple[Any, ...], floats: list[torch.Tensor]) -> tuple[Any, ...]:
    """Put other tensors in the place of the floating ones of the first argument."""
    leaves, spec = internals.tree_flatten(examples[0])
    waiting = iter(floats)
    kept = [next(waiting) if float_leaves(leaf) else leaf for leaf in leaves]
    return (internals.tree_unflatten(kept, spec), *cloned(examples[1:]))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:160] or type(error).__name__
