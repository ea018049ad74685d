"""What a check, a cover and a guard promise, held against the model itself at points that they did not choose.

``python -m shapes.harder.measuring [names]`` in ``tests/`` prints a line per model (seconds are of the processor), then
the sums; the slow tests run a few of them.
"""

from __future__ import annotations

import copy
import itertools
import logging
import random
import sys
import time
import warnings
from dataclasses import dataclass, field
from typing import Any

import torch

import driftscope as ds
from driftscope.errors import DriftscopeError
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.covering.dispatching import NotCovered
from driftscope.shapes.probe.axes import arguments_of
from shapes.harder.small import SMALL, Case

POINTS = 60


@dataclass
class Measured:
    """Counts at the points tried; ``words`` says where a promise was broken."""

    name: str
    points: int = 0
    running: int = 0
    status: int = 0
    auto: int = 0
    kept: int = 0
    cover_wrong: int = 0
    file_right: int = 0
    guard_right: int = 0
    guard_wrong: int = 0
    changed: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        took = " ".join(f"{name} {seconds:.1f}s" for name, seconds in self.seconds.items())
        return (
            f"{self.name:20} status {self.status}/{self.points}  of {self.running}: auto {self.auto} cover {self.kept}"
            f" (wrong {self.cover_wrong}) guard {self.guard_right} of {self.file_right} (wrong {self.guard_wrong})"
            f"{' CHANGED' if self.changed else ''}  {took}"
        )


def points_of(case: Case, count: int = POINTS) -> list[dict[str, int]]:
    """The example and combinations of the sizes tried, drawn evenly."""
    tried = [case.tried.get(name, SMALL) for name in case.example]
    combinations = [dict(zip(case.example, sizes, strict=True)) for sizes in itertools.product(*tried)]
    random.Random(0).shuffle(combinations)
    return [case.example, *(c for c in combinations if c != case.example)][:count]


