"""onnxruntime: every format in and out, every option, and refusals in its own words."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest
import torch
from onnx import TensorProto, helper
from tiny_models import onnx_model, unary, value

import driftscope as ds
from driftscope.errors import CannotLift, RuntimeRefused
from driftscope.programs.isolation.choice import isolating
from driftscope.programs.runtimes.ort_options import SessionSetup
from driftscope.programs.runtimes.ort_refusals import own_words
from driftscope.programs.runtimes.ort_remote import RemoteSession
from driftscope.programs.runtimes.ort_values import ELEMENTS

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


COMPLEX = {torch.complex64, torch.complex128}


@pytest.mark.parametrize("dtype", sorted(set(ELEMENTS) - COMPLEX, key=str), ids=str)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 3)], ids=str)
def test_bits_pass_through_unchanged(dtype, shape):
    x = torch.ones(shape).to(dtype)
    program = ds.program(unary("Identity", ELEMENTS[dtype], None))
    result = program(x)["y"]
    assert result.dtype == dtype
    assert result.shape == x.shape
    assert result.flatten().view(torch.uint8).equal(x.flatten().view(torch.uint8)) or x.numel() == 0


def test_inputs_need_not_be_contiguous():
    assert torch.equal(ds.program(unary(shape=(3, 2)))(X.t() - 2)["y"], (X.t() - 2).relu())


def test_results_outlive_their_session():
    result = ds.program(unary())(X)["y"]
    others = [ds.program(unary())(X + i)["y"] for i in range(5)]
    assert torch.equal(result, X.relu())
    assert torch.equal(others[4], X + 4)


def test_strings_and_sequences():
    words = ds.program(unary("Identity", TensorProto.STRING, ("n",)))(np.array(["a", "b"]))["y"]
    assert words.tolist() == ["a", "b"]
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    split = onnx_model([node("SplitToSequence", ["x"], ["s"], axis=0)], [value("x")], [sequence])
    assert [t.shape for t in ds.program(split)(X)["s"]] == [(1, 3), (1, 3)]
    joined = onnx_model([node("ConcatFromSequence", ["s"], ["y"], axis=0)], [sequence], [value("y", shape=None)])
    assert torch.equal(ds.program(joined)({"s": [X, X]})["y"], torch.cat([X, X]))
    with pytest.raises(CannotLift, match="'s'"):
        ds.program(joined).lift_source({"s": [X, X]})


@pytest.mark.parametrize(("element", "given"), [(TensorProto.INT4, [7, -8, 3]), (TensorProto.UINT4, [7, 0, 3])])
def test_half_bytes(element, given):
    result = value("y", element, None)
    cast = onnx_model([node("Cast", ["x"], ["y"], to=element)], [value("x", shape=(3,))], [result], opset=21)
    try:
        found = ds.program(cast)(torch.tensor(given, dtype=torch.float32))["y"]
    except RuntimeRefused as refused:
        if "implementation for Cast" not in str(refused):
            raise
        pytest.skip("this onnxruntime has no kernel that makes four-bit integers")
    assert found.tolist() == given


def test_optional_inputs_may_be_left_out():
    optional = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(1, [2, 3])))
    has = onnx_model([node("OptionalHasElement", ["o"], ["y"])], [optional], [value("y", TensorProto.BOOL, ())])
    assert ds.program(has)({"o": X})["y"].item() is True


def test_an_initializer_makes_an_input_optional():
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    model = onnx_model(
        [node("Mul", ["x", "w"], ["y"])], [value("x"), value("w", shape=(1,))], [value("y")], initializers=[weight]
    )
    program = ds.program(model)
    assert torch.equal(program(X)["y"], 2 * X)
    assert torch.equal(program((X, torch.tensor([3.0])))["y"], 3 * X)


def test_an_output_declared_twice_comes_once():
    model = onnx_model([node("Relu", ["x"], ["y"])], [value("x")], [value("y"), value("y"), value("x")])
    assert list(ds.program(model)(X)) == ["y", "x"]


# --- options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["disable", "basic", "extended", "layout", "all"])
def test_every_level_runs_and_hands_out_its_graph(level, onnx_file, lookup_inputs):
    program = ds.onnx(onnx_file, level=level, threads=1)
    source = program.optimized_source(lookup_inputs)
    onnx.checker.check_model(source.model)
    ran = ds.onnx(source.model, level="disable")
    first, second = program(lookup_inputs), ran(lookup_inputs)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert program.describe()["level"] == level
    assert f"optimisation level {level}" in program.runtime


def test_a_fusion_shows_in_the_graph_and_can_be_disabled():
    nodes = [node("MatMul", ["x", "w"], ["t"]), node("Add", ["t", "b"], ["y"])]
    stored = [helper.make_tensor("w", 1, [3, 2], [1.0] * 6), helper.make_tensor("b", 1, [2], [1.0] * 2)]
    model = onnx_model(nodes, [value("x")], [value("y", shape=(2, 2))], initializers=stored)

    def operators(**options):
        return [n.op_type for n in ds.onnx(model, **options).optimized_source(X).model.graph.node]

    assert operators() == ["Gemm"]
    assert operators(level="disable") == ["MatMul", "Add"]
    assert operators(disabled=["MatMulAddFusion"]) == ["MatMul", "Add"]


def test_the_optimised_model_is_saved_where_asked(tmp_path):
    path = tmp_path / "optimized.onnx"
    program = ds.onnx(unary(), save_optimized=path)
    assert not path.exists(), "the session is created on first use"
    program(X)
    assert onnx.load(path).graph.node[0].op_type == "Relu"


@pytest.mark.parametrize("writes", [True, False])
def test_one_session_runs_a_file_and_keeps_the_graph_it_made(onnx_file, lookup_inputs, monkeypatch, writes):
    other = ds.onnx(onnx_file, threads=1)
    expected = other.optimized_graph()
    made = []
    original = RemoteSession.make

    def make(self, recipe=None, **options):
        made.append(recipe)
        if recipe is not None and recipe.save_to and not writes:
            raise RuntimeRefused("onnxruntime", "load", "no room on the disk")
        return original(self, recipe, **options)

    monkeypatch.setattr(RemoteSession, "make", make)
    program = ds.onnx(onnx_file, threads=1)
    program.keep_optimized()
    with isolating(True):
        results, again = program(lookup_inputs), other(lookup_inputs)
        assert all(torch.equal(results[name], again[name]) for name in results)
        if writes:
            assert program.optimized_graph().SerializeToString() == expected.SerializeToString()
    assert len(made) == (2 if writes else 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "max"}, "unknown optimisation level 'max'"),
        ({"threads": 0}, "1 thread or more"),
        ({"optimise": True}, "unknown option 'optimise'"),
    ],
)
def test_bad_options_are_said(options, message):
    with pytest.raises(ds.ProgramError, match=message):
        ds.onnx(unary(), **options)


def test_waiting_threads_sleep_unless_asked_otherwise():
    key = "session.intra_op.allow_spinning"
    assert SessionSetup().session_options().get_session_config_entry(key) == "0"
    assert SessionSetup(config=((key, "1"),)).session_options().get_session_config_entry(key) == "1"


def test_unknown_optimisers_are_a_note_and_known_ones_are_not():
    program = ds.onnx(unary(), disabled=["GeluFusion", "ConstantFolding"])
    (finding,) = program.check(X)
    assert (finding.code, finding.note) == ("O011", True)
    assert "GeluFusionL1" in finding.fix
    assert torch.equal(program(X)["y"], X.relu())


def test_a_missing_provider_is_refused_and_not_replaced():
    with pytest.raises(ds.RuntimeRefused, match="this build has no TensorrtExecutionProvider"):
        ds.onnx(unary(), provider="tensorrt")(X)
    assert torch.equal(ds.onnx(unary(), provider="CPUExecutionProvider")(X)["y"], X.relu())


# --- refusals -------------------------------------------------------------------------------------------------


def cyclic():
    return onnx_model([node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])], [value("x")], [value("a")])


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (unary("NoSuchOperator"), "NoSuchOperator"),
        (unary(ir_version=99), "IR version: 99"),
        (unary(opset=99), "opset 99 of ai.onnx is newer than it supports"),
        (cyclic(), "not acyclic"),
        (unary("Gemm", TensorProto.BFLOAT16), ""),
    ],
    ids=["operator", "ir", "opset", "cycle", "format"],
)
def test_what_onnxruntime_does_not_load_is_said_in_its_words(model, words):
    given = X.to(torch.bfloat16) if model.graph.input[0].type.tensor_type.elem_type == TensorProto.BFLOAT16 else X
    with pytest.raises(ds.RuntimeRefused) as refused:
        ds.program(model)(given)
    assert refused.value.stage == "load"
    assert words in refused.value.words
    assert "onnxruntime_src" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_fails_while_running_is_said_in_its_words():
    model = onnx_model([node("MatMul", ["x", "x"], ["y"])], [value("x", shape=("a", "b"))], [value("y", shape=None)])
    with pytest.raises(ds.RuntimeRefused) as refused:
        ds.program(model)(X)
    assert refused.value.stage == "run"
    assert refused.value.words.endswith("MatMul dimension mismatch")
    assert ds.program(model)(X[:, :2])["y"].shape == (2, 2)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : plain words (with brackets)", "plain words (with brackets)"),
        (
            "[ONNXRuntimeError] : 6 : X : /onnxruntime_src/a/b.cc:12 int ns::F<T>::Run(ns::A (*)(int)) const bad (n=3)",
            "bad (n=3)",
        ),
        ("Status Message: matmul_helper.h:59 Compute mismatch", "Status Message: mismatch"),
        ("two\nlines", "two lines"),
    ],
)
def test_source_places_are_stripped_and_words_are_kept(message, words):
    assert own_words(message) == words


# --- what a model is made of ----------------------------------------------------------------------------------


def test_every_form_of_a_model_is_taken(onnx_export, onnx_file, lookup_inputs):
    forms = [
        onnx_export,
        onnx_export.model,
        onnx_export.model_proto,
        onnx_file,
        str(onnx_file),
        onnx_ir.load(onnx_file),
    ]
    results = [next(iter(ds.program(form)(lookup_inputs).values())) for form in forms]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (onnx.ModelProto(), "no graph or no IR version"),
        (onnx_model([node("Relu", ["x"], ["y"])], [value("x")], []), "has no outputs"),
    ],
)
def test_incomplete_models_are_said(model, message):
    with pytest.raises(ds.ProgramError, match=message):
        ds.program(model)


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"not a model", b"\x08\x0a\xff\xff\xff"])
def test_damaged_files_are_said(content, tmp_path):
    path = tmp_path / "damaged.onnx"
    path.write_bytes(content)
    with pytest.raises(ds.ProgramError) as refused:
        ds.program(path)
    assert "damaged.onnx" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_truncated_files_are_said(onnx_file, tmp_path):
    whole = onnx_file.read_bytes()
    path = tmp_path / "truncated.onnx"
    for keep in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:keep])
        with pytest.raises(ds.ProgramError, match=r"truncated\.onnx"):
            ds.program(path)
    path.write_bytes(whole)
    assert ds.program(path).slots()


@pytest.mark.parametrize(("training", "ratio", "expected"), [(True, 0.5, ["O004"]), (True, 0.0, []), (False, 0.5, [])])
@pytest.mark.parametrize("as_node", [False, True])
def test_dropout_left_on_in_a_graph_is_found(training, ratio, expected, as_node):
    flag = helper.make_tensor("on", TensorProto.BOOL, [], [training])
    amount = helper.make_tensor("ratio", TensorProto.FLOAT, [], [ratio])
    before = [node("Constant", [], ["on"], value=flag)] if as_node else []
    stored = [amount] if as_node else [amount, flag]
    nodes = [*before, node("Dropout", ["x", "ratio", "on"], ["y"])]
    model = onnx_model(nodes, [value("x")], [value("y")], initializers=stored)
    assert [f.code for f in ds.program(model).check(X)] == expected


@pytest.mark.parametrize(("mode", "expected"), [(1, ["O003"]), (0, [])])
def test_batch_normalisation_in_training_mode_is_found(mode, expected):
    stored = [helper.make_tensor(name, TensorProto.FLOAT, [3], [1.0] * 3) for name in "sbmv"]
    outputs = ["y", "mean", "variance"] if mode else ["y"]
    norm = node("BatchNormalization", ["x", *"sbmv"], outputs, training_mode=mode)
    assert [
        f.code for f in ds.program(onnx_model([norm], [value("x")], [value("y")], initializers=stored)).check()
    ] == expected


def test_unused_inputs_are_found_and_inputs_of_subgraphs_are_not():
    def branch(name, used):
        return helper.make_graph([node("Identity", [used], [name])], name, [], [value(name)])

    nodes = [node("If", ["c"], ["y"], then_branch=branch("t", "x"), else_branch=branch("e", "z"))]
    inputs = [value("c", TensorProto.BOOL, ()), value("x"), value("z"), value("idle")]
    found = ds.program(onnx_model(nodes, inputs, [value("y")])).check()
    assert [(f.code, f.where.output) for f in found] == [("O002", "in['idle']")]
    assert ds.program(unary()).check() == []
