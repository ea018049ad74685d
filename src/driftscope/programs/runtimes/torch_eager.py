"""torch eager: modules and functions on torch tensors, called as they are."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from driftscope.programs.arrays import dtype_name
from driftscope.programs.feeding.binding import bind_call, ready, signature_of
from driftscope.programs.inspection.training import active_dropout, table_rows, train_mode
from driftscope.programs.protocol import Bound, Program, Slot, TorchSource
from driftscope.programs.state.module_tree import tensors_in
from driftscope.programs.torch_run import FlushingProgram, can_flush, fresh, run_torch
from driftscope.programs.value_trees import flatten, unflatten
from driftscope.records.finding import Finding

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs


@dataclass(frozen=True, slots=True)
class TorchOptions:
    """Where and in which format a torch program runs; None leaves it as it is.

    Parameters
    ----------
    device : str, torch.device or None
    dtype : torch.dtype, str or None
        Floating-point parameters, buffers and inputs are rounded to it.
    """

    device: torch.device | None = None
    dtype: torch.dtype | None = None


class TorchProgram(Program):
    """A module or a function, called with torch tensors.

    Parameters
    ----------
    function : callable
        A module or a function of tensors.
    name : str
    options : TorchOptions
    default_inputs : Inputs or None
    """

    kind = "torch"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: TorchOptions | None = None,
        default_inputs: Inputs | None = None,
    ):
        super().__init__(name, default_inputs)
        self.options = options or TorchOptions()
        self.function = _placed(function, self.options)
        self.signature: inspect.Signature = signature_of(
            function.forward if isinstance(function, nn.Module) else function
        )

    @property
    def module(self) -> nn.Module | None:
        """The module, when it is one."""
        return self.function if isinstance(self.function, nn.Module) else None

    @property
    def runtime(self) -> str:
        return f"torch {torch.__version__} eager, {self._device_words()}"

    def _device_words(self) -> str:
        devices = {self.options.device} if self.options.device else set()
        if self.module is not None:
            devices = {p.device for p in tensors_in(self.module, buffers=False)} or devices
        return " and ".join(sorted(str(d).upper() for d in devices)) or "the inputs' device"

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("strides", "alignment")

    def flushing_denormals(self) -> Program | None:
        return FlushingProgram(self) if can_flush() else None

    def bind(self, inputs: Any = None) -> Bound:
        if isinstance(inputs, Bound) and inputs.program is self:
            return inputs
        return bind_call(self, self.signature, ready(self, inputs))

    def slots(self) -> list[Slot] | None:
        return None if self.signature.parameters else []

    def index_ranges(self, inputs: Inputs) -> dict[str, int]:
        return table_rows(self, bind_call(self, self.signature, inputs.probe()))

    def __call__(self, inputs: Any = None) -> Any:
        return run_torch(self.as_called(), self.bind(inputs), module=self.module)

    def as_called(self) -> Callable[..., Any]:
        """Return the function with its inputs moved and rounded as the options say."""
        function, options = self.function, self.options
        if options.device is None and options.dtype is None:
            return function

        def placed(*args: Any, **kwargs: Any) -> Any:
            return function(*_tree_to(args, options), **_tree_to(kwargs, options))

        return placed

    def check(self, inputs: Any = None) -> list[Finding]:
        return train_mode(self.module, self.name)

    def check_draws(self, inputs: Any = None) -> list[Finding]:
        # In train() mode dropout is meant to be on; one finding says so.
        return [] if self.check() else active_dropout(self, self.bind(inputs))

    def describe(self) -> dict[str, Any]:
        plain = super().describe() | {"torch": torch.__version__}
        if self.module is not None:
            plain |= describe_module(self.module)
        if self.options.dtype is not None:
            plain["dtype"] = dtype_name(self.options.dtype)
        return plain

    def lift_source(self, inputs: Any = None) -> TorchSource:
        bound = self.bind(inputs)
        args, kwargs = fresh(bound)
        return TorchSource(self.as_called(), args, kwargs, self.module)


def describe_module(module: nn.Module) -> dict[str, Any]:
    """Return a module's class, size, formats, devices and mode as plain data."""
    tensors = tensors_in(module)
    return {
        "class": f"{type(module).__module__}.{type(module).__qualname__}",
        "parameters": sum(p.numel() for p in tensors_in(module, buffers=False)),
        "dtypes": sorted({dtype_name(t.dtype) for t in tensors}),
        "devices": sorted({str(t.device) for t in tensors}),
        "training": getattr(module, "training", False),  # frozen TorchScript has no mode
    }


def _placed(function: Callable[..., Any], options: TorchOptions) -> Callable[..., Any]:
    """Return the module on its device and in its dtype; the caller's own module is left alone."""
    if not isinstance(function, nn.Module) or (options.device is None and options.dtype is None):
        return function
    tensors = tensors_in(function)
    moved = options.device is not None and any(t.device != options.device for t in tensors)
    cast = options.dtype is not None and any(t.is_floating_point() and t.dtype != options.dtype for t in tensors)
    if not (moved or cast):
        return function
    return copy.deepcopy(function).to(device=options.device, dtype=options.dtype)


def _tree_to(tree: Any, options: TorchOptions) -> Any:
    leaves, spec = flatten(tree, "in")
    return unflatten([_leaf_to(leaf, options) for _, leaf in leaves], spec)


def _leaf_to(leaf: Any, options: TorchOptions) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.to(device=options.device, dtype=options.dtype if leaf.is_floating_point() else None)
