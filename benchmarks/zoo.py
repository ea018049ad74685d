"""Real architectures through real tools: honest pairs that must not be DIFFERENT, and planted bugs that must be found.

Named alone: it takes hours. ``DRIFTSCOPE_ONLY='bert|llama'`` takes some architectures,
``DRIFTSCOPE_TOOLS='saved|half'`` some tools; rows are kept, and a sweep that was stopped goes on. What is printed is
the table of the tools and every honest pair that is not answered rightly.
"""

from __future__ import annotations

import copy
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from tests.planted.naming import names
from tests.zoo.architectures import ARCHITECTURES, build
from tests.zoo.bugs import BUGS
from tests.zoo.graph_bugs import planted
from tests.zoo.tools import TOOLS, quiet
from torch import nn
from torch.utils._pytree import tree_leaves

import driftscope as ds
from benchmarks.verdicts.sweep import Case, Refused, sweep, tally, troubles
from benchmarks.verdicts.zoo_rows import bug_table, really_wrong, tool_table
from benchmarks.verdicts.zoo_rows import planted as bugs_of

#: Tools that compute or store in a narrower format on purpose.
CHEAPER = ("half", "bfloat16")


def cases(group: str) -> Iterator[Case]:
    """Every tool and every bug of one architecture; every other bug of a weight the other way round."""
    try:
        with quiet():
            model, inputs = build(group)
            with torch.no_grad():
                model(*inputs)
    except Exception as error:  # this version of the library has no such model
        raise Refused(f"{type(error).__name__}: {error}") from error
    with tempfile.TemporaryDirectory() as folder:
        for tool in filter(re.compile(os.environ.get("DRIFTSCOPE_TOOLS", "")).search, TOOLS):
            yield Case(tool, partial(_honest, model, inputs, tool, Path(folder)))
        try:
            exported = TOOLS["dynamo"](model, inputs, Path(folder))
        except Exception as error:
            raise Refused(f"dynamo: {type(error).__name__}: {error}") from error
        for k, (name, plant) in enumerate(BUGS.items()):
            ask = partial(_planted, model, plant, exported, inputs, k % 2 == 1)
            yield Case(f"bug-{name}", ask, f"bug {name}", partial(_in_module, model, plant))
        for name, broken, node in planted(onnx.load(exported)):
            ask = partial(_broken, model, exported, broken, inputs)
            yield Case(f"graph-{name}", ask, f"bug at {node}", partial(names, guilty=node))


def _in_module(model: nn.Module, plant: Callable[[nn.Module], str], finding: Any) -> bool:
    """Whether a finding names a parameter that was changed, or the module that holds it."""
    with torch.no_grad():
        changed = plant(copy.deepcopy(model)).split()
    told = (str(finding.evidence.get(word)) for word in ("weight", "reference"))
    owners = {name.rpartition(".")[0] for name in changed} - {""}
    return not set(changed).isdisjoint(told) or finding.where.module in owners


def _honest(model: nn.Module, inputs: tuple[torch.Tensor, ...], tool: str, folder: Path) -> Any:
    try:
        with quiet():
            made = TOOLS[tool](model, inputs, folder)
            if isinstance(made, nn.Module):
                with torch.no_grad():
                    made(*inputs)
    except (Exception, SystemExit) as error:  # what a tool refuses is no pair; some end the process
        raise Refused(f"{type(error).__name__}: {error}") from error
    try:
        return ds.compare(model, made, inputs)
    except ds.errors.ProgramError as error:  # a file that onnxruntime itself cannot read
        raise Refused(f"{type(error).__name__}: {error}") from error


def _broken(model: nn.Module, exported: Path, broken: onnx.ModelProto, inputs: tuple[torch.Tensor, ...]) -> Any:
    try:
        same = _outputs(onnx.load(exported).SerializeToString(), inputs) == _outputs(broken.SerializeToString(), inputs)
    except Exception as error:
        raise Refused(f"the broken file does not run: {error}") from error
    if same:
        raise Refused("no effect at these inputs")
    return ds.compare(model, broken, inputs)


def _outputs(model: bytes, inputs: tuple[torch.Tensor, ...]) -> list[bytes]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    named = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return [value.tobytes() for value in session.run(None, named)]


def _planted(
    model: nn.Module, plant: Callable[[nn.Module], str], exported: Any, inputs: tuple[torch.Tensor, ...], back: bool
) -> Any:
    broken = copy.deepcopy(model)
    try:
        with torch.no_grad():
            plant(broken)
            pairs = zip(*(tree_leaves(m(*inputs)) for m in (broken, model)), strict=True)
            same = all(torch.equal(one, other) for one, other in pairs)
    except (IndexError, StopIteration) as error:
        raise Refused("this model has no such weight") from error
    if same:
        raise Refused("no effect at these inputs")
    return ds.compare(exported, broken, inputs) if back else ds.compare(broken, exported, inputs)


def main() -> int:
    """Run the sweep; the number of honest pairs answered wrongly and of bugs not found."""
    rows = sweep("zoo", "benchmarks.zoo", list(ARCHITECTURES))
    found = troubles(
        [r for r in rows if not really_wrong(r)], narrow=lambda case: any(word in case for word in CHEAPER)
    )
    bugs = bugs_of(rows)
    missed = [r for r in bugs if r["verdict"] != "DIFFERENT"]
    print("\n".join([*tool_table(rows, TOOLS), "", *bug_table(rows)]))
    print("\n".join([*found, *(f"missed       {r['case']}: {r['verdict']} {r['reason'][:120]}" for r in missed)]))
    print(f"{len(rows)} rows; {tally(rows)}; {len(found)} honest pairs answered wrongly;"
          f" {len(bugs) - len(missed)} of {len(bugs)} bugs found")  # fmt: skip
    return len(found) + len(missed)
