"""A node that reads constants only is evaluated in its native formats, as onnxruntime folds it."""

from __future__ import annotations

import numpy as np
import pytest
import test_contrib_attention
import test_contrib_fused
import test_contrib_quantised
import test_contrib_recurrent
import test_contrib_tensors
from one_node import OneNode, distance, lifted, run

_FAMILIES = (
    test_contrib_fused,
    test_contrib_attention,
    test_contrib_quantised,
    test_contrib_recurrent,
    test_contrib_tensors,
)
CASES = {f"{m.__name__.removeprefix('test_contrib_')}-{k}": c for m in _FAMILIES for k, c in m.CASES.items()}
# Half formats are added up in float32 by onnxruntime and step by step by torch, so more of their error shows.
LIMITS = {np.dtype(np.float16): 5e-3, np.dtype(np.float32): 5e-6}


@pytest.mark.parametrize("name", CASES)
def test_a_node_of_constants_is_evaluated_natively(name: str) -> None:
    case = CASES[name]
    inputs = [None if x is None else np.asarray(x) for x in case.inputs]
    every = tuple(i for i, x in enumerate(inputs) if x is not None)
    given = OneNode(case.op_type, inputs, case.attributes, case.outputs, case.domain, case.weights, case.opset)
    folded = OneNode(case.op_type, inputs, case.attributes, case.outputs, case.domain, every, case.opset)
    expected = run(given.model(), given.feeds())
    for want, got in zip(expected, lifted(folded.model(), {}).run(), strict=True):
        assert str(got.format).removeprefix("torch.") == want.dtype.name
        assert distance(want, got.value) <= LIMITS.get(want.dtype, 1e-9)


def test_natively_means_with_the_rounding_of_the_format() -> None:
    """The twin: in float16 a sum that float64 keeps is rounded away."""
    a, b = np.array([[1.0, 2.0**-12]], np.float16), np.ones((2, 1), np.float16)
    given = OneNode("FusedMatMul", [a, b])
    folded = OneNode("FusedMatMul", [a, b], weights=(0, 1))
    assert float(lifted(given.model(), given.feeds()).run()[0].value) == 1 + 2.0**-12
    assert float(lifted(folded.model(), {}).run()[0].value) == 1.0
