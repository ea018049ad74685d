"""The scripts and the README of a reproducer; nothing in them needs driftscope."""

from __future__ import annotations

from driftscope.records.finding import Finding

#: Exit code of a script that shows a difference.
DIFFERS = 1

_MEASURE = """
worst = 0.0
for name, want in expected.items():
    have = np.asarray(got[name], dtype=np.float64).reshape(np.shape(want))
    want = np.asarray(want, dtype=np.float64)
    gap, size = np.sqrt(np.mean((have - want) ** 2)), np.sqrt(np.mean(want**2))
    print(f"{name}: rms difference {gap:.3g} of values of rms {size:.3g}, largest {np.abs(have - want).max():.3g}")
    worst = max(worst, gap / size if size else gap, float(np.isnan(have).any() != np.isnan(want).any()))
sys.exit(1 if not worst <= 64 * eps else 0)  # 64 unit roundoffs are more than one piece can lose by rounding
"""

_ONNX = '''"""Shows that a piece of an ONNX graph gives other values than its reference."""
import sys

import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.{level}
session = ort.InferenceSession("piece.onnx", options, providers=["CPUExecutionProvider"]{disabled})
outputs = session.run(None, dict(np.load("inputs.npz")))
expected = dict(np.load("expected.npz"))
got = dict(zip(expected, outputs))
eps = max(np.finfo(v.dtype).eps if v.dtype.kind == "f" else 0 for v in expected.values())
'''

_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}

_TORCH = '''"""Shows that {title}."""
import sys

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

values = torch.load("values.pt", weights_only=True)


def run(path):
    with torch.no_grad():
        leaves = tree_leaves(torch.export.load(path).module()(*values["args"], **values["kwargs"]))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


'''

_NAMED = """expected = {f"output {i}": v.double().numpy() for i, v in enumerate(reference)}
got = {f"output {i}": v.double().numpy() for i, v in enumerate(run("b.pt2"))}
eps = max((torch.finfo(v.dtype).eps for v in reference if v.is_floating_point()), default=0)
"""

TORCH_PAIR = (
    _TORCH.format(title="one module gives other values than the other")
    + 'reference = run("a.pt2")\n'
    + _NAMED
    + _MEASURE
)
TORCH_WHOLE = (
    _TORCH.format(title="a program gives other values than its reference")
    + 'reference = values["expected"]\n'
    + _NAMED
    + _MEASURE
)


def onnx_script(level: str, disabled: tuple[str, ...]) -> str:
    """Return the script for an ONNX piece, run with B's session options."""
    off = f", disabled_optimizers={list(disabled)!r}" if disabled else ""
    return _ONNX.format(level=_LEVELS.get(level, "ORT_ENABLE_ALL"), disabled=off) + _MEASURE


def readme(piece: str, shown: str, finding: Finding | None, runtime: str) -> str:
    """Return the README of a reproducer."""
    lines = [
        "# A drift, and how to see it",
        "",
        "```bash",
        "python reproduce.py",
        "```",
        "",
        f"It printed, with {runtime}:",
        "",
    ]
    lines += ["```text", shown, "```", "", f"What is run: {piece}.", ""]
    if finding is not None:
        lines += [f"* Where: {finding.where}", f"* What: {finding.what}"]
        lines += [f"* {label}: {text}" for label, text in (("Why", finding.why), ("Fix", finding.fix)) if text]
        lines.append("")
    lines += [
        "The exit code is 1 while the values differ by more than rounding, else 0.",
        "Found by driftscope; this folder does not need it.",
    ]
    return "\n".join(lines) + "\n"
