"""
What a result depends on
========================

The same rows, alone and in a batch: are they the same results? For one real model they are not even close, for the
other only the last bits depend on how it runs. One call says which, where, and what takes it away.
"""

# %%
# A vision transformer whose author quantises activations on the fly, with one scale for the whole tensor: a row beside
# a brighter image is rounded more coarsely than alone. No test on one image at a time shows it.

# sphinx_gallery_thumbnail_path = 'docs/images/matrix-narrow.png'
import torch
from torch import nn

import driftscope as ds


class Block(nn.Module):
    def __init__(self, quantised):
        super().__init__()
        self.quantised = quantised
        self.norm, self.qkv, self.out = nn.LayerNorm(48), nn.Linear(48, 144), nn.Linear(48, 48)

    def forward(self, x):
        y = self.norm(x)
        if self.quantised:
            scale = y.abs().amax() / 127
            y = (y / scale).round() * scale
        q, k, v = self.qkv(y).unflatten(-1, (3, 4, 12)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).flatten(2))


class Images(nn.Module):
    def __init__(self, quantised=False):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 48, 8, 8), nn.Linear(48, 10)
        self.blocks = nn.Sequential(Block(quantised), Block(quantised))

    def forward(self, x):
        return self.head(self.blocks(self.patches(x).flatten(2).transpose(1, 2)).mean(1))


images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
torch.manual_seed(0)
leaking = Images(quantised=True).eval()
report = ds.check_invariance(leaking, images, axes=("batch", "order", "threads", "layout"))
report

# %%
# The first finding names the value through which rows reach each other, and its line.

print(report.first.code, report.first.where.operator, "line", report.first.where.line)
print(report.first.why)

# %%
# The same model without it. What is left is rounding: a product of one row takes another kernel than a product of many,
# an image with its channels last another convolution. Which it is depends on the processor.

torch.manual_seed(0)
honest = Images().eval()
print(ds.check_invariance(honest, images, axes=("batch", "order", "threads", "layout")))

# %%
# Does it matter? The table of that name above says after how many choices one is expected to be another, from the
# margins between the two largest scores. And ``ds.reproducible()`` takes even the last bits away.


class Reproducible(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        with ds.reproducible():
            return self.inner(x)


fixed = ds.check_invariance(Reproducible(honest), images, axes=("batch", "order", "threads", "layout"))
print(fixed)

# %%
# Related: `Reproducible reduction <reproducible_reduction.html>`__,
# `Compare an export <compare_export.html>`__.
