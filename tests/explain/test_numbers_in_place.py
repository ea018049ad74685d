"""A number that both programs have in one place is no cause, though another number there would hide what is."""

from __future__ import annotations

import onnx
import onnx.parser
import torch

import driftscope as ds

# What the difference makes is zero in A: nothing on the way to the sum has a counterpart by its values.
GRAPH = """
<ir_version: 8, opset_import: ["" : 18]>
g (float[4, 8] x) => (float[4, 8] y) <float low = {-1e38}, float most = {100.0}, float half = {50.0}>
{
  m = Max(low, x)
  d = Sub(low, m)
  t = Relu(d)
  u = Min(t, most)
  h = Tanh(x)
  y = Add(u, h)
}
"""
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(3))


def cause(old: str, new: str) -> str:
    good, bad = (onnx.parser.parse_model(text) for text in (GRAPH, GRAPH.replace(old, new)))
    for model in (good, bad):
        for node in model.graph.node:
            node.name = f"n_{node.output[0]}"
    first = ds.compare(good, bad, (X,)).first
    assert first is not None
    assert first.verified
    return first.why


def test_an_exchanged_difference_is_told_and_no_number_that_happens_to_hide_it() -> None:
    why = cause("Sub(low, m)", "Sub(m, low)")
    assert "in A" not in why.partition(":")[2]
    assert "n_d has its inputs m and low in the other order" in why


def test_a_number_that_is_another_in_that_place_is_told() -> None:
    # The first reader of the number is right, and the second is not.
    assert "in A -1e+38 (low)" in cause("d = Sub(low, m)", "d = Sub(most, m)")
