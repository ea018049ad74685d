"""torch.compile: the same module or function, compiled by one of torch's backends."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from driftscope.errors import ProgramError
from driftscope.programs.protocol import TorchSource
from driftscope.programs.runtimes.torch_eager import TorchOptions, TorchProgram
from driftscope.programs.torch_run import fresh, run_torch

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

DEFAULT_BACKEND = "inductor"


class CompiledProgram(TorchProgram):
    """A module or function under ``torch.compile``.

    Parameters
    ----------
    function : callable
        The original, not compiled.
    name : str
    compile : dict
        Keyword arguments of ``torch.compile``.
    options : TorchOptions
    default_inputs : Inputs or None
    compiled : callable or None
        What ``torch.compile`` made of it already, to be run as it is.
    """

    kind = "compiled"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        compile: Mapping[str, Any],
        options: TorchOptions | None = None,
        default_inputs: Inputs | None = None,
        compiled: Callable[..., Any] | None = None,
    ):
        super().__init__(function, name, options, default_inputs)
        self.compile = dict(compile)
        self._compiled = compiled
        self._framed = False

    @property
    def backend(self) -> str:
        """The backend's name."""
        backend = self.compile.get("backend", DEFAULT_BACKEND)
        return backend if isinstance(backend, str) else getattr(backend, "__name__", type(backend).__name__)

    @property
    def runtime(self) -> str:
        return f"torch {torch.__version__} compile ({self.backend}), {self._device_words()}"

    def __call__(self, inputs: Any = None) -> Any:
        if self._compiled is None:
            called = self.as_called()
            self._compiled = torch.compile(in_a_frame(called) if self._framed else called, **self.compile)
        return run_torch(
            self._compiled, self.bind(inputs), module=self.module, runtime=f"torch.compile ({self.backend})"
        )

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.compile)

    def variant(self, **changes: Any) -> CompiledProgram:
        """Return the same program compiled anew with these keywords of ``torch.compile`` alone."""
        again = CompiledProgram(self.function, self.name, changes, self.options, self.default_inputs)
        again._framed = True
        return again

    def unoptimised(self) -> TorchProgram:
        return TorchProgram(self.function, self.name, self.options, self.default_inputs)

    def describe(self) -> dict[str, Any]:
        settings = {
            k: v if isinstance(v, (bool, int, float, str, type(None))) else str(v) for k, v in self.compile.items()
        }
        return super().describe() | {"compile": settings | {"backend": self.backend}}

    def lift_source(self, inputs: Any = None) -> TorchSource:
        args, kwargs = fresh(self.bind(inputs))
        return TorchSource(self.as_called(), args, kwargs, self.module)


def in_a_frame(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function in a frame of its own: compiled code is cached by frame, and other backends would share it."""

    def frame(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return types.FunctionType(frame.__code__.replace(), frame.__globals__, frame.__name__, None, frame.__closure__)


def compile_settings(compile: Any) -> dict[str, Any] | None:
    """Read ``ds.torch``'s ``compile``: True, a backend's name or callable, or a dict of ``torch.compile`` keywords.

    Raises
    ------
    ProgramError
        If there is no such backend.
    """
    if compile is None or compile is False:
        return None
    if isinstance(compile, Mapping):
        settings = dict(compile)
    elif compile is True:
        settings = {}
    else:
        settings = {"backend": compile}
    backend = settings.get("backend", DEFAULT_BACKEND)
    if isinstance(backend, str):
        known = torch.compiler.list_backends(exclude_tags=())
        if backend not in known:
            usual = [*torch.compiler.list_backends(), "aot_eager", "eager"]
            raise ProgramError(f"torch.compile has no backend {backend!r}; choose one of {', '.join(usual)}")
    return settings


def uncompiled(function: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return what was compiled and how, for an object ``torch.compile`` already made; else the object and None."""
    if isinstance(function, nn.Module) and hasattr(function, "_orig_mod"):
        return function._orig_mod, _settings_of(getattr(function, "dynamo_ctx", None))
    inner = getattr(function, "_torchdynamo_orig_callable", None)
    if inner is None:
        return function, None
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    return inner, _settings_of(next((held for held in cells if hasattr(held, "callback")), None))


def _settings_of(context: Any) -> dict[str, Any]:
    """Read the keywords ``torch.compile`` was given from what it keeps (seen in torch 2.8 to 2.13)."""
    backend: Any = getattr(context, "callback", None)
    for attribute in ("_torchdynamo_orig_backend", "_torchdynamo_orig_callable"):  # newer, older
        while hasattr(backend, attribute):
            backend = getattr(backend, attribute)
    found: dict[str, Any] = {}
    if hasattr(backend, "compiler_fn"):  # of any backend but the default one
        known = torch.compiler.list_backends(exclude_tags=())
        name = getattr(backend, "compiler_name", None)
        found["backend"] = name if name in known else backend.compiler_fn
    if getattr(backend, "dynamic", None) is not None:
        found["dynamic"] = backend.dynamic
    return found
