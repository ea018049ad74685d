"""A kernel that gives a number where its operands give infinity, or leaves its range on the way, is named."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.explain.freed_values import RoundedStep
from driftscope.explain.kernel_classes import odd_kernel
from driftscope.explain.leaving_ranges import inside_of
from driftscope.lift.steps import Kind, Rounding, Step
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.finding import Where


def _pooled(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool1d(x, 2) * 2.0


def _natives(x: torch.Tensor, broken: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """What a runtime gives whose pooling gives a number for a window of minus infinities."""
    pooled = F.max_pool1d(x, 2)
    pooled = torch.where(pooled.isinf(), torch.tensor(broken), pooled)
    names: list[str] = []
    lift_torch(_pooled, (x,), {}).run(observe=lambda step: names.extend(step.output_names[:1]))
    pool = next(name for name in names if "pool" in name)
    return pooled * 2.0, {pool: pooled.reshape(-1), names[-1]: pooled * 2.0} | {
        name: pooled.unsqueeze(-2) if "pool" in name else pooled for name in names[:-1]
    }


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_number_in_the_place_of_an_infinity_is_a_kernels(side: str) -> None:
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    x[0, 0, :2] = -torch.inf
    graph = lift_torch(_pooled, (x,), {})
    native, values = _natives(x, -1e38)
    found = odd_kernel((graph, values), 0, native.double(), _pooled(x).double(), side)
    assert found is not None
    assert f"in {side} gives -1e+38 where its operands give minus infinity (1 element)" in found.what
    assert "pool" in (found.where.node or "")
    assert "another version" in found.fix


def test_a_number_in_the_place_of_nan_is_answered_in_the_program() -> None:
    x = torch.tensor([[1.0, torch.nan, 2.0], [3.0, 4.0, 5.0]])
    graph = lift_torch(lambda t: t.clamp(-9.0, 9.0), (x,), {})
    names: list[str] = []
    (output,) = graph.run(observe=lambda step: names.append(step.output_names[0]))
    native = output.value.nan_to_num(nan=-9.0)
    found = odd_kernel((graph, {names[-1]: native}), 0, native, output.value, "B")
    assert found is not None
    assert "gives -9 where its operands give NaN (1 element)" in found.what
    assert "IsNaN" in found.fix


def test_another_number_is_no_kernels_infinity() -> None:
    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    graph = lift_torch(_pooled, (x,), {})
    native, values = _natives(x, -1e38)
    other = native.double()
    other[0, 0, 0] = torch.inf
    assert odd_kernel((graph, values), 0, native.double(), other, "B") is None


@pytest.mark.parametrize("limits", [(["lo"], False), (["lo", "hi"], True)])
def test_a_limit_left_out_of_a_clip_is_the_largest_number(limits: tuple[list[str], bool]) -> None:
    names, same = limits
    given = {"lo": 0.5, "hi": float("inf")}
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Clip", ["x", *names], ["y"], "clip")],
            "clipping",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
            [helper.make_tensor(n, TensorProto.FLOAT, [], [given[n]]) for n in names],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    x = torch.tensor([1.0, torch.inf, -2.0])
    found = ds.compare(lambda x: x.clamp(min=0.5), model, (x,), isolate=False)
    assert (found.verdict <= ds.Verdict.PRECISION) == same, found.reason
    if not same:
        (kernel,) = (f for f in found.findings if f.code == "R003")
        assert kernel.where.node == "clip"
        assert "where a limit is left out" in kernel.why
        assert kernel.fix == "Give clip both limits: infinity where there is to be none."


@pytest.mark.parametrize(("terms", "named"), [(1e9, True), (1e3, False)])
def test_a_sum_leaves_its_range_inside_where_its_terms_do(terms: float, named: bool) -> None:
    exact = torch.tensor([7.0, 1.0], dtype=torch.float64)
    squares = torch.tensor([4 * terms**2, 4.0], dtype=torch.float64)
    rounding = Rounding(Kind.DOT, 4, squares=lambda: squares)
    step = Step(0, "mm", "aten.mm", Where(), ["x"], ["y"], [exact], [exact], [torch.float16], rounding, {})
    made = RoundedStep(step, exact, torch.tensor([torch.nan, 1.0], dtype=torch.float64), torch.float16)
    found = inside_of(made, torch.tensor([True, False]))
    assert (found is not None) == named
    if found is not None:
        assert "1e+09 or more exceeds the largest float16, 65504 at mm" in found.in_side("B")


@pytest.mark.parametrize("swapped", [False, True])
def test_a_remainder_far_out_has_the_divisor_that_is_read(swapped: bool) -> None:
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(3))
    x[2, 5] = 1e20

    def parts(x: torch.Tensor) -> torch.Tensor:
        divisor = torch.tensor(0.3)
        return x - divisor * torch.floor(x / divisor)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.remainder(x, 0.3)

    found = ds.compare(*((parts, whole) if swapped else (whole, parts)), [x])
    assert found.verdict <= ds.Verdict.PRECISION, found.reason
    wrong = ds.compare(parts, lambda x: torch.remainder(x, 0.31), [x], explain=False)
    assert wrong.verdict is ds.Verdict.DIFFERENT
