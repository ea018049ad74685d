"""One run of a torch program: on fresh copies of its arguments, contained, its outputs detached."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from driftscope.errors import DriftscopeError, InputError, RuntimeRefused, ends_us
from driftscope.programs.arrays import tensor_of
from driftscope.programs.isolation.choice import isolating
from driftscope.programs.isolation.failures import text_of
from driftscope.programs.protocol import ArraySource, Bound, OnnxSource, Program, TorchSource
from driftscope.programs.state.effects import contained
from driftscope.programs.state.module_tree import tensors_in
from driftscope.programs.state.torch_settings import flushes_denormals
from driftscope.programs.value_trees import flatten, unflatten


def fresh(bound: Bound) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a program's arguments in fresh containers with copied tensors.

    A program may write into what it is given (``x.add_(1)``, a cache that grows); neither the next run nor the
    other program may see that. What lies on the processor goes to the device of a module that lies elsewhere: the
    same inputs are for both programs.
    """
    leaves, spec = flatten((bound.args, bound.kwargs), "in")
    copies: dict[int, Any] = {}
    device = _accelerator_of(getattr(bound.program, "module", None))
    for _, leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) not in copies:
            given = leaf.detach() if device is None or not leaf.is_cpu else leaf.detach().to(device)
            copy = given.clone() if bound.laid is None else bound.laid(given)
            copies[id(leaf)] = copy.requires_grad_(leaf.requires_grad)
    args, kwargs = unflatten([copies.get(id(leaf), leaf) for _, leaf in leaves], spec)
    return args, kwargs


def _accelerator_of(module: nn.Module | None) -> torch.device | None:
    """The one device beside the processor that all tensors of a module lie on."""
    devices = set() if module is None else {t.device for t in tensors_in(module)}
    return next((d for d in devices if d.type not in ("cpu", "meta")), None) if len(devices) == 1 else None


def run_torch(
    function: Callable[..., Any], bound: Bound, *, module: nn.Module | None = None, runtime: str = "torch"
) -> Any:
    """Call a torch program once, without recording gradients, and return its detached outputs.

    Raises
    ------
    RuntimeRefused
        In torch's own words.
    """
    with contained(function if module is None else module):
        try:
            outputs = _called(function, bound)
        except DriftscopeError:
            raise
        except BaseException as error:
            if ends_us(error):
                raise
            raise RuntimeRefused(runtime, "run", words_of(error)) from error
        leaves, spec = flatten(outputs)
        return unflatten([own(leaf) for _, leaf in leaves], spec)


def _called(function: Callable[..., Any], bound: Bound) -> Any:
    try:
        args, kwargs = fresh(bound)
        with torch.no_grad():
            return function(*args, **kwargs)
    except RuntimeError as error:
        # Programs that differentiate inside (forces, implicit layers) need gradients recorded.
        if "does not require grad" not in text_of(error):
            raise
        args, kwargs = fresh(bound)
        with torch.enable_grad():
            return function(*args, **kwargs)


def own(leaf: Any) -> Any:
    """Detach an output in memory of its own: a buffer or a workspace is written to again by the next run.

    Quantised tensors are the numbers that they stand for, and those of a kernel library's own layout are dense.

    Raises
    ------
    InputError
        For a masked tensor, which is two arrays.
    """
    if not isinstance(leaf, torch.Tensor):
        found = tensor_of(leaf)
        return found.clone() if isinstance(found, torch.Tensor) else found
    if type(leaf).__name__ == "MaskedTensor":
        raise InputError("a MaskedTensor cannot be compared; return plain tensors, its values and its mask")
    if leaf.is_quantized:
        return leaf.detach().dequantize()
    return _copied(leaf.detach().to_dense() if leaf.is_mkldnn else leaf.detach())


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor; what is expanded stays so, or it would take memory for every repetition."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor.clone()
    once = tensor
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        once = once.narrow(axis, 0, 1) if stride == 0 and size > 1 else once
    return once.clone().expand(tensor.shape)


def words_of(error: BaseException) -> str:
    """Return what an exception says, on one line, with its class when that says more."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    words = " ".join(lines)[:500]
    if isinstance(error, SystemExit):
        return f"the program called sys.exit({error.code!r})"
    return words if words and isinstance(error, RuntimeError) else f"{type(error).__name__}: {words}".rstrip(": ")


class FlushingProgram(Program):
    """A program whose operators take denormal numbers as zero.

    The mode belongs to each thread, and only the calling thread's can be set: it runs on that one, in this process.
    onnxruntime has an option of its own, which holds for the first session of a process alone (seen in 1.31).
    """

    def __init__(self, inner: Program):
        super().__init__(inner.name, inner.default_inputs)
        self.inner, self.kind, self.flat = inner, inner.kind, inner.flat

    @property
    def runtime(self) -> str:
        return f"{self.inner.runtime}, denormals flushed to zero"

    def bind(self, inputs: Any = None) -> Bound:
        return self.inner.bind(inputs)

    def __call__(self, inputs: Any = None) -> Any:
        with self.mode():
            return self.inner(inputs)

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """Run what the context holds as this program does."""
        with contextlib.ExitStack() as stack:
            if "threads" not in self.inner.settings:
                stack.enter_context(self.inner.on_threads(1))
            stack.enter_context(isolating(False))
            getattr(self.inner, "session", None)  # the first one of a process sets the mode back when it is made
            stack.enter_context(flushing())
            yield

    def flushing_denormals(self) -> Program:
        return self

    def lift_source(self, inputs: Any = None) -> TorchSource | OnnxSource | ArraySource:
        return self.inner.lift_source(inputs)


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """Take denormal numbers as zero on this thread."""
    before = flushes_denormals()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def can_flush() -> bool:
    """Whether this processor can take denormal numbers as zero; the mode is left as it is."""
    return bool(torch.set_flush_denormal(flushes_denormals()))
