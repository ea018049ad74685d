"""Everything of torch that is not public and that this room reads, in one place. Read in torch 2.13.0.

When torch moves one of these, the functions here raise :class:`Moved`, which becomes one finding; what can be known
without it is still reported.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch.export import ExportedProgram
from torch.fx import Node

from driftscope.programs import pytrees as pytree

READ_IN = "2.13"


class Moved(Exception):
    """A private name of torch is not where it was; the message names it."""


@contextlib.contextmanager
def moved(what: str) -> Iterator[None]:
    """Turn a missing private name into :class:`Moved`."""
    try:
        yield
    except (AttributeError, ImportError, KeyError) as error:
        raise Moved(f"{what} was read in torch {READ_IN} and is not found in {torch.__version__}: {error}") from error


@contextlib.contextmanager
def transforms_left() -> Iterator[None]:
    """Leave the transforms that a block entered: an exported program that fails inside ``torch.vmap`` does not.

    Every later call of torch in the process would be mapped.
    """
    depth = functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        if functorch.get_dynamic_layer_stack_depth() > depth:
            functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


@dataclass(frozen=True, slots=True)
class RecordedGuard:
    """One entry of the shape environment: a sympy condition, torch's note of the place, and its words."""

    condition: Any
    place: Any
    framework: str
    user: str


@contextlib.contextmanager
def oblivious() -> Iterator[None]:
    """Trace sizes 0 and 1 like any other (``backed_size_oblivious``)."""
    with moved("torch.fx.experimental._config.backed_size_oblivious"):
        import torch.fx.experimental._config as settings

        chosen: Any = settings
        patched = chosen.patch(backed_size_oblivious=True)
    with patched:
        yield


@contextlib.contextmanager
def without_dispatch_cache() -> Iterator[None]:
    """Trace without torch's cache of what operators return for fake tensors.

    Every new symbolic shape is a new key, and making keys and entries of symbolic expressions takes longer than the
    operators' own shape rules: exporting a tiny T5 takes 2.5 s without it and 5 s with it. The program and its guards
    are the same. Where torch has no such setting the trace is only slower.
    """
    try:
        import torch._dynamo.config as settings

        chosen: Any = settings
        patched = chosen.patch(fake_tensor_cache_enabled=False)
    except (AttributeError, ImportError, KeyError):
        patched = contextlib.nullcontext()
    with patched:
        yield


def shapes_alone() -> Any:
    """Return a mode in which operators say the shapes that they would return; its ``from_tensor`` makes arguments."""
    with moved("torch._subclasses.fake_tensor.FakeTensorMode"):
        from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def mark_unbacked(tensor: torch.Tensor, dim: int) -> None:
    """Make one axis a size of which the tracer may assume nothing."""
    with moved("torch._dynamo.decorators.mark_unbacked"):
        from torch._dynamo.decorators import mark_unbacked as mark
    mark(tensor, dim)


def guard_texts(exported: ExportedProgram) -> list[str]:
    """Conditions that ``ExportedProgram.module()`` checks, as Python on ``L['x'].size()[0]``."""
    with moved("ExportedProgram._guards_code"):
        return [str(guard) for guard in exported._guards_code]


def shape_environment(exported: ExportedProgram) -> Any | None:
    """The shape environment of the trace, or None for a program without symbolic sizes or read from a file."""
    for node in exported.graph.nodes:
        value = node.meta.get("val")
        mode = getattr(value, "fake_mode", None)
        if mode is not None:
            return getattr(mode, "shape_env", None)
    return None


def recorded_guards(environment: Any) -> list[RecordedGuard]:
    """Every condition the trace decided, with the lines of code that asked."""
    with moved("ShapeEnv.guards"):
        return [
            RecordedGuard(guard.expr, guard.sloc, str(guard.sloc), guard.sloc.maybe_user_loc or "")
            for guard in environment.guards
        ]


def replacement_places(environment: Any) -> dict[str, Any]:
    """Torch's note of the place at which each symbol was replaced by an expression of others."""
    with moved("ShapeEnv.replacements_slocs"):
        return {str(symbol): place for symbol, place in environment.replacements_slocs.items()}


@contextlib.contextmanager
def watched(name: str, note: Callable[[Any, Any], None]) -> Iterator[None]:
    """While the context lives, ``note(arguments, result)`` is told of every call of a method of the shape environment.

    ``_get_sloc`` writes down the place of a guard: torch keeps only the innermost frame, which is nearly always its
    own, while the user's is still on the stack when the note is made. ``evaluate_sym_node`` decides a condition; what
    it decides from the range of a symbol alone leaves no guard. ``evaluate_expr`` and ``replace`` are where a trace
    spends its time.
    """
    with moved(f"ShapeEnv.{name}"):
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        original = getattr(ShapeEnv, name)

    # What torch hangs on the method, such as cache_clear, goes along.
    @functools.wraps(original)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        note(args, result)
        return result

    setattr(ShapeEnv, name, noting)
    try:
        yield
    finally:
        setattr(ShapeEnv, name, original)


