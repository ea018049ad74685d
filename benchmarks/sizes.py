"""What a comparison costs at real sizes: seconds in native forwards, and peak memory in weights.

Run with ``python -m benchmarks sizes``. ``SIZES=small`` takes the small models alone, ``SIZES=large`` adds the model of
1 GiB, ``SIZES=images`` takes models of torchvision (which has to be installed) and one image of 224x224 instead; models
in which something was changed have a table of their own. ``SIZES_PLOT=docs/images/cost.svg`` also draws seconds and
memory over nodes, weights and tokens. Each model runs in a process of its own (a peak is for ever), forward and
comparison turn about, in processor time of this process and of the runtime's worker. Exports are not timed.
``AGAINST=FOLDER`` measures another checkout of this project beside this one, in the same minutes: seconds of two
machines, or of two hours of a shared one, differ by a half and more.
"""

from __future__ import annotations

import functools
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from benchmarks.comparison import encoder, export
from benchmarks.size_models import Densenet, Efficientnet, Llama, Resnet18, settled

FORWARDS, SECONDS = 40.0, 1.0
#: The same where something differs, and its place and cause are looked for.
FINDING_FORWARDS, FINDING_SECONDS = 80.0, 2.0
#: Peak resident memory over the weights, for weights above this many MiB.
WEIGHTS, FROM_MIB = 2.5, 512
ROUNDS = 3
#: Seconds that comparisons of a small model are repeated for.
_LONG = 0.5

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _llama(width: int, layers: int, tokens: int = 16) -> Made:
    return Llama(width, layers).eval(), (torch.randint(0, 1000, (1, tokens)),)


def _encoder(depth: int, tokens: int = 32) -> Made:
    return encoder(depth), (torch.randn(2, tokens, 128),)


def _image(module: nn.Module, batch: int, size: int) -> Made:
    return settled(module), (torch.randn(batch, 3, size, size),)


def _torchvision(name: str) -> Made:
    """Return a model of torchvision with random weights, in which no two layers are equal."""
    from tests.zoo import vision

    vision.load()
    import torchvision  # type: ignore[import-not-found,unused-ignore]

    module, inputs = _image(torchvision.models.get_model(name), 1, 224)
    for parameter in module.parameters():
        if parameter.ndim == 1:  # scales, shifts and biases are all ones or zeros before training
            parameter.data += 0.1 * torch.randn_like(parameter)
    return module, inputs


SMALL: dict[str, Callable[[], Made]] = {
    "encoder, 2 layers": lambda: _encoder(2),
    "encoder, 4 layers": lambda: _encoder(4),
    "llama, 4 MiB": lambda: _llama(128, 4),
}
USUAL: dict[str, Callable[[], Made]] = {
    **SMALL,
    "encoder, 8 layers": lambda: _encoder(8),
    "encoder, 4 layers, 128 tokens": lambda: _encoder(4, 128),
    "encoder, 4 layers, 512 tokens": lambda: _encoder(4, 512),
    "resnet18, 2x3x64x64": lambda: _image(Resnet18(), 2, 64),
    "densenet121, 1x3x64x64": lambda: _image(Densenet(), 1, 64),
    "efficientnet_b0, 1x3x64x64": lambda: _image(Efficientnet(), 1, 64),
    "llama, 13 MiB": lambda: _llama(256, 4),
    "llama, 48 MiB": lambda: _llama(512, 4),
    "llama, 180 MiB": lambda: _llama(1024, 4),
}
LARGE: dict[str, Callable[[], Made]] = {**USUAL, "llama, 1 GiB": lambda: _llama(2048, 6)}
IMAGES: dict[str, Callable[[], Made]] = {
    f"{name}, 1x3x224x224": functools.partial(_torchvision, name)
    for name in ("resnet50", "densenet121", "efficientnet_b0", "swin_t", "vit_b_16")
}


def _approximated(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        if node.op_type == "Gelu":
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("approximate", "tanh"))


