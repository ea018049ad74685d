"""Constants: which there are, what they are called, and what the program does with others."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from float64_truth import distance, lift
from torch import nn

from driftscope.errors import CannotLift
from driftscope.lift.steps import Origin

torch.manual_seed(0)
X = torch.randn(3, 8)


def _constants(tape):
    return {c.name: c for c in tape.constants()}


def _exact(value):
    return torch.tensor(value, dtype=torch.float64)


def test_weights_literals_and_computed_constants():
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8, eps=1e-3)
            self.table = torch.arange(8.0)
            self.unused = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            decay = 10000.0 ** (-torch.arange(8) / 8)
            return self.norm(x * 0.1 + 2) * decay + self.table + self.unused.sum()

    constants = _constants(lift(Program(), X))
    assert constants["norm.weight"].origin is Origin.WEIGHT
    assert constants["table"].origin is Origin.WEIGHT
    assert constants["mul.other"].origin is Origin.LITERAL
    assert float(constants["mul.other"].value) == 0.1
    assert float(constants["add.other"].value) == 2.0
    assert float(constants["native_layer_norm.eps"].value) == 1e-3
    computed = [c for c in constants.values() if c.origin is Origin.COMPUTED and c.frontier]
    assert [c.value.dtype for c in computed] == [torch.float32, torch.float32]
    assert constants["norm.weight"].where.module == "norm"
    assert constants["mul.other"].where.expression.startswith("return self.norm")


def test_only_constants_that_inputs_meet_are_at_the_frontier():
    w = torch.ones(8)
    constants = _constants(lift(lambda x: x + w.exp(), X))
    assert not constants["captured_0"].frontier
    assert constants["exp"].frontier


def test_closure_tensors_and_transposed_weights():
    w = torch.randn(4, 8)
    tape = lift(lambda x: F.linear(x, w), X)
    constants = _constants(tape)
    assert set(constants) == {"captured_0"}
    assert constants["captured_0"].frontier
    other = torch.randn(4, 8, dtype=torch.float64)
    assert distance(tape.run(replace={"captured_0": other}), [X.double() @ other.mT]) <= 1e-15


def test_replacing_a_literal_an_epsilon_and_a_scale():
    def run(x):
        q = x.reshape(1, 3, 2, 4)
        return F.layer_norm(x, (8,)) * 0.3, F.scaled_dot_product_attention(q, q, q), F.gelu(x)

    tape = lift(run, X)
    scale = next(c for c in tape.constants() if c.name.endswith(".scale"))
    assert float(scale.value) == 0.5
    replaced = tape.run(
        replace={
            "native_layer_norm.eps": _exact(0.5),
            "mul.other": _exact(0.7),
            scale.name: _exact(0.25),
            "gelu.sqrt_2": _exact(1.5),
        }
    )
    x = X.double()
    q = x.reshape(1, 3, 2, 4)
    expected = [
        F.layer_norm(x, (8,), eps=0.5) * 0.7,
        F.scaled_dot_product_attention(q, q, q, scale=0.25),
        0.5 * x * (1 + torch.erf(x / 1.5)),
    ]
    assert distance(replaced, expected) <= 1e-14
    root = tape.run(replace={f"{scale.name}_root": _exact(0.5)})
    assert distance(root[1:2], expected[1:2]) <= 1e-14


def test_replaced_numbers_are_differentiable():
    class Program(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(8)
            self.act = nn.LeakyReLU(0.1, inplace=True)

        def forward(self, x):
            h = self.act(self.norm(x * 0.3))
            h[:, 0] = 0.5
            h.mul_(1.5)
            return (F.softplus(h, beta=1.2) + F.elu(h, 0.7)).clamp(max=3.0)

    tape = lift(Program(), X)
    names = [c.name for c in tape.constants() if c.origin is Origin.LITERAL and c.name != "clamp.max"]
    assert {"native_layer_norm.eps", "leaky_relu_.negative_slope", "softplus.beta", "elu.alpha"} <= set(names)
    for name in names:
        number = float(_constants(tape)[name].value)
        leaf = torch.tensor(number, dtype=torch.float64, requires_grad=True)
        value = tape.run(replace={name: leaf})[0].value
        assert torch.allclose(value, tape.run()[0].value, rtol=1e-12)
        if name == "softplus.threshold":
            continue
        (slope,) = torch.autograd.grad(value.sum(), leaf)
        step = 1e-6 * max(number, 1e-3)
        ahead, behind = (tape.run(replace={name: _exact(number + s)})[0].value.sum() for s in (step, -step))
        assert float(slope) == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-4, abs=1e-6), name


def test_replaced_weights_are_differentiable_and_folds_follow():
    module = nn.utils.parametrizations.weight_norm(nn.Linear(8, 2)).eval()
    tape = lift(module, X)
    name = next(c.name for c in tape.constants() if c.value.shape == (2, 1))
    leaf = (_constants(tape)[name].value.double() * 2).requires_grad_()
    value = tape.run(replace={name: leaf})[0].value
    exact = F.linear(X.double(), module.weight.double() * 2, module.bias.double())
    assert torch.allclose(value, exact, rtol=1e-6)
    value.sum().backward()
    assert torch.count_nonzero(leaf.grad) == 2
    assert all(p.grad is None for p in module.parameters())


def test_unknown_names_and_wrong_shapes_are_one_sentence():
    tape = lift(lambda x: x * 0.1, X)
    with pytest.raises(CannotLift, match="no constant named 'nothing'"):
        tape.run(replace={"nothing": _exact(1.0)})
    w = torch.ones(8)
    with pytest.raises(CannotLift, match="shape"):
        lift(lambda x: x * w, X).run(replace={"captured_0": torch.ones(7, dtype=torch.float64)})


def test_attention_scale_is_one_over_the_root_of_the_width():
    constants = _constants(lift(lambda x: F.scaled_dot_product_attention(x, x, x), torch.randn(1, 2, 3, 5)))
    scales = [float(c.value) for n, c in constants.items() if "attention" in n and n.endswith(".scale")]
    assert scales == [1 / math.sqrt(5)]


def test_shared_parameters_are_one_constant():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 8)
            self.head = nn.Linear(8, 5, bias=False)
            self.head.weight = self.table.weight

        def forward(self, ids):
            return self.head(self.table(ids) * 1.5)

    module, ids = Tied(), torch.tensor([[1, 2, 3]])
    names = [c.name for c in lift(module, ids).constants() if c.origin is Origin.WEIGHT]
    assert names == ["table.weight"]


def test_each_part_of_constant_memory_that_is_written_is_a_constant():
    def function(x):
        first, second = torch.ops.aten.unsafe_split(torch.full((2, 8), 0.1) * 3, 1)
        return first.add_(x[:1]) + second.mul_(x[1:])

    tape = lift(function, X[:2])
    made = {n: c for n, c in _constants(tape).items() if n.startswith("unsafe_split")}
    assert set(made) == {"unsafe_split", "unsafe_split.1"}
    exact = {n: torch.full((1, 8), 2.0, dtype=torch.float64) for n in made}
    (changed,) = tape.run(replace=exact)
    x = X[:2].double()
    assert torch.equal(changed.value, 2 + x[:1] + 2 * x[1:])
