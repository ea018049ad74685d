"""Programs of modules and of functions on torch, numpy or JAX arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from driftscope.errors import ProgramError
from driftscope.programs.feeding.feeds import Inputs, make_inputs
from driftscope.programs.loading.frameworks import framework_among, framework_of, told_framework
from driftscope.programs.protocol import Program

if TYPE_CHECKING:
    import torch


def torch_program(
    module: torch.nn.Module | Callable[..., Any],
    device: str | torch.device | None = None,
    dtype: torch.dtype | str | None = None,
    compile: Any = None,
    **more: Any,
) -> Program:
    """Make a program of a torch module or function, run eagerly or by ``torch.compile``.

    Parameters
    ----------
    module : torch.nn.Module or callable
        Left as it is: moving or rounding works on a copy.
    device : str, torch.device or None
        Where it runs, inputs too; None for where the module lies already.
    dtype : torch.dtype, str or None
        Floating-point parameters, buffers and inputs are rounded to it.
    compile : bool, str, callable, dict or None
        True or a backend (``"inductor"``, ``"aot_eager"``, ``"eager"``), or keywords for ``torch.compile``.
    **more
        ``name``, ``inputs`` (default inputs).

    Raises
    ------
    ProgramError
        If ``module`` is not callable, or device, dtype or backend do not exist.
    """
    from driftscope.programs.runtimes.torch_compiled import CompiledProgram, compile_settings, uncompiled
    from driftscope.programs.runtimes.torch_eager import TorchProgram

    name, inputs = more.pop("name", None), more.pop("inputs", None)
    more.pop("framework", None)
    refuse_unknown("torch program", more)
    if not callable(module):
        raise ProgramError(f"a {type(module).__name__} cannot be called; give a module or a function")
    original, as_compiled = uncompiled(module)
    settings = compile_settings(compile) if compile is not None else as_compiled
    options = _torch_options(device, dtype)
    defaults = None if inputs is None else make_inputs(inputs)
    words = name or _name_of(original)
    if settings is None:
        return TorchProgram(original, words, options, defaults)
    # What the user compiled runs as it is, unless it is to be placed or compiled otherwise.
    made = module if compile is None and options == _torch_options(None, None) else None
    return CompiledProgram(original, words, settings, options, defaults, made)


def _torch_options(device: Any, dtype: Any) -> Any:
    import torch

    from driftscope.programs.runtimes.torch_eager import TorchOptions

    if isinstance(dtype, str):
        named = getattr(torch, dtype.removeprefix("torch."), None)
        if not isinstance(named, torch.dtype):
            raise ProgramError(f"unknown dtype {dtype!r}; give for example float16 or bfloat16")
        dtype = named
    if dtype is not None and not dtype.is_floating_point:
        raise ProgramError(f"dtype={dtype}: a program can only be rounded to a floating-point format")
    try:
        place = None if device is None else torch.device(device)
        if place is not None:
            torch.empty(0, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ProgramError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    return TorchOptions(place, dtype)


def array_program(function: Any, **options: Any) -> Program:
    """Make a program of a module or function on torch, numpy or JAX arrays."""
    asked = options.pop("framework", None) or told_framework(function)
    framework = asked or framework_of(function)
    if framework == "torch":
        open_to_any = asked is None and not options.keys() & {"device", "dtype", "compile"}
        program = torch_program(function, **options)
        program.unplaced = function if open_to_any else None
        return program
    from driftscope.programs.runtimes.plain_callables import ArrayProgram

    name, inputs = options.pop("name", None), options.pop("inputs", None)
    refuse_unknown(f"{framework} function", options)
    defaults = None if inputs is None else make_inputs(inputs)
    found = ArrayProgram(function, name or _name_of(function), framework, defaults)
    found.unplaced = function if asked is None else None
    return found


def in_their_libraries(a: Program, b: Program, inputs: Inputs | None) -> tuple[Program, Program]:
    """Give functions that name no library the arrays of the inputs' library, or of their partner's.

    Parameters
    ----------
    a, b : Program
    inputs : Inputs or None
        None for those that came with a program.
    """
    made = inputs or a.default_inputs or b.default_inputs
    return _in_its_library(a, b, made), _in_its_library(b, a, made)


def _in_its_library(program: Program, partner: Program, inputs: Inputs | None) -> Program:
    if program.unplaced is None:
        return program
    beside = getattr(partner, "framework", None) if partner.unplaced is None else None
    framework = framework_among(program.unplaced, inputs.library if inputs is not None else "", beside)
    if framework == getattr(program, "framework", "torch"):
        return program
    placed = array_program(program.unplaced, framework=framework, name=program.name)
    placed.default_inputs, placed.loaded_from = program.default_inputs, program.loaded_from
    return placed


def _name_of(function: Any) -> str:
    if isinstance(function, type):
        return function.__name__
    return getattr(function, "__name__", None) or type(function).__name__


def refuse_unknown(what: str, options: Mapping[str, Any]) -> None:
    """Refuse options that do not belong to a kind of program.

    Raises
    ------
    ProgramError
        Naming them.
    """
    if options:
        raise ProgramError(f"unknown option {', '.join(map(repr, options))} for a {what}")
