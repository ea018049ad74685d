"""The same broken files shown to driftscope and to the tools people use today: who finds the node, and how fast.

Run with ``python -m benchmarks peers``. Each tool is called as its documentation says, in this process, with the
thresholds it comes with (onnx-diagnostic prints a table: its first row above 1e-4, in float16 1e-2, is taken).
Polygraphy gets the clean file as its golden reference, which a user hardly has. A tool is right when the first tensor
it flags belongs to the guilty node or to the same call of the module.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import io
import logging
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir
import torch
from onnx import ModelProto, NodeProto, helper, numpy_helper

from benchmarks.localisation import Decoder

DEPTH = 1
#: Broken files of both dtypes that driftscope has to place, and clean ones that it must not flag.
PROMISED_RIGHT, PROMISED_QUIET = 1.0, 1.0

Plant = Callable[[ModelProto], str]
Tool = Callable[["Case"], str | None]


@dataclass(frozen=True)
class Case:
    """One file, what it was exported from, and the file as it should be."""

    module: torch.nn.Module
    exported: torch.export.ExportedProgram
    inputs: tuple[torch.Tensor, ...]
    clean: ModelProto
    broken: ModelProto
    half: bool


# --- bugs ------------------------------------------------------------------------------------------------------


def _nodes(model: ModelProto, operator: str) -> list[NodeProto]:
    return [n for n in model.graph.node if n.op_type == operator]


def _store(model: ModelProto, node: NodeProto, slot: int, edit: Callable[[np.ndarray], np.ndarray]) -> str:
    held = {i.name: i for i in model.graph.initializer}
    before = numpy_helper.to_array(held[node.input[slot]])
    name = f"{node.input[slot]}_of_{node.name}"
    after = np.ascontiguousarray(edit(before.copy()).astype(before.dtype))
    model.graph.initializer.append(numpy_helper.from_array(after, name))
    node.input[slot] = name
    return node.name


def _weighted(model: ModelProto) -> list[NodeProto]:
    held = {i.name for i in model.graph.initializer if len(i.dims) == 2}
    return [n for n in _nodes(model, "MatMul") if n.input[1] in held]


def _constant(operator: str, factor: float, index: int = 0) -> Plant:
    def plant(model: ModelProto) -> str:
        scalars = {i.name for i in model.graph.initializer if not i.dims}
        nodes = [n for n in _nodes(model, operator) if n.input[1] in scalars]
        return _store(model, nodes[index], 1, lambda c: c * factor)

    return plant


def _bfloat16(w: np.ndarray) -> np.ndarray:
    return torch.from_numpy(w).to(torch.bfloat16).to(torch.float32).numpy()


def _exchanged(model: ModelProto) -> str:
    node = _nodes(model, "Concat")[-1]
    node.input[0], node.input[1] = node.input[1], node.input[0]
    return node.name


def _epsilon(model: ModelProto) -> str:
    if _nodes(model, "RMSNormalization"):
        node = _nodes(model, "RMSNormalization")[1]
        kept = [a for a in node.attribute if a.name != "epsilon"]
        del node.attribute[:]
        node.attribute.extend([*kept, helper.make_attribute("epsilon", 1e-3)])
        return node.name
    return _constant("Add", 1e3, 1)(model)


BUGS: tuple[tuple[str, Plant], ...] = (
    ("epsilon x1000", _epsilon),
    ("square weight transposed", lambda m: _store(m, _weighted(m)[3], 1, np.transpose)),
    ("weight rounded to bfloat16", lambda m: _store(m, _weighted(m)[4], 1, _bfloat16)),
    ("attention scale +1 %", _constant("Mul", 1.01)),
    ("rotary halves exchanged", _exchanged),
)


# --- tools -----------------------------------------------------------------------------------------------------


def driftscope(case: Case) -> str | None:
    """The node of the first finding."""
    import driftscope as ds

    comparison = ds.compare(case.module, case.broken, case.inputs)
    first = next((f for f in comparison.findings if not f.note), None)
    return None if first is None else first.where.node or ""


def torch_verifier(case: Case) -> str | None:
    """``verify_onnx_program(compare_intermediates=True)``; the limits are those of ``export(verify=True)``."""
    from torch.onnx.verification import verify_onnx_program

    program = torch.onnx.ONNXProgram(onnx_ir.from_proto(case.broken), case.exported)
    rows = verify_onnx_program(program, args=case.inputs, compare_intermediates=True)
    order = {o: k for k, n in enumerate(case.broken.graph.node) for o in n.output}
    wrong = [r.name for r in rows if r.max_abs_diff >= 5e-3 or r.max_rel_diff >= 1e-1]
    return min(wrong, key=lambda n: order.get(n, len(order)), default=None)


def onnx_diagnostic(case: Case) -> str | None:
    """``run_aligned``, the first row above a threshold."""
    from onnx_diagnostic.reference import OnnxruntimeEvaluator
    from onnx_diagnostic.torch_onnx.sbs import run_aligned

    limit = 1e-2 if case.half else 1e-4
    for record in run_aligned(case.exported, case.broken, OnnxruntimeEvaluator, args=case.inputs, use_tensor=True):
        if record.err_abs is not None and record.onnx_name and not record.err_abs <= limit:
            return str(record.onnx_name)
    return None


def polygraphy(case: Case) -> str | None:
    """``polygraphy run --onnx-outputs mark all`` against the clean file's tensors, default tolerances."""
    from polygraphy import constants
    from polygraphy.backend.onnx import BytesFromOnnx, ModifyOutputs
    from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
    from polygraphy.comparator import Comparator, CompareFunc
    from polygraphy.logger import G_LOGGER

    G_LOGGER.module_severity = G_LOGGER.CRITICAL

    runners = [
        OnnxrtRunner(SessionFromOnnx(BytesFromOnnx(ModifyOutputs(m, outputs=constants.MARK_ALL))), name=name)
        for name, m in (("golden", case.clean), ("broken", case.broken))
    ]
    feeds = {i.name: x.numpy() for i, x in zip(case.clean.graph.input, case.inputs, strict=True)}
    results = Comparator.run(runners, data_loader=[feeds])
    accuracy = Comparator.compare_accuracy(results, compare_func=CompareFunc.simple())
    passed = next(iter(accuracy[0].values()))[0]
    order = {o: k for k, n in enumerate(case.broken.graph.node) for o in n.output}
    wrong = [name for name, result in passed.items() if not bool(result)]
    return min(wrong, key=lambda n: order.get(n, len(order)), default=None)


