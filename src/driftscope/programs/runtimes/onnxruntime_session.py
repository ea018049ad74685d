"""onnxruntime: ONNX models, one lazily created session per program."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import onnx
import onnxruntime
import torch

from driftscope.errors import CannotLift, RuntimeCrashed, RuntimeRefused
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.feeding.binding import bind_slots, ready
from driftscope.programs.inspection.graph_modes import modes_of_onnx
from driftscope.programs.inspection.onnx_signature import opsets_of, outputs_of, slots_of, table_rows, unused_inputs
from driftscope.programs.isolation.choice import isolates
from driftscope.programs.loading.external_data import is_external, location_of, take_in, tensors_of
from driftscope.programs.loading.onnx_files import OnnxModel
from driftscope.programs.protocol import Bound, OnnxSource, Optimised, Program, Slot
from driftscope.programs.runtimes.ort_crash_site import crash_site
from driftscope.programs.runtimes.ort_log import TALKATIVE, Heard, is_rule_based, listening
from driftscope.programs.runtimes.ort_options import SessionSetup
from driftscope.programs.runtimes.ort_refusals import refusals
from driftscope.programs.runtimes.ort_remote import RemoteSession, forget_dropped
from driftscope.programs.runtimes.ort_values import bind_input, bind_output, bindable, tensor_from
from driftscope.programs.runtimes.ort_worker import Recipe, new_session
from driftscope.programs.torch_run import FlushingProgram, can_flush
from driftscope.records.finding import Finding, Where

if TYPE_CHECKING:
    from driftscope.programs.feeding.feeds import Inputs

# protobuf cannot hold more than 2 GiB.
_LARGE = 1_500_000_000
# Beyond this the optimised graph's weights go beside it, where they are mapped rather than read.
_BESIDE = 64 << 20
# Where onnxruntime says that a tensor lies which it did not write.
_IN_MEMORY = "_ORT_MEM_ADDR_"
_WEIGHTS = "optimized-weights.bin"  # no name that a model would choose
# Bytes of weights that an optimiser wrote anew, from files beside the model, up to which the graph holds them itself.
_REWRITTEN = 256 << 20


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
        self._remote: RemoteSession | None = None
        self._optimized: onnx.ModelProto | None = None
        self._beside: tempfile.TemporaryDirectory[str] | None = None
        self._keeps = False
        self._rewritten = False  # whether the optimiser is known to have changed more weights than the graph may hold
        self._slots = slots_of(model.proto)
        self._outputs = outputs_of(model.proto)

    @property
    def runtime(self) -> str:
        return self.setup.words

    @property
    def session(self) -> Any:
        """The ``onnxruntime.InferenceSession``, in this process, created on first use.

        Raises
        ------
        RuntimeRefused
            If onnxruntime does not load the model.
        """
        if self._session is None:
            self._session = new_session(self._recipe(self.setup.save_optimized))
        return self._session

    @property
    def isolated(self) -> bool:
        """Whether it runs in a worker process; a session on a GPU shares memory with torch and stays here."""
        return isolates() and self.setup.provider_name != "CUDAExecutionProvider"

    def _remotely(self) -> RemoteSession:
        if self._remote is None and self._keeps and self._optimized is None:
            self._remote = self._keeping()
        if self._remote is None:
            made = RemoteSession(lambda: self._recipe(self.setup.save_optimized))
            made.make()
            self._remote = made
        return self._remote

    def keep_optimized(self) -> None:
        # Weights of a large file go beside the graph, and are written only where they are read; from files beside the
        # model, only those are written that the optimiser changed.
        small = self.model.size <= _BESIDE or self.model.external
        self._keeps = small and self.setup.save_optimized is None

    def _keeping(self) -> RemoteSession | None:
        """Make a session and keep what it made of the model; another session for that would cost as much again."""
        made = RemoteSession(self._recipe)
        with tempfile.TemporaryDirectory(prefix="driftscope-") as folder:
            path = FilePath(folder) / "optimized.onnx"
            try:
                made.make(self._recipe(str(path)))
                self._rewritten = self.model.size > _BESIDE and not _is_small(path)
                self._optimized = None if self._rewritten else _written_graph(path)
            except RuntimeRefused:
                self._rewritten = self.model.size > _BESIDE
                return None  # it may be the writing that does not work
        return made

    def variant(self, **changes: Any) -> OnnxProgram:
        """Return the same model with another :class:`SessionSetup`: these fields of it changed."""
        setup = dataclasses.replace(self.setup, **{"save_optimized": None, **changes})
        return OnnxProgram(self.model, setup, self.default_inputs)

    @property
    def onnx_model(self) -> OnnxModel:
        return self.model

    def flushing_denormals(self) -> Program | None:
        return FlushingProgram(self.variant(threads=1)) if can_flush() else None

    @property
    def layouts(self) -> tuple[str, ...]:
        # Tensors are handed over densely; a worker receives a copy, which lies where the worker puts it.
        return () if self.isolated else ("alignment",)

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the :class:`SessionSetup`."""
        setup = self.setup
        return {
            "level": setup.level, "disabled": setup.disabled, "threads": setup.threads,
            "provider": setup.provider, "config": dict(setup.config),
        }  # fmt: skip

    @property
    def provider(self) -> str:
        return self.setup.provider_name

    def unoptimised(self) -> OnnxProgram:
        return self.variant(level="disable", disabled=())

    def as_is(self, graph: onnx.ModelProto) -> OnnxProgram:
        return OnnxProgram(OnnxModel(graph, self.name), self.unoptimised().setup)

    def examine(self) -> Optimised:
        """Create the session anew, keep the graph that it runs, and hear which transformers made it."""
        with tempfile.TemporaryDirectory(prefix="driftscope-") as folder:
            path = FilePath(folder) / "optimized.onnx"
            small = self.model.size <= _LARGE
            heard = self._create(self._recipe(str(path) if small else None, severity=TALKATIVE), listen=True)
            graph = None
            with contextlib.suppress(RuntimeRefused):
                graph = _written_graph(path) if small else None
        self._optimized = self._optimized or graph
        return Optimised(graph, heard.fired, frozenset(filter(is_rule_based, heard.fired)))

    def _recipe(self, save_to: str | None = None, beside: str | None = None, severity: int = 4) -> Recipe:
        return Recipe(self.model.for_session(), self.setup, save_to, beside, severity)

    def _create(self, recipe: Recipe, *, listen: bool = False) -> Heard:
        """Make a session here or in the worker, to be run from now on."""
        if self.isolated:
            remote = RemoteSession(lambda: recipe)
            made = remote.make(listen=listen)
            self._remote = RemoteSession(lambda: self._recipe()) if recipe.save_to else remote
            return Heard(made.text, made.audible)
        if not listen:
            self._session = new_session(recipe)
            return Heard()
        with listening() as heard:
            self._session = new_session(recipe)
        return heard

    def release(self) -> None:
        remote, self._session, self._remote = self._remote is not None, None, None
        if remote:
            forget_dropped()

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
        if not self.isolated:
            return self._run_bound(bound.feeds, bound.laid) if plain else self._run_objects(bound.feeds, self._run_here)
        try:
            if not plain:
                return self._run_objects(bound.feeds, self._remotely().run_objects)
            return self._remotely().run(bound.feeds, tuple({slot.name: None for slot in self._outputs}))
        except RuntimeCrashed as crash:
            if crash.stage != "run" or not plain or not crash.by_itself:
                raise
            node, operator = crash_site(self.model.proto, self.model.directory, self.setup, bound.feeds)
            raise crash.at(node, operator) from crash

    def _run_bound(
        self, feeds: dict[str, torch.Tensor], laid: Callable[[torch.Tensor], torch.Tensor] | None
    ) -> dict[str, torch.Tensor]:
        session = self.session
        on_cuda = self.setup.provider_name == "CUDAExecutionProvider" and torch.cuda.is_available()
        held = {name: bindable(tensor if laid is None else laid(tensor), on_cuda) for name, tensor in feeds.items()}
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

    def _run_here(self, feeds: dict[str, Any]) -> list[Any]:
        session = self.session
        with refusals("run"):
            values: list[Any] = session.run(None, feeds)
        return values

    def _run_objects(self, feeds: dict[str, Any], run: Callable[[dict[str, Any]], list[Any]]) -> dict[str, Any]:
        """Run a model with strings, sequences, optionals or maps: those go through numpy."""
        given = {name: _object_in(value) for name, value in feeds.items() if value is not None}
        values = run(given)
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
        graph = self.optimized_graph()
        # Weights that the optimiser left alone still lie where the file keeps them, unless all went beside the graph.
        external = any(map(is_external, tensors_of(graph)))
        home = self.model.directory if self._beside is None else FilePath(self._beside.name)
        return OnnxSource(graph, self._tensor_feeds(inputs), home if external else None)

    def optimized_graph(self) -> onnx.ModelProto:
        """Return the graph alone that :meth:`optimized_source` returns with its feeds."""
        if self._optimized is None:
            self._optimized = self._save_and_load()
        return self._optimized

    def _save_and_load(self) -> onnx.ModelProto:
        folder = tempfile.TemporaryDirectory(prefix="driftscope-")
        try:
            path = FilePath(folder.name) / "optimized.onnx"
            few = self.model.external and not self._rewritten
            beside = self.model.size > _BESIDE and not (few and self._few_written(path))
            if beside:
                self._write(path, _WEIGHTS)
            elif not path.is_file():
                self._write(path)
            graph = _written_graph(path)
            if beside:
                self._take_in(graph)
                self._beside = folder  # as long as the program lives
            return graph
        finally:
            if self._beside is not folder:
                folder.cleanup()

    def _take_in(self, graph: onnx.ModelProto) -> None:
        """Read weights that are still named by the model's own files, as onnxruntime 1.20 leaves them, into a graph."""
        for tensor in filter(is_external, tensors_of(graph)):
            if location_of(tensor) != _WEIGHTS and self.model.directory is not None:
                take_in(tensor, self.model.directory)

    def _few_written(self, path: FilePath) -> bool:
        """Write the optimised graph with the weights that changed; the others stay in the model's own files."""
        try:
            self._write(path)
        except RuntimeRefused:
            return False  # more than one file may hold
        return _is_small(path)

    def _write(self, path: FilePath, beside: str | None = None) -> None:
        recipe = self._recipe(str(path), beside)
        if self.isolated:
            RemoteSession(lambda: recipe).make()
            forget_dropped()
        else:
            new_session(recipe)


def _is_small(path: FilePath) -> bool:
    """Whether a session wrote its graph with few weights in it."""
    return path.is_file() and path.stat().st_size <= _REWRITTEN


def _written_graph(path: FilePath) -> onnx.ModelProto:
    """Read the graph that a session wrote, without the weights beside it.

    Raises
    ------
    RuntimeRefused
        If it wrote none, or one that needs the session's memory, as onnxruntime 1.20 does of weights that it laid out
        anew for products with four bits.
    """
    if not path.is_file():
        raise RuntimeRefused("onnxruntime", "load", "it did not write its optimised graph")
    graph = onnx.load(str(path), load_external_data=False)
    lost = next((t.name for t in tensors_of(graph) if _IN_MEMORY in location_of(t)), None)
    if lost is not None:
        words = f"the optimised graph that it wrote lacks {lost!r}, which only its own memory holds"
        raise RuntimeRefused("onnxruntime", "load", f"{words}; a newer onnxruntime writes it")
    return graph


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
