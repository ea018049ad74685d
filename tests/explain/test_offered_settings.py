"""Settings that an operator's schema offers are tried where A computes the piece otherwise, in either order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.explain.causes.edits.schemas import choices, same_signature
from driftscope.explain.causes.telling import exchanged
from driftscope.records.finding import Finding

IMAGE = torch.randn(1, 2, 6, 7, generator=torch.Generator().manual_seed(5))
ROWS = torch.randn(4, 9, generator=torch.Generator().manual_seed(5))
ONE = np.array([1], np.int64)
TWICE = np.array([1, 1, 2, 2], np.float32)
HALVES = {"kernel_shape": [2, 2], "strides": [2, 2]}
PADDED = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
GRID = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 5, 5, 2)).astype(np.float32)

Function = Callable[[torch.Tensor], torch.Tensor]


def file(operator: str, x: torch.Tensor, extra: dict[str, np.ndarray], name: str = "x", **attributes: object) -> bytes:
    """A file of one node; inputs that it leaves out have names that begin with a blank."""
    inputs = [name, *("" if n.startswith(" ") else n for n in extra)]
    node = helper.make_node(operator, inputs, ["y"], **attributes)
    given = helper.make_tensor_value_info(name, TensorProto.FLOAT, x.shape)
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * x.dim())
    stored = [numpy_helper.from_array(v, n) for n, v in extra.items() if not n.startswith(" ")]
    graph = helper.make_graph([node], "g", [given], [made], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


#: What torch computes; operator, input and stored inputs; its attributes; those that are wrong; what is to be set.
SETTINGS: dict[str, tuple[Function, str, torch.Tensor, dict[str, np.ndarray], dict, dict, str]] = {
    "reversed sum": (lambda x: x.flip(1).cumsum(1).flip(1), "CumSum", ROWS, {"a": ONE}, {"reverse": 1}, {},
                     "reverse of CumSum_0 to 1"),
    "norm of windows": (lambda x: F.lp_pool2d(x, 2, 2), "LpPool", IMAGE, {}, HALVES, {**HALVES, "p": 1},
                        "p of LpPool_0 to 2"),
    "counted padding": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), "AveragePool", IMAGE, {}, PADDED,
                        {**PADDED, "count_include_pad": 1}, "count_include_pad"),
    "axis of a norm": (lambda x: x / x.norm(dim=1, keepdim=True), "LpNormalization", ROWS, {}, {"axis": 1},
                       {"axis": 0}, "axis of LpNormalization_0 to 1"),
    "corners": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True), "Resize", IMAGE,
                {" roi": ONE, "s": TWICE}, {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
                {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}, "corners"),
    "half pixels": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), "Resize", IMAGE,
                    {" roi": ONE, "s": TWICE}, {"mode": "linear"},
                    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
                    "coordinate_transformation_mode of Resize_0 to half_pixel"),
    "padding of a grid": (lambda x: F.grid_sample(x, torch.from_numpy(GRID), align_corners=False), "GridSample", IMAGE,
                          {"g": GRID}, {}, {"padding_mode": "border"}, "padding"),
}  # fmt: skip
#: What torch computes, the right operator and the wrong one.
OPERATORS: dict[str, tuple[Function, str, str]] = {
    "sizes": (lambda x: x.abs().sum(1, keepdim=True), "ReduceL1", "ReduceL2"),
    "squares": (lambda x: x.square().sum(1, keepdim=True), "ReduceSumSquare", "ReduceL2"),
}


def first(a: object, b: object, x: torch.Tensor) -> Finding:
    found = ds.compare(a, b, (x,))
    assert found.verdict == "DIFFERENT"
    assert len([f for f in found.findings if not f.note]) == 1
    assert found.first is not None
    return found.first


@pytest.mark.parametrize("case", SETTINGS)
@pytest.mark.parametrize("file_first", [False, True], ids=["file is B", "file is A"])
def test_a_wrong_setting_of_a_file_has_a_tried_fix_in_both_orders(case, file_first):
    function, operator, x, extra, _, wrong, fix = SETTINGS[case]
    pair = (file(operator, x, extra, **wrong), function)
    told = first(*(pair if file_first else pair[::-1]), x)
    assert told.verified
    # Where the wrong file is the reference, torch's own setting may be the edit instead.
    assert fix in told.fix or (file_first and told.fix)


@pytest.mark.parametrize("case", SETTINGS)
def test_the_right_setting_is_not_flagged(case):
    function, operator, x, extra, right, _, _ = SETTINGS[case]
    found = ds.compare(function, file(operator, x, extra, **right), (x,))
    assert found.verdict in ("IDENTICAL", "ROUNDING")
    assert not [f for f in found.findings if not f.note]


@pytest.mark.parametrize("case", OPERATORS)
def test_an_operator_of_the_same_inputs_is_tried_in_the_place_of_a_wrong_one(case):
    function, right, wrong = OPERATORS[case]
    assert f"Put {right} in the place of {wrong}" in first(function, file(wrong, ROWS, {"a": ONE}), ROWS).fix
    turned = first(file(wrong, ROWS, {"a": ONE}), function, ROWS)
    assert f"In A, put {right} in the place of {wrong}" in turned.fix
    assert turned.verified
    found = ds.compare(function, file(right, ROWS, {"a": ONE}), (ROWS,))
    assert found.verdict in ("IDENTICAL", "ROUNDING")


def test_an_edit_of_a_is_told_in_the_words_of_the_given_order():
    function, operator, x, extra, _, wrong, _ = SETTINGS["norm of windows"]
    told = first(file(operator, x, extra, **wrong), function, x)
    assert told.fix == "In A, set p of LpPool_0 to 2."
    assert "p is 1 in A's LpPool_0; with 2 it gives B's values" in told.why
    assert told.where.node == "pow"  # the place is B's


def test_no_edit_of_a_is_told_where_a_value_is_called_a():
    function, operator, x, extra, _, wrong, _ = SETTINGS["norm of windows"]
    told = first(file(operator, x, extra, name="A", **wrong), function, x)
    assert "In A" not in told.fix


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("axis is 0 here and 1 in A.", "axis is 0 here and 1 in B."),
        ("with 2 it gives A's values", "with 2 it gives B's values"),
        ("B stores A's, A.weight and layer.A stay", "A stores B's, A.weight and layer.A stay"),
    ],
)
def test_programs_are_exchanged_in_a_sentence_and_names_are_not(given, meant):
    assert exchanged(given) == meant


def test_what_a_schema_offers():
    offered = choices("Resize")["coordinate_transformation_mode"](b"half_pixel")
    assert {"align_corners", "asymmetric", "pytorch_half_pixel"} <= set(offered)
    assert "half_pixel" not in offered
    assert "x_resized" not in offered  # of a formula in the documentation
    assert choices("Conv")["auto_pad"](b"VALID") == ["NOTSET", "SAME_UPPER", "SAME_LOWER"]
    assert choices("LSTM")["direction"](b"reverse") == ["forward", "bidirectional"]
    assert choices("Pad")["mode"](b"wrap") == ["constant", "reflect", "edge"]
    assert choices("CumSum")["reverse"](0) == [1]
    assert choices("LpPool")["p"](2) == [3, 1]
    assert "axis" not in choices("Softmax")  # its axes are tried one by one elsewhere
    assert "ReduceL1" in same_signature("ReduceL2")
    assert "Expand" not in same_signature("Mul")  # its second input is no float
