"""One call as a rule sees it: operands that are lifted on demand, numbers, and inner steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, overload

import torch

from driftscope.lift.choices import choices_are_exact
from driftscope.lift.steps import Rounding
from driftscope.lift.torch.entries import FLOAT8, AtenCall, Facts, Tape, facts_of, lifted_dtype, tensors_in
from driftscope.programs.state.threads import own_threads


class Run(Protocol):
    """The float64 run that a call is part of, as far as rules need it."""

    tape: Tape
    native_default: torch.dtype

    def literal(self, entry: AtenCall, name: str, default: Any) -> Any: ...

    def operand(self, number: int) -> TensorArgument: ...

    def evaluate(self, call: Call, name: str) -> torch.Tensor: ...

    def show_inner(
        self, entry: AtenCall, part: str, output: torch.Tensor, format: torch.dtype | None, rounding: Rounding,
        inputs: Sequence[torch.Tensor | None],
    ) -> torch.Tensor: ...  # fmt: skip


class TensorArgument:
    """A tensor argument of one call: natively known, lifted, or both; converted on demand.

    Parameters
    ----------
    name : str
    format : torch.dtype
        Native format.
    stored : torch.Tensor or None
        Native bits.
    value : torch.Tensor or None
        Lifted value.
    lift : callable
        Up-casts ``stored``.
    """

    __slots__ = ("dependent", "format", "lift", "name", "stored", "value")

    def __init__(
        self, name: str, format: torch.dtype, stored: torch.Tensor | None, value: torch.Tensor | None,
        lift: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ):  # fmt: skip
        self.name = name
        self.lift = lift or lift_native
        self.format = format
        self.stored = stored
        self.value = value

    def anew(self) -> TensorArgument:
        """The same argument, a constant without what it was lifted to."""
        return self if self.stored is None else TensorArgument(self.name, self.format, self.stored, None)

    def lifted(self) -> torch.Tensor:
        """Give the float64 (complex128, or unchanged integer) value."""
        if self.value is None:
            self.value = self.lift(self.stored)  # type: ignore[arg-type]
        return self.value

    def native(self) -> torch.Tensor:
        """Give the value in its native format, rounded if it is not known natively; unrounded for exact choices."""
        if choices_are_exact() and self.format.is_floating_point and self.format not in FLOAT8:
            return self.lifted()
        if self.stored is None:
            return round_to(self.value, self.format)  # type: ignore[arg-type]
        return self.stored


def lift_native(tensor: torch.Tensor) -> torch.Tensor:
    """Up-cast a native tensor; expanded dimensions stay expanded."""
    dtype = lifted_dtype(tensor.dtype)
    if dtype == tensor.dtype or tensor.is_quantized:
        return tensor
    repeated = [d for d, (n, s) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if s == 0 and n > 1]
    if not repeated:
        return tensor.to(dtype)
    small = tensor
    for d in repeated:
        small = small.narrow(d, 0, 1)
    return small.to(dtype).expand(tensor.shape)


def round_to(tensor: torch.Tensor, format: torch.dtype) -> torch.Tensor:
    """Round a lifted value to a native format."""
    return tensor if tensor.dtype == format or tensor.is_quantized else tensor.to(format)


class StepInputs(Sequence[torch.Tensor | None]):
    """The lifted inputs of a step, up-cast only if the observer looks at them."""

    def __init__(self, operands: list[TensorArgument | None]):
        self._operands = operands

    def __len__(self) -> int:
        return len(self._operands)

    def anew(self) -> StepInputs:
        """The same inputs, constants as they are stored."""
        return StepInputs([None if o is None else o.anew() for o in self._operands])

    @overload
    def __getitem__(self, index: int) -> torch.Tensor | None: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[torch.Tensor | None]: ...
    def __getitem__(self, index: int | slice) -> torch.Tensor | Sequence[torch.Tensor | None] | None:
        if isinstance(index, slice):
            return [None if o is None else o.lifted() for o in self._operands[index]]
        operand = self._operands[index]
        return None if operand is None else operand.lifted()


class Call:
    """One call to evaluate: what a rule sees.

    Parameters
    ----------
    function : torch._ops.OpOverload
    args, kwargs
        With :class:`TensorArgument` in the place of tensors.
    formats : list of torch.dtype or None
        Native formats of the results.
    replay : Run
    entry : AtenCall
    """

    def __init__(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], formats: list[torch.dtype | None],
        replay: Run, entry: AtenCall,
    ):  # fmt: skip
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.formats = formats
        self.replay = replay
        self.entry = entry
        self.facts: Facts = facts_of(function)

    @property
    def device(self) -> str:
        """Where it natively runs, as torch names it."""
        return self.replay.tape.device_of(self.entry)

    def raw(self, name: str) -> Any:
        """Give an argument as it stands: an :class:`TensorArgument`, a number, a list."""
        return self.facts.pick(name, self.args, self.kwargs)

    def value(self, name: str) -> Any:
        """Give an argument, lifted."""
        return _lift_tree(self.raw(name))

    def native(self, name: str) -> Any:
        """Give an argument in its native format."""
        return _native_tree(self.raw(name))

    def format(self, name: str) -> torch.dtype | None:
        """Give a tensor argument's native format."""
        operand = self.raw(name)
        return operand.format if isinstance(operand, TensorArgument) else None

    def hidden(self, name: str, default: float) -> Any:
        """Give a constant that the kernel holds but its arguments do not, replaced if the run says so."""
        return self.replay.literal(self.entry, name, default)

    def edited(self) -> TensorArgument | None:
        """Give the float whose bits the program edited as integers before it read them as a float here."""
        number = self.replay.tape.edited.get(self.entry.index)
        return None if number is None else self.replay.operand(number)

    def lifted(self) -> tuple[list[Any], dict[str, Any]]:
        """Give all arguments lifted, dtype arguments retargeted."""
        args = [_lift_tree(a) for a in self.args]
        return self._seen_anew(args), {k: _lift_tree(v) for k, v in self.kwargs.items()}

    def _seen_anew(self, args: list[Any]) -> list[Any]:
        """Arguments of which a call that gives its first one another shape in place (``squeeze_``) has its own view."""
        return [args[0].view_as(args[0]), *args[1:]] if self.facts.restrides else args

    def natively(self) -> list[Any]:
        """Evaluate the call in its native formats."""
        with default_dtype(self.replay.native_default), own_threads():
            args = self._seen_anew([_native_tree(a) for a in self.args])
            return tensors_in(self.function(*args, **_native_tree(self.kwargs)))

    def step(
        self, suffix: str, function: Any, *args: Any, format: torch.dtype | None = None, **kwargs: Any
    ) -> torch.Tensor:
        """Evaluate an inner step of a fused kernel by its own rule and show it to the observer.

        Parameters
        ----------
        suffix : str
            Added to the entry's name.
        function : torch._ops.OpOverload
        args, kwargs
            Lifted tensors, :class:`TensorArgument` or numbers.
        format : torch.dtype or None
            In which the fused kernel holds the result; its first result's format by default.
        """
        result = format or self.formats[0]
        arguments = tuple(_as_operand(a, result) for a in args)
        named = {k: _as_operand(v, result) for k, v in kwargs.items()}
        inner = Call(function, arguments, named, [result], self.replay, self.entry)
        return self.replay.evaluate(inner, f"{self.entry.name}.{suffix}")

    def show(
        self, name: str, output: torch.Tensor, rounding: Rounding, inputs: Sequence[torch.Tensor | None] = (), /, *,
        stored: bool = True,
    ) -> torch.Tensor:  # fmt: skip
        """Show a step of a formula to the observer (see :class:`driftscope.lift.formulas.terms.Show`)."""
        kept = self.formats[0] if stored else accumulator(self.formats[0])
        return self.replay.show_inner(self.entry, name, output, kept, rounding, inputs)