def built(case: Case, point: dict[str, int], seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return case.inputs(**point)


def run(function: Any, inputs: Any) -> Any:
    """The answer, or the exception."""
    inputs = copy.deepcopy(inputs)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(**inputs) if isinstance(inputs, dict) else function(*inputs)
    except Exception as error:
        return error


def same(a: Any, b: Any) -> bool:
    """Whether two answers agree: shapes, dtypes, values to 1e-3 of the largest."""
    x, y = (torch_leaves(side) for side in (a, b))
    if len(x) != len(y):
        return False
    return all(_same_tensor(p, q) for p, q in zip(x, y, strict=True))


def torch_leaves(tree: Any) -> list[torch.Tensor]:
    from driftscope.programs.value_trees import flatten

    return [leaf for _, leaf in flatten(tree)[0] if isinstance(leaf, torch.Tensor)]


def _same_tensor(p: torch.Tensor, q: torch.Tensor) -> bool:
    if p.shape != q.shape or p.dtype != q.dtype:
        return False
    if p.is_complex():
        return _same_tensor(torch.view_as_real(p), torch.view_as_real(q))
    if not p.is_floating_point():
        return torch.equal(p, q)
    finite = p[torch.isfinite(p)]
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(p, q, rtol=1e-3, atol=1e-3 * largest, equal_nan=True)


def measure(case: Case, *, cover: bool = True, onnx: bool = True) -> Measured:
    """Check, cover and guard one model, and hold each answer against the model."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    model = case.model()
    held = _state(model)
    found = Measured(case.name)
    example = built(case, case.example)
    points = points_of(case)
    inputs = [built(case, point, seed) for seed, point in enumerate(points)]
    truth = [run(copy.deepcopy(model), one) for one in inputs]
    valid = [not isinstance(t, Exception) for t in truth]
    found.points, found.running = len(points), sum(valid)
    started = time.process_time()
    report = ds.check_shapes(model, example, dynamic=case.dynamic, targets=("onnx",) if onnx else ())
    found.seconds["check"] = time.process_time() - started
    found.changed |= _state(model) != held
    _status(report, points, inputs, truth, found)
    found.changed |= _state(model) != held
    found.auto = _auto(case, model, example, inputs, truth)
    if onnx:
        _guard(report, points, inputs, truth, found)
    if cover:
        _cover(model, case, example, points, inputs, truth, found)
    found.changed |= _state(model) != held
    return found


def _state(model: Any) -> str:
    told = []
    for name, module in model.named_modules():
        attributes = {k: v for k, v in vars(module).items() if not isinstance(v, (dict, torch.Tensor))}
        told.append(f"{name} {attributes!r} {[v.double().sum().item() for v in module.state_dict().values()]}")
    return "\n".join(told)


def _status(report: Any, points: Any, inputs: Any, truth: Any, found: Measured) -> None:
    program = report.program.module() if report.program is not None else None
    for point, one, wanted in zip(points, inputs, truth, strict=True):
        if program is None:
            continue
        answer = run(program, one)
        if isinstance(wanted, Exception):
            real = "invalid"
        else:
            real = "lost" if isinstance(answer, Exception) else "right" if same(wanted, answer) else "wrong"
        said = report.status(one)
        found.status += said == real
        if said != real:
            found.words.append(f"status says {said} and is {real} at {point}")


def _auto(case: Case, model: Any, example: Any, inputs: Any, truth: Any) -> int:
    arguments = arguments_of(model, example)
    hint = torch.export.Dim.AUTO
    made = capture(model, arguments, Attempt(Mode.AUTO, tuple(hint for _ in arguments.axes)))
    if not isinstance(made, Capture):
        return 0
    answers = [run(made.module, one) for one in inputs]
    return sum(_right(wanted, answer) for wanted, answer in zip(truth, answers, strict=True))


def _right(wanted: Any, answer: Any) -> bool:
    return not isinstance(wanted, Exception) and not isinstance(answer, Exception) and same(wanted, answer)


def _guard(report: Any, points: Any, inputs: Any, truth: Any, found: Measured) -> None:
    try:
        guarded = report.guard()
    except DriftscopeError as error:
        found.words.append(f"no guard: {error}")
        return
    for point, one, wanted in zip(points, inputs, truth, strict=True):
        found.file_right += _right(wanted, run(guarded.without_checks, one))
        answer = run(guarded, one)
        if isinstance(wanted, Exception) or isinstance(answer, Exception):
            continue
        right = same(wanted, answer)
        found.guard_right += right
        found.guard_wrong += not right
        if not right:
            found.words.append(f"guard wrong at {point}: {guarded.conditions}")


def _cover(model: Any, case: Case, example: Any, points: Any, inputs: Any, truth: Any, found: Measured) -> None:
    started = time.process_time()
    try:
        covered = ds.cover(model, example, dynamic=case.dynamic)
    except DriftscopeError as error:
        found.words.append(f"no cover: {error}")
        return
    found.seconds["cover"] = time.process_time() - started
    for point, one, wanted in zip(points, inputs, truth, strict=True):
        answer = run(covered, one)
        if isinstance(answer, Exception):
            if not isinstance(answer, NotCovered):
                found.words.append(f"cover raises {type(answer).__name__} at {point}: {answer}"[:300])
            elif not isinstance(wanted, Exception):
                found.words.append(f"cover refuses {point}")
            continue
        if isinstance(wanted, Exception):
            continue
        right = same(wanted, answer)
        found.kept += right
        found.cover_wrong += not right
        if not right:
            found.words.append(f"cover wrong at {point}: {[m.relation for m in covered.members]}")


def main(names: list[str]) -> None:
    """Measure the models named, or all."""
    from shapes.harder import families, layers, small, transformers_models

    every = []
    for case in (*small.CASES, *families.CASES, *layers.CASES, *transformers_models.CASES):
        if not names or case.name in names:
            found = measure(case)
            every.append(found)
            print(found, flush=True)
            for words in found.words[:6]:
                print("     ", words[:400], flush=True)
    status, points = sum(f.status for f in every), sum(f.points for f in every)
    kept, running = sum(f.kept for f in every), sum(f.running for f in every)
    print(
        f"status {status}/{points}  cover {kept}/{running}, wrong {sum(f.cover_wrong for f in every)},"
        f" below AUTO {[f.name for f in every if f.kept < f.auto]}"
        f"  guard {sum(f.guard_right for f in every)}/{sum(f.file_right for f in every)},"
        f" wrong {sum(f.guard_wrong for f in every)}"
        f"  changed {[f.name for f in every if f.changed]}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
