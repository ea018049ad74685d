"""Weights larger than most memories: a decoder in external data against an optimised copy, and with a mistake in it.

Run with ``python -m benchmarks large_weights``. ``GIB=8`` says how large the weights are (1 without it), ``FOLDER``
where they are written for the time of the run. The graph and its weights are written from a few numbers, layer by
layer, so that no more than one tensor is in memory. B is what onnxruntime makes of the file, once as it is and once
with another epsilon in the middle layer. Printed: the verdict, what was named, processor seconds, and the peak of this
process and of the worker that onnxruntime runs in.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

WIDTH, HIDDEN, HEADS, TOKENS = 4096, 11008, 32, 16
#: What a comparison may hold at its peak, all its processes together, for 8 GiB of weights.
MOST_GIB, WEIGHTS_GIB = 12.0, 8.0
SHARE = MOST_GIB / WEIGHTS_GIB
_LAYER = 4 * (4 * WIDTH * WIDTH + 3 * WIDTH * HIDDEN + 4 * WIDTH)


def build(folder: Path, gib: float) -> Path:
    """Write a decoder whose weights take so many GiB, float32, in a file beside the graph; return its path."""
    layers = max(round(gib * 2**30 / _LAYER), 1)
    nodes: list[NodeProto] = []
    tensors = [helper.make_tensor("split", TensorProto.INT64, [4], [1, TOKENS, HEADS, WIDTH // HEADS]),
               helper.make_tensor("joined", TensorProto.INT64, [3], [1, TOKENS, WIDTH]),
               helper.make_tensor("scale", TensorProto.FLOAT, [], [(WIDTH // HEADS) ** -0.5])]  # fmt: skip
    rng, offset, path = np.random.default_rng(0), 0, folder / "model.onnx"
    with (folder / "weights.bin").open("wb") as file:
        value = "x"
        for layer in range(layers):
            for name, shape in _weights(layer):
                drawn = rng.standard_normal(shape, np.float32)
                drawn *= shape[0] ** -0.5 if len(shape) > 1 else 0.1
                drawn += 1.0 if name.endswith("scale") else 0.0
                file.write(drawn.tobytes())
                tensors.append(_external(name, shape, offset))
                offset += drawn.nbytes
            made, value = _layer(layer, value)
            nodes += made
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    shape = [1, TOKENS, WIDTH]
    graph = helper.make_graph(
        nodes, "decoder", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], tensors,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def _weights(layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for norm in ("first", "second"):
        yield f"{layer}.{norm}.scale", (WIDTH,)
        yield f"{layer}.{norm}.bias", (WIDTH,)
    for name in ("query", "key", "value", "out"):
        yield f"{layer}.{name}", (WIDTH, WIDTH)
    for name in ("gate", "up"):
        yield f"{layer}.{name}", (WIDTH, HIDDEN)
    yield f"{layer}.down", (HIDDEN, WIDTH)


def _external(name: str, shape: tuple[int, ...], offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    for key, entry in (("location", "weights.bin"), ("offset", offset), ("length", 4 * int(np.prod(shape)))):
        tensor.external_data.add(key=key, value=str(entry))
    return tensor


def _layer(layer: int, x: str) -> tuple[list[NodeProto], str]:
    """Attention and a gated perceptron, each behind a layer norm."""
    nodes: list[NodeProto] = []

    def node(kind: str, *inputs: str, made: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{layer}/{made}"], name=f"{layer}/{made}", **attributes))
        return f"{layer}/{made}"

    def norm(name: str, value: str) -> str:
        given = value, f"{layer}.{name}.scale", f"{layer}.{name}.bias"
        return node("LayerNormalization", *given, made=name, epsilon=1e-5)

    def heads(name: str, order: list[int]) -> str:
        product = node("MatMul", normed, f"{layer}.{name}", made=name)
        return node(
            "Transpose", node("Reshape", product, "split", made=f"{name}_split"), made=f"{name}_heads", perm=order
        )

    normed = norm("first", x)
    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = node("Mul", node("MatMul", query, key, made="products"), "scale", made="scores")
    mixed = node("MatMul", node("Softmax", scores, made="shares", axis=-1), value, made="mixed")
    joined = node("Reshape", node("Transpose", mixed, made="back", perm=[0, 2, 1, 3]), "joined", made="joined_heads")
    x = node("Add", x, node("MatMul", joined, f"{layer}.out", made="out"), made="attended")
    normed = norm("second", x)
    gate = node("MatMul", normed, f"{layer}.gate", made="gate")
    gated = node("Mul", gate, node("Sigmoid", gate, made="opened"), made="silu")
    product = node("Mul", gated, node("MatMul", normed, f"{layer}.up", made="up"), made="gated")
    return nodes, node("Add", x, node("MatMul", product, f"{layer}.down", made="down"), made="result")


def optimised(path: Path) -> Path:
    """Write what onnxruntime makes of the file beside it; the weights stay where they are."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_name("optimised.onnx"))
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return path.with_name("optimised.onnx")


