"""What comparing many pairs costs beside the single comparisons, and how it grows with the workers of a cluster.

Run with ``python -m benchmarks many``; ``PAIRS=1000`` says how many small pairs, 200 without it.

* *overhead*: processor time of ``compare-many`` with two processes, over the number of pairs times that of one
  comparison in a process that is warm. Starting the processes, keeping rows and drawing conclusions are on its side.
  Half of the single comparisons run before the study and half after it: a processor's speed drifts over minutes.
* *workers*: wall time of pairs that mostly sleep, on a Dask cluster of one worker and of four on this machine: what is
  looked at is how pairs are handed out, which must not depend on how many cores this machine has.
"""

from __future__ import annotations

import contextlib
import csv
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from benchmarks.sizes import _processor
from driftscope.studies import comparisons

OVERHEAD, WORKERS, SPEEDUP = 1.2, 4, 3.4
FILES, SINGLES, SLEEPING = 10, 200, 24

_SLEEPERS = """
import time

def slowly(x):
    time.sleep(0.1)
    return x * 2
"""


def perceptron(path: Path, seed: int) -> None:
    """Write two layers and a softmax."""
    random = np.random.default_rng(seed)
    stored = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n)
              for n, s in (("w", (32, 64)), ("v", (64, 16)))]  # fmt: skip
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"], name="first"), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("MatMul", ["r", "v"], ["s"], name="second"),
             helper.make_node("Softmax", ["s"], ["y"], name="shares")]  # fmt: skip
    sides = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [8, 32]), ("y", [8, 16]))]
    graph = helper.make_graph(nodes, "g", sides[:1], sides[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(path))


def listed(path: Path, pairs: list[tuple[str, str, str]]) -> Path:
    """Write the list of pairs."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("name", "a", "b", "inputs"), *((f"p{k}", *p) for k, p in enumerate(pairs))])
    return path


def single(files: list[str]) -> float:
    """Return processor time of one comparison, over half of the single ones."""
    begun = _processor()
    for k in range(SINGLES // 2):
        file = files[k % FILES]
        ds.compare(file, file)
    return (_processor() - begun) / (SINGLES // 2)


def overhead(folder: Path, count: int) -> float:
    """Return processor time of the study over that of its comparisons."""
    for k in range(FILES):
        perceptron(folder / f"{k}.onnx", k)
    files = [str(folder / f"{k % FILES}.onnx") for k in range(count)]
    for file in files[:FILES]:
        ds.compare(file, file)
    one = single(files)
    source = listed(folder / "pairs.csv", [(file, file, "") for file in files])
    begun = _processor()
    done = comparisons(source, workers=2, store=folder / "runs")
    every = _processor() - begun
    one = (one + single(files)) / 2
    ratio = every / (count * one)
    verdicts = ", ".join(sorted({str(row["verdict"]) for row in done.rows}))
    print(f"{count} pairs, 2 processes: {1e3 * every / count:.1f} ms a pair; one comparison {1e3 * one:.1f} ms"
          f" -> {ratio:.2f} x (promised {OVERHEAD}); {verdicts}", flush=True)  # fmt: skip
    return ratio


@contextlib.contextmanager
def cluster(folder: Path, workers: int) -> Iterator[str]:
    """Start a scheduler and workers on this machine; gives the address."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None, local_directory=str(folder),
                      silence_logs=50) as started:  # fmt: skip
        yield started.scheduler_address


def speedup(folder: Path) -> float:
    """Return how much faster four workers are than one."""
    (folder / "sleepers.py").write_text(_SLEEPERS)
    program = f"{folder / 'sleepers.py'}:slowly"
    pair = program, program, "x=4x8:float32"
    source = listed(folder / "sleeping.csv", [pair] * SLEEPING)
    took = []
    for workers in (1, WORKERS):
        with cluster(folder, workers) as address:
            comparisons(listed(folder / "warm.csv", [pair] * 2 * workers), cluster=address, store=folder / "runs")
            begun = time.perf_counter()
            done = comparisons(source, cluster=address, store=folder / f"runs{workers}")
            took.append(time.perf_counter() - begun)
        first = done.rows[0].get("verdict", done.rows[0])
        print(f"{SLEEPING} pairs that sleep, {workers} worker(s): {took[-1]:.1f} s; {first}", flush=True)
    print(f"-> {took[0] / took[1]:.2f} x (promised {SPEEDUP} with {WORKERS})")
    return took[0] / took[1]


def main() -> int:
    """Print promise and measurement side by side; return the number of broken promises."""
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="driftscope-many-") as name:
        broken = overhead(Path(name), int(os.environ.get("PAIRS", "200"))) > OVERHEAD
        return broken + (speedup(Path(name)) < SPEEDUP)


if __name__ == "__main__":
    raise SystemExit(main())
