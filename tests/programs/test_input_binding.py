"""Inputs meet programs by name or by order; what does not fit is one sentence that lists what would."""

from __future__ import annotations

import pytest
import torch
from onnx import TensorProto, helper
from tiny_models import onnx_model, subtraction, unary, value
from torch import nn

import driftscope as ds
from driftscope.programs.feeding.pairing import pair_inputs

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def positional_only(x, /, y):
    return torch.sub(x, y)


@pytest.mark.parametrize("given", [X, (X,), [X], {"x": X}, X.numpy()], ids=["tensor", "tuple", "list", "dict", "numpy"])
def test_a_model_takes_its_input_in_any_form(given):
    assert torch.equal(ds.program(unary())(given)["y"], X.relu())


def test_names_win_over_order():
    given = {"key": X, "query": 2 * X}
    assert torch.equal(ds.program(subtraction())(given)["y"], X)
    assert torch.equal(ds.program(positional_only)({"y": X, "x": 2 * X}), X)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"z": X}, "has no input 'z'; it takes x float32[2, 3], and was given z float32[2, 3]"),
        ({}, "0 were given, nothing"),
        ((X, X), "takes 1 input,"),
        (X.double(), "is float32, but float64 was given"),
        (X.half(), "is float32, but float16 was given"),
        (X[0], "has 2 dimensions"),
        (torch.zeros(4, 3), "fixed size 2 in dimension 0"),
        (X.to_sparse(), "is dense, but a sparse_coo tensor was given"),
        (X.to("meta"), "no values"),
        ({"x": None}, "NoneType was given"),
        (["a"], "neither a file"),
    ],
)
def test_what_does_not_fit_is_said(given, message):
    with pytest.raises(ds.InputError) as refused:
        ds.program(unary())(given)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("shape", "given"),
    [
        (("batch", 3), torch.zeros(9, 3)),
        (("batch", 3), torch.zeros(0, 3)),
        (None, torch.zeros(2)),
        ((), torch.tensor(1.0)),
    ],
)
def test_free_sizes_take_any_size(shape, given):
    assert ds.program(unary(shape=shape))(given)["y"].shape == given.shape


@pytest.mark.parametrize(
    ("element", "number", "fits"),
    [
        (TensorProto.FLOAT, 2.0, True),
        (TensorProto.INT64, 2, True),
        (TensorProto.BOOL, True, True),
        (TensorProto.INT64, 2.5, False),
        (TensorProto.INT64, True, False),
    ],
)
def test_python_numbers_fit_formats_of_their_kind(element, number, fits):
    program = ds.program(unary("Identity", element, ()))
    if fits:
        assert program({"x": number})["y"].item() == number
    else:
        with pytest.raises(ds.InputError):
            program({"x": number})


@pytest.mark.parametrize(
    ("given", "message"),
    [((X, X), "too many positional"), ({"inp": X}, "takes (input), but was given inp float32[2, 3]")],
)
def test_calls_that_do_not_fit_are_said(given, message):
    with pytest.raises(ds.InputError) as refused:
        ds.program(nn.Linear(3, 2))(given)
    assert message in str(refused.value)


def test_inputs_left_out_are_made_from_fixed_shapes():
    program = ds.program(unary())
    assert torch.equal(program()["y"], program(ds.inputs({"x": "2x3:float32"}))["y"])
    with pytest.raises(ds.InputError, match=r"does not fix the shape of its input x float32\[batch, 3\]"):
        ds.program(unary(shape=("batch", 3)))()
    with pytest.raises(ds.InputError, match="does not say what its inputs look like"):
        ds.program(nn.Linear(3, 2))()


