"""
DYNAMIC or AUTO when dynamic shapes have constraints
====================================================

Two pieces are put together and added to every other column of a longer tensor. The sizes are tied by a relation that
``torch.export.Dim`` cannot say. What is refused, why, and what to write instead?
"""

# %%
# The model, and an example of it. ``z`` is twice as long as ``x`` and ``y`` together.

# sphinx_gallery_thumbnail_path = 'docs/images/shapes-light.png'
import textwrap

import torch
from torch.export import Dim

import driftscope as ds


class Interleaved(torch.nn.Module):
    def forward(self, x, y, z):
        return torch.cat((x, y), dim=1) + z[:, ::2]


model = Interleaved()
example = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 16)

# %%
# A sum of two dimensions cannot be written: a ``Dim`` is an increasing line of *one* other ``Dim``.

batch, dx, dy = Dim("batch"), Dim("dx"), Dim("dy")
try:
    dx + dy
except NotImplementedError as error:
    print(textwrap.fill(str(error), 96))

# %%
# A dimension of its own for ``z`` is refused by torch. The check repairs the spec and says what the refusal meant, in
# the names of the inputs.

dz = Dim("dz")
spec = {"x": {0: batch, 1: dx}, "y": {0: batch, 1: dy}, "z": {0: batch, 1: dz}}
report = ds.check_shapes(model, example, dynamic=spec)
for finding in report.findings:
    if finding.code in ("S001", "S003"):
        for words in (finding.what, f"   why: {finding.why}", f"   fix: {finding.fix}"):
            print(textwrap.fill(words, 96, subsequent_indent="        "))

# %%
# Every way of exporting was asked at the same shapes. Being accepted is not the question; how many shapes are kept is.

for candidate in report.record.candidates:
    print(f"{candidate.name:36} right at {candidate.right:3}, lost {candidate.lost:3}, wrong {candidate.wrong}")

# %%
# The relation that torch found by itself and does not print with the program any more. Two lengths of ``z`` fit: with a
# step of two, the last column may be missing.

print(report.relations)

# %%
# What to write.

print(report.spec_code)

# %%
# What will happen at other shapes, without running anything.

for columns in (20, 19, 18):
    sizes = torch.randn(4, 2), torch.randn(4, 8), torch.randn(4, columns)
    print(columns, report.status(sizes))

# %%
# Related: `Dynamic shapes and broadcasting <dynamic_shapes_and_broadcasting.html>`__,
# `Limitations of torch.func <limitations_of_torch_func.html>`__.
