"""
Reproducible parallelised reduction is no longer difficult
==========================================================

A mean adds its terms in some order, and another machine, another number of threads or another batch size adds them in
another one. How far does the result move? Take one vector, put its terms in many orders, and look.
"""

# %%
# Three laws for the terms, three formats, 64 orders. In words first; each sentence has its evidence in
# ``study.statements``.

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import driftscope as ds

study = ds.studies.reduction(
    functions=("mean", "layer_norm"),
    laws=("normal", "fixed", "pareto"),
    sizes=(2, 16, 512, 4096),
    dtypes=("float64", "float32", "float16"),
    permutations=64,
    workers=0,
)
print(study)

# %%
# The spread of the layer normalisation: the largest change of any element over all orders. Two terms have one sum. In
# float16 nothing moves most of the time: sums are kept in float32 and rounded once at the end, so an element moves by a
# whole step of its own size or not at all; a step of a small element is a small part of one of the largest.

study.matrix(function="layer_norm")

# %%
# What the error model predicts for the same cells, without trying a single order.

study.matrix("predicted_spread", function="layer_norm")

# %%
# Coloured bars are what was observed, black lines what was predicted. A 0 means the same bits in every order.

with tempfile.TemporaryDirectory() as folder:
    picture = plt.imread(study.plot(Path(folder) / "study.png"))
plt.figure(figsize=(picture.shape[1] / 120, picture.shape[0] / 120), dpi=120, layout="constrained")
_ = plt.imshow(picture)
_ = plt.axis("off")

# %%
# The way out is a sum that does not depend on order: ``ds.exact.sum`` and its neighbours.

import numpy as np

terms = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
exact = {float(ds.exact.sum(np.random.default_rng(seed).permutation(terms))) for seed in range(64)}
print(f"{len(exact)} result in 64 orders")

# %%
# Related: `In which order does a kernel add? <sum_orders.html>`__,
# `LayerNormalization implementations <layer_norm_implementations.html>`__.