def test_programs_without_inputs_need_none():
    two = helper.make_tensor("t", TensorProto.FLOAT, [1], [2.0])
    model = onnx_model([helper.make_node("Constant", [], ["y"], value=two)], [], [value("y", shape=(1,))])
    assert ds.program(model)()["y"].tolist() == [2.0]
    assert ds.program(lambda: torch.full((1,), 2.0))().tolist() == [2.0]
    a, b = ds.program(lambda: torch.full((1,), 2.0)), ds.program(model)
    bound_a, bound_b, found = pair_inputs(a, b)
    assert (a(bound_a).tolist(), b(bound_b)["y"].tolist(), found) == ([2.0], [2.0], [])
    bound_a, bound_b, found = pair_inputs(ds.program(nn.Identity()), b, X)
    assert [f.code for f in found] == ["O002"]


# --- index ranges ---------------------------------------------------------------------------------------------


def indices_of(program, spec="40x30:int64"):
    return program.bind({"ids": spec, "x": "40x30x8"}).feeds["ids"]


def test_index_ranges_come_from_the_table(lookup, exported, onnx_export):
    indices = indices_of(ds.program(lookup))
    assert indices.max() == 49
    assert indices.min() == 0
    assert indices_of(ds.program(lookup), "40x30:int64:randint(0,5)").max() == 4
    assert ds.program(exported).index_ranges(ds.inputs({})) == {"ids": 50}
    assert ds.program(onnx_export).index_ranges(ds.inputs(X)) == {"ids": 50}


def test_an_unknown_range_is_a_note():
    program = ds.program(unary("Identity", TensorProto.INT64, (50,)))
    bound = program.bind({"x": "50:int64"})
    assert [note.code for note in bound.notes] == ["O010"]
    assert bound.feeds["x"].max() == 1
    assert program.bind({"x": "50:int64:randint(0,2)"}).notes == ()


# --- two programs ---------------------------------------------------------------------------------------------


def codes(a, b, inputs):
    return [finding.code for finding in pair_inputs(ds.program(a), ds.program(b), inputs)[2]]


def attend(query, key):
    return torch.sub(query, key)


def swapped(key, query):
    return torch.sub(query, key)


def renamed(left, right):
    return torch.sub(left, right)


PAIR = (X, 2 * X)


@pytest.mark.parametrize(
    ("b", "expected"),
    [
        (attend, []),
        (subtraction(), []),
        (renamed, ["O001"]),
        (subtraction("a", "b"), ["O001"]),
        (swapped, ["O005"]),
        (subtraction("key", "query", exchanged=True), ["O005"]),
        (subtraction("key_1", "query_1"), ["O005"]),
    ],
    ids=["same", "same-onnx", "renamed", "renamed-onnx", "swapped", "swapped-onnx", "exchanged-names"],
)
def test_order_and_names_are_noticed(b, expected):
    assert codes(attend, b, PAIR) == expected


@pytest.mark.parametrize(
    "b",
    [
        attend,
        swapped,
        renamed,
        subtraction(),
        subtraction("a", "b"),
        subtraction("key", "query", exchanged=True),
    ],
)
def test_both_sides_receive_the_same_values(b):
    a, b = ds.program(attend), ds.program(b)
    bound_a, bound_b, _ = pair_inputs(a, b, PAIR)
    result = b(bound_b)
    assert torch.equal(a(bound_a), result["y"] if isinstance(result, dict) else result)


def test_exchanged_names_are_more_than_a_note():
    a, b = ds.program(attend), ds.program(subtraction("key_1", "query_1"))
    (finding,) = pair_inputs(a, b, PAIR)[2]
    assert not finding.note
    a, b = ds.program(attend), ds.program(swapped)
    (finding,) = pair_inputs(a, b, PAIR)[2]
    assert finding.note


def test_an_input_that_the_other_side_lost_is_a_finding():
    a, b = ds.program(attend), ds.program(relu_of("query"))
    _, bound_b, found = pair_inputs(a, b, PAIR)
    assert [(f.code, f.note) for f in found] == [("O002", False)]
    assert list(bound_b.feeds) == ["query"]


def relu_of(name: str):
    return onnx_model([helper.make_node("Relu", [name], ["y"])], [value(name)], [value("y", shape=None)])