def accumulator(format: torch.dtype | None) -> torch.dtype:
    """Give the format in which a fused kernel keeps what it does not return: float32, or wider if its result is."""
    return torch.float64 if format == torch.float64 else torch.float32


def _as_operand(value: Any, format: torch.dtype | None) -> Any:
    if isinstance(value, torch.Tensor):
        kept = format if value.dtype.is_floating_point and format is not None else value.dtype
        return TensorArgument("", kept, None, value)
    return [_as_operand(v, format) for v in value] if isinstance(value, (list, tuple)) else value


def _lift_tree(tree: Any) -> Any:
    if isinstance(tree, TensorArgument):
        return tree.lifted()
    if isinstance(tree, (list, tuple)):
        return [_lift_tree(t) for t in tree]
    if isinstance(tree, torch.dtype):
        return lifted_dtype(tree)
    return tree


def _native_tree(tree: Any) -> Any:
    if isinstance(tree, TensorArgument):
        return tree.native()
    if isinstance(tree, (list, tuple)):
        return [_native_tree(t) for t in tree]
    if isinstance(tree, torch.Tensor) and not tree.dim():
        return tree.item()  # a number of the call that another one replaces
    if isinstance(tree, dict):
        return {k: _native_tree(v) for k, v in tree.items()}
    return tree


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype, which decides what integers and Python numbers become."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def split_arguments(call: Call) -> tuple[list[TensorArgument | None], dict[str, object]]:
    """Part a call's tensors from its other arguments."""
    operands: list[TensorArgument | None] = []
    attributes: dict[str, object] = {}
    for name, value in call.facts.names(call.args, call.kwargs):
        if isinstance(value, TensorArgument):
            operands.append(value)
        elif isinstance(value, list) and any(isinstance(v, TensorArgument) for v in value):
            operands.extend(v if isinstance(v, TensorArgument) else None for v in value)
        elif value is None and "Tensor" in call.facts.types.get(name, ""):
            operands.append(None)
        else:
            attributes[name] = value
    return operands, attributes