def _smoothed(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "LayerNormalization" and attribute.name == "epsilon":
                attribute.f = 1e-3


def _weighted(model: onnx.ModelProto) -> None:
    """Make one number of the middle matrix or filter three times as large."""
    stored = {t.name: t for t in model.graph.initializer}
    used = [n.input[1] for n in model.graph.node if n.op_type in ("Conv", "MatMul", "Gemm") and n.input[1] in stored]
    tensor = stored[used[len(used) // 2]]
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.reshape(-1)[3] *= 3.0
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


#: What is compared with an export in which something was changed, and the change.
FINDINGS: dict[str, tuple[Callable[[], Made], Callable[[onnx.ModelProto], None]]] = {
    "encoder, 4 layers, GELU in each": (lambda: _encoder(4, 256), _approximated),
    "encoder, 8 layers, GELU in each": (lambda: _encoder(8, 256), _approximated),
    "encoder, 12 layers, epsilon in each": (lambda: _encoder(12, 256), _smoothed),
    "resnet18, 2x3x64x64, one weight": (lambda: _image(Resnet18(), 2, 64), _weighted),
    "densenet121, 1x3x64x64, one weight": (lambda: _image(Densenet(), 1, 64), _weighted),
    "llama, 180 MiB, one weight": (lambda: _llama(1024, 4), _weighted),
}
CHANGED_IMAGES = {f"{name}, one weight": (made, _weighted) for name, made in IMAGES.items()}
EVERY: dict[str, tuple[Callable[[], Made], Callable[[onnx.ModelProto], None] | None]] = {
    **{name: (made, None) for name, made in {**LARGE, **IMAGES}.items()}, **FINDINGS, **CHANGED_IMAGES,
}  # fmt: skip


def measure(name: str, folder: str) -> dict[str, float]:
    """Compare one model with its export; called in a process of its own."""
    import onnxruntime  # noqa: F401 - imported before the baseline is read

    import driftscope as ds

    torch.set_num_threads(1)
    path = Path(folder) / "model.onnx"
    ds.compare(nn.ReLU(), nn.ReLU(), (torch.randn(3),))
    baseline = _peak()
    torch.manual_seed(0)  # the weights that were exported
    module, inputs = EVERY[name][0]()
    weights = sum(t.numel() * t.element_size() for t in module.state_dict().values())
    forwards, compares, count = [], [], 1
    for _ in range(ROUNDS):
        forwards.append(_forward(module, inputs))
        compares.append(_taken(lambda: ds.compare(module, path, inputs), count))
        # Of several, as clocks of other processes know 10 ms only.
        count = max(1, math.ceil(_LONG / compares[-1]))
    nodes = len(onnx.load(str(path), load_external_data=False).graph.node)
    return {
        "nodes": nodes, "weights": weights / 2**20, "tokens": float(_rows(inputs[0])),
        "forward": statistics.median(forwards), "seconds": statistics.median(compares),
        "memory": (_peak() - baseline) / 2**20,
    }  # fmt: skip


def _rows(x: torch.Tensor) -> int:
    """Tokens, or positions that have channels: pixels of an image."""
    return x.numel() if not x.is_floating_point() else x.numel() // x.shape[1 if x.ndim == 4 else -1]


def write(name: str, folder: str) -> None:
    """Export one model; called in a process of its own."""
    torch.manual_seed(0)
    made, change = EVERY[name]
    module, inputs = made()
    path = Path(folder) / "model.onnx"
    with torch.no_grad():
        export(module, inputs[0], path)
    if change:
        model = onnx.load(str(path))
        change(model)
        onnx.save(model, str(path))


def _taken(call: Callable[[], object], count: int) -> float:
    begun = _processor()
    with torch.no_grad():
        for _ in range(count):
            call()
    return (_processor() - begun) / count


def _forward(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> float:
    """Seconds of one native forward: of several, as clocks of other processes know 10 ms only."""
    with torch.no_grad():
        module(*inputs)
        begun, count = time.process_time(), 0
        while count < 1 or time.process_time() - begun < 0.2:
            module(*inputs)
            count += 1
    return (time.process_time() - begun) / count


def _processor() -> float:
    """Processor seconds of this process and of the workers it started."""
    import psutil

    now = [psutil.Process(), *psutil.Process().children(recursive=True)]
    times = [p.cpu_times() for p in now]
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(t.user + t.system for t in times) + ended.ru_utime + ended.ru_stime


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def fitted(rows: list[dict[str, float]]) -> tuple[float, float, float, float]:
    """Fit seconds = s + f forwards + n nodes + w weights, each not below 0, to relative errors.

    Returns
    -------
    tuple of float
        Seconds; native forwards; seconds per 1,000 nodes; seconds per GiB.
    """
    columns = [[1.0, r["forward"], r["nodes"] / 1e3, r["weights"] / 1024] for r in rows]
    a = np.array(columns) / np.array([[r["seconds"]] for r in rows])
    kept = list(range(4))
    while True:  # drop what would be negative: a cost is none
        solved = np.linalg.lstsq(a[:, kept], np.ones(len(rows)), rcond=None)[0]
        if (solved >= 0).all() or len(kept) == 1:
            break
        kept.pop(int(np.argmin(solved)))
    found = np.zeros(4)
    found[kept] = np.maximum(solved, 0.0)
    return tuple(float(v) for v in found)  # type: ignore[return-value]


def draw(rows: dict[str, dict[str, float]], path: str) -> None:
    """Draw seconds, as measured and as fitted, and peak memory over nodes, weights and tokens."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "driftscope"
    import matplotlib.pyplot as plt

    every = list(rows.values())
    s, f, n, w = fitted(every)
    told = [s + f * r["forward"] + n * r["nodes"] / 1e3 + w * r["weights"] / 1024 for r in every]
    figure, grid = plt.subplots(2, 3, figsize=(10, 5.5), sharex="col", sharey="row")
    shown = {"nodes": "nodes", "weights": "weights [MiB]", "tokens": "tokens or pixels"}
    for column, (key, label) in enumerate(shown.items()):
        for axis, (value, unit) in zip(grid[:, column], (("seconds", "CPU s"), ("memory", "peak [MiB]")), strict=True):
            axis.loglog([r[key] for r in every], [r[value] for r in every], "o", ms=4, label="measured")
            axis.set_ylabel(unit if column == 0 else "")
            axis.grid(alpha=0.3)
        words = f"{f:.0f} forwards + {n:.1f} s per 1,000 nodes\n+ {w:.0f} s per GiB" + (f" + {s:.2f} s" if s else "")
        grid[0, column].loglog([r[key] for r in every], told, "_", ms=12, color="black", label=words)
        grid[1, column].set_xlabel(label)
    grid[1, 0].set_xscale("linear")
    grid[0, 2].legend(fontsize=7, loc="upper center")
    grid[1, 1].loglog([512, 1200], [512, 1200], ":", color="black", label="1 x weights")
    grid[1, 1].loglog([512, 1200], [WEIGHTS * 512, WEIGHTS * 1200], "--", color="black", label=f"goal, {WEIGHTS:g} x")
    grid[1, 1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> int:
    """Print promise and measurement side by side; return the number of broken promises."""
    asked = os.environ.get("SIZES", "usual")
    models = {"small": SMALL, "usual": USUAL, "large": LARGE, "images": IMAGES}[asked]
    print(f"compare(model, its export): <= {FORWARDS:g} forwards + {SECONDS:g} s; peak <= {WEIGHTS:g} x weights above")
    print(f"{FROM_MIB} MiB of weights; processor time on one thread, median of {ROUNDS}")
    rows, broken = _table(models, FORWARDS, SECONDS)
    if len(rows) >= 5:
        s, f, n, w = fitted(list(rows.values()))
        print(f"fitted: {s:.2f} s + {f:.0f} forwards + {n:.2f} s per 1,000 nodes + {w:.1f} s per GiB of weights")
    if os.environ.get("SIZES_PLOT"):
        draw(rows, os.environ["SIZES_PLOT"])
    if asked != "small":
        print(f"the same, with something changed: <= {FINDING_FORWARDS:g} forwards + {FINDING_SECONDS:g} s")
        broken += _table(CHANGED_IMAGES if asked == "images" else FINDINGS, FINDING_FORWARDS, FINDING_SECONDS)[1]
    return broken


def _table(models: Iterable[str], forwards: float, seconds: float) -> tuple[dict[str, dict[str, float]], int]:
    """Measure models and print them; return the rows by name, and the number of broken promises."""
    print(f"{'model':36s}{'nodes':>6s}{'weights':>9s}{'forward':>9s}{'promise':>9s}{'seconds':>9s}{'ratio':>7s}"
          f"{'ms/node':>9s}{'peak':>9s}{'x':>6s}")  # fmt: skip
    rows, broken = {}, 0
    for name in models:
        with tempfile.TemporaryDirectory(prefix="driftscope-sizes-") as folder:
            _elsewhere("write", name, folder)
            rows[name] = r = _elsewhere("measure", name, folder)
            other = os.environ.get("AGAINST")
            theirs = _elsewhere("measure", name, folder, other)["seconds"] if other else math.nan
        promise = forwards * r["forward"] + seconds
        times = r["memory"] / r["weights"]
        broken += r["seconds"] > promise
        broken += r["weights"] > FROM_MIB and times > WEIGHTS
        print(f"{name:36s}{r['nodes']:6.0f}{r['weights']:7.0f} M{1e3 * r['forward']:6.1f} ms{promise:7.2f} s"
              f"{r['seconds']:7.2f} s{r['seconds'] / promise:7.2f}{1e3 * r['seconds'] / r['nodes']:9.2f}"
              f"{r['memory']:7.0f} M{times:6.1f}", flush=True)  # fmt: skip
        if other:
            words = f"{other}: {theirs:.2f} s, {1e3 * theirs / r['nodes']:.2f} ms/node"
            print(f"{'':36s}{words}: {theirs / r['seconds']:.2f} times as much", flush=True)
    return rows, broken


def _elsewhere(step: str, name: str, folder: str, checkout: str = "") -> dict[str, float]:
    code = f"import json; from benchmarks import sizes; print(json.dumps(sizes.{step}({name!r}, {folder!r})))"
    env = {**os.environ, "PYTHONPATH": f"{Path(checkout).resolve() / 'src'}:{Path.cwd()}"} if checkout else None
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    if run.returncode:
        raise RuntimeError(f"{name}: {run.stderr.strip().splitlines()[-1]}")
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    raise SystemExit(main())
