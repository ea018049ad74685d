"""From anything a person may hold to a :class:`Program`: objects, files, ``package.module:name``, ``file.py:name``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from driftscope.errors import InputError, ProgramError
from driftscope.programs.feeding.feeds import Inputs, make_inputs
from driftscope.programs.loading.callables import array_program, refuse_unknown, torch_program
from driftscope.programs.loading.folders import is_torchscript, model_in, refuse_known, starts_an_archive
from driftscope.programs.loading.hugging_face import inputs_of
from driftscope.programs.loading.references import is_reference, resolve
from driftscope.programs.loading.third_party import claimed_by_any, claimed_by_plugin
from driftscope.programs.loading.weights import parted, with_weights
from driftscope.programs.protocol import LoadedFrom, Program
from driftscope.programs.state.process import alone

if TYPE_CHECKING:
    import onnx

_OUTPUT_FILES = (".npz", ".npy", ".safetensors", ".json")


@alone()
def load_program(obj: Any, **options: Any) -> Program:
    """Make a program of anything that runs tensors.

    Parameters
    ----------
    obj : object
        A module, a function of torch, numpy or JAX arrays, an ``ExportedProgram``, a ``ModelProto``, an onnx-ir
        model, an ``ONNXProgram``, a path to ``.onnx``, ``.pt2`` or a TorchScript ``.pt``, which runs in a process of
        its own, ``"package.module:name"``, ``"file.py:name"`` (an object, or a factory that returns a program or a
        program and its inputs; made of the modules beside the file, random weights drawn with seed 0), the same with
        weights to put in, ``"file.py:Net@weights.safetensors"``, a path to recorded outputs, or a Program, which comes
        back as it is.
    **options
        Those of :func:`onnx_program` or :func:`torch_program`; ``framework`` (``"torch"``, ``"numpy"``, ``"jax"``)
        for functions; ``name``; ``runtime`` for the name of a third-party runtime.

    Returns
    -------
    Program

    Raises
    ------
    ProgramError
        If nothing here can run ``obj``, or an option does not belong to it.
    """
    if "runtime" in options:
        asked = str(options.pop("runtime"))
        return claimed_by_plugin(obj, asked, options)
    if isinstance(obj, Program):
        _no_options(obj, options)
        return obj
    if isinstance(obj, (str, FilePath)):
        return _remembering(_from_text(obj, dict(options)), obj, options)
    if isinstance(obj, type):
        raise ProgramError(f"{obj.__name__} is a class; give an instance of it")
    for matches, make in _KINDS:
        if matches(obj):
            return make(obj, **options)
    plugin = claimed_by_any(obj, options)
    if plugin is not None:
        return plugin
    raise ProgramError(
        f"an object of class {type(obj).__name__} is not a program driftscope can load; give a module, a function,"
        " an ExportedProgram, an ONNX model, a path to .onnx or .pt2, or package.module:name"
    )


def _remembering(program: Program, obj: Any, options: Mapping[str, Any]) -> Program:
    program.loaded_from = LoadedFrom(obj, dict(options))
    return program


def _no_options(program: Program, options: Mapping[str, Any]) -> None:
    if options:
        raise ProgramError(f"{program.name} is a Program already; {', '.join(options)} cannot be changed any more")


def _class_in(obj: Any, *names: str) -> bool:
    """Whether an object's class is one of these, asked without importing where they are defined."""
    return any(f"{c.__module__}.{c.__qualname__}" in names for c in type(obj).__mro__)


def _is_torch(obj: Any) -> bool:
    return _class_in(obj, "torch.nn.modules.module.Module") or callable(obj)


_ONNX = (
    "onnx.onnx_ml_pb2.ModelProto",
    "onnx_ir.Model",
    "torch.onnx._internal.exporter._onnx_program.ONNXProgram",
)


def _is_onnx(obj: Any) -> bool:
    return _class_in(obj, *_ONNX) or type(obj).__name__ in ("ModelProto", "ONNXProgram")


