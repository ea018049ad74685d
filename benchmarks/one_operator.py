"""One-operator programs, exported by torch.onnx, on thirteen ranges of inputs in float32 and float16.

Every pair is honest. Named alone: it takes an hour and a half. ``docs/explanation`` quotes what it prints.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import driftscope as ds
from benchmarks.verdicts.operators import operators
from benchmarks.verdicts.ranges import RANGES, draw
from benchmarks.verdicts.sweep import Case, Refused, sweep, tally, troubles

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class _Call(nn.Module):
    def __init__(self, call: Any):
        super().__init__()
        self.call = call

    def forward(self, *values: torch.Tensor) -> Any:
        return self.call(*values)


def cases(group: str) -> Iterator[Case]:
    """The cases of one operator in one format, ``name/dtype``: each range, every third also the other way round."""
    name, dtype_name = group.rsplit("/", 1)
    call, shapes = operators()[name]
    dtype = DTYPES[dtype_name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model = _Call(call).to(dtype).eval()
        _export(model, tuple(draw("normal", s, dtype, k) for k, s in enumerate(shapes)), path)
        for number, law in enumerate(RANGES):
            given = tuple(draw(law, s, dtype, k) for k, s in enumerate(shapes))
            yield Case(law, _asking(model, str(path), given))
            if number % 3 == 0:
                yield Case(f"{law}-reversed", _asking(str(path), model, given))


def _export(model: nn.Module, given: tuple[torch.Tensor, ...], path: Path) -> None:
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(model, given, path, dynamo=True, verbose=False)
    except Exception as error:  # whatever the exporter says, there is no pair
        raise Refused(f"{type(error).__name__}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)


def _asking(a: Any, b: Any, given: tuple[torch.Tensor, ...]) -> Any:
    return lambda: ds.compare(a, b, given, isolate=False)


def main() -> int:
    """Run the sweep; print every honest pair that is not answered rightly."""
    groups = [f"{name}/{dtype}" for name in operators() for dtype in DTYPES]
    rows = sweep("one_operator", "benchmarks.one_operator", groups)
    found = troubles(rows, narrow=lambda case: "/float16/" in case or "half" in case)
    print("\n".join(found))
    print(f"{len(rows)} rows; {tally(rows)}; {len(found)} answered wrongly")
    return len(found)
