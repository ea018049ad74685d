"""
Which optimiser did it
======================

One model, one session as exported and one optimised, and numbers that differ by a hundredth. Two of onnxruntime's
graph optimisers are involved, at two places; no single one explains it. Who are they, what did each change, and which
operator's kernel is outside its own rounding?
"""

# %%
# A product with 4-bit weights, dequantised in blocks, then a Gelu. The session is allowed to approximate Gelu.

# sphinx_gallery_thumbnail_path = 'docs/images/comparison-narrow.png'
import textwrap

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds

rng = np.random.default_rng(0)
numbers = rng.integers(0, 16, 64 * 64).tolist()
scales = (rng.random((2, 64)) * 0.05 + 0.01).astype(np.float32)
graph = helper.make_graph(
    [
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"], name="dequantise", axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Gelu", ["h"], ["y"], name="gelu", domain="com.microsoft"),
    ],
    "four_bits",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 64])],
    [
        helper.make_tensor("q", TensorProto.UINT4, [64, 64], numbers),
        numpy_helper.from_array(scales, "scale"),
        helper.make_tensor("zero", TensorProto.UINT4, [2, 64], [8] * 128),
    ],
)
opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
x = {"x": torch.randn(8, 64, generator=torch.Generator().manual_seed(0))}
session = ds.onnx(model, config={"optimization.enable_gelu_approximation": "1"})

# %%
# The session's log says which transformers fired. One session is made without each of them; since none of those is
# right, all are left out, and delta debugging keeps what is needed.

blame = ds.blame(session, x)
print(blame)

# %%
# The line was run before it was printed. Running it once more:

mended = ds.onnx(model, config={"optimization.enable_gelu_approximation": "1"}, disabled=list(blame.guilty))
print(ds.compare(ds.onnx(model, level="disable"), mended, x))

# %%
# With the approximation left out, what remains is one kernel. The same function, in float64, so nothing is wrong with
# the graph: its kernel rounds activations to int8. A comparison says so, the optimiser first and the kernel second.

only_kernel = ds.onnx(model)
comparison = ds.compare(ds.onnx(model, level="disable"), only_kernel, x)
for finding in comparison.findings:
    print(textwrap.fill(f"{finding.code} {finding.what}", 96, subsequent_indent="     "))
    print(textwrap.indent(textwrap.fill(finding.why, 91), "     "))

# %%
# An honest optimisation is nobody's fault: this session is the same program, whatever was fused in it.

honest = ds.onnx(model, disabled=["QDQSelectorActionTransformer"])
print(ds.blame(honest, x))

# %%
# Related: `From a drift to the line <from_a_drift_to_the_guilty_line.html>`__,
# `LayerNormalization implementations <layer_norm_implementations.html>`__.
