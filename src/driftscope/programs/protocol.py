"""The seam between driftscope and whatever runs tensors: a :class:`Program` and what it hands out.

A runtime is one file in :mod:`driftscope.programs.runtimes` with one subclass of :class:`Program`. Everything above
this room asks a program only what is written here: bind inputs, check them, run, describe itself, hand out its graph.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, TypeAlias

from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.programs.isolation.choice import watched
from driftscope.programs.state.threads import thread_count
from driftscope.records.finding import Finding

if TYPE_CHECKING:
    import numpy as np
    import onnx
    import torch

    from driftscope.programs.feeding.feeds import Inputs
    from driftscope.programs.loading.onnx_files import OnnxModel

#: What :func:`ds.program` loads, and what :func:`ds.inputs` makes inputs of; a tensor or array, and containers of them.
ProgramLike: TypeAlias = (
    "Program | torch.nn.Module | torch.export.ExportedProgram | onnx.ModelProto | Callable[..., Any] | str | FilePath"
)
InputsLike: TypeAlias = (
    "Inputs | Mapping[str, Any] | Sequence[Any] | torch.Tensor | np.ndarray[Any, Any] | str | FilePath"
)


@dataclass(frozen=True, slots=True)
class TorchSource:
    """A torch program to lift.

    Parameters
    ----------
    function : callable
        What is called: ``function(*args, **kwargs)``; fresh containers, the caller's tensors.
    args, kwargs
        Its arguments, trees of tensors and Python values.
    module : torch.nn.Module or None
        Where parameters, buffers and module paths are named, when there is a module.
    exported : torch.export.ExportedProgram or None
        The exported program, when that is what runs.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: torch.nn.Module | None = None
    exported: torch.export.ExportedProgram | None = None