def _is_exported(obj: Any) -> bool:
    return _class_in(obj, "torch.export.exported_program.ExportedProgram")


# --- text: paths and references -------------------------------------------------------------------------------


def _from_text(text: str | FilePath, options: dict[str, Any]) -> Program:
    if isinstance(text, str) and is_reference(text) and not FilePath(text).is_file():  # a name may hold a colon
        return _from_reference(text, options)
    parts = parted(text) if isinstance(text, str) else None
    if parts is not None:
        return _from_reference(parts[0], options, parts[1])
    path = FilePath(text)
    refuse_known(path)
    if text and path.is_dir():
        return _from_folder(path, options)
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return onnx_program(path, **options)
    if suffix == ".pt2":
        return _exported_file(path, **options)
    if suffix == ".xml":
        return claimed_by_plugin(path, "openvino", options)
    if suffix in _OUTPUT_FILES:
        return recorded(path, **options)
    if is_torchscript(path):
        return _script_file(path, **options)
    if suffix in (".pt", ".pth", ".bin", ".ckpt", ".pkl"):
        return _saved(path, options)
    if suffix == ".py":
        raise ProgramError(f"{path} needs the name of an object or a factory inside: {path}:name")
    raise ProgramError(
        f"{str(text)!r} is not a program driftscope can load: give a path to .onnx or .pt2, a folder with a model,"
        " package.module:name, or file.py:name"
    )


def _from_folder(path: FilePath, options: dict[str, Any]) -> Program:
    found = model_in(path)
    program = load_program(found, **_named(options, path.name, None))
    described = inputs_of(found)
    if described is not None and program.default_inputs is None:
        program.default_inputs = make_inputs(described)
    return program


def _saved(path: FilePath, options: dict[str, Any]) -> Program:
    """Take a file of ``torch.save`` as weights, if it holds tensors by name; a whole pickled module is not loaded."""
    from driftscope.programs.feeding.files import file_digest
    from driftscope.programs.loading.weights import read_weights
    from driftscope.programs.runtimes.recorded_outputs import RecordedProgram

    if not path.is_file():
        raise ProgramError(f"{path}: no such file")
    refuse_unknown("file of weights", options)
    try:
        tensors = read_weights(path)
    except ProgramError as error:
        if starts_an_archive(path) and not is_zipfile(path):
            raise ProgramError(f"{path} is a zip archive that is cut or damaged; copy it again") from error
        raise ProgramError(
            f"{path} holds pickled Python objects, which are not loaded; give file.py:name for the module,"
            " or export it (torch.export.save to .pt2, or torch.onnx.export to .onnx)"
        ) from error
    return RecordedProgram(dict(tensors), path.name, {"path": str(path), "sha256": file_digest(path)})


def _from_reference(text: str, options: dict[str, Any], weights: FilePath | None = None) -> Program:
    found = resolve(text)
    if weights is not None:
        found = replace(found, program=with_weights(found.program, weights, text))
        options = {"name": f"{found.name}@{weights.name}", **options}
    program = load_program(found.program, **_named(options, found.name, found.program))
    if found.inputs is not None:
        program.default_inputs = make_inputs(found.inputs)
    return program


def _named(options: dict[str, Any], name: str, obj: Any) -> dict[str, Any]:
    return options if isinstance(obj, (Program, str, FilePath)) else {"name": name, **options}


# --- kinds ----------------------------------------------------------------------------------------------------


