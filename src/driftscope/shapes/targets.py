"""What an exported program becomes, asked at the probed points: without its checks, as ONNX, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from driftscope.errors import DependencyMissing, DriftscopeError, InputError, RuntimeRefused
from driftscope.records.finding import Finding
from driftscope.shapes.attempts import Mode
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.capture.export_costs import ExportCosts
from driftscope.shapes.check import Check
from driftscope.shapes.probe.aoti_target import AotiRunner
from driftscope.shapes.probe.domain import probe
from driftscope.shapes.probe.onnx_conversion import converted, save_model
from driftscope.shapes.probe.original import Original
from driftscope.shapes.probe.runners import ExportTarget, OnnxRunner, TorchRunner, scratch_file

#: The exported program with its checks: what ``ExportedProgram.module()`` runs.
EXPORTED = "export"
#: The exported program without any of its checks: what a converter that drops them starts from.
UNGUARDED = "unguarded"
ONNX = "onnx"
AOTI = "aoti"
#: The ONNX file of a plain export by ``Dim.AUTO``, asked where the chosen way of exporting is another one.
PLAIN_ONNX = "onnx of Dim.AUTO"

#: What may be asked for beside the exported program itself.
OPTIONAL = (ONNX, AOTI)


def wanted_targets(targets: Sequence[str] | None) -> tuple[str, ...]:
    """Return the targets to ask: those named, or ONNX where it is installed.

    Raises
    ------
    InputError
        If a target is not known.
    """
    if targets is None:
        return (ONNX,) if _onnx_installed() else ()
    named = (targets,) if isinstance(targets, str) else tuple(targets)
    unknown = [name for name in named if name not in (*OPTIONAL, EXPORTED, UNGUARDED)]
    if unknown:
        raise InputError(f"there is no target {unknown[0]!r}; there are {', '.join(OPTIONAL)}")
    return tuple(name for name in OPTIONAL if name in named)


def _onnx_installed() -> bool:
    import importlib.util

    return all(importlib.util.find_spec(name) is not None for name in ("onnx", "onnxscript", "onnxruntime"))


def ask_targets(check: Check, targets: Sequence[str]) -> bool:
    """Ask every target at the points the exported program was asked at; what cannot be asked becomes a finding.

    Returns
    -------
    bool
        True: later steps go on in any case.
    """
    capture, original = check.capture, check.original
    if capture is None or original is None:
        return True
    runners: list[ExportTarget] = [TorchRunner(UNGUARDED, capture.unguarded, original)]
    for name in targets:
        if not check.ordered and not check.exports.may_convert:
            check.exports.left_out.append(_TITLES[name])
            check.findings.append(_not_converted(name, check.exports))
            continue
        try:
            runners.append(_MAKERS[name](check, capture, original))
        except DependencyMissing:
            raise
        except DriftscopeError as error:
            check.findings.append(_not_asked(name, error))
    if ONNX in targets and (check.ordered or check.exports.may_convert):
        runners += _plain_onnx(check, capture)
    check.runners.update({runner.name: runner for runner in runners})
    probe(original, runners, [*check.running, *check.refused], check.domain)
    return True


def _onnx(check: Check, capture: Capture, _original: Original) -> ExportTarget:
    path = check.onnx_path or scratch_file(".onnx")
    made = converted(capture)
    save_model(made.model, path)
    check.onnx_path = path
    check.made_under[ONNX] = made.relations
    return OnnxRunner(Path(path), capture.exported, ONNX)


def _plain_onnx(check: Check, chosen: Capture) -> list[ExportTarget]:
    """The file that is made by whoever does not choose: it tells what the choice is worth."""
    if chosen.mode not in (Mode.OBLIVIOUS, Mode.UNBACKED):
        return []
    plain = plain_capture(check)
    if plain is None:
        return []
    path = scratch_file(".onnx")
    try:
        made = converted(plain)
        save_model(made.model, path)
        check.made_under[PLAIN_ONNX] = made.relations
        return [OnnxRunner(path, plain.exported, PLAIN_ONNX)]
    except RuntimeRefused:
        return []


def plain_capture(check: Check) -> Capture | None:
    """The export by ``Dim.AUTO`` on every axis, where torch accepted it."""
    captures = (candidate.capture for candidate in check.candidates)
    return next((made for made in captures if made is not None and made.mode is Mode.AUTO), None)


def _aoti(_check: Check, capture: Capture, _original: Original) -> ExportTarget:
    return AotiRunner(capture.exported, AOTI)


_MAKERS: dict[str, Callable[[Check, Capture, Original], ExportTarget]] = {ONNX: _onnx, AOTI: _aoti}

_TITLES = {ONNX: "ONNX", AOTI: "AOTInductor"}


def _not_converted(name: str, costs: ExportCosts) -> Finding:
    return Finding(
        "S030",
        f"{_TITLES[name]} was not probed: exporting this model took {costs.fastest:.0f} s of processor time, and a"
        f" converter traces it again",
        why="nothing is known of this target",
        fix=f'check_shapes(..., targets=("{name}",)) does it',
        evidence={"target": name},
        note=True,
    )


def _not_asked(name: str, error: DriftscopeError) -> Finding:
    stage = getattr(error, "runtime", name) if isinstance(error, RuntimeRefused) else name
    words = error.words.splitlines()[0] if isinstance(error, RuntimeRefused) and error.words else str(error)
    return Finding(
        "S030",
        f"{_TITLES[name]} could not be probed: {stage} refuses the exported program: {words}",
        why="nothing is known of this target",
        evidence={"target": name},
        note=True,
    )
