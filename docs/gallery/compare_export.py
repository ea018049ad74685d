"""
One export, five ways to run it
===============================

An encoder in eager torch, captured by ``torch.compile``, exported to ONNX and run as exported and optimised, and
converted to float16. Which results have the same bits, and which are the same program?
"""

# %%
# An encoder whose weights differ from layer to layer, as they do after training.

# sphinx_gallery_thumbnail_path = 'docs/images/matrix-light.png'
import tempfile
from pathlib import Path

import torch
from torch import nn

import driftscope as ds

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 128, batch_first=True, activation="gelu")
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
with torch.no_grad():
    for parameter in model.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))
x = torch.randn(2, 16, 32, generator=torch.Generator().manual_seed(1))

# %%
# Five programs and one call. Every pair is compared; the first one is the reference of the first row.

with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "encoder.onnx"
    torch.onnx.export(model, (x,), str(file), verbose=False)
    matrix = ds.compare_all(
        {
            "eager": model,
            "captured": ds.torch(model, compile="aot_eager"),
            "ort as exported": ds.onnx(file, level="disable"),
            "ort optimised": ds.onnx(file, level="all"),
            "float16": ds.torch(model, dtype="float16"),
        },
        x,
    )
matrix

# %%
# Some thousandths in float16 are as ordinary as less than a millionth in float32: what counts is how many *floors* it
# is, the unit of ordinary rounding in that program and that dtype.

for name in matrix.names[1:]:
    output = matrix["eager", name].outputs[0]
    floors = "same bits" if output.floors is None else f"{output.floors:.2f} floors"
    print(f"{name:<16} {output.verdict:<10} {floors:>12}   max abs {output.max_abs:.1e}")

# %%
# Programs in one class cannot be told apart on these inputs.

print("same bits: " + "; ".join(" = ".join(group) for group in matrix.classes))

# %%
# Related: `From a drift to the line <from_a_drift_to_the_guilty_line.html>`__,
# `Which optimiser did it? <which_optimiser_did_it.html>`__.
