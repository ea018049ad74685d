"""The inside of the process in which OpenVINO works: models by number, values as numpy arrays. Loads no torch."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftscope.errors import DependencyMissing, DriftscopeError, RuntimeRefused

RUNTIME = "OpenVINO"
_MODELS: dict[int, _Model] = {}


@dataclass(frozen=True, slots=True)
class OpenvinoRecipe:
    """How a model is compiled.

    Parameters
    ----------
    model : str or bytes
        Path, or a serialised ONNX model.
    device : str
    config : dict
        OpenVINO's own properties.
    """

    model: str | bytes
    device: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output: name, OpenVINO's element type, and shape with None where it is open; None: of any rank."""

    name: str
    element: str
    shape: tuple[int | None, ...] | None


@dataclass(frozen=True, slots=True)
class Read:
    """What reading a model told."""

    version: str
    inputs: tuple[Port, ...]


class _Model:
    def __init__(self, recipe: OpenvinoRecipe):
        self._recipe, self._made = recipe, None
        with _refusals("load"):
            source = recipe.model if isinstance(recipe.model, str) else io.BytesIO(recipe.model)
            self.read = _openvino().Core().read_model(source)

    @property
    def compiled(self) -> Any:
        if self._made is None:
            with _refusals("load"):
                self._made = _openvino().Core().compile_model(self.read, self._recipe.device, self._recipe.config)
        return self._made


def load(number: int, recipe: OpenvinoRecipe, dropped: Sequence[int]) -> Read:
    """Read a model and keep it under a number; forget those that nobody holds any more."""
    for old in dropped:
        _MODELS.pop(old, None)
    _MODELS[number] = model = _Model(recipe)
    return Read(_openvino().__version__.split("-")[0], tuple(map(_port, model.read.inputs)))


def element(number: int) -> tuple[str] | None:
    """Return what a model is computed in: a processor without the asked format gets another; None: not here."""
    model = _MODELS.get(number)
    return None if model is None else (model.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),)


def run(number: int, arrays: Sequence[Any]) -> dict[str, Any] | None:
    """Run a model on arrays and return its outputs by name; None where it is not here."""
    import numpy as np

    model = _MODELS.get(number)
    if model is None:
        return None
    compiled = model.compiled
    with _refusals("run"):
        found = compiled.create_infer_request().infer(list(arrays), share_inputs=False, share_outputs=False)
        return {_name_of(port): np.array(found[port]) for port in compiled.outputs}


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
        raise RuntimeRefused(RUNTIME, stage, " ".join(said or lines)[:600]) from error


def _openvino() -> Any:
    try:
        import openvino
    except ImportError as error:
        raise DependencyMissing("running OpenVINO", "openvino", "openvino") from error
    return openvino


def _port(port: Any) -> Port:
    partial = port.partial_shape
    shape = None
    if not partial.rank.is_dynamic:
        shape = tuple(None if dim.is_dynamic else int(dim.get_length()) for dim in partial)
    return Port(_name_of(port), port.element_type.get_type_name(), shape)


def _name_of(port: Any) -> str:
    return str(port.any_name) if port.get_names() else str(port.node.friendly_name)
