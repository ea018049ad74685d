"""What an optimiser did: asked of the runtime where it shows in bits, and held against the file it was made of."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from driftscope.comparison.thresholds import THRESHOLDS
from driftscope.lift import evidence
from driftscope.lift.kept import sharing_runs
from driftscope.lift.onnx.graph import LiftedOnnx
from driftscope.lift.optimised import optimisers_show
from driftscope.lift.reconcile.affine import watched_for_pieces
from driftscope.lift.reconcile.drifts import OutputPairing, measure, within
from driftscope.lift.side_lift import SideLift
from driftscope.lift.sources import lift_bound
from driftscope.programs.loading.load import load_program

X = -1.0 - np.random.default_rng(0).random((1, 2, 6, 6)).astype(np.float32)


def pooled(pads: list[int]) -> onnx.ModelProto:
    """A pooling behind a padding of zeros: onnxruntime fuses them, and numbers below zero lose to no zero then."""
    stored = helper.make_tensor("pads", TensorProto.INT64, [8], pads)
    graph = helper.make_graph(
        [helper.make_node("Pad", ["x", "pads"], ["wide"], "pad"),
         helper.make_node("MaxPool", ["wide"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2])],
        "pooled", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2, None, None])], [stored],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def shows(program, far: float = 1.0) -> bool:
    """Whether the optimisers show, if float64 has the optimised graph so far from the file."""
    bound = program.bind({"x": X}) if program.kind == "onnx" else program.bind(torch.from_numpy(X))
    (file,) = lift_bound(bound).run()
    return optimisers_show(bound, [file], [dataclasses.replace(file, value=file.value * (1.0 + far))])


def test_an_optimiser_that_changes_a_result_shows_and_one_that_does_not_does_not():
    assert not shows(load_program(pooled([0] * 8)))
    changed = load_program(pooled([0, 0, 1, 1, 0, 0, 1, 1]))
    plain = changed.unoptimised()
    one, other = (next(iter(p(p.bind({"x": X})).values())) for p in (changed, plain))
    if torch.equal(one, other):
        pytest.skip("this onnxruntime fuses a padding of zeros rightly")
    assert shows(changed)


def test_where_nothing_is_optimised_nothing_shows():
    assert not shows(load_program(torch.nn.ReLU()))


class Moved(torch.nn.Module):
    """A program whose optimised twin is told apart by its bits alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.round()


@pytest.mark.parametrize(("far", "shown"), [(0.01, False), (1.0, True)])
def test_two_writings_are_no_further_apart_than_the_kernels_are_from_float64(far, shown, monkeypatch):
    program, twin = load_program(Moved()), load_program(torch.nn.Identity())
    monkeypatch.setattr(type(program), "unoptimised", lambda self: twin)
    assert shows(program, far) is shown


SCALE = float(np.float32(0.42044820762685725))


def _scaled(alpha: float | None) -> LiftedOnnx:
    """A product that is scaled twice, or by a number that an optimiser made of the two."""
    draw = np.random.default_rng(0)
    kept = [numpy_helper.from_array(draw.standard_normal((8, 4)).astype(np.float32), "w")]
    kept += [numpy_helper.from_array(np.float32(SCALE), "s")] if alpha is None else []
    nodes = [helper.make_node("Gemm", ["x", "w"], ["y"], "gemm", **({} if alpha is None else {"alpha": alpha}))]
    if alpha is None:
        nodes[0].output[0] = "p"
        nodes += [helper.make_node("Mul", ["p", "s"], ["q"], "one"), helper.make_node("Mul", ["q", "s"], ["y"], "two")]
    value = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [3, 8]), ("y", [3, 4])))
    graph = helper.make_graph(nodes, "g", [next(value)], [next(value)], kept)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return LiftedOnnx(model, {"x": torch.from_numpy(draw.standard_normal((3, 8)).astype(np.float32))})


@pytest.mark.parametrize(
    ("alpha", "certified", "runs"),
    [
        (float(np.float32(SCALE) * np.float32(SCALE)), True, 1),
        (float(np.float32(SCALE) * np.float32(SCALE)) * (1 + 2.0**-20), False, 0),  # not what the two make
        (0.125, False, 0),  # meant as it stands
    ],
)
def test_a_number_that_an_optimiser_made_of_two_takes_no_run_of_its_own(alpha, certified, runs, monkeypatch):
    file, made = _scaled(None), _scaled(alpha)
    side, ran = SideLift(file, clean=file.run()), []
    file.constants()
    real = LiftedOnnx.values
    monkeypatch.setattr(LiftedOnnx, "values", lambda self, *given: ran.append(self) or real(self, *given))
    found = evidence._by_repairs(side, made, lambda _outputs: OutputPairing([(0, 0)], [None]), THRESHOLDS)
    assert (found is not None) is certified
    assert ran == [made] * runs
    if found is not None:
        assert [(r.name, r.partner) for r in found.repairs_b] == [("gemm.alpha", f"{SCALE!r}**2")]
        (stored,) = measure(side.clean, made.run(), OutputPairing([(0, 0)], [None]), THRESHOLDS)
        assert not within(stored)


def _normed(folded: float | None) -> LiftedOnnx:
    """A convolution under a batch norm, or with the norm in its filter, at that epsilon."""
    draw = np.random.default_rng(0)
    kept = {n: draw.standard_normal(s).astype(np.float32) for n, s in (("w", (4, 3, 3, 3)), ("b", (4,)), ("g", (4,)))}
    kept |= {"m": draw.standard_normal(4).astype(np.float32), "v": draw.random(4).astype(np.float32) + np.float32(0.5)}
    statistics = ["g", "b", "m", "v"]
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
             helper.make_node("BatchNormalization", ["c", *statistics], ["y"], "norm", epsilon=1e-5)]  # fmt: skip
    if folded is not None:
        scale = kept["g"] / np.sqrt(kept["v"] + np.float32(folded))
        kept = {"w2": kept["w"] * scale[:, None, None, None], "b2": kept["b"] - kept["m"] * scale}
        nodes = [helper.make_node("Conv", ["x", "w2", "b2"], ["y"], "conv")]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3, 8, 8]), ("y", None)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(v, n) for n, v in kept.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return LiftedOnnx(model, {"x": torch.from_numpy(draw.standard_normal((1, 3, 8, 8)).astype(np.float32))})


@pytest.mark.parametrize(("epsilon", "runs"), [(1e-5, 1), (1e-3, 0)], ids=["the file's epsilon", "another"])
def test_a_batch_norm_that_an_optimiser_folded_takes_no_run_of_its_own(epsilon, runs, monkeypatch):
    file, made, ran = _normed(None), _normed(epsilon), []
    with sharing_runs():
        with watched_for_pieces(file) as (pieces,):
            side = SideLift(file, clean=file.run(observe=pieces))
        file.constants()
        real = LiftedOnnx.values
        monkeypatch.setattr(LiftedOnnx, "values", lambda self, *given: ran.append(self) or real(self, *given))
        found = evidence._by_repairs(side, made, lambda _outputs: OutputPairing([(0, 0)], [None]), THRESHOLDS)
    assert ran == [made] * runs
    assert (found is not None) is bool(runs)
    if found is not None:
        assert {r.kind for r in found.repairs_b} == {"fold"}
        (stored,) = measure(side.clean, made.run(), OutputPairing([(0, 0)], [None]), THRESHOLDS)
        assert not within(stored)
