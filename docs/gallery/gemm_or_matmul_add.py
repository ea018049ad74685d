"""
Gemm or MatMul + Add
====================

``A @ X + B`` can be one operator or two, with a bias inside or after, in torch, in onnxruntime or in numpy. Which of
them have the same bits, how far apart are the others, and is that a bug or rounding?
"""

# %%
# Every variant on two data sets: unit normal numbers, and a bias that climbs from column to column up to 16. The
# products are 256 wide here; the study's own default is 1280.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import driftscope as ds

study = ds.studies.gemm(
    size=256,
    dtypes=("float32", "float16", "bfloat16"),
    devices="cpu",
    variants=("F.linear", "Gemm", "Gemm + Add", "MatMul + Add", "FusedMatMul + Add", "Cast(Gemm)", "a @ x + b"),
    workers=0,
)
print(study)

# %%
# The largest absolute differences in float16. A number like 0.0625 looks large; it is one unit in the last place of
# float16 between 64 and 128, where the largest results lie.

study.matrix(dtype="float16", data="normal")

# %%
# The same in floors, the unit of ordinary rounding: up to 1.5 is ordinary, up to 2.5 unusual.

study.matrix("floors", dtype="float16", data="normal").round(3)

# %%
# All pairs, and which columns differ. Under the climbing bias the differences climb in steps, because an ulp doubles
# with each power of two: a result near a large bias is stored on a coarser grid.

with tempfile.TemporaryDirectory() as folder:
    picture = plt.imread(study.plot(Path(folder) / "study.png"))
plt.figure(figsize=(picture.shape[1] / 120, picture.shape[0] / 120), dpi=120, layout="constrained")
_ = plt.imshow(picture)
_ = plt.axis("off")

# %%
# Related: `In which order does a kernel add? <sum_orders.html>`__,
# `LayerNormalization implementations <layer_norm_implementations.html>`__.
