"""OpenVINO: ONNX models and its own ``.xml``, compiled for a device; claimed through ``runtime="openvino"``.

Compiled in float32 unless another precision is asked for: on some processors OpenVINO's own choice is bfloat16, which
a comparison would find at once, but which nobody asked for. Needs the extra ``driftscope[openvino]``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from driftscope.errors import CannotLift, DependencyMissing, DriftscopeError, ProgramError, RuntimeRefused
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.feeding.binding import bind_slots, ready
from driftscope.programs.feeding.feeds import make_inputs
from driftscope.programs.feeding.files import file_digest
from driftscope.programs.loading.onnx_files import OnnxModel, model_of
from driftscope.programs.protocol import Bound, OnnxSource, Program, Slot

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

#: What OpenVINO calls its element types, as torch spells them.
_DTYPES = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64", "boolean": "bool", "i8": "int8",
    "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
    "string": "string",
}  # fmt: skip
PRECISIONS = ("f32", "f16", "bf16")


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
    """A model compiled by OpenVINO, in this process.

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
        self._made: Any = None
        with _refusals("load"):
            self._read = _openvino().Core().read_model(_readable(path, model))
        self._slots = [_slot(port) for port in self._read.inputs]

    @property
    def runtime(self) -> str:
        threads = self._settings["threads"]
        more = "" if threads is None else f", {threads} thread{'s' if threads != 1 else ''}"
        version = _openvino().__version__.split("-")[0]
        # What it really computes in: a processor without the asked format gets float32.
        element = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return f"OpenVINO {version} {self._settings['device']}, {_DTYPES.get(element, element)}{more}"

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
        with _refusals("run"):
            request = self._compiled.create_infer_request()
            found = request.infer(arrays, share_inputs=False, share_outputs=False)
        return {_name_of(port): tensor_of(np.array(found[port])) for port in self._compiled.outputs}

    @property
    def _compiled(self) -> Any:
        if self._made is None:
            config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": self._settings["precision"]}
            if self._settings["threads"] is not None:
                config["INFERENCE_NUM_THREADS"] = self._settings["threads"]
            with _refusals("load"):
                self._made = _openvino().Core().compile_model(self._read, self._settings["device"], config)
        return self._made

    def release(self) -> None:
        self._made = None

    def describe(self) -> dict[str, Any]:
        identity: dict[str, Any] = {}
        if self._model is not None:
            identity = self._model.identity()
        elif self._path is not None:
            identity = {"path": str(self._path), "sha256": file_digest(self._path)}
        return super().describe() | {"openvino": _openvino().__version__, **self._settings, **identity}

    def lift_source(self, inputs: Any = None) -> OnnxSource:
        """Return the ONNX model that was compiled; an ``.xml`` has none."""
        if self._model is None:
            raise CannotLift(f"{self.name} is an OpenVINO file; compare the ONNX model it was made from")
        return OnnxSource(self._model.proto, dict(self.bind(inputs).feeds), self._model.directory)


@contextlib.contextmanager
def _refusals(stage: str) -> Iterator[None]:
    """Turn what OpenVINO raises into :class:`RuntimeRefused`, in its own words without its source lines."""
    try:
        yield
    except DriftscopeError:
        raise
    except Exception as error:  # it raises plain RuntimeErrors, and pybind's own classes
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = [line for line in lines if not line.startswith("Exception from ")]
        raise RuntimeRefused("OpenVINO", stage, " ".join(said or lines)[:600]) from error


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise DependencyMissing("running OpenVINO", "openvino", "openvino") from error
    return openvino


def _readable(path: Path | None, model: OnnxModel | None) -> Any:
    """What OpenVINO reads a model from: a path, or the bytes of an ONNX model in memory."""
    given = str(path) if model is None else model.for_session()
    return given if isinstance(given, str) else io.BytesIO(given)


def _name_of(port: Any) -> str:
    return str(port.any_name) if port.get_names() else str(port.node.friendly_name)


def _slot(port: Any) -> Slot:
    partial = port.partial_shape
    shape = None
    if not partial.rank.is_dynamic:
        shape = tuple(None if dim.is_dynamic else int(dim.get_length()) for dim in partial)
    return Slot(_name_of(port), _DTYPES.get(port.element_type.get_type_name()), shape)


def _owned(value: Any) -> Any:
    return np.ascontiguousarray(array_of(value))
