"""OpenVINO: ONNX models and its own ``.xml``, compiled for a device; claimed through ``runtime="openvino"``.

Compiled in float32 unless another precision is asked for: on some processors OpenVINO's own choice is bfloat16, which
a comparison would find at once, but which nobody asked for. Needs the extra ``driftscope[openvino]``.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from driftscope.errors import CannotLift, DependencyMissing, ProgramError
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.feeding.binding import bind_slots, ready
from driftscope.programs.feeding.feeds import make_inputs
from driftscope.programs.feeding.files import file_digest
from driftscope.programs.isolation.choice import isolates
from driftscope.programs.loading.onnx_files import OnnxModel, model_of
from driftscope.programs.protocol import Bound, OnnxSource, Program, Slot
from driftscope.programs.runtimes.native import openvino_worker
from driftscope.programs.runtimes.native.kept import KeptThere, asked_again
from driftscope.programs.runtimes.native.worker_process import asked

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

#: What OpenVINO calls its element types, as torch spells them.
_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "boolean": "bool", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "string": "string",
}  # fmt: skip
PRECISIONS = ("f32", "f16", "bf16")

_KEPT = KeptThere()


def claim(obj: Any, **options: Any) -> OpenvinoProgram | None:
    """Return the program that OpenVINO makes of an ONNX model or of an ``.xml`` file; None for anything else.

    Parameters
    ----------
    obj : path, onnx.ModelProto, onnx_ir.Model or torch.onnx.ONNXProgram
    **options
        ``device`` (``"CPU"``), ``precision`` (``"f32"``, ``"f16"``, ``"bf16"``), ``threads``, ``name``, ``inputs``.

    Raises
    ------
    DependencyMissing
        If OpenVINO is not installed.
    ProgramError
        If the file cannot be read, or an option does not belong to it.
    """
    if isinstance(obj, (str, Path)) and Path(obj).suffix.lower() == ".xml":
        path = Path(obj)
        if not path.is_file():
            raise ProgramError(f"{path}: no such file")
        return _made(path, None, options)
    try:
        model = model_of(obj)
    except ProgramError:
        if isinstance(obj, (str, Path)) and Path(obj).suffix.lower() == ".onnx":
            raise
        return None
    return _made(model.path, model, options)


def _made(path: Path | None, model: OnnxModel | None, options: Mapping[str, Any]) -> OpenvinoProgram:
    given = dict(options)
    name, inputs = given.pop("name", None), given.pop("inputs", None)
    settings = {"device": "CPU", "precision": "f32", "threads": None}
    unknown = [key for key in given if key not in settings]
    if unknown:
        known = ", ".join(settings)
        raise ProgramError(f"unknown option {', '.join(map(repr, unknown))} for OpenVINO, which takes {known}")
    settings |= given
    if settings["precision"] not in PRECISIONS:
        raise ProgramError(f"OpenVINO computes in {', '.join(PRECISIONS)} here, not {settings['precision']!r}")
    words = name or (path.name if path is not None else model.name if model is not None else "OpenVINO model")
    return OpenvinoProgram(words, path, model, settings, None if inputs is None else make_inputs(inputs))


class OpenvinoProgram(Program):
    """A model compiled by OpenVINO, in a worker process unless isolation is switched off.

    Parameters
    ----------
    name : str
    path : pathlib.Path or None
        The ``.xml`` or ``.onnx`` file; None for an ONNX model in memory.
    model : OnnxModel or None
        The ONNX model; None for an ``.xml``, whose graph is not evaluated in float64.
    settings : dict
        ``device``, ``precision``, ``threads``.
    default_inputs : Inputs or None
    """

    kind = "openvino"
    flat = True

    def __init__(
        self,
        name: str,
        path: Path | None,
        model: OnnxModel | None,
        settings: Mapping[str, Any],
        default_inputs: Inputs | None = None,
    ):
        super().__init__(name, default_inputs)
        self._path, self._model, self._settings = path, model, dict(settings)
        if importlib.util.find_spec("openvino") is None:
            raise DependencyMissing("running OpenVINO", "openvino", "openvino")
        self._number, self._element = _KEPT.number_for(self), ""
        read = self._load()
        self._version = read.version
        self._slots = [Slot(port.name, _DTYPES.get(port.element), port.shape) for port in read.inputs]

    @property
    def isolated(self) -> bool:
        """Whether it runs in a worker process."""
        return isolates()

    def _load(self) -> openvino_worker.Read:
        config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": self._settings["precision"]}
        if self._settings["threads"] is not None:
            config["INFERENCE_NUM_THREADS"] = self._settings["threads"]
        given = str(self._path) if self._model is None else self._model.for_session()
        recipe = openvino_worker.OpenvinoRecipe(given, self._settings["device"], config)
        found: openvino_worker.Read = _done("load", openvino_worker.load, self._number, recipe, _KEPT.dropped())
        return found

    def _again(self, stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        return asked_again(partial(_done, stage, function, self._number, *arguments), self._load)

    @property
    def runtime(self) -> str:
        threads = self._settings["threads"]
        more = "" if threads is None else f", {threads} thread{'s' if threads != 1 else ''}"
        # What it really computes in: a processor without the asked format gets float32.
        self._element = self._element or self._again("load", openvino_worker.element)[0]
        words = _DTYPES.get(self._element, self._element)
        return f"OpenVINO {self._version} {self._settings['device']}, {words}{more}"

    @property
    def onnx_model(self) -> OnnxModel | None:
        return self._model

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self._settings)

    @property
    def provider(self) -> str:
        return f"OpenVINO {self._settings['device']}"

    def variant(self, **changes: Any) -> OpenvinoProgram:
        return OpenvinoProgram(self.name, self._path, self._model, {**self._settings, **changes}, self.default_inputs)

    def slots(self) -> list[Slot]:
        return self._slots

    def bind(self, inputs: Any = None) -> Bound:
        if isinstance(inputs, Bound) and inputs.program is self:
            return inputs
        return bind_slots(self, ready(self, inputs))

    def __call__(self, inputs: Any = None) -> dict[str, Any]:
        bound = self.bind(inputs)
        arrays = [_owned(bound.feeds[slot.name]) for slot in self._slots]
        found: dict[str, Any] = self._again("run", openvino_worker.run, arrays)
        return {name: tensor_of(array) for name, array in found.items()}

    def release(self) -> None:
        _KEPT.drop(self._number)

    def describe(self) -> dict[str, Any]:
        identity: dict[str, Any] = {}
        if self._model is not None:
            identity = self._model.identity()
        elif self._path is not None:
            identity = {"path": str(self._path), "sha256": file_digest(self._path)}
        return super().describe() | {"openvino": self._version, **self._settings, **identity}

    def lift_source(self, inputs: Any = None) -> OnnxSource:
        """Return the ONNX model that was compiled; an ``.xml`` has none."""
        if self._model is None:
            raise CannotLift(f"{self.name} is an OpenVINO file; compare the ONNX model it was made from")
        return OnnxSource(self._model.proto, dict(self.bind(inputs).feeds), self._model.directory)


def _done(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of the worker's, in the worker or here."""
    if not isolates():
        return function(*arguments)
    return asked(openvino_worker.RUNTIME, stage, function, *arguments)


def _owned(value: Any) -> Any:
    return np.ascontiguousarray(array_of(value))