def test_what_cannot_be_matched_is_said():
    three = onnx_model(
        [helper.make_node("Sum", ["a", "b", "c"], ["y"])], [value("a"), value("b"), value("c")], [value("y")]
    )
    with pytest.raises(ds.InputError, match="cannot be matched"):
        pair_inputs(ds.program(attend), ds.program(three), PAIR)


def test_a_narrower_side_gives_both_the_same_rounded_values():
    a, b = (
        ds.program(attend),
        ds.program(
            onnx_model(
                [helper.make_node("Sub", ["query", "key"], ["y"])],
                [value("query", TensorProto.FLOAT16), value("key", TensorProto.FLOAT16)],
                [value("y", TensorProto.FLOAT16, None)],
            )
        ),
    )
    bound_a, bound_b, found = pair_inputs(a, b, (torch.full((2, 3), 0.1), X))
    assert [f.code for f in found] == ["O009"]
    assert bound_b.feeds["query"].dtype == torch.float16
    assert bound_a.feeds["query"].dtype == torch.float32
    assert torch.equal(bound_a.feeds["query"], bound_b.feeds["query"].float())


def test_named_specs_serve_both_sides(lookup, onnx_export):
    a, b = ds.program(lookup), ds.program(onnx_export)
    bound_a, bound_b, found = pair_inputs(a, b, {"ids": "2x3:int64", "x": "2x3x8"})
    assert found == []
    assert torch.equal(bound_a.feeds["ids"], bound_b.feeds["ids"])
    assert torch.allclose(a(bound_a)["y"], next(iter(b(bound_b).values())), atol=1e-6)


def test_inputs_left_out_come_from_the_side_that_fixes_them(lookup, onnx_export):
    bound_a, bound_b, _ = pair_inputs(ds.program(lookup), ds.program(onnx_export))
    assert torch.equal(bound_a.feeds["x"], bound_b.feeds["x"])
    assert bound_a.feeds["ids"].max() > 1


def test_exported_programs_are_bound_beside_anything(lookup, exported, onnx_export, lookup_inputs):
    expected = ds.program(lookup)(lookup_inputs)["y"]
    for other in (lookup, onnx_export):
        for a, b in ((other, exported), (exported, other)):
            pa, pb = ds.program(a), ds.program(b)
            bound_a, bound_b, found = pair_inputs(pa, pb, lookup_inputs)
            assert found == []
            for program, bound in ((pa, bound_a), (pb, bound_b)):
                assert torch.allclose(next(iter(program(bound).values())), expected, atol=1e-6)


def test_a_cache_reaches_an_exported_program_whole():
    transformers = pytest.importorskip("transformers")

    class Grow(nn.Module):
        def forward(self, x, past):
            key, _ = past.update(x, x, 0)
            return key.sum(dim=-2), past

    def cache():
        made = transformers.DynamicCache()
        made.update(torch.ones(1, 1, 2, 3), torch.ones(1, 1, 2, 3), 0)
        return made

    x = torch.ones(1, 1, 1, 3)
    given = cache()
    program = ds.program(Grow())
    summed, grown = program((x, given))
    assert summed.flatten().tolist() == [3.0, 3.0, 3.0]
    assert grown.get_seq_length() == 3
    assert given.get_seq_length() == 2, "the caller's cache was changed"
    assert list(program.bind({"x": x, "past": given}).feeds) == ["x", "past.layers.0.keys", "past.layers.0.values"]


@pytest.mark.parametrize("builtin", [torch.nn.functional.scaled_dot_product_attention, torch.nn.functional.linear])
def test_a_built_in_function_tells_no_names_and_is_bound_by_order(builtin):
    def written(one, two, three):
        return one

    x = torch.randn(3, 3)
    a, b, notes = pair_inputs(ds.program(written), ds.program(builtin), (x, x + 1, x[0]))
    assert [tuple(v.shape) for v in b.args] == [(3, 3), (3, 3), (3,)]
    assert not b.kwargs
    assert list(a.arguments) == ["one", "two", "three"]
    assert not notes
