"""onnxruntime: ONNX models, one lazily created session per program."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime
import torch

from driftscope.errors import CannotLift, ProgramError, RuntimeRefused
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.binding import bind_slots, ready
from driftscope.programs.external_data import is_external, tensors_of
from driftscope.programs.graph_modes import modes_of_onnx
from driftscope.programs.onnx_files import OnnxModel
from driftscope.programs.onnx_signature import opsets_of, outputs_of, slots_of, table_rows, unused_inputs
from driftscope.programs.protocol import Bound, OnnxSource, Program, Slot
from driftscope.programs.runtimes.ort_log import TALKATIVE, Heard, listening
from driftscope.programs.runtimes.ort_options import SessionSetup
from driftscope.programs.runtimes.ort_values import bind_input, bind_output, bindable, tensor_from
from driftscope.records.finding import Finding, Where

if TYPE_CHECKING:
    from driftscope.programs.feeds import Inputs

# protobuf cannot hold more than 2 GiB; beyond this the optimised graph's weights go beside it.
_LARGE = 1_500_000_000


class OnnxProgram(Program):
    """An ONNX model on onnxruntime.

    Parameters
    ----------
    model : OnnxModel
        The file or the model in memory.
    setup : SessionSetup
    default_inputs : Inputs or None
    """

    kind = "onnx"
    flat = True

    def __init__(self, model: OnnxModel, setup: SessionSetup | None = None, default_inputs: Inputs | None = None):
        super().__init__(model.name, default_inputs)
        self.model = model
        self.setup = setup or SessionSetup()
        self._session: Any = None
        self._optimized: onnx.ModelProto | None = None
        self._slots = slots_of(model.proto)
        self._outputs = outputs_of(model.proto)

    @property
    def runtime(self) -> str:
        return self.setup.words

    @property
    def session(self) -> Any:
        """The ``onnxruntime.InferenceSession``, created on first use.

        Raises
        ------
        RuntimeRefused
            If onnxruntime does not load the model.
        """
        if self._session is None:
            self._session = self._create(self.setup.save_optimized)
        return self._session

    def variant(self, **changes: Any) -> OnnxProgram:
        """Return the same model with another :class:`SessionSetup`: these fields of it changed."""
        setup = dataclasses.replace(self.setup, **{"save_optimized": None, **changes})
        return OnnxProgram(self.model, setup, self.default_inputs)

    def examine(self) -> tuple[onnx.ModelProto | None, Heard]:
        """Create the session anew, keep the graph that it runs, and hear which transformers made it.

        Returns
        -------
        graph : onnx.ModelProto or None
            None where it is too large to be written and read for a look.
        heard : Heard

        Raises
        ------
        RuntimeRefused
            If onnxruntime does not load the model.
        """
        with tempfile.TemporaryDirectory(prefix="driftscope-") as folder, listening() as heard:
            path = FilePath(folder) / "optimized.onnx"
            small = self.model.size <= _LARGE
            self._session = self._create(str(path) if small else None, severity=TALKATIVE)
            graph = onnx.load(str(path), load_external_data=False) if small and path.is_file() else None
        self._optimized = self._optimized or graph
        return graph, heard

    def _create(self, save_to: str | None = None, beside: str | None = None, severity: int = 4) -> Any:
        options = self.setup.session_options(severity)
        if save_to is not None:
            options.optimized_model_filepath = str(save_to)
        if beside is not None:
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", beside)
        providers = self.setup.providers()
        with refusals("load"):
            session = onnxruntime.InferenceSession(
                self.model.for_session(),
                options,
                providers=providers,
                disabled_optimizers=list(self.setup.disabled) or None,
            )
        if session.get_providers()[:1] != providers[:1]:
            # The provider is in the build but its libraries did not load; onnxruntime went on without it.
            raise RuntimeRefused("onnxruntime", "load", f"{providers[0]} could not be started on this machine")
        return session

    def release(self) -> None:
        self._session = None

    def slots(self) -> list[Slot]:
        return self._slots

    def bind(self, inputs: Any = None) -> Bound:
        if isinstance(inputs, Bound) and inputs.program is self:
            return inputs
        return bind_slots(self, ready(self, inputs))

    def index_ranges(self, inputs: Inputs) -> dict[str, int]:
        rows = table_rows(self.model.proto)
        if not inputs.by_name:
            return rows
        return {name: limit for name, limit in rows.items() if name in inputs.kwargs}

    def __call__(self, inputs: Any = None) -> dict[str, Any]:
        bound = self.bind(inputs)
        plain = all(slot.kind == "tensor" and slot.dtype != "string" for slot in (*self._slots, *self._outputs))
        return self._run_bound(bound.feeds) if plain else self._run_objects(bound.feeds)

    def _run_bound(self, feeds: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        session = self.session
        on_cuda = self.setup.provider_name == "CUDAExecutionProvider" and torch.cuda.is_available()
        held = {name: bindable(tensor, on_cuda) for name, tensor in feeds.items()}
        with refusals("run"):
            binding = session.io_binding()
            for name, tensor in held.items():
                bind_input(binding, name, tensor)
            cuda = next((tensor.device for tensor in held.values() if tensor.is_cuda), None)
            # The same value may be declared as an output twice.
            outputs = {slot.name: slot.dtype for slot in self._outputs}
            for name, dtype in outputs.items():
                bind_output(binding, name, dtype, cuda)
            if cuda is not None:
                torch.cuda.synchronize(cuda)  # what torch still computes must be there before the session reads it
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()
            values = binding.get_outputs()
        return {name: tensor_from(value) for name, value in zip(outputs, values, strict=True)}

    def _run_objects(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Run a model with strings, sequences, optionals or maps: those go through numpy."""
        given = {name: _object_in(value) for name, value in feeds.items() if value is not None}
        with refusals("run"):
            values = self.session.run(None, given)
        return {slot.name: _object_out(value) for slot, value in zip(self._outputs, values, strict=True)}

    def check(self, inputs: Any = None) -> list[Finding]:
        unused = [self._unused(name) for name in unused_inputs(self.model.proto)]
        return [*self.setup.unknown_optimizers(), *modes_of_onnx(self.model.proto, self.name), *unused]

    def _unused(self, name: str) -> Finding:
        return Finding(
            "O002",
            f"input {name!r} of {self.name} is read by no node: no output depends on it",
            why="the exporter kept the input but what used it was constant, dead code or optimised away",
            fix="export with an example in which this input matters, or remove it from the model",
            where=Where(output=f"in[{name!r}]"),
        )

    def describe(self) -> dict[str, Any]:
        proto = self.model.proto
        return super().describe() | {
            "onnxruntime": onnxruntime.__version__,
            "level": self.setup.level,
            "disabled": list(self.setup.disabled),
            "threads": self.setup.threads,
            "provider": self.setup.provider_name,
            "ir_version": proto.ir_version,
            "opsets": opsets_of(proto),
            "producer": f"{proto.producer_name} {proto.producer_version}".strip(),
            "nodes": len(proto.graph.node),
            **self.model.identity(),
        }

    def lift_source(self, inputs: Any = None) -> OnnxSource:
        return OnnxSource(self.model.proto, self._tensor_feeds(inputs), self.model.directory)

    def _tensor_feeds(self, inputs: Any) -> dict[str, torch.Tensor]:
        feeds = self.bind(inputs).feeds
        odd = next((name for name, value in feeds.items() if not isinstance(value, torch.Tensor)), None)
        if odd is not None:
            raise CannotLift(f"input {odd!r} of {self.name} is not a tensor")
        return feeds

    def optimized_source(self, inputs: Any = None) -> OnnxSource | None:
        """Return the graph this session runs, as saved by another session with the same setup.

        Raises
        ------
        RuntimeRefused
            If onnxruntime does not load the model, or cannot write what it made of it.
        """
        if self._optimized is None:
            self._optimized = self._save_and_load()
        # Weights that the optimiser left alone still lie where the file keeps them.
        external = any(map(is_external, tensors_of(self._optimized)))
        return OnnxSource(self._optimized, self._tensor_feeds(inputs), self.model.directory if external else None)

    def _save_and_load(self) -> onnx.ModelProto:
        with tempfile.TemporaryDirectory(prefix="driftscope-") as folder:
            path = FilePath(folder) / "optimized.onnx"
            large = self.model.size > _LARGE
            self._create(str(path), "weights.bin" if large else None)
            if not path.is_file():
                raise RuntimeRefused("onnxruntime", "load", "it did not write its optimised graph")
            return onnx.load(str(path), load_external_data=large)