def deferred_asserts(environment: Any) -> list[Any]:
    """Conditions the trace left to run time, as sympy; not all of them become nodes of the graph."""
    with moved("ShapeEnv.deferred_runtime_asserts"):
        return [one.expr for asserts in environment.deferred_runtime_asserts.values() for one in asserts]


def traced_stack() -> list[tuple[str, int, str]]:
    """File, line and function of every frame of the model that the strict tracer is reading; empty outside of it."""
    with moved("torch._guards.TracingContext.extract_stack"):
        from torch._guards import TracingContext

        return [(frame.filename, frame.lineno or 0, frame.name) for frame in TracingContext.extract_stack()]


def decomposed_stack() -> str:
    """The lines of the model behind the node of a graph that torch is interpreting; empty where it interprets none."""
    with moved("torch.fx.traceback.get_current_meta"):
        from torch.fx.traceback import get_current_meta

        return str(get_current_meta().get("stack_trace") or "")


def symbol_sources(environment: Any) -> dict[str, list[str]]:
    """Where each symbol comes from: ``{"s77": ["L['x'].size()[0]"]}``."""
    with moved("ShapeEnv.var_to_sources"):
        found = {}
        for symbol, sources in environment.var_to_sources.items():
            found[str(symbol)] = [s.name if isinstance(s.name, str) else s.name() for s in sources]
        return found


def replacements(environment: Any) -> Mapping[Any, Any]:
    """Symbols that were replaced by expressions of others."""
    with moved("ShapeEnv.replacements"):
        return dict(environment.replacements)


def value_ranges(environment: Any) -> dict[str, tuple[Any, Any]]:
    """The range the trace assumed of each symbol, as sympy numbers."""
    with moved("ShapeEnv.var_to_range"):
        return {str(symbol): (vr.lower, vr.upper) for symbol, vr in environment.var_to_range.items()}


def symbolic(size: Any) -> Any:
    """The sympy expression of a SymInt, or the integer itself."""
    if isinstance(size, torch.SymInt):
        with moved("SymInt.node.expr"):
            return size.node.expr
    return int(size)


def asserted(node: Node) -> Any:
    """The sympy expression that a node ``_assert_scalar`` checks."""
    about: Any = node.args[0]
    value = about.meta.get("val") if isinstance(about, Node) else about
    return getattr(getattr(value, "node", None), "expr", value)


def leaf_names(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each leaf as torch names it in guards (``L['d']['ids']``, ``L['cache'][0]``), in the order of placeholders."""
    with moved("torch.utils._pytree.tree_flatten_with_path"):
        found, _ = pytree.tree_flatten_with_path(dict(arguments))
        return [("L" + pytree.keystr(path), leaf) for path, leaf in found]


def normal_source(source: str, names: Sequence[str]) -> str:
    """Name a source as the non-strict tracer does: the strict one writes ``L['flat_args'][3]``."""
    return re.sub(r"L\['flat_args'\]\[(\d+)\]", lambda match: names[int(match[1])], source)


def input_nodes(exported: ExportedProgram) -> list[Node]:
    """Placeholders of the user's own inputs, in order."""
    with moved("ExportGraphSignature.user_inputs"):
        wanted = exported.graph_signature.input_specs
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    pairs = zip(placeholders, wanted, strict=True)
    return [node for node, spec in pairs if spec.kind.name == "USER_INPUT"]


def output_values(exported: ExportedProgram) -> list[Any]:
    """What the trace knows of each of the user's outputs: a fake tensor, a symbolic number or a constant."""
    with moved("ExportGraphSignature.output_specs"):
        specs = exported.graph_signature.output_specs
    (output,) = (node for node in exported.graph.nodes if node.op == "output")
    pairs = [value for value, spec in zip(output.args[0], specs, strict=False) if spec.kind.name == "USER_OUTPUT"]
    return [value.meta.get("val") if isinstance(value, Node) else value for value in pairs]


def unguarded(exported: ExportedProgram) -> torch.nn.Module:
    """The program without any of its checks: neither guards nor ranges nor equalities."""
    with moved("ExportedProgram.module(check_guards=False)"):
        # Before torch 2.9 a module had no guards to leave out, only ranges.
        takes_guards = "check_guards" in inspect.signature(exported.module).parameters
        module: Any = exported.module(check_guards=False) if takes_guards else exported.module()
        module.validate_inputs = False
    result: torch.nn.Module = module
    return result
