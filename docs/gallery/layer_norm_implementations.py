"""
LayerNormalization implementations cannot be exchanged - and when they can
==========================================================================

LayerNormalization, then a product, then a bias: the end of every transformer block. Give each of the three to torch
or to onnxruntime, in all mixtures, and see which one is responsible for the difference, and who is closer to the
exact result.
"""

# %%
# Three letters name a mixture: ``t`` for torch, ``o`` for onnxruntime.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import driftscope as ds

study = ds.studies.layer_norm(rows=128, last_dim=256, dtypes=("float32", "float16"), devices="cpu", workers=0)
print(study)

# %%
# Errors against float64, each in floors of its own: 1 is what the roundings of that way do. Equal floors are therefore
# no equal errors: in float16 the whole graph rounds less often than its nodes one by one, and its floor is smaller.

study.matrix("floors").round(2)

# %%
# How often each way rounds in float16.
study.matrix("roundings", dtype="float16").iloc[:10, :1]

# %%
# Pairs of mixtures, the distribution of their errors, and the implementations by themselves on harder data: the
# variance as a difference of two large numbers ("one pass") breaks when the mean is large, and one running sum
# ("Welford") rounds more than a kernel that keeps several.

with tempfile.TemporaryDirectory() as folder:
    picture = plt.imread(study.plot(Path(folder) / "study.png"))
plt.figure(figsize=(picture.shape[1] / 120, picture.shape[0] / 120), dpi=120, layout="constrained")
_ = plt.imshow(picture)
_ = plt.axis("off")

# %%
# Related: `Gemm or MatMul + Add <gemm_or_matmul_add.html>`__,
# `Reproducible reduction <reproducible_reduction.html>`__.
