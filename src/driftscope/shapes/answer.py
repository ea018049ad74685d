"""``ShapeReport``: what a check of shapes found, with the program it speaks of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from driftscope.errors import InputError, ProgramError
from driftscope.programs.feeding.feeds import Inputs
from driftscope.records.finding import Finding
from driftscope.records.kinds.shape_report import ShapeRecord
from driftscope.shapes.capture.export import Capture
from driftscope.shapes.check import Check
from driftscope.shapes.conditions.relations import Relations
from driftscope.shapes.covering.bounding import Bounding, Bounds
from driftscope.shapes.covering.dispatching import Form
from driftscope.shapes.covering.files import like
from driftscope.shapes.covering.guarding import GuardedFile, GuardedOnnx
from driftscope.shapes.covering.serving_members import OnnxMember
from driftscope.shapes.model_state import ModelState
from driftscope.shapes.probe.axes import arguments_of
from driftscope.shapes.probe.domain import LOST, WRONG, Domain, probe
from driftscope.shapes.probe.judging_runs import Ran, silence
from driftscope.shapes.probe.prediction import Predictor
from driftscope.shapes.probe.runners import OnnxFeeder, OnnxRunner
from driftscope.shapes.targets import EXPORTED, ONNX


class ShapeReport:
    """What a check of shapes found; :attr:`record` is the part that is kept.

    Parameters
    ----------
    check : Check
    record : ShapeRecord
    """

    def __init__(self, check: Check, record: ShapeRecord):
        self._check = check
        self.record = record
        self._predictor: Predictor | None = None

    @property
    def program(self) -> ExportedProgram | None:
        """The exported program of the best capture; None if torch refused every way."""
        return self._check.capture.exported if self._check.capture is not None else None

    @property
    def capture(self) -> Capture | None:
        """The best capture: program, mode, spec, relations."""
        return self._check.capture

    @property
    def spec(self) -> dict[str, Any] | None:
        """``dynamic_shapes`` for ``torch.export.export``."""
        return self._check.capture.spec if self._check.capture is not None else None

    @property
    def spec_code(self) -> str:
        """Python to paste: ``dynamic_shapes``, and ``export(model, args)`` that makes this very program."""
        return self._check.capture.spec_code if self._check.capture is not None else ""

    @property
    def relations(self) -> Relations | None:
        """What the program was traced under."""
        return self._check.capture.relations if self._check.capture is not None else None

    @property
    def domain(self) -> Domain:
        """Every probed point and what each target does there."""
        return self._check.domain

    @property
    def lost(self) -> tuple[dict[str, int], ...]:
        """Sizes, by name, at which the model runs and the exported program refuses."""
        return self._sizes(LOST)

    @property
    def wrong(self) -> tuple[dict[str, int], ...]:
        """Sizes, by name, at which the exported program silently gives something else."""
        return self._sizes(WRONG)

    def _sizes(self, outcome: str) -> tuple[dict[str, int], ...]:
        names = self.record.axes
        return tuple(dict(zip(names, point, strict=True)) for point in self.domain.of(EXPORTED, outcome))

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Most important first."""
        return self.record.findings

    @property
    def first(self) -> Finding | None:
        """The most important finding, or None."""
        return self.record.first

    def status(self, *inputs: Any) -> str:
        """Say what the exported program does at these inputs, without running it.

        Parameters
        ----------
        *inputs
            One set as :func:`check_shapes` takes it (a tuple, a dict, ``ds.Inputs``), or the positional arguments.

        Returns
        -------
        str
            ``"right"``, ``"lost"`` (the model runs, the program refuses), ``"wrong"``, or ``"invalid"`` (the model
            refuses).

        Raises
        ------
        InputError
            If there is no exported program.
        """
        check = self._check
        if check.capture is None or check.original is None:
            raise InputError("no way of exporting this model was accepted, so there is no program")
        one = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], (tuple, list, Mapping, Inputs)) else inputs
        try:
            arguments = arguments_of(check.model, one)
        except InputError:
            return "invalid"
        # The model may have been trained since the check: its state as it is now is the one to keep.
        check.original.state = ModelState(check.model)
        if self._predictor is None:
            self._predictor = Predictor(check.original, check.capture, check.domain, EXPORTED)
        return self._predictor.status(*arguments.with_leaves([leaf for _, leaf in arguments.leaves]))

    @property
    def onnx_path(self) -> Path | None:
        """The ONNX file that was probed; temporary unless a path was given to :func:`check_shapes`."""
        return self._check.onnx_path

    def guard(self, path: str | Path | None = None, *, fallback: Callable[..., Any] | None = None) -> GuardedFile:
        """Put the checks that the exporter dropped back in front of an ONNX file made from :attr:`program`.

        The conditions are those under which the file was made, as far as they are needed, held against shapes beside
        and far from those that were probed.

        Parameters
        ----------
        path : path, optional
            The file; the one that was probed if left out. Another file is probed first.
        fallback : callable, optional
            What answers at all other shapes: the model.

        Returns
        -------
        GuardedFile
            Called like the model; refuses the shapes at which the file is not known to be right.

        Raises
        ------
        ProgramError
            If there is no such file, or no conditions are known that keep it from being wrong and no fallback is given.
        InputError
            If there is no program, or ONNX was not among the targets.
        """
        check = self._check
        if check.capture is None or check.arguments is None or check.original is None:
            raise InputError("no way of exporting this model was accepted, so there is nothing to guard")
        if ONNX not in check.domain.seen:
            refused = next((f.what for f in check.findings if f.code == "S030" and f.evidence["target"] == ONNX), "")
            raise InputError(refused or 'no ONNX file was probed; check_shapes(..., targets=("onnx",)) does')
        file = Path(path) if path is not None else check.onnx_path
        if file is None or not file.is_file():
            raise ProgramError(f"{file}: no such file")
        name = file.name if path is not None else "the ONNX file"  # a file of the check's own has a name of chance
        bounds = check.bounds(ONNX) if _was_probed(file, check) else self._bounds_of(file)
        if bounds is None and fallback is None:
            raise ProgramError(
                f"{name} is wrong at some inputs, and no condition on sizes tells them from where it is right:"
                " guard(path, fallback=model) runs the model instead, ds.cover looks for other programs"
            )
        member = OnnxMember(file, ())  # loaded now: another file may be there by the first call
        member.inputs = tuple(OnnxFeeder(check.capture.exported, member.names).places.items())
        answer = check.original.answer(check.original.example)
        rebuild = like(answer.value if isinstance(answer, Ran) else None)
        conditions, tried = (bounds.conditions, bounds.tried) if bounds is not None else (None, 0)
        guard = GuardedOnnx(name, Form.of(check.arguments), check.arguments.axes, conditions, tried, rebuild, fallback)
        return GuardedFile(member, guard)

    def _bounds_of(self, file: Path) -> Bounds | None:
        """Bounds of another file than the one that was probed."""
        check = self._check
        relations = check.relations(ONNX)
        if check.capture is None or check.original is None or relations is None:
            return None
        runner = OnnxRunner(file, check.capture.exported)
        with silence():
            seen = probe(check.original, [runner], check.domain.points, Domain())
            return Bounding(check.original, runner, relations, check.directions).find(seen)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain JSON data."""
        return self.record.to_dict()

    def save(self, path: Any) -> Any:
        """Write the record: JSON for ``.json``, a page for ``.html``."""
        return self.record.save(path)

    def _repr_html_(self) -> str:
        return self.record._repr_html_()

    def _repr_markdown_(self) -> str:
        return self.record._repr_markdown_()

    def __str__(self) -> str:
        return str(self.record)

    def __repr__(self) -> str:
        return f"<ShapeReport: {self.record}>"


def _was_probed(file: Path, check: Check) -> bool:
    """Whether a file holds the bytes that were probed; another file may be at their place by now."""
    probed = check.runners.get(ONNX)
    if not isinstance(probed, OnnxRunner) or not probed.in_place():
        return False
    return file.samefile(probed.path) or file.read_bytes() == probed.path.read_bytes()
