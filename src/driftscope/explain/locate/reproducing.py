"""A folder that shows a drift without driftscope: the smallest piece, its inputs, a README and a short script.

What is written is run once in a process of its own before it is handed over: a piece that shows nothing is not left
behind, the whole program takes its place.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from driftscope.errors import CannotLift, InputError, ProgramError
from driftscope.explain.locate import reproducer_texts as texts
from driftscope.explain.locate.cutting import OnnxPiece, cut_onnx
from driftscope.lift.evidence import Evidence
from driftscope.programs.protocol import Bound, Program
from driftscope.records.finding import Finding

_SECONDS = 120.0  # for the script that checks what was written
_CUT_SHORT = (CannotLift, ProgramError, RuntimeError, ValueError, TypeError, KeyError, onnx.checker.ValidationError)


@dataclass(frozen=True, slots=True)
class Reproducer:
    """What was written.

    Parameters
    ----------
    folder : Path
    piece : str
        In words: which nodes or which module, or the whole program and why.
    shown : str
        What the script printed when it was tried.
    """

    folder: Path
    piece: str
    shown: str

    def finding(self) -> Finding:
        """Say where it is."""
        what = f"{self.folder}/reproduce.py shows the drift without driftscope: {self.piece}"
        return Finding(
            "O020", what, evidence={"folder": str(self.folder), "printed": self.shown}, note=True, verified=True
        )


def check_folder(folder: str | Path) -> Path:
    """Return the folder a reproducer can be written to; asked before the work.

    Raises
    ------
    InputError
        If it exists and is not an empty folder, or cannot be made.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"cannot write a reproducer to {str(target)!r}: name a folder that is new or empty")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write a reproducer to {str(target)!r}: {error.strerror or error}") from error
    return target


def reproduce(
    a: Bound, b: Bound, evidence: Evidence, findings: Sequence[Finding], results: Sequence[Any], folder: Path
) -> Finding:
    """Write the smallest piece of B that shows the drift of the first finding with a node.

    Parameters
    ----------
    a, b : Bound
    evidence : Evidence
    findings : sequence of Finding
    results : sequence
        A's flattened native results, expected of B as a whole.
    folder : Path
        From :func:`check_folder`.

    Returns
    -------
    Finding
        O020: where it is, or why none could be written; the comparison is not lost over it.
    """
    try:
        return _written(a, b, evidence, findings, results, folder).finding()
    except InputError as error:
        _empty(folder)
        return Finding("O020", f"no reproducer was written: {error}", note=True, verified=False)


def _written(
    a: Bound, b: Bound, evidence: Evidence, findings: Sequence[Finding], results: Sequence[Any], folder: Path
) -> Reproducer:
    finding = next((f for f in findings if not f.note and f.where.node), None)
    reason = "no finding names a node"
    if finding is not None:
        try:
            piece = _write_piece(a, b, evidence, finding, folder)
            shown = _tried(folder)
            if shown is not None:
                return _described(folder, piece, shown, finding, b)
            reason = "the piece alone does not show it"
        except _CUT_SHORT as error:
            reason = f"no piece could be cut out ({error})"
        _empty(folder)
    piece = f"the whole of {b.program.name}, because {reason}"
    _write_whole(b, results, folder)
    shown = _tried(folder) or "no difference beyond rounding: the drift shows in float64 only"
    return _described(folder, piece, shown, finding, b)


def _write_piece(a: Bound, b: Bound, evidence: Evidence, finding: Finding, folder: Path) -> str:
    if b.program.onnx_model is not None:
        if evidence.a.graph is None or evidence.b.graph is None:
            raise CannotLift("a side cannot be evaluated in float64")
        cut = cut_onnx(b.program.onnx_model, finding, evidence.a.graph, evidence.b.graph, b.feeds)
        _write_onnx(folder, cut.model, cut.inputs, [cut.expected], b.program)
        return _words(cut)
    return _write_modules(a, b, finding, folder)


def _words(cut: OnnxPiece) -> str:
    return f"{cut.nodes[0]} alone" if len(cut.nodes) == 1 else f"{len(cut.nodes)} nodes up to {cut.nodes[-1]}"