@dataclass(frozen=True, slots=True)
class ArraySource:
    """A function on numpy or JAX arrays to lift.

    Parameters
    ----------
    function : callable
        Takes and returns arrays.
    args, kwargs
        Its arguments, with torch tensors in the place of arrays.
    framework : str
        ``"numpy"`` or ``"jax"``.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    framework: str = "numpy"


@dataclass(frozen=True, slots=True)
class OnnxSource:
    """An ONNX graph to lift.

    Parameters
    ----------
    model : onnx.ModelProto
    feeds : dict of str to torch.Tensor
        One tensor per graph input, in native dtype.
    directory : pathlib.Path or None
        Where external data lies; None when all data is in ``model``.
    """

    model: onnx.ModelProto
    feeds: dict[str, torch.Tensor]
    directory: FilePath | None = None

    def whole(self) -> onnx.ModelProto:
        """Return the model with the weights that lie beside it, read into memory."""
        if self.directory is None:
            return self.model
        from onnx import external_data_helper

        found = type(self.model)()
        found.CopyFrom(self.model)
        external_data_helper.load_external_data_for_model(found, str(self.directory))
        return found


@dataclass(frozen=True, slots=True)
class Bound:
    """Inputs fitted to one program.

    Parameters
    ----------
    program : Program
        The one they are fitted to.
    args, kwargs
        For programs that are called; trees of torch tensors and Python values. Empty for flat programs.
    arguments : dict of str to object
        The program's top-level arguments by name, in its own order; each a leaf or a tree.
    feeds : dict of str to object
        Every leaf by the name this program knows it by, in the program's own order: ``{"x": Tensor, ...}``.
    notes : tuple of Finding
        What a person should know about the fit (O001, O002, O005, O009, O010).
    inputs : Inputs or None
        What they were made of.
    laid : callable or None
        How each tensor is laid out in memory when the program is called: takes a tensor and returns one with the same
        values. None for a plain copy.
    """

    program: Program
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    arguments: dict[str, Any]
    feeds: dict[str, Any]
    notes: tuple[Finding, ...] = ()
    inputs: Inputs | None = None
    laid: Callable[[torch.Tensor], torch.Tensor] | None = None


@dataclass(frozen=True, slots=True)
class Optimised:
    """What a runtime's graph optimisation did to a program while it was loaded.

    Parameters
    ----------
    graph : onnx.ModelProto or None
        The graph that runs; None where it is too large to be written and read for a look.
    fired : tuple of str
        Names of what changed the graph, in order.
    sets : frozenset of str
        Those of them that stand for a set of rewrite rules, each with a name of its own.
    """

    graph: onnx.ModelProto | None
    fired: tuple[str, ...]
    sets: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Slot:
    """One input a program declares.

    Parameters
    ----------
    name : str
    dtype : str or None
        Name as torch spells it (``"float32"``, ``"string"``); None when anything goes.
    shape : tuple of int, str or None, or None
        A fixed size, a symbol, or None for an unnamed free size; None altogether when the rank is free.
    optional : bool
        True when it may be left out (a default value, an initializer of the same name).
    kind : str
        ``"tensor"``, or ``"sequence"``, ``"optional"``, ``"map"``, ``"sparse"`` in ONNX.
    """

    name: str
    dtype: str | None = None
    shape: tuple[int | str | None, ...] | None = None
    optional: bool = False
    kind: str = "tensor"

    def __str__(self) -> str:
        dims = "[...]" if self.shape is None else f"[{', '.join('?' if d is None else str(d) for d in self.shape)}]"
        return f"{self.name} {self.dtype or self.kind}{dims if self.kind == 'tensor' else ''}"


@dataclass(frozen=True, slots=True)
class LoadedFrom:
    """What a program was loaded from, where another process can load it again.

    Parameters
    ----------
    obj : object
        A path, ``file.py:name``, or a model that can be pickled.
    options : mapping of str to object
        What it was loaded with.
    """

    obj: Any
    options: Mapping[str, Any]


class Program(abc.ABC):
    """Something runnable with named tensor inputs and a tree of outputs.

    Attributes
    ----------
    name : str
        What a person would call it: a class name or a file.
    kind : str
        ``"torch"``, ``"exported"``, ``"compiled"``, ``"onnx"``, ``"callable"``, ``"recorded"`` or a plug-in's own.
    flat : bool
        True when outputs come as a flat dict of names, so that their containers say nothing.
    default_inputs : Inputs or None
        Inputs that came with the program.
    loaded_from : LoadedFrom or None
        What it was loaded from; None for an object of this process.
    unplaced : callable or None
        A function that names no library: whose arrays it takes shows in the inputs and in its partner.
    """

    kind: str = ""
    flat: bool = False
    loaded_from: LoadedFrom | None = None
    unplaced: Callable[..., Any] | None = None

    def __init__(self, name: str, default_inputs: Inputs | None = None):
        self.name = name
        self.default_inputs = default_inputs

    @property
    @abc.abstractmethod
    def runtime(self) -> str:
        """What runs it, in words for people: ``"torch eager, CPU"``."""

    @abc.abstractmethod
    def __call__(self, inputs: Any = None) -> Any:
        """Run once and return the tree of outputs.

        Parameters
        ----------
        inputs : Inputs, Bound or anything ``ds.inputs`` accepts
            None for the program's own.

        Raises
        ------
        RuntimeRefused
            In the runtime's own words.
        InputError
            If the inputs do not fit.
        """

    @abc.abstractmethod
    def bind(self, inputs: Any = None) -> Bound:
        """Fit inputs to this program: a mapping by name, anything else by order.

        Raises
        ------
        InputError
            One sentence: what was expected, what was given.
        """

    def slots(self) -> list[Slot] | None:
        """Inputs the program declares, in order; None when it does not say what it takes."""
        return None

    def index_ranges(self, inputs: Inputs) -> dict[str, int]:
        """Return the rows of tables that integer inputs are looked up in; what is still to be drawn may be zeros."""
        return {}

    def check(self, inputs: Any = None) -> list[Finding]:
        """Say what looks wrong before any number is computed."""
        return []

    def check_draws(self, inputs: Any = None) -> list[Finding]:
        """Say what looks wrong in a program whose runs were seen to draw random numbers."""
        return []

    def describe(self) -> dict[str, Any]:
        """Return plain data about this program for the record."""
        return {"name": self.name, "kind": self.kind, "runtime": self.runtime, "isolated": self.isolated or watched()}

    @property
    def isolated(self) -> bool:
        """Whether it runs in a process of its own, which it can take down alone."""
        return False

    def lift_source(self, inputs: Any = None) -> TorchSource | OnnxSource | ArraySource:
        """Return the graph to evaluate in float64.

        Raises
        ------
        CannotLift
            If there is no graph to evaluate.
        """
        raise CannotLift(f"{self.name} runs on {self.runtime}, which has no graph to evaluate in float64")

    def widened(self, bound: Bound, step: float = 0.0, seed: int = 0) -> Any:
        """Run a program without a graph on its inputs in float64; None where it only runs in their own formats.

        Parameters
        ----------
        bound : Bound
        step : float
            Relative size of the random step by which the inputs are moved first.
        seed : int
            Names that step.
        """
        return None

    def optimized_source(self, inputs: Any = None) -> OnnxSource | None:
        """Return the graph that the runtime really runs, where it can be saved; None where it cannot."""
        return None

    def keep_optimized(self) -> None:  # noqa: B027 - nothing to do where no graph can be kept
        """Have what is made for the next run keep the graph for :meth:`optimized_source`, which will be asked for."""

    def optimized_graph(self) -> Any:
        """Return the graph that the runtime made of the program and runs; None where it shows none."""
        return None

    @property
    def onnx_model(self) -> OnnxModel | None:
        """The ONNX model that runs; None where the program is none."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """What a person may set of how it runs: a session's setup, the keywords of ``torch.compile``."""
        return {}

    @property
    def provider(self) -> str:
        """Full name of the execution provider that computes; empty where the runtime has none."""
        return ""

    def variant(self, **changes: Any) -> Program:
        """Return the same program run with these of its :attr:`settings` changed, nothing of it made yet.

        Raises
        ------
        CannotLift
            If nothing about how it runs can be changed.
        """
        raise CannotLift(f"{self.name} runs on {self.runtime}, which has no settings to change")

    def unoptimised(self) -> Program:
        """Return the same program run as it is written; itself where nothing optimises it."""
        return self

    def examine(self) -> Optimised:
        """Load the program anew and say what graph optimisation made of it.

        Raises
        ------
        CannotLift
            If this runtime does not say so, or optimises no graph.
        RuntimeRefused
            If it does not load the program.
        """
        raise CannotLift(f"{self.name} runs on {self.runtime}, which has no graph optimisers to leave out")

    def as_is(self, graph: onnx.ModelProto) -> Program:
        """Return a program of this runtime that runs another graph in memory, with nothing optimised.

        This is how the values inside a program are read: the graph that it runs, with values marked as outputs.

        Raises
        ------
        RuntimeRefused
            If this runtime runs no graph as it is written.
        """
        raise RuntimeRefused(self.runtime, "run", "its intermediate values cannot be read")

    @contextlib.contextmanager
    def on_threads(self, count: int) -> Iterator[Program]:
        """Give this program with its operators on so many threads, for as long as the context lasts."""
        if "threads" in self.settings:
            yield self.variant(threads=count)
            return
        with thread_count(count):
            yield self

    def flushing_denormals(self) -> Program | None:
        """Return this program on one thread with denormal numbers taken as zero; None where it cannot be told to."""
        return None

    @property
    def layouts(self) -> tuple[str, ...]:
        """Which of :attr:`Bound.laid`'s layouts reach it: of ``"strides"`` and ``"alignment"``."""
        return ()

    def release(self) -> None:  # noqa: B027 - most programs hold nothing between runs
        """Let go of what a run left behind (a session and its copy of the weights); the next run makes it again."""

    def __repr__(self) -> str:
        return f"<Program {self.name} on {self.runtime}>"
