"""The inside of the worker process in which onnxruntime runs: sessions by number, tensors in shared memory.

Imports onnxruntime and nothing heavier: the first run waits for this import. What is called here is called by
:mod:`driftscope.programs.runtimes.ort_remote` through a worker process, with plain values.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnxruntime

from driftscope.programs.runtimes.native.placing import Given, Job, Placed, Shared, whole_bytes
from driftscope.programs.runtimes.ort_log import listening
from driftscope.programs.runtimes.ort_options import SessionSetup
from driftscope.programs.runtimes.ort_refusals import refusals

_SESSIONS: dict[int, Any] = {}
# Of a session's last run with large outputs: its inputs, and the element types and shapes of its outputs.
_MADE: dict[int, tuple[Any, tuple[tuple[int, tuple[int, ...]], ...]]] = {}
_DEPENDS = "on values"  # instead of inputs: the shapes of the outputs were others for the same shapes of the inputs
_LARGE = 1 << 16  # bytes of outputs from which on it is worth a look whether they can be written in place


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a session is made.

    Parameters
    ----------
    model : str or bytes
    setup : SessionSetup
    save_to, beside : str or None
        Where the optimised graph is written, and the name of a file beside it for its weights.
    severity : int
        Of onnxruntime's log.
    """

    model: str | bytes
    setup: SessionSetup
    save_to: str | None = None
    beside: str | None = None
    severity: int = 4


@dataclass(slots=True)
class Made:
    """What making a session said."""

    text: str = ""
    audible: bool = field(default=True)


def new_session(recipe: Recipe) -> Any:
    """Make a session.

    Raises
    ------
    RuntimeRefused
        If onnxruntime does not load the model.
    """
    from driftscope.errors import RuntimeRefused

    options = recipe.setup.session_options(recipe.severity)
    if recipe.save_to is not None:
        options.optimized_model_filepath = recipe.save_to
    if recipe.beside is not None:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", recipe.beside)
    providers = recipe.setup.providers()
    with refusals("load"):
        session = onnxruntime.InferenceSession(
            recipe.model, options, providers=providers, disabled_optimizers=list(recipe.setup.disabled) or None
        )
    if session.get_providers()[:1] != providers[:1]:
        # The provider is in the build but its libraries did not load; onnxruntime went on without it.
        raise RuntimeRefused("onnxruntime", "load", f"{providers[0]} could not be started on this machine")
    return session


def make(number: int, recipe: Recipe, dropped: Sequence[int], listen: bool = False) -> Made:
    """Make a session and keep it under a number; forget those that nobody holds any more."""
    forget(dropped)
    if not listen:
        _SESSIONS[number] = new_session(recipe)
        return Made()
    with listening() as heard:
        _SESSIONS[number] = new_session(recipe)
    return Made(heard.text, heard.audible)


def forget(dropped: Sequence[int]) -> None:
    """Forget sessions that nobody holds any more, and the memory of their weights."""
    for old in dropped:
        _SESSIONS.pop(old, None)
        _MADE.pop(old, None)


def run(job: Job) -> Given | None:
    """Run a session on tensors in shared memory and put its outputs behind them.

    Returns
    -------
    tuple or None
        Length of the shared memory now, or its contents where none is shared, and the outputs; None where this
        process has no such session.

    Raises
    ------
    RuntimeRefused
        In onnxruntime's own words.
    """
    session = _SESSIONS.get(job.session)
    if session is None:
        return None
    key = tuple((feed.name, feed.element, feed.shape) for feed in job.feeds)
    known, made = _MADE.get(job.session, (None, ()))
    if known == key:
        try:
            return _run_in_place(session, job, made)
        except Exception:  # whatever else it is, the second run says it
            _MADE[job.session] = known, _ = _DEPENDS, ()
    shared = Shared(job)
    with refusals("run"):
        values = _bound(session, job, shared, {})
    kinds = tuple((value.element_type(), tuple(value.shape())) for value in values)
    placed = shared.room([(name, *kind) for name, kind in zip(job.outputs, kinds, strict=True)])
    for place, value in zip(placed, values, strict=True):
        if place.size:
            ctypes.memmove(shared.address(place), value.data_ptr(), place.size)
    if sum(place.size for place in placed) >= _LARGE and known != _DEPENDS:
        _MADE[job.session] = (key, kinds)
    return shared.given(placed)


def _run_in_place(session: Any, job: Job, made: Sequence[tuple[int, tuple[int, ...]]]) -> Given:
    """Run with the outputs bound where who asked will read them, of the shapes they had the last time."""
    shared = Shared(job)
    placed = shared.room([(name, *kind) for name, kind in zip(job.outputs, made, strict=True)])
    values = _bound(session, job, shared, {place.name: place for place in placed if place.size and whole_bytes(place)})
    for place, kind, value in zip(placed, made, values, strict=True):
        if kind != (value.element_type(), tuple(value.shape())):
            raise ValueError(f"{place.name} is of another shape")
        # What was not bound lies elsewhere, and so does an input or a weight that is an output as it is.
        if place.size and value.data_ptr() != shared.address(place):
            ctypes.memmove(shared.address(place), value.data_ptr(), place.size)
    return shared.given(placed)


def _bound(session: Any, job: Job, shared: Shared, outputs: Mapping[str, Placed]) -> Sequence[Any]:
    binding = session.io_binding()
    for feed in job.feeds:
        binding.bind_input(feed.name, "cpu", 0, feed.element, list(feed.shape), shared.address(feed))
    for name in job.outputs:
        place = outputs.get(name)
        if place is None:
            binding.bind_output(name, "cpu")
        else:
            binding.bind_output(name, "cpu", 0, place.element, list(place.shape), shared.address(place))
    session.run_with_iobinding(binding)
    binding.synchronize_outputs()
    values: Sequence[Any] = binding.get_outputs()
    return values


def run_objects(number: int, feeds: dict[str, Any]) -> list[Any] | None:
    """Run a session on numpy values: strings, sequences, optionals and maps; None where it is not here."""
    session = _SESSIONS.get(number)
    if session is None:
        return None
    with refusals("run"):
        found: list[Any] = session.run(None, feeds)
        return found
