"""
In which order does a kernel add?
=================================

One sum, four kernels, four orders: revealed from the outside, drawn, replayed without the kernel, and then taken away.
"""

# %%
# A name is enough; any function that reduces the last axis of (rows, n) will do as well.

# sphinx_gallery_thumbnail_path = 'docs/images/accumulation-light.png'
import os
import textwrap

import numpy as np
import torch

import driftscope as ds

torch.set_num_threads(1)
TERMS = 256 if os.environ.get("DRIFTSCOPE_SMALL") else 4096


def backwards(x: np.ndarray) -> np.ndarray:
    """Add from the last term to the first."""
    return np.cumsum(x[:, ::-1], axis=-1)[:, -1]


kernels = {"numpy.sum": "numpy.sum", "torch.sum": "torch.sum", "torch.matmul": "torch.matmul", "backwards": backwards}
found = {name: ds.reveal(kernel, TERMS, threads=1) for name, kernel in kernels.items()}
for name, order in found.items():
    print(f"{name:<13} depth {order.depth:>5}  {order.calls:>4} calls  {order.family}")

# %%
# Every order was verified: adding in it gives the kernel's bits on every row that was tried. As a page, with its tree:

found["torch.sum"]

# %%
# Two of them, in two sentences.

print(textwrap.fill(found["numpy.sum"].explain(found["torch.sum"]), 96))

# %%
# Same terms, other bits. A revealed order computes the kernel's bits without the kernel; the exact sum knows no order.

x = np.random.default_rng(0).standard_normal((1, TERMS)).astype(np.float32)
replayed = {name: float(order.replay(x)[0]) for name, order in found.items()}
exact = {float(ds.exact.sum(np.random.default_rng(seed).permutation(x[0]))) for seed in range(8)}
for name, value in replayed.items():
    print(f"{name:<13} {value!r}")
print(f"exact         {exact.pop()!r}, in any of 8 orders" if len(exact) == 1 else f"{len(exact)} exact sums")

# %%
# Does the order depend on how many rows there are, or on threads?

print(found["torch.matmul"].dependence(rows=(1, 32), threads=(1, 2)))

# %%
# Related: `Reproducible reduction <reproducible_reduction.html>`__,
# `Gemm or MatMul + Add <gemm_or_matmul_add.html>`__.
