"""A listing shows every part of a graph: inputs, weights, attributes, subgraphs, functions, source lines."""

from __future__ import annotations

import onnx_ir
import pytest
import torch
from onnx import TensorProto, helper
from tiny_models import onnx_model, unary, value
from torch import nn

import driftscope as ds


def branch(name: str, op: str):
    return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [value(name)])


def everything():
    nodes = [
        helper.make_node("Constant", [], ["three"], value=helper.make_tensor("", TensorProto.INT64, [1], [3])),
        helper.make_node("LayerNormalization", ["x", "scale"], ["n"], name="norm", epsilon=1e-5, axis=-1),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("t", "Relu"), else_branch=branch("e", "Neg")),
        helper.make_node("Own", ["n", "y"], ["z"], domain="own", mode="linear", sizes=[1, 2]),
    ]
    weights = [helper.make_tensor("scale", TensorProto.FLOAT, [3], [1.0, 0.5, -2.0])]
    inputs = [value("x", shape=("batch", 3)), value("c", TensorProto.BOOL, ())]
    model = onnx_model(nodes, inputs, [value("z", shape=None)], initializers=weights)
    body = [helper.make_node("Add", ["a", "b"], ["s"])]
    opsets = [helper.make_opsetid("", 20)]
    model.functions.append(helper.make_function("own", "Own", ["a", "b"], ["s"], body, opsets, ["mode", "sizes"]))
    return model


EXPECTED = """\
model: IR 10, opsets ai.onnx 20
graph tiny
  input  x: float32[batch, 3]
  input  c: bool[]
  weight scale: float32[3] = 1, 0.5, -2
  three = Constant(value=<int64[1] = 3>)
  n = LayerNormalization(x, scale, axis=-1, epsilon=1e-05)   # norm
  y = If(c)
    else_branch:
      graph e
        e = Neg(x)
        output e: float32[2, 3]
    then_branch:
      graph t
        t = Relu(x)
        output t: float32[2, 3]
  z = own.Own(n, y, mode='linear', sizes=[1, 2])
  output z: float32[...]

function own.Own(a, b) attributes (mode, sizes)
  s = Add(a, b)
  output s"""


def test_an_onnx_model_is_listed_whole():
    assert ds.pretty(everything()) == EXPECTED


def test_every_form_of_a_model_lists_the_same(onnx_export, onnx_file):
    listings = {ds.pretty(form) for form in (onnx_file, str(onnx_file), onnx_ir.load(onnx_file), ds.program(onnx_file))}
    assert len(listings) == 1
    assert "Gather(table.weight, ids, axis=0)" in ds.pretty(onnx_export)


def test_parts_of_a_model_are_listed():
    model = everything()
    assert ds.pretty(model.graph) in ds.pretty(model)
    assert ds.pretty(model.functions[0]) in ds.pretty(model)


def test_long_weights_are_shortened_and_odd_ones_are_named():
    tensors = [
        helper.make_tensor("long", TensorProto.FLOAT, [6], [0.0] * 6),
        helper.make_tensor("none", TensorProto.FLOAT, [0], []),
        helper.make_tensor("half", TensorProto.FLOAT16, [1], [1.5]),
        helper.make_tensor("words", TensorProto.STRING, [1], [b"hi"]),
        TensorProto(name="broken", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"too short"),
    ]
    listing = ds.pretty(onnx_model(unary().graph.node, [value("x")], [value("y")], initializers=tensors))
    for words in ("long: float32[6] = 0, 0, 0, 0, 0, ...", "none: float32[0] = empty", "half: float16[1] = 1.5"):
        assert words in listing
    assert "words: string[1] = 'hi'" in listing
    assert "broken: float32[4] (damaged)" in listing


def test_an_exported_program_is_listed_with_lines_of_source(exported, pt2):
    listing = ds.pretty(exported)
    assert "weight p_mix_weight (mix.weight): float32[4, 8] = " in listing
    assert "input  ids: int64[2, 3]" in listing
    assert "aten.add.Tensor(embedding, x)   # float32[2, 3, 8]  tiny_models.py:" in listing
    assert ds.pretty(pt2).splitlines()[1:3] == listing.splitlines()[1:3]
    assert ds.pretty(ds.program(exported)) == listing


def test_branches_of_an_exported_program_are_indented():
    class Branches(nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a - 1, (x,))

    listing = ds.pretty(torch.export.export(Branches(), (torch.ones(2),)))
    assert "\n    true_graph_0:\n" in listing
    assert "\n      mul = aten.mul.Tensor" in listing


def test_what_has_no_graph_is_said():
    for given in (ds.program(nn.Identity()), "torch.nn.functional:relu"):
        with pytest.raises(ds.ProgramError, match="has no graph to list; export it first"):
            ds.pretty(given)
    with pytest.raises(
        ds.ProgramError, match=r"class int is not an ONNX model.* ExportedProgram, GraphModule, and a Program"
    ):
        ds.pretty(3)


def test_the_graph_that_runs_is_listed_too(onnx_file):
    stored, run = ds.pretty(onnx_file), ds.pretty(onnx_file, optimized=True)
    assert stored != run
    assert ds.pretty(ds.onnx(onnx_file, level="disable"), optimized=True).count(" = ") == stored.count(" = ")
    with pytest.raises(ds.ProgramError, match="shows no optimised graph"):
        ds.pretty(torch.nn.Linear(2, 2), optimized=True)


def test_formats_are_listed_by_name():
    cast = unary("Relu")
    cast.graph.node.append(helper.make_node("Cast", ["x"], ["z"], to=10))
    assert "Cast(x, to=float16)" in ds.pretty(cast)
