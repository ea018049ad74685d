"""What it costs that onnxruntime runs in a worker process, beside the same sessions in this one.

Promised: a warm worker adds at most 0.5 ms to a small run and nothing to large tensors; a cold one 0.3 s, once; a
comparison of a small export at the command line takes at most 10 % longer.

"Nothing" cannot be kept to the letter: inputs are copied into the memory that both processes see, and results are
copied out of it, so that no kernel that runs wild later can change them. A single addition does nothing but read and
write, and pays for it in full; anything that computes with what it reads does not notice.

Both sides turn about, in wall time, each the least of its rounds: what another process takes meanwhile is no cost of
the worker. A command is measured in processor time of all its processes.

Run: ``OMP_NUM_THREADS=1 python -m benchmarks worker``
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.programs.isolation.choice import isolating

SMALL_MS, LARGE, COLD_SECONDS, COMMAND = 0.5, 1.0, 0.3, 1.10
#: What a ratio of two like times may show by chance.
SLACK = 0.05
SMALL_ROUNDS, LARGE_ROUNDS, COMMANDS = 2000, 9, 5


def _model(node: onnx.NodeProto, x: tuple[int, ...], w: tuple[int, ...] | None) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    given = [numpy_helper.from_array(rng.normal(size=w).astype("f"), "w")] if w else []
    graph = helper.make_graph(
        [node], "one node", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], given,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


Case = tuple[onnx.ModelProto, tuple[int, ...]]
LARGE_CASES: dict[str, Case] = {
    "Add, 64 MB": (_model(helper.make_node("Add", ["x", "x"], ["y"]), (4096, 4096), None), (4096, 4096)),
    "Erf, 64 MB": (_model(helper.make_node("Erf", ["x"], ["y"]), (4096, 4096), None), (4096, 4096)),
    "Conv 3x3, 32 to 32 channels, 51 MB": (
        _model(helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4), (8, 32, 224, 224), (32, 32, 3, 3)),
        (8, 32, 224, 224),
    ),
    "MatMul 4096 x 1024 x 4096, 16 MB in, 64 MB out": (
        _model(helper.make_node("MatMul", ["x", "w"], ["y"]), (4096, 1024), (1024, 4096)), (4096, 1024),
    ),
}  # fmt: skip


def _turns(model: onnx.ModelProto, shape: tuple[int, ...], rounds: int) -> tuple[float, float]:
    """Seconds of a run in this process and in the worker."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    runs: list[Callable[[], object]] = []
    for isolated in (False, True):
        program = ds.onnx(model, threads=1)
        bound = program.bind(ds.inputs([x]))

        def run(program: ds.Program = program, bound: object = bound, isolated: bool = isolated) -> object:
            with isolating(isolated):
                return program(bound)  # type: ignore[arg-type]

        run()
        run()  # the second run knows the shapes of the outputs
        runs.append(run)
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for run, found in zip(runs, times, strict=True):
            begun = time.perf_counter()
            run()
            found.append(time.perf_counter() - begun)
    return min(times[0]), min(times[1])


def _command(folder: Path, *flags: str) -> tuple[float, float]:
    """Processor seconds and wall seconds of one comparison of a small export with itself."""
    path = str(folder / "small.onnx")
    words = [sys.executable, "-m", "driftscope", "compare", path, path, "-q", *flags]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, time.perf_counter() - begun


def main() -> int:
    """Print promise and measurement side by side; return the number of broken promises."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    begun = time.perf_counter()
    small = _model(helper.make_node("Relu", ["x"], ["y"]), (4, 8), None)
    here, there = _turns(small, (4, 8), SMALL_ROUNDS)
    added = 1e3 * (there - here)
    print(f"small run: {1e3 * here:.2f} ms here, {1e3 * there:.2f} ms in the worker: +{added:.2f} ms (<= {SMALL_MS})")
    broken = added > SMALL_MS
    for name, (model, shape) in LARGE_CASES.items():
        here, there = _turns(model, shape, LARGE_ROUNDS)
        broken += there / here > LARGE + SLACK
        print(
            f"{name}: {1e3 * here:.1f} ms here, {1e3 * there:.1f} ms in the worker: x {there / here:.2f} (<= {LARGE})"
        )
    with tempfile.TemporaryDirectory(prefix="driftscope-worker-") as name:
        onnx.save(small, f"{name}/small.onnx")
        turns = [[_command(Path(name), "--no-isolate"), _command(Path(name))] for _ in range(COMMANDS)]
    spent, taken = ([min(turn[side][k] for turn in turns) for side in (0, 1)] for k in (0, 1))
    cold = taken[1] - taken[0]
    broken += (cold > COLD_SECONDS) + (spent[1] / spent[0] > COMMAND)
    print(f"driftscope compare: {taken[0]:.2f} s here, {taken[1]:.2f} s with a cold worker: {cold:+.2f} s", end=" ")
    print(f"(<= {COLD_SECONDS}); CPU {spent[0]:.2f} and {spent[1]:.2f} s: x {spent[1] / spent[0]:.2f} (<= {COMMAND})")
    print(f"in {time.perf_counter() - begun:.0f} s")
    return broken


if __name__ == "__main__":
    raise SystemExit(main())
