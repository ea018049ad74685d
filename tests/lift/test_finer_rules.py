"""A finer evaluation says what the step says, or nothing: a rule without an attribute certifies another program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper

import driftscope as ds
from driftscope.lift.finer.evaluate import evaluate
from driftscope.lift.onnx.graph import lift_onnx
from driftscope.lift.torch.tape import lift_torch
from driftscope.records.verdict import Verdict

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
Function = Callable[[torch.Tensor], torch.Tensor]


def _written_into(v: torch.Tensor) -> torch.Tensor:
    found, rows = torch.zeros(8, 16), v.clone()
    found[:, ::2] = v[:, ::2] * v[:, 1::2]  # made of no input at first
    rows[0][1:3].mul_(3.0)  # seen by the whole, and by other views
    rows.T[5].zero_()
    rows[1] = 0.5
    return torch.stack((found * rows, rows.sum(0) + found))


def _written_without_a_rule(v: torch.Tensor) -> torch.Tensor:
    found = v.clone()
    torch.diagonal(found).copy_(torch.linalg.pinv(v[:, :8]).diagonal())
    return found * v


ATTRIBUTES: dict[str, Function] = {
    "written-into": _written_into,
    "written-without-a-rule": _written_without_a_rule,
    "floor": lambda v: torch.div(v * 1e4, 3.0, rounding_mode="floor"),
    "trunc": lambda v: torch.div(v * 1e4, 3.0, rounding_mode="trunc"),
    "softplus-threshold": lambda v: F.softplus(v * 8, threshold=2.0),
    "softplus-at-once": lambda v: F.softplus(v * 8, threshold=0.0),
    "softplus-beta": lambda v: F.softplus(v * 800, beta=2.0),
    "addmm": lambda v: torch.addmm(v[:, :8], v[:8] * 1e3, v.T * 1e3, beta=0.5, alpha=2),
    "rsub": lambda v: torch.rsub(v, 3.0, alpha=2),
    "causal": lambda v: F.scaled_dot_product_attention(v[None], v[None], v[None], is_causal=True, scale=0.3),
    "variance": lambda v: v.var(-1, correction=3),
    "strided": lambda v: v[1::3, 2:-1],
    "one-bound": lambda v: v.clamp(max=0.25),
    "rounded-on-the-way": lambda v: (v * 1e5).int().float(),
    "elu": lambda v: F.elu(v, alpha=0.7),
    "selu": lambda v: F.selu(v) + F.celu(v, 1.3),
    "log-add": lambda v: torch.logaddexp(v, v.flip(0)) + torch.logaddexp(v, v * 900),
    "xlogy": lambda v: torch.xlogy(v.relu(), v.abs() + 1),
    "norms": lambda v: torch.stack((v.norm(dim=-1), torch.linalg.vector_norm(v, 3, dim=-1)), -1),
    "whole-norm": lambda v: v / torch.linalg.vector_norm(v),
    "running": lambda v: v.cumsum(0).flip((0, 1)),
    "masked": lambda v: v.masked_fill(v > 0.3, -2.5).std(-1, correction=0),
    "mish": F.mish,
    "inverses": lambda v: torch.asinh(v) + torch.atanh(v.tanh()) + torch.acosh(v.abs() + 1) + torch.sign(v),
    "arcs": lambda v: torch.asin(v.sin()) * torch.acos(v.cos()) - torch.log10(v.abs() + 0.1),
    "gammas": lambda v: torch.lgamma(v.abs() + 1) + torch.digamma(v.abs() + 1),
    "angles": lambda v: torch.atan2(v, v.flip(1)),
    "powers": lambda v: v.abs() ** 1.7 + (v.abs() + 1) ** -0.5 + v**3,
    "diagonals": lambda v: torch.diag_embed(v.sum(-1))[..., :1] + (v @ v.T).diagonal().unsqueeze(-1),
    "compared": lambda v: (v @ v.T > 0.25).float() @ v + (v.sum(-1, keepdim=True) <= v.sum(-1)).double().mean(),
    "normal-law": lambda v: torch.special.log_ndtr(v) + torch.special.ndtri(torch.sigmoid(v)) + torch.erfinv(v.tanh()),
    "bessel": lambda v: torch.special.i0(v) + torch.special.i0e(v * 9) + torch.special.i1(v) + torch.special.i1e(v),
    "incomplete-gammas": lambda v: (
        torch.special.gammainc(v.abs() + 0.1, v.exp()) - torch.special.gammaincc(v.exp(), v.abs())
    ),
    "polygammas": lambda v: (
        torch.polygamma(1, v.abs() + 1) + torch.polygamma(3, v.exp()) + torch.special.zeta(v.exp() + 1, v.exp())
    ),
    "scaled-erfc": lambda v: torch.special.erfcx(v) + torch.special.entr(v.abs()),
    "of-parts": lambda v: F.hardswish(v * 4) + F.hardsigmoid(v) + F.leaky_relu(v, 0.2) + torch.logit(v.sigmoid()),
    "fused": lambda v: (
        torch.addcmul(v, v, v, value=0.3) + torch.addcdiv(v, v, v.exp(), value=-2.0) + torch.lerp(v, v * v, 0.7)
    ),
    "products": lambda v: v.cumprod(-1) + v.prod(-1, keepdim=True) + torch.hypot(v, v * 3),
    "picked": lambda v: v.gather(1, v.argsort(-1)) + v.roll((1, 2), (0, 1)) + v.repeat(2, 1)[:8],
    "indexed": lambda v: v.index_select(1, v[0].argsort()) * v[:, :1],
    "classes": lambda v: F.nll_loss(F.log_softmax(v, -1), v.argmax(-1)) + F.cross_entropy(v, v.argmin(-1)),
    "parts": lambda v: torch.cat([part * (k + 1) for k, part in enumerate((*v.split([3, 13], 1), *v.split(5, 1)))], 1),
    "axes": lambda v: v.sum((0, 1)) + torch.softmax(v, 0).mean(1),
}


# The float64 kernels of these have fewer digits.
NEAR = {"polygammas": 1e-9, "normal-law": 1e-12, "incomplete-gammas": 1e-12}
WITHOUT = ("rsub", "rounded-on-the-way", "norms", "written-without-a-rule")


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_balls_are_the_step_or_there_are_none(name: str) -> None:
    """Where there is no rule for an attribute, or none at all, float64 decides."""
    lifted = lift_torch(ATTRIBUTES[name], (X,), {})
    expected = lifted.run()[0].value
    (found,) = evaluate(lifted, [])
    assert expected is not None
    assert (found is None) == (name in WITHOUT)
    if found is not None:
        torch.testing.assert_close(
            found.value, expected, rtol=1e-13, atol=NEAR.get(name, 1e-13) * float(expected.abs().max())
        )


BUGS: dict[str, tuple[Function, Function]] = {
    "not rounded down": (ATTRIBUTES["floor"], lambda v: v * 1e4 / 3.0),
    "threshold": (ATTRIBUTES["softplus-threshold"], lambda v: F.softplus(v * 8)),
    "slope": (ATTRIBUTES["softplus-beta"], lambda v: F.softplus(v * 800)),
    "share": (ATTRIBUTES["addmm"], lambda v: torch.addmm(v[:, :8], v[:8] * 1e3, v.T * 1e3, beta=1.0, alpha=2)),
}


def _neighbours(x: torch.Tensor, least: float = 0.5) -> torch.Tensor:
    """Rows that have something in common, counted: whole numbers, which no rounding moves."""
    joined = (x @ x.T >= least).float() + torch.eye(len(x))
    degree = joined.sum(-1).rsqrt()
    return (degree.unsqueeze(-1) * joined * degree) @ x


def _neighbours_by_products(x: torch.Tensor) -> torch.Tensor:
    joined = (torch.einsum("ik,jk->ij", x, x) > 0).float() + torch.eye(len(x))
    degree = torch.diag_embed(joined.sum(-1) ** -0.5)
    return degree @ (joined @ (degree @ x))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("least", "same"), [(0.5, True), (0.0, False)])
def test_whole_numbers_at_the_edge_of_a_comparison_are_compared_as_they_are(least, same, order):
    x = torch.randint(-2, 3, (8, 6), generator=torch.Generator().manual_seed(1)).float()
    assert bool((x @ x.T == 0).any())
    pair = (lambda v: _neighbours(v, least), _neighbours_by_products)
    found = ds.compare(*pair[::order], x)
    assert (found.verdict in (Verdict.ROUNDING, Verdict.IDENTICAL)) is same, found.reason
    assert (found.verdict is Verdict.DIFFERENT) is not same, found.reason


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", BUGS)
def test_a_small_difference_of_two_large_results_is_not_certified_away(name: str, order: int) -> None:
    a, b = BUGS[name][::order]
    found = ds.compare(a, b, X, explain=False)
    assert found.verdict is Verdict.DIFFERENT, found.reason


def _to_the_end(v: torch.Tensor) -> torch.Tensor:
    return torch.logaddexp(v, torch.zeros_like(v))


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softplus_beyond_its_threshold_is_softplus_where_no_format_shows_it(dtype: torch.dtype, order: int) -> None:
    a, b = (F.softplus, _to_the_end)[::order]
    found = ds.compare(a, b, (X * 20).to(dtype), explain=False)
    assert found.verdict in (Verdict.IDENTICAL, Verdict.ROUNDING), found.reason
    assert not found.functions_differ


def _in_parts(v: torch.Tensor) -> torch.Tensor:
    return v.clamp_min(0) + torch.log1p(torch.exp(-v.abs()))


@pytest.mark.parametrize("whole", [_to_the_end, _in_parts])
@pytest.mark.parametrize(("threshold", "dtype"), [(None, torch.float64), (20.0, torch.float64), (9.0, torch.float32)])
def test_a_threshold_that_shows_is_another_function(
    threshold: float | None, dtype: torch.dtype, whole: Function
) -> None:
    def early(v: torch.Tensor) -> torch.Tensor:
        return F.softplus(v) if threshold is None else F.softplus(v, threshold=threshold)

    for a, b in ((early, whole), (whole, early)):
        assert ds.compare(a, b, (X * 20).to(dtype), explain=False).verdict is Verdict.DIFFERENT


def _cholesky(x: torch.Tensor) -> torch.Tensor:
    """A factor written out, whose first sums are over nothing."""
    a = x @ x.T + torch.eye(3, dtype=x.dtype)
    columns: list[torch.Tensor] = []
    for j in range(3):
        rest = a[:, j] - sum(((c * c[j]) for c in columns), (x[:, :0] * x[j, :0]).sum(-1))
        columns.append(torch.where(torch.arange(3) < j, 0.0, rest / rest[j].sqrt()))
    return torch.stack(columns, 1)


@pytest.mark.parametrize("order", [1, -1])
def test_a_sum_of_nothing_is_zero(order: int) -> None:
    x = (X[:3, :3] + 300).double()
    a, b = (_cholesky, lambda v: torch.linalg.cholesky(v @ v.T + torch.eye(3, dtype=v.dtype)))[::order]
    assert ds.compare(a, b, x, explain=False).verdict in (Verdict.IDENTICAL, Verdict.ROUNDING)


@pytest.mark.parametrize("order", [1, -1])
def test_where_both_are_what_float64_gives_them_no_runtime_is_to_blame(order: int) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 1e-38

    def by_eigenvalues(v: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eigvalsh(v.T @ v).flip(0).clamp_min(0).sqrt()

    a, b = (torch.linalg.svdvals, by_eigenvalues)[::order]
    found = ds.compare(a, b, x)
    assert found.verdict is Verdict.ROUNDING, found.reason
    wrong = ds.compare(*(torch.linalg.svdvals, lambda v: by_eigenvalues(v) * (1 + 1e-9))[::order], x, explain=False)
    assert wrong.verdict is Verdict.DIFFERENT


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("gain", "verdict"), [(1.0, Verdict.ROUNDING), (1.01, Verdict.DIFFERENT)])
def test_an_inverse_sine_written_out_loses_all_digits_near_zero_and_is_the_same_function(gain, verdict, swapped):
    def written(x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x) * torch.log(gain * x.abs() + torch.sqrt(x * x + 1))

    pair = (written, torch.asinh) if swapped else (torch.asinh, written)
    assert ds.compare(*pair, X * 1e-38).verdict is verdict


def test_a_number_that_no_ball_knows_is_float64s_and_proves_nothing() -> None:
    lifted = lift_torch(lambda v: torch.acos(v.cos().square() + v.sin().square()) + 0.01, (X,), {})
    (fine,) = evaluate(lifted, [])
    assert fine is None or fine.bound > 1.0


@pytest.mark.parametrize(
    "given",
    [
        ([-1], [-(2**31)], [-1], [-1]),
        ([2, 1], [2**31, -1], [1, 0], [3, 2]),
        ([1], [7], [-2]),
        ([1, -9], [7, 14]),
        ([1], [7], None, [2]),
    ],
)
def test_a_slice_of_onnx_is_where_its_inputs_say(given: tuple[list[int] | None, ...]) -> None:
    names = ["" if v is None else f"n{k}" for k, v in enumerate(given)]
    held = [helper.make_tensor(n, TensorProto.INT64, [len(v)], v) for n, v in zip(names, given, strict=True) if v]
    nodes = [helper.make_node("Slice", ["x", *names], ["y"]), helper.make_node("Exp", ["y"], ["z"])]
    shape = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 16])]
    graph = helper.make_graph(
        nodes, "sliced", shape, [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)], held
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    lifted = lift_onnx(model, {"x": X})
    (found,) = evaluate(lifted, [])
    assert found is not None
    torch.testing.assert_close(found.value, lifted.run()[0].value, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_sum_of_exponentials_far_out_is_decided_behind_a_slice(factor: float, turned: bool) -> None:
    names = [("n0", [-1]), ("n1", [-(2**31)]), ("n2", [-1]), ("n3", [-1])]
    held = [helper.make_tensor(n, TensorProto.INT64, [1], v) for n, v in names]
    held.append(helper.make_tensor("c", TensorProto.FLOAT, [], [factor]))
    nodes = [
        helper.make_node("Slice", ["x", "n0", "n1", "n2", "n3"], ["flipped"]),
        helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Exp", ["flipped"], ["f"]),
        helper.make_node("Add", ["e", "f"], ["sum"]), helper.make_node("Log", ["sum"], ["log"]),
        helper.make_node("Mul", ["log", "c"], ["y"]),
    ]  # fmt: skip
    both = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 16]) for n in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "far", both[:1], both[1:], held),
        opset_imports=[helper.make_opsetid("", 18)], ir_version=9,
    )  # fmt: skip
    pair = (lambda x: torch.logaddexp(x, x.flip(-1)), model)
    found = ds.compare(*(pair[::-1] if turned else pair), (X * 1e18,), isolate=False)
    assert found.verdict == (Verdict.PRECISION if factor == 1.0 else Verdict.DIFFERENT), found.reason


@pytest.mark.parametrize("shift", [1e17, -1e17])
@pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
@pytest.mark.parametrize("same", [True, False])
def test_what_a_gemm_and_a_split_lose_is_told_from_another_function(shift: float, turned: bool, same: bool) -> None:
    """A shift that float64 loses everything beside: of the two parts' differences, only the balls know one."""
    held = [
        helper.make_tensor("w", TensorProto.FLOAT, [16, 8], X.T.reshape(-1).tolist()),
        helper.make_tensor("bias", TensorProto.FLOAT, [16], [shift] * 16),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "bias"], ["large"], transA=1, transB=1, alpha=2.0, beta=0.5),
        helper.make_node("Split", ["large"], ["one", "two"], axis=1, num_outputs=2),
        helper.make_node("Sub", ["one", "two"] if same else ["two", "one"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [8, 16]), ("y", [16, 8]))]
    graph = helper.make_graph(nodes, "parts", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    def program(x: torch.Tensor) -> torch.Tensor:
        wide = 2.0 * (x.T.double() @ X.T.reshape(16, 8).T.double())
        return (wide[:, :8] - wide[:, 8:]).float()

    found = ds.compare(*((model, program) if turned else (program, model)), (X,), isolate=False)
    wrong = found.verdict is Verdict.DIFFERENT
    assert wrong is not same, found.reason
