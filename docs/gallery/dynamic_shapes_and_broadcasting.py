"""
Dynamic shapes and broadcasting
===============================

``x * y`` of two tensors with one axis each runs in four configurations: (1, 1), (1, p), (q, 1) and (p, p). An export
with dynamic shapes decides once whether the two sizes are equal, so it keeps some of them. Which, in which mode, and
what would keep them all?
"""

# %%
# Two models of one line. The second one uses a size as a number, too.

# sphinx_gallery_thumbnail_path = 'docs/images/shapes-narrow.png'
import textwrap

import torch

import driftscope as ds


class Product(torch.nn.Module):
    def forward(self, x, y):
        return x * y


class WeightedMean(torch.nn.Module):
    def forward(self, x, y):
        return (x * y).sum() / x.shape[0]


inputs = (torch.randn(3), torch.randn(3))

# %%
# Every way of setting sizes that go together to 1 is tried on the model; each way of exporting is run at those at
# which the model runs.

reports = {}
for model in (Product(), WeightedMean()):
    report = reports[type(model).__name__] = ds.check_shapes(model, inputs)
    print(report)
    for one in report.record.broadcasts:
        sizes = ", ".join("1" if is_one else "p" for is_one in one.ones)
        outcomes = ", ".join(f"{way}: {outcome}" for way, outcome in one.outcomes.items())
        print(textwrap.fill(f"  ({sizes}) {outcomes}", 96, subsequent_indent="         "))

# %%
# No program that checks its sizes keeps more than two of the four. Without its checks the product is right in all of
# them, and so is its ONNX file, because onnxruntime broadcasts; the mean is silently wrong, where the size it divides
# by is read from the other tensor.

for name, report in reports.items():
    for finding in report.findings:
        if finding.code in ("S021", "S023", "S024", "S031"):
            for words in (f"{name}: {finding.code} {finding.what}", f"    why {finding.why}", f"    fix {finding.fix}"):
                print(textwrap.fill(words, 96, subsequent_indent="        "))

# %%
# The guard of an ONNX file refuses what the file would get wrong.

mean = WeightedMean()
guarded = reports["WeightedMean"].guard()
print(guarded.conditions)
for sizes in ((4, 4), (1, 4)):
    x, y = torch.randn(sizes[0]), torch.randn(sizes[1])
    try:
        print(sizes, float(guarded(x, y)), "the model says", float(mean(x, y)))
    except ds.DriftscopeError:
        print(sizes, "refused; the model says", float(mean(x, y)))

# %%
# A cover keeps them all: with one program where one is right at all of them, traced at other sizes if need be,
# otherwise with one per configuration.

for model in (Product(), mean):
    cover = ds.cover(model, inputs)
    print(type(model).__name__, cover)
    for m, n in ((1, 1), (1, 5), (5, 1), (5, 5)):
        x, y = torch.randn(m), torch.randn(n)
        torch.testing.assert_close(cover(x, y), model(x, y))

# %%
# The whole domain as a picture: sizes of ``x`` down, of ``y`` across.

reports["WeightedMean"]

# %%
# Related: `DYNAMIC or AUTO with constraints <dynamic_or_auto_with_constraints.html>`__,
# `Compare an export <compare_export.html>`__.
