"""One formula, whoever calls it: torch, ONNX and onnxruntime's operators agree, and agree with many more digits."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from one_node import OneNode, lifted
from torch import Tensor
from torch.nn import functional as F

from driftscope.lift.formulas import activations as formulas
from driftscope.lift.formulas.normalisations import normalised
from driftscope.lift.formulas.terms import matrix_product
from driftscope.lift.torch.tape import lift_torch

ULP = 2.0**-52
_BASE = np.random.default_rng(11).standard_normal((3, 8))
RANGES: dict[str, np.ndarray] = {
    "normal": _BASE,
    "left tail": _BASE * 0.3 - 5,
    "far left": _BASE * 2 - 20,
    "right tail": _BASE * 0.3 + 9,
    "at the threshold": _BASE * 0.3 + 20,
    "1e-38": _BASE * 1e-38,
    "1e18": _BASE * 1e18,
    "shift of 300": _BASE + 300,
    "denormal": _BASE * 1e-41,
    "all sizes": _BASE * 10.0 ** np.linspace(-6, 6, 24).reshape(3, 8),
    "zeros": np.where(_BASE > 0, _BASE, 0.0),
    "large negative": -np.abs(_BASE) * 1e4,
    "cancelling": np.concatenate([_BASE[:, :4], -_BASE[:, :4] * (1 + 1e-6)], 1),
}
INPUTS = {name: x.astype(np.float32) for name, x in RANGES.items()}


@dataclass(frozen=True)
class Same:
    """One function as torch has it and as operators of ONNX have it: (operator, attributes, domain, opset) each."""

    name: str
    function: Callable[[Tensor], Tensor]
    operators: tuple[tuple[str, Mapping[str, Any], str], ...]
    weights: tuple[np.ndarray, ...] = ()
    opset: int = 20
    skip: frozenset[str] = field(default_factory=frozenset)


ONES, ZEROS = np.ones(8, np.float32), np.zeros(8, np.float32)
MICROSOFT = "com.microsoft"
SAME = [
    Same("gelu", F.gelu, (("Gelu", {}, ""), ("Gelu", {}, MICROSOFT))),
    Same("gelu by tanh", lambda x: F.gelu(x, approximate="tanh"),
         (("Gelu", {"approximate": "tanh"}, ""), ("FastGelu", {}, MICROSOFT))),
    Same("silu", F.silu, (("QuickGelu", {"alpha": 1.0}, MICROSOFT), ("ScaledSiLU", {"alpha": 1.0}, MICROSOFT))),
    Same("mish", F.mish, (("Mish", {}, ""),)),
    # Beyond 20 torch's is the identity, and says so: another function there.
    Same("softplus", F.softplus, (("Softplus", {}, ""),), skip=frozenset({"at the threshold"})),
    Same("softsign", F.softsign, (("Softsign", {}, ""),)),
    Same("elu", F.elu, (("Elu", {"alpha": 1.0}, ""),)),
    Same("celu", lambda x: F.celu(x, 0.5), (("Celu", {"alpha": 0.5}, ""),)),
    Same("leaky relu", lambda x: F.leaky_relu(x, 0.25), (("LeakyRelu", {"alpha": 0.25}, ""),)),
    Same("sigmoid", torch.sigmoid, (("Sigmoid", {}, ""),)),
    Same("hard sigmoid", lambda x: (0.25 * x + 0.5).clamp(0, 1), (("HardSigmoid", {"alpha": 0.25, "beta": 0.5}, ""),)),
    Same("softshrink", lambda x: F.softshrink(x, 0.5), (("Shrink", {"lambd": 0.5, "bias": 0.5}, ""),)),
    Same("hardshrink", lambda x: F.hardshrink(x, 0.5), (("Shrink", {"lambd": 0.5, "bias": 0.0}, ""),)),
    Same("softmax", lambda x: x.softmax(-1), (("Softmax", {"axis": -1}, ""),)),
    Same("log softmax", lambda x: x.log_softmax(-1), (("LogSoftmax", {"axis": -1}, ""),)),
    Same("logsumexp", lambda x: x.logsumexp(-1, keepdim=True), (("ReduceLogSumExp", {"axes": [-1]}, ""),), opset=17),
    Same("layer norm", lambda x: F.layer_norm(x, (8,), eps=2.0**-16),
         (("LayerNormalization", {"epsilon": 2.0**-16}, ""),), (ONES, ZEROS)),
    Same("rms norm", lambda x: F.rms_norm(x, (8,), eps=2.0**-16),
         (("RMSNormalization", {"epsilon": 2.0**-16}, ""), ("SimplifiedLayerNormalization", {"epsilon": 2.0**-16}, "")),
         (ONES,), 23),
    Same("norm", lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True), (("ReduceL2", {"axes": [-1]}, ""),),
         opset=17),
    Same("sum", lambda x: x.sum(-1, keepdim=True), (("ReduceSum", {"axes": [-1]}, ""),), opset=11),
    Same("mean", lambda x: x.mean(-1, keepdim=True), (("ReduceMean", {"axes": [-1]}, ""),), opset=17),
]  # fmt: skip


HELD = {"sqrt_2": formulas.SQRT_2, "sqrt_2_over_pi": formulas.SQRT_2_OVER_PI, "cubic": formulas.GELU_CUBIC}


def in_torch(same: Same, x: np.ndarray) -> Tensor:
    value = lift_torch(same.function, (torch.from_numpy(x),), {}).run()[0].value
    assert value is not None
    return value


def in_onnx(same: Same, operator: tuple[str, Mapping[str, Any], str], x: np.ndarray) -> Tensor:
    name, attributes, domain = operator
    case = OneNode(name, [x, *same.weights], attributes, domain=domain, opset=same.opset)
    graph = lifted(case.model(), case.feeds())
    # What a kernel holds in float32 is a constant of its graph; here it has all its digits.
    held = {f"node.{constant}": torch.tensor(value, dtype=torch.float64) for constant, value in HELD.items()}
    named = {constant.name for constant in graph.constants()}
    value = graph.run(replace={name: value for name, value in held.items() if name in named})[0].value
    assert value is not None
    return value


def conditioned(same: Same, x: np.ndarray, y: Tensor) -> Tensor:
    """What one ulp in the arguments and in the result makes of each element of the result."""
    wide = torch.from_numpy(x).double()
    slopes = torch.autograd.functional.jacobian(same.function, wide)
    moved = (slopes.abs() * wide.abs()).flatten(y.dim()).sum(-1).nan_to_num(math.inf)
    return ULP * (y.abs() + moved) + 5e-324


@pytest.mark.parametrize("law", RANGES)
@pytest.mark.parametrize("same", SAME, ids=lambda same: same.name)
@pytest.mark.sampled(90)
def test_a_function_is_the_same_in_torch_and_in_onnx(same: Same, law: str) -> None:
    if law in same.skip:
        pytest.skip("another function there")
    ours = in_torch(same, INPUTS[law])
    bound = 4 * conditioned(same, INPUTS[law], ours)
    for operator in same.operators:
        theirs = in_onnx(same, operator, INPUTS[law])
        gap = torch.where(ours == theirs, torch.zeros_like(ours), (ours - theirs).abs())
        assert bool((gap <= bound).all()), (operator, float((gap / bound).max()))


TWINS = [
    (F.gelu, ("Gelu", {"approximate": "tanh"}, ""), "normal"),
    (F.gelu, ("QuickGelu", {"alpha": 1.702}, MICROSOFT), "left tail"),
    (F.elu, ("Elu", {"alpha": 1.001}, ""), "normal"),
    (lambda x: x.softmax(-1), ("Softmax", {"axis": 0}, ""), "normal"),
]


@pytest.mark.parametrize(("function", "operator", "law"), TWINS, ids=[operator[0] for _, operator, _ in TWINS])
def test_another_function_is_not(function: Callable[[Tensor], Tensor], operator: Any, law: str) -> None:
    same = Same("twin", function, (operator,))
    ours, theirs = in_torch(same, INPUTS[law]), in_onnx(same, operator, INPUTS[law])
    assert bool(((ours - theirs).abs() > 1e6 * conditioned(same, INPUTS[law], ours)).any())


# -- against many more digits -----------------------------------------------------------------------------------


def _gelu_tanh(x: Any) -> Any:
    return x / 2 * (1 + mpmath.tanh(mpmath.mpf(formulas.SQRT_2_OVER_PI) * (x + mpmath.mpf(0.044715) * x**3)))


def _log1p_exp(x: Any) -> Any:
    return mpmath.log1p(mpmath.exp(x)) if x < 50 else x + mpmath.exp(-x)


EXACT: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "gelu": (formulas.gelu, lambda x: x / 2 * mpmath.erfc(-x / mpmath.sqrt(2))),
    "gelu by tanh": (formulas.gelu_tanh, _gelu_tanh),
    "silu": (formulas.swish, lambda x: x / (1 + mpmath.exp(-x))),
    "softplus": (formulas.softplus, _log1p_exp),
    "log sigmoid": (formulas.log_sigmoid, lambda x: -_log1p_exp(-x)),
    "mish": (formulas.mish, lambda x: x * mpmath.tanh(_log1p_exp(x))),
    "elu": (formulas.elu, lambda x: x if x > 0 else mpmath.expm1(x)),
    "selu": (formulas.selu,
             lambda x: mpmath.mpf(formulas.SELU_GAMMA)
             * (x if x > 0 else mpmath.mpf(formulas.SELU_ALPHA) * mpmath.expm1(x))),
    "softsign": (formulas.softsign, lambda x: x / (1 + abs(x))),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("law", RANGES)
@pytest.mark.parametrize("name", EXACT)
def test_a_formula_has_the_digits_its_condition_leaves(name: str, law: str) -> None:
    function, exact = EXACT[name]
    x = INPUTS[law].ravel()
    with mpmath.workdps(700):
        values = [exact(mpmath.mpf(float(v))) for v in x]
        wanted = torch.tensor([float(v) for v in values], dtype=torch.float64)
    wide = torch.from_numpy(x).double().requires_grad_()
    y = function(wide)
    (slope,) = torch.autograd.grad(y.sum(), wide)
    bound = (
        4 * ULP * (wanted.abs() + (slope * wide).abs().nan_to_num(0.0)) + 1e-305
    )  # below that, float64 has fewer digits
    assert bool(((y.detach() - wanted).abs() <= bound).all())


@pytest.mark.slow
@pytest.mark.parametrize("law", [law for law in RANGES if law != "denormal"])
def test_a_layer_norm_keeps_the_digits_that_its_mean_leaves(law: str) -> None:
    """Two passes: the error is that of the centred values, not of the mean squared."""
    x = torch.from_numpy(INPUTS[law]).double()
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(v) for v in row] for row in x.tolist()]
        wanted = []
        for row in rows:
            mean = mpmath.fsum(row) / len(row)
            root = mpmath.sqrt(mpmath.fsum((v - mean) ** 2 for v in row) / len(row) + mpmath.mpf(1e-5))
            wanted.append([float((v - mean) / root) for v in row])
        size = [float(max(abs(v) for v in row) * 8) for row in rows]
    done = normalised(x, [-1], 1e-5)
    reach = torch.tensor(size, dtype=torch.float64)[:, None] * done.inverse_deviation
    gap = (done.value - torch.tensor(wanted, dtype=torch.float64)).abs()
    assert bool((gap <= 4 * ULP * (reach + 1)).all())


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (7, 1, 5), (2, 0, 5), (2, 3, 4, 5)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_stack_of_matrices_times_one_is_what_torch_makes_of_it(shape, turned):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(s, generator=generator, dtype=torch.float64) for s in (shape, (5, 4)))
    if turned and len(shape) > 2:  # as a program has it that keeps the batch second
        a = a.transpose(0, 1)
    torch.testing.assert_close(matrix_product(a, b), torch.matmul(a, b), rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(matrix_product(a, b[:, 0]), torch.matmul(a, b[:, 0]), rtol=1e-13, atol=1e-14)
