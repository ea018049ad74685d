"""The evaluator of ONNX graphs: constants, replacements, control flow, functions, memory, refusals."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from onnx_models import FLOAT, INT64, graph_of, lift_onnx, model_of, node, steps_of, value_of

from driftscope.errors import CannotLift, DriftscopeError, InputError, ProgramError
from driftscope.lift.steps import Kind, Origin, Step

X = torch.linspace(-2, 2, 12).reshape(3, 4)


def layer_norm(**attributes: Any) -> onnx.ModelProto:
    weights = {"scale": np.ones(4, np.float32), "bias": np.zeros(4, np.float32)}
    layer = node("LayerNormalization", ["x", "scale", "bias"], ["y"], "norm", **attributes)
    return model_of([layer], {"x": FLOAT}, ["y"], weights)


# -- constants ------------------------------------------------------------------------------------------------


def test_every_constant_is_listed_with_its_native_bits() -> None:
    half = np.float16([1.5, 2.5])
    nodes = [
        node("Constant", [], ["two"], value=numpy_helper.from_array(np.float16(2))),
        node("Constant", [], ["shape"], value=numpy_helper.from_array(np.int64([2, 1]))),
        node("Mul", ["w", "two"], ["folded"], "fold"),
        node("Mul", ["x", "folded"], ["scaled"], "scale"),
        node("LeakyRelu", ["scaled"], ["leaky"], "leak", alpha=0.2),
        node("Reshape", ["leaky", "shape"], ["y"], "view"),
    ]
    model = model_of(nodes, {"x": onnx.TensorProto.FLOAT16}, ["y"], {"w": half})
    found = {c.name: c for c in lift_onnx(model, {"x": torch.ones(2, dtype=torch.float16)}).constants()}
    assert set(found) == {"w", "two", "folded", "leak.alpha"}
    assert [found[n].origin for n in ("w", "two", "folded", "leak.alpha")] == [
        Origin.WEIGHT, Origin.WEIGHT, Origin.COMPUTED, Origin.ATTRIBUTE,
    ]  # fmt: skip
    assert not found["w"].frontier
    assert found["folded"].frontier
    assert found["folded"].value.equal(torch.tensor([3, 5], dtype=torch.float16))
    assert found["leak.alpha"].value.dtype == torch.float32
    assert found["folded"].where.node == "scale"


def test_a_schema_default_is_a_constant_too() -> None:
    names = {c.name: float(c.value) for c in lift_onnx(layer_norm(), {"x": X}).constants() if c.value.dim() == 0}
    assert names == {"norm.epsilon": pytest.approx(1e-5)}


def test_constant_subgraphs_are_folded_in_their_own_dtype() -> None:
    tenth = np.float16(0.1)
    nodes = [node("Mul", ["a", "a"], ["square"]), node("Mul", ["x", "square"], ["y"])]
    model = model_of(nodes, {"x": onnx.TensorProto.FLOAT16}, ["y"], {"a": tenth})
    value = value_of(lift_onnx(model, {"x": torch.ones(1, dtype=torch.float16)}))
    assert value.item() == float(tenth * tenth)
    assert value.item() != float(tenth) ** 2


def test_casts_between_floats_do_not_round_and_casts_to_integers_see_the_native_value() -> None:
    nodes = [
        node("Mul", ["x", "third"], ["m"]),
        node("Cast", ["m"], ["half"], to=onnx.TensorProto.FLOAT16),
        node("Cast", ["half"], ["y"], to=FLOAT),
        node("Cast", ["half"], ["n"], to=INT64),
        node("Cast", ["m"], ["e"], to=onnx.TensorProto.FLOAT8E4M3FN),
    ]
    model = model_of(nodes, {"x": FLOAT}, ["y", "n", "half", "e"], {"third": np.float32(1 / 3)})
    y, n, half, eighth = lift_onnx(model, {"x": torch.tensor([1.0, 6148.5])}).run()
    exact = torch.tensor([1.0, 6148.5], dtype=torch.float64) * float(np.float32(1 / 3))
    assert y.value is not None
    assert n.value is not None
    assert eighth.value is not None
    assert y.value.equal(exact)
    assert half.format == torch.float16
    # 2049.5 is 2050 in float16, between whose neighbours lie 2: the native program sees 2050.
    assert n.value.tolist() == [0, 2050]
    assert eighth.value.tolist() == [0.34375, 448.0]


# -- replacements ---------------------------------------------------------------------------------------------


def test_a_replaced_epsilon_changes_the_result_as_the_formula_says() -> None:
    lifted = lift_onnx(layer_norm(epsilon=0.1), {"x": X})
    exact = X.double()
    centred = exact - exact.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    for epsilon in (1e-5, 0.3):
        value = value_of(lifted, replace={"norm.epsilon": torch.tensor(epsilon, dtype=torch.float64)})
        torch.testing.assert_close(value, centred / (variance + epsilon).sqrt(), rtol=1e-14, atol=1e-14)
    stored = float(np.float32(0.1))
    torch.testing.assert_close(value_of(lifted), centred / (variance + stored).sqrt(), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(
    ("op", "attribute", "value"),
    [
        ("LayerNormalization", "epsilon", 0.1), ("LeakyRelu", "alpha", 0.2), ("Elu", "alpha", 0.7),
        ("Selu", "gamma", 1.1), ("HardSigmoid", "beta", 0.4), ("Gemm", "alpha", 0.5), ("Celu", "alpha", 0.9),
        ("InstanceNormalization", "epsilon", 0.01), ("LRN", "bias", 1.5), ("Swish", "alpha", 1.2),
    ],
)  # fmt: skip
def test_attributes_carry_gradients(op: str, attribute: str, value: float) -> None:
    shape = (2, 3, 4) if op in ("InstanceNormalization", "LRN") else (3, 4)
    x = torch.linspace(-1, 1.3, int(np.prod(shape))).reshape(shape)
    others = {"LayerNormalization": ["s4"], "InstanceNormalization": ["s3", "s3"], "Gemm": ["w"]}.get(op, [])
    more = {"size": 3} if op == "LRN" else {}
    weights = {"s4": np.float32([1, 2, 3, 4]), "s3": np.float32([1, 2, 3]), "w": np.ones((4, 2), np.float32)}
    layer = node(op, ["x", *others], ["y"], "n", **{attribute: value}, **more)
    opset = 24 if op == "Swish" else 20
    lifted = lift_onnx(model_of([layer], {"x": FLOAT}, ["y"], weights, opset=opset), {"x": x})
    free = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    value_of(lifted, replace={f"n.{attribute}": free}).square().sum().backward()
    step = 1e-6
    high, low = (
        value_of(lifted, replace={f"n.{attribute}": torch.tensor(value + d, dtype=torch.float64)}).square().sum()
        for d in (step, -step)
    )
    assert free.grad is not None
    assert free.grad.item() == pytest.approx(((high - low) / (2 * step)).item(), rel=1e-6)


def test_weights_and_folded_constants_can_be_replaced() -> None:
    nodes = [node("Mul", ["w", "w"], ["ww"]), node("Mul", ["x", "ww"], ["y"])]
    lifted = lift_onnx(model_of(nodes, {"x": FLOAT}, ["y"], {"w": np.float32([0.1])}), {"x": torch.ones(1)})
    tenth = torch.tensor([0.1], dtype=torch.float64)
    assert value_of(lifted, replace={"ww": 0.5 * tenth}).item() == 0.05
    assert value_of(lifted, replace={"w": tenth}).item() == 0.1 * 0.1
    assert value_of(lifted).item() == float(np.float32(0.1) * np.float32(0.1))


@pytest.mark.parametrize(("name", "shape"), [("nobody", ()), ("scale", (2,))])
def test_a_replacement_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=name):
        lift_onnx(layer_norm(), {"x": X}).run(replace={name: torch.ones(shape, dtype=torch.float64)})


# -- steps ----------------------------------------------------------------------------------------------------


def test_steps_say_what_happened_and_may_be_replaced() -> None:
    lifted = lift_onnx(layer_norm(), {"x": X})
    (step,) = steps_of(lifted)
    assert (step.name, step.operator, step.rounding.kind, step.rounding.length) == (
        "norm", "LayerNormalization", Kind.NORM, 4,
    )  # fmt: skip
    assert (step.formats[0], step.outputs[0].dtype) == (torch.float32, torch.float64)  # type: ignore[union-attr]

    def shift(step: Step) -> list[torch.Tensor | None]:
        return [None if y is None else y + 1 for y in step.outputs]

    assert value_of(lifted, observe=shift).equal(value_of(lifted) + 1)


@pytest.mark.parametrize("stop", [RuntimeError("seen enough"), KeyboardInterrupt()])
def test_what_an_observer_raises_is_not_taken_for_a_refusal(stop: BaseException) -> None:
    weights = {"w": np.ones((1, 9, 4), np.float32), "r": np.ones((1, 9, 3), np.float32)}
    model = model_of([node("GRU", ["x", "w", "r"], ["y"], "gru", hidden_size=3)], {"x": FLOAT}, ["y"], weights)

    def halt(step: Step) -> None:
        raise stop

    with pytest.raises(type(stop)) as caught:
        lift_onnx(model, {"x": X.reshape(3, 1, 4)}).run(observe=halt)
    assert caught.value is stop


def test_nodes_without_a_name_get_unique_ones_and_say_where_they_come_from() -> None:
    first, second = node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["y"])
    trace = 'File "/home/me/model.py", line 12, in forward\n    return -x\n'
    library = '  File "/lib/python3/site-packages/torch/nn/modules/linear.py", line 9, in forward\n    y\n'
    for key, value in {"stack_trace": trace + library, "name_scopes": "['', 'block.0', 'neg']"}.items():
        first.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    steps = steps_of(lift_onnx(model_of([first, second], {"x": FLOAT}, ["y"]), {"x": X}))
    assert len({s.name for s in steps}) == 2
    where = steps[0].where
    assert (where.file, where.line, where.expression, where.module) == (
        "/home/me/model.py", 12, "return -x", "block.0",
    )  # fmt: skip
    assert steps[1].where.file is None


def test_a_place_in_torch_itself_is_none() -> None:
    inner = node("Neg", ["x"], ["y"])
    trace = 'File "/lib/python3/site-packages/torch/nn/modules/linear.py", line 9, in forward\n    y\n'
    for key, value in {"stack_trace": trace, "name_scopes": "['', '0', 'neg']"}.items():
        inner.metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    (step,) = steps_of(lift_onnx(model_of([inner], {"x": FLOAT}, ["y"]), {"x": X}))
    assert (step.where.file, step.where.line, step.where.module) == (None, None, "0")


def test_intermediates_are_freed_after_their_last_use() -> None:
    count = 12
    nodes = [node("Exp" if i % 2 else "Neg", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    lifted = lift_onnx(model_of(nodes, {"v0": FLOAT}, [f"v{count}"]), {"v0": torch.zeros(100, 100)})
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def watch(step: Step) -> None:
        nonlocal most
        alive.append(weakref.ref(step.outputs[0]))  # type: ignore[type-var, arg-type]
        most = max(most, sum(r() is not None for r in alive))

    lifted.run(observe=watch)
    assert most <= 2


# -- control flow and functions -------------------------------------------------------------------------------


def test_a_loop_is_lifted_from_its_first_iteration() -> None:
    body = graph_of(
        [
            node("Mul", ["h", "w"], ["hw"]),
            node("Add", ["hw", "x"], ["h_out"]),
            node("Identity", ["cond"], ["cond_out"]),
            node("Identity", ["h_out"], ["seen"]),
        ],
        {"i": INT64, "cond": onnx.TensorProto.BOOL, "h": FLOAT},
        ["cond_out", "h_out", "seen"],
    )
    loop = node("Loop", ["count", "", "start"], ["last", "all"], "loop", body=body)
    weights = {"count": np.int64(5), "start": np.float32([0.1]), "w": np.float32([0.3])}
    lifted = lift_onnx(model_of([loop], {"x": FLOAT}, ["last", "all"], weights), {"x": torch.tensor([0.7])})
    last, every = lifted.run()
    h, x, w = float(np.float32(0.1)), float(np.float32(0.7)), float(np.float32(0.3))
    states = []
    for _ in range(5):
        h = h * w + x
        states.append([h])
    assert every.value is not None
    assert every.value.tolist() == states
    assert last.value is not None
    assert last.value.tolist() == states[-1]
    assert sum(s.operator == "Mul" for s in steps_of(lifted)) == 5


@pytest.mark.parametrize(("flag", "expected"), [(True, -1.0), (False, 3.0)])
def test_if_evaluates_one_branch(flag: bool, expected: float) -> None:
    branches = {
        "then_branch": graph_of([node("Neg", ["x"], ["t"])], {}, ["t"]),
        "else_branch": graph_of([node("Add", ["x", "two"], ["e"])], {}, ["e"]),
    }
    model = model_of([node("If", ["c"], ["y"], **branches)], {"c": 9, "x": FLOAT}, ["y"], {"two": np.float32(2)})
    lifted = lift_onnx(model, {"c": torch.tensor(flag), "x": torch.ones(())})
    assert value_of(lifted).item() == expected


def test_local_functions_take_attributes_of_the_call() -> None:
    leak = helper.make_node("LeakyRelu", ["a"], ["b"])
    leak.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function(
        "my", "Leak", ["a"], ["b"], [leak], [helper.make_opsetid("", 20)], attributes=["slope"]
    )
    calls = [
        helper.make_node("Leak", ["x"], ["h"], "first", domain="my", slope=0.5),
        helper.make_node("Leak", ["h"], ["y"], "second", domain="my", slope=0.25),
    ]
    model = model_of(calls, {"x": FLOAT}, ["y"], functions=[function], domains=["my"])
    lifted = lift_onnx(model, {"x": torch.tensor([-8.0, 8.0])})
    assert value_of(lifted).tolist() == [-1.0, 8.0]
    names = [s.name for s in steps_of(lifted)]
    assert names == ["first/LeakyRelu_0", "first", "second/LeakyRelu_0", "second"]
    assert {c.name for c in lifted.constants()} == {"first/LeakyRelu_0.alpha", "second/LeakyRelu_0.alpha"}


def test_recurrent_layers_show_every_time_step() -> None:
    weights = {"w": np.ones((1, 9, 2), np.float32), "r": np.ones((1, 9, 3), np.float32)}
    model = model_of([node("GRU", ["x", "w", "r"], ["y"], "gru", hidden_size=3)], {"x": FLOAT}, ["y"], weights)
    steps = steps_of(lift_onnx(model, {"x": torch.ones(7, 1, 2)}))
    assert sum(s.operator == "hidden" for s in steps) == 7
    assert (steps[-1].operator, steps[-1].rounding.kind) == ("GRU", Kind.EXACT)


# -- refusals -------------------------------------------------------------------------------------------------


def test_an_unknown_operator_is_named() -> None:
    model = model_of([node("Frobnicate", ["x"], ["y"], "f", domain="acme")], {"x": FLOAT}, ["y"], domains=["acme"])
    with pytest.raises(CannotLift, match=r"acme::Frobnicate.*'f'"):
        lift_onnx(model, {"x": X}).run()


def test_operands_that_do_not_fit_name_the_node() -> None:
    model = model_of([node("MatMul", ["x", "x"], ["y"], "product")], {"x": FLOAT}, ["y"])
    with pytest.raises(CannotLift, match=r"'product' \(MatMul"):
        lift_onnx(model, {"x": X}).run()
    assert value_of(lift_onnx(model, {"x": X[:3, :3]})).shape == (3, 3)


def test_a_cycle_is_one_clear_error() -> None:
    nodes = [node("Add", ["x", "c"], ["b"], "late"), node("Neg", ["b"], ["c"]), node("Neg", ["c"], ["y"])]
    with pytest.raises(ProgramError, match="the graph has a cycle"):
        lift_onnx(model_of(nodes, {"x": FLOAT}, ["y"]), {"x": X})


def test_nodes_out_of_order_are_put_in_order() -> None:
    """onnxruntime runs such files, and float16 converters write them."""
    nodes = [node("Neg", ["c"], ["y"], "late"), node("Neg", ["b"], ["c"]), node("Neg", ["x"], ["b"])]
    assert torch.equal(value_of(lift_onnx(model_of(nodes, {"x": FLOAT}, ["y"]), {"x": X})), -X.double())


def test_a_value_nobody_provides_is_named() -> None:
    with pytest.raises(ProgramError, match="'nowhere'"):
        lift_onnx(model_of([node("Neg", ["nowhere"], ["y"])], {"x": FLOAT}, ["y"]), {"x": X})


@pytest.mark.parametrize(
    ("feeds", "words"),
    [({}, "'x'"), ({"x": X, "z": X}, "'z'"), ({"x": X.half()}, "float16"), ({"x": X.long()}, "int64")],
)
def test_feeds_that_do_not_fit_are_refused(feeds: dict[str, torch.Tensor], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lift_onnx(layer_norm(), feeds)


def test_a_float64_feed_enters_as_it_is() -> None:
    exact = X.double() + 1e-12
    assert value_of(lift_onnx(model_of([node("Neg", ["x"], ["y"])], {"x": FLOAT}, ["y"]), {"x": exact})).equal(-exact)


# -- external data --------------------------------------------------------------------------------------------


def external(location: str) -> onnx.ModelProto:
    model = model_of([node("Add", ["x", "w"], ["y"])], {"x": FLOAT}, ["y"], {"w": np.float32([1, 2, 3, 4])})
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, "offset": "8", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = b"\0" * 8 + np.float32([1, 2, 3, 4]).tobytes()
    (tmp_path / "outside.bin").write_bytes(data)
    inside = tmp_path / "model"
    (inside / "parts").mkdir(parents=True)
    (inside / "parts" / "weights.bin").write_bytes(data)
    (inside / "link.bin").symlink_to(tmp_path / "outside.bin")
    return inside


def test_external_data_in_the_models_folder_is_read(folder: Path) -> None:
    lifted = lift_onnx(external("parts/weights.bin"), {"x": torch.zeros(4)}, directory=folder)
    assert value_of(lifted).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "location", ["../outside.bin", "{root}/outside.bin", "link.bin", "parts/../../outside.bin", ""]
)
def test_external_data_outside_the_models_folder_is_refused(folder: Path, location: str) -> None:
    model = external(location.format(root=folder.parent))
    with pytest.raises(DriftscopeError, match="outside the model's folder"):
        lift_onnx(model, {"x": torch.zeros(4)}, directory=folder).run()


def test_external_data_without_a_folder_or_file_or_enough_bytes_is_refused(folder: Path) -> None:
    with pytest.raises(ProgramError, match="folder is not known"):
        lift_onnx(external("weights.bin"), {"x": torch.zeros(4)}).run()
    with pytest.raises(ProgramError, match=r"'missing\.bin'"):
        lift_onnx(external("missing.bin"), {"x": torch.zeros(4)}, directory=folder).run()
    (folder / "short.bin").write_bytes(b"\0" * 12)
    with pytest.raises(ProgramError, match="needs 16 bytes and the file has 4"):
        lift_onnx(external("short.bin"), {"x": torch.zeros(4)}, directory=folder).run()


def test_sparse_initializers_are_dense_values() -> None:
    model = model_of([node("Add", ["x", "s"], ["y"])], {"x": FLOAT, "s": FLOAT}, ["y"])
    values = numpy_helper.from_array(np.float32([5, 7]), "s")
    indices = numpy_helper.from_array(np.int64([1, 4]), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [2, 3]))
    assert value_of(lift_onnx(model, {"x": torch.zeros(2, 3)})).tolist() == [[0, 5, 0], [0, 7, 0]]