def onnx_program(
    model: str | FilePath | onnx.ModelProto | Any,
    level: str = "all",
    disabled: Sequence[str] = (),
    threads: int | None = None,
    provider: str = "cpu",
    save_optimized: str | FilePath | None = None,
    **more: Any,
) -> Program:
    """Make a program of an ONNX model, run by onnxruntime.

    Parameters
    ----------
    model : path, onnx.ModelProto, onnx_ir.Model or torch.onnx.ONNXProgram
    level : str
        Graph optimisation level: ``disable``, ``basic``, ``extended``, ``layout`` or ``all``.
    disabled : sequence of str
        Graph optimisers to switch off by name, as ``("LayerNormFusionL1",)``.
    threads : int or None
        Threads inside one operator; None for onnxruntime's choice.
    provider : str
        ``cpu``, ``cuda``, or an execution provider's full name.
    save_optimized : path or None
        Where onnxruntime writes the optimised model when the session is created.
    **more
        ``name``, ``config`` (a dict of further session configuration entries), ``inputs`` (default inputs).

    Raises
    ------
    ProgramError
        If the model cannot be read, is damaged, or asks for data outside its folder.
    """
    from driftscope.programs.runtimes.native.worker_process import begin_early

    if provider != "cuda":
        begin_early("driftscope.programs.runtimes.ort_worker")
    from driftscope.programs.loading.onnx_files import model_of
    from driftscope.programs.runtimes.onnxruntime_session import OnnxProgram
    from driftscope.programs.runtimes.ort_options import SessionSetup

    name, config, inputs = more.pop("name", None), more.pop("config", None) or {}, more.pop("inputs", None)
    refuse_unknown("ONNX model", more)
    setup = SessionSetup(
        level=level,
        disabled=(disabled,) if isinstance(disabled, str) else tuple(disabled),
        threads=threads,
        provider=provider,
        save_optimized=None if save_optimized is None else str(save_optimized),
        config=tuple((str(k), str(v)) for k, v in config.items()),
    )
    found = model_of(model)
    if name and found.path is None:
        found.name = name
    program = OnnxProgram(found, setup, None if inputs is None else make_inputs(inputs))
    if isinstance(model, (str, FilePath)) or _class_in(model, _ONNX[0]):
        options = {"level": level, "disabled": setup.disabled, "threads": threads, "provider": provider}
        return _remembering(program, model, {**options, "config": config})
    return program


def _exported(obj: Any, **options: Any) -> Program:
    from driftscope.programs.runtimes.torch_exported import ExportedTorchProgram

    name, inputs = options.pop("name", None), options.pop("inputs", None)
    refuse_unknown("exported program", options)
    return ExportedTorchProgram(obj, name or "ExportedProgram", None if inputs is None else make_inputs(inputs))


def _exported_file(path: FilePath, **options: Any) -> Program:
    from driftscope.programs.loading.pt2 import read_exported

    return _exported(read_exported(path), **{"name": path.name, **options})


def _script_file(path: FilePath, **options: Any) -> Program:
    from driftscope.programs.runtimes.torchscript.process import TorchScriptProgram

    name, inputs = options.pop("name", None), options.pop("inputs", None)
    refuse_unknown("TorchScript program", options)
    return TorchScriptProgram(path, name or path.name, None if inputs is None else make_inputs(inputs))


def recorded(outputs: Any, *, name: str | None = None) -> Program:
    """Make a program of outputs that were computed elsewhere.

    Parameters
    ----------
    outputs : tree of tensors or arrays, or path
        A path to ``.npz``, ``.npy``, ``.pt``, ``.safetensors``, or to JSON of ``polygraphy run --save-outputs``.
    name : str or None

    Raises
    ------
    ProgramError
        If the file cannot be read or holds no outputs.
    """
    from driftscope.programs.runtimes.recorded_outputs import RecordedProgram, read_outputs

    if isinstance(outputs, (str, FilePath)):
        program = read_outputs(FilePath(outputs))
        program.name = name or program.name
        return program
    try:
        return RecordedProgram(outputs, name or "recorded outputs")
    except InputError as error:
        raise ProgramError(str(error)) from error


_KINDS: tuple[tuple[Callable[[Any], bool], Callable[..., Program]], ...] = (
    (_is_onnx, onnx_program),
    (_is_exported, _exported),
    (_is_torch, array_program),
)

__all__ = ["Inputs", "load_program", "onnx_program", "recorded", "torch_program"]