def _write_whole(b: Bound, results: Sequence[Any], folder: Path) -> None:
    expected = [value for value in results if isinstance(value, torch.Tensor)]
    try:
        found = b.program.onnx_model
        if found is not None:
            model = found.proto if found.directory is None else onnx.load(str(found.path))
            tensors = {name: value for name, value in b.feeds.items() if isinstance(value, torch.Tensor)}
            _write_onnx(folder, model, tensors, expected, b.program)
            return
        module: nn.Module | None = getattr(b.program, "module", None)
        if module is None:
            raise CannotLift(f"{b.program.name} is a function, which cannot be stored without its source")
        _save_module(module, b.args, b.kwargs, folder / "b.pt2")
        torch.save({"args": b.args, "kwargs": b.kwargs, "expected": expected}, folder / "values.pt")
    except _CUT_SHORT as error:
        raise InputError(f"{b.program.name} cannot be written as a reproducer: {error}") from error
    (folder / "reproduce.py").write_text(texts.TORCH_WHOLE, encoding="utf-8")


def _write_onnx(
    folder: Path,
    model: onnx.ModelProto,
    inputs: dict[str, torch.Tensor],
    expected: Sequence[torch.Tensor],
    program: Program,
) -> None:
    large = model.ByteSize() > 1 << 30
    onnx.save(model, str(folder / "piece.onnx"), save_as_external_data=large)
    _save_arrays(folder / "inputs.npz", inputs)
    _save_arrays(folder / "expected.npz", {f"output_{i}": value for i, value in enumerate(expected)})
    script = texts.onnx_script(program.settings.get("level", "all"), tuple(program.settings.get("disabled", ())))
    (folder / "reproduce.py").write_text(script, encoding="utf-8")


def _save_arrays(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    arrays: dict[str, Any] = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
    np.savez(path, **arrays)


def _write_modules(a: Bound, b: Bound, finding: Finding, folder: Path) -> str:
    """Write the innermost module that both sides have around the guilty node, each exported, with B's inputs to it."""
    path = finding.where.module or ""
    one, other = (getattr(bound.program, "module", None) for bound in (a, b))
    if not (isinstance(one, nn.Module) and isinstance(other, nn.Module)):
        raise CannotLift("a side is not a module")
    modules = dict(one.named_modules()), dict(other.named_modules())
    while path and not (path in modules[0] and path in modules[1]):
        path = path.rpartition(".")[0]
    if not path:
        raise CannotLift("the two sides have no module in common around the node")
    args, kwargs = _arguments_of(modules[1][path], b)
    for side, found in zip("ab", modules, strict=True):
        _save_module(found[path], args, kwargs, folder / f"{side}.pt2")
    torch.save({"args": args, "kwargs": kwargs}, folder / "values.pt")
    (folder / "reproduce.py").write_text(texts.TORCH_PAIR, encoding="utf-8")
    return f"module {path}"


def _arguments_of(module: nn.Module, bound: Bound) -> tuple[tuple[Any, ...], dict[str, Any]]:
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    hook = module.register_forward_pre_hook(lambda _module, args, kwargs: seen.append((args, kwargs)), with_kwargs=True)
    try:
        with torch.no_grad():
            bound.program(bound)
    finally:
        hook.remove()
    if not seen:
        raise CannotLift("the module is not called as a module")
    return seen[0]


def _save_module(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: Path) -> None:
    with torch.no_grad():
        torch.export.save(torch.export.export(module, args, kwargs, strict=False), str(path))


def _tried(folder: Path) -> str | None:
    """Run the script as its reader will; what it printed, or None when it shows nothing."""
    command = [sys.executable, "reproduce.py"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None
    return done.stdout.strip() if done.returncode == texts.DIFFERS else None


def _described(folder: Path, piece: str, shown: str, finding: Finding | None, b: Bound) -> Reproducer:
    (folder / "README.md").write_text(texts.readme(piece, shown, finding, b.program.runtime), encoding="utf-8")
    return Reproducer(folder, piece, shown)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