def broken(path: Path) -> tuple[Path, str]:
    """Write a copy of the graph with another epsilon in the middle of it; return it and the node."""
    model = onnx.load(str(path), load_external_data=False)
    norms = [n for n in model.graph.node if n.op_type in ("LayerNormalization", "SkipLayerNormalization")]
    changed = norms[len(norms) // 2]
    next(a for a in changed.attribute if a.name == "epsilon").f = 1e-2
    onnx.save(model, str(path.with_name("broken.onnx")))
    return path.with_name("broken.onnx"), changed.name


class Watched:
    """The largest memory, in bytes, of this process, of its workers, and of all together; shared pages counted once."""

    def __enter__(self) -> Watched:
        self.own = self.workers = self.peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def _look(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._over.wait(0.2):
            try:
                own, *others = (p.memory_full_info().pss for p in (me, *me.children(recursive=True)))
            except psutil.NoSuchProcess:
                continue
            self.own, self.workers = max(self.own, own), max(self.workers, sum(others))
            self.peak = max(self.peak, own + sum(others))

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def measure(a: str, b: str) -> None:
    """Compare two files and print what it took; called in a process of its own."""
    import driftscope as ds
    from benchmarks.sizes import _processor

    x = np.random.default_rng(1).standard_normal((1, TOKENS, WIDTH)).astype(np.float32)
    begun, wall = _processor(), time.perf_counter()
    with Watched() as watched:
        found = ds.compare(a, b, {"x": x})
    where = found.first.where.node if found.first is not None else None
    print(f"{found.verdict} | {where} | {_processor() - begun:.0f} CPU s, {time.perf_counter() - wall:.0f} s"
          f" | peak {watched.peak / 2**30:.2f} GiB (driftscope {watched.own / 2**30:.2f}, onnxruntime's worker"
          f" {watched.workers / 2**30:.2f}) | {found.reason}", flush=True)  # fmt: skip


def main() -> int:
    """Print both comparisons; return how many are not what they have to be."""
    gib = float(os.environ.get("GIB", "1"))
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="driftscope-large-", dir=os.environ.get("FOLDER")) as folder:
        path = build(Path(folder), gib)
        size = path.with_name("weights.bin").stat().st_size / 2**30
        copy = optimised(path)
        bad, node = broken(copy)
        print(f"{size:.2f} GiB of float32 weights in external data; peak <= {SHARE * size:.1f} GiB", flush=True)
        for words, other, verdicts, place in (
            ("optimised by onnxruntime", copy, ("IDENTICAL", "ROUNDING"), ""),
            (f"the same, epsilon of {node} is 1e-2", bad, ("DIFFERENT",), node),
        ):
            code = f"from benchmarks.large_weights import measure; measure({str(path)!r}, {str(other)!r})"
            run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
            said = run.stdout.strip() or (run.stderr.strip().splitlines() or [""])[-1]
            print(f"{words}: {said}", flush=True)
            parts = said.split(" | ")
            right = parts[0] in verdicts and (not place or parts[1] == place)
            wrong += not right or float(parts[3].split()[1]) > SHARE * size
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