def _object_in(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [array_of(item) for item in value]
    return array_of(value)


def _object_out(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_object_out(item) for item in value]
    if isinstance(value, dict):
        return {key: _object_out(item) for key, item in value.items()}
    return tensor_of(value)


_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_STACK = re.compile(r"\s+Stacktrace:.*", re.DOTALL)
_OPSET = re.compile(r"Opset (\d+) is under development .* domain (\S+) is till opset (\d+)")
_PLACE = re.compile(r"\S+\.(?:cc|h|cu|cuh):\d+ ")


@contextlib.contextmanager
def refusals(stage: str) -> Iterator[None]:
    """Turn what onnxruntime raises into :class:`RuntimeRefused`, in its own words without its source lines."""
    try:
        yield
    except (RuntimeRefused, ProgramError):
        raise
    except Exception as error:
        # pybind raises many classes without a common ancestor below Exception.
        raise RuntimeRefused("onnxruntime", stage, own_words(str(error))) from error


def own_words(message: str) -> str:
    """Strip C++ source places from a message of onnxruntime and put it on one line."""
    message = _STACK.sub("", _STATUS.sub("", message))
    while (place := _PLACE.search(message)) is not None:
        message = message[: place.start()] + message[place.end() + _signature_length(message[place.end() :]) :]
    words = " ".join(message.split())[:600]
    newer = _OPSET.search(words)
    if newer is not None:
        words = f"opset {newer[1]} of {newer[2]} is newer than it supports, which is {newer[3]}"
    return words + _advice(words)


def _signature_length(text: str) -> int:
    """Return how much of ``text`` is the function that a message begins with: a whole C++ signature or one word."""
    opening = text.find("(")
    # A signature names its types before the bracket; a message that merely contains brackets is prose.
    if "::" not in text[: max(opening, 0)]:
        word = re.match(r"\w+ ", text)
        return word.end() if word else 0
    depth = 0
    for i, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ")" and depth == 0 and text[i + 1 : i + 2] == " ":
            rest = re.match(r"(?: const| noexcept)*(?: \[with [^\]]*\])? ", text[i + 1 :])
            return i + 1 + (rest.end() if rest else 0)
    return 0


def _advice(words: str) -> str:
    if "model IR version" in words or "Opset" in words or ("opset" in words and "support" in words):
        return " (convert it with onnx.version_converter, or save it with an older opset and ir_version)"
    return ""