TOOLS: tuple[tuple[str, Tool], ...] = (
    ("driftscope", driftscope),
    ("torch verifier, intermediates", torch_verifier),
    ("onnx-diagnostic run_aligned", onnx_diagnostic),
    ("Polygraphy, all tensors", polygraphy),
)


# --- the table -------------------------------------------------------------------------------------------------


def _call(model: ModelProto, named: str) -> str:
    """The call of the module that a node, or a tensor by its maker, belongs to."""
    for node in model.graph.node:
        if named == node.name or named in node.output:
            scopes = next((p.value for p in node.metadata_props if p.key == "pkg.torch.onnx.name_scopes"), "")
            return str(ast.literal_eval(scopes)[-1]) if scopes else node.name
    return named


def answer(tool: Tool, case: Case) -> tuple[str | None, float]:
    """What a tool names, or why it could not, with processor seconds."""
    start = time.process_time()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            named = tool(case)
    except Exception as error:
        named = f"{type(error).__name__}"
    return named, time.process_time() - start


def cases(half: bool) -> list[tuple[str, str, Case]]:
    """The clean file and the broken ones, with the guilty nodes."""
    module = Decoder(DEPTH).eval()
    x = torch.randn(2, 16, 128, generator=torch.Generator().manual_seed(0))
    if half:
        module, x = module.half(), x.half()
    program = torch.onnx.export(module, (x,), dynamo=True, verbose=False)
    exported, clean = program.exported_program, program.model_proto
    found = [("clean", "", Case(module, exported, (x,), clean, clean, half))]
    for name, plant in BUGS:
        broken = copy.deepcopy(clean)
        guilty = plant(broken)
        onnx.checker.check_model(broken)
        found.append((name, guilty, Case(module, exported, (x,), clean, broken, half)))
    return found


def main(only: str = "") -> int:
    """Print the table, of one tool if asked; return the number of promises that driftscope did not keep."""
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        todo = [(name, guilty, case) for half in (False, True) for name, guilty, case in cases(half)]
    quiet = right = 0
    for title, tool in ((t, f) for t, f in TOOLS if only in t):
        tool_right = tool_quiet = 0
        seconds = []
        print(f"{title}")
        answer(tool, todo[0][2])  # imports are not timed
        for name, guilty, case in todo:
            named, taken = answer(tool, case)
            seconds.append(taken)
            if not guilty:
                tool_quiet += named is None
                good = named is None
            else:
                good = named is not None and _call(case.broken, named) == _call(case.broken, guilty)
                tool_right += good
            dtype = "float16" if case.half else "float32"
            print(f"  {'+' if good else '-'} {dtype} {name:<28}{named if named is not None else '(nothing)'}")
        print(f"  {tool_right} of {2 * len(BUGS)} placed, {tool_quiet} of 2 clean files left alone, "
              f"{sum(seconds) / len(seconds):.2f} s a file")  # fmt: skip
        if tool is driftscope:
            quiet, right = tool_quiet, tool_right
    if only not in TOOLS[0][0]:
        return 0
    return int(right < PROMISED_RIGHT * 2 * len(BUGS)) + int(quiet < PROMISED_QUIET * 2)


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2]))
