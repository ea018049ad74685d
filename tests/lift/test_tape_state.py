"""Recording leaves nothing behind, whatever happens."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from float64_truth import lift
from torch import nn
from torch.nn.modules import module as hooks

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.sources import lift_bound
from driftscope.programs.state import modules
from driftscope.programs.state.process import state_kept


class _Stateful(nn.Module):
    """Changes everything a forward pass can reach: buffers, parameters' data, attributes, random states."""

    def __init__(self, fail: bool = False):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(3))
        self.fail = fail

    def forward(self, x):
        torch.randn(3), np.random.rand(), random.random()
        self.seen.add_(x[0])
        self.seen = self.seen * 2
        self.fresh = x
        y = self.norm(x)
        x.mul_(2)
        if self.fail:
            raise RuntimeError("stop here")
        return y + self.seen


def _states():
    return torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()


@pytest.mark.parametrize("fail", [False, True])
def test_everything_is_as_before(fail):
    module, x = _Stateful(fail).train(), torch.arange(12.0).reshape(4, 3)
    weights = {k: v.clone() for k, v in module.state_dict().items()}
    buffer, names, inputs = module.seen, set(vars(module)), x.clone()
    generators = _states()
    if fail:
        with pytest.raises(CannotLift, match="stopped while it was recorded: RuntimeError: stop here"):
            lift(module, x)
    else:
        lift(module, x).run()
    assert module.seen is buffer
    assert set(vars(module)) == names
    for name, value in module.state_dict().items():
        assert torch.equal(value, weights[name]), name
    assert torch.equal(x, inputs)
    after = _states()
    assert torch.equal(generators[0], after[0])
    assert np.array_equal(generators[1], after[1])
    assert generators[2] == after[2]
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert "numpy" not in vars(torch.Tensor)
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_the_default_dtype_is_restored_when_a_replay_fails():
    with torch.library._scoped_library("driftscope_state", "FRAGMENT") as library:
        library.define("same(Tensor x) -> Tensor")
        library.impl("same", lambda x: x.clone(), "CPU")
        tape = lift(lambda x: torch.ops.driftscope_state.same(x), torch.ones(2))
        with pytest.raises(Exception, match="opaque"):
            tape.run()
    assert torch.get_default_dtype() is torch.float32


def test_a_program_that_calls_backward_leaves_no_gradients():
    layer = nn.Linear(3, 1)

    class Gradient(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            self.layer(x).square().sum().backward()
            return self.layer.weight.grad * 2

    module, x = Gradient(), torch.arange(6.0).reshape(2, 3)
    value = lift(module, x).run()[0].value
    y = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double())
    assert torch.allclose(value, 4 * (y * x.double()).sum(0, keepdim=True), rtol=1e-14)
    assert layer.weight.grad is None


def test_containers_given_as_inputs_stay_as_they_are():
    def run(state):
        state["h"].append(state["h"][-1] * 2)
        return state["h"][-1]

    state = {"h": [torch.ones(2)]}
    assert lift(run, state).run()[0].value.tolist() == [2.0, 2.0]
    assert len(state["h"]) == 1


def test_outputs_of_every_container_have_paths():
    def run(x):
        return {"logits": x * 2, "states": [x, (x + 1, None)], "count": 3}

    outputs = lift(run, torch.ones(2)).run()
    assert [str(o.path) for o in outputs] == [
        "out['logits']",
        "out['states'][0]",
        "out['states'][1][0]",
        "out['states'][1][1]",
        "out['count']",
    ]
    assert outputs[3].value is None
    assert outputs[4].value is None


def test_places_are_module_paths_and_user_lines():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 3)

        def forward(self, x):
            return torch.tanh(self.fc(x)) * 0.5

    module = nn.Sequential(Block(), Block())
    tape = lift(module, torch.ones(2, 3))
    steps = {e.name: e.where for e in tape.tape.entries}
    assert steps["addmm_1"].module == "1.fc"
    assert steps["tanh"].module == "0"
    assert steps["tanh"].file == __file__
    assert steps["mul"].expression == "return torch.tanh(self.fc(x)) * 0.5"
    assert steps["mul"].line == steps["tanh"].line
    assert steps["mul"].operator == "aten.mul"


def test_modules_called_by_a_function_have_names_too():
    encoder = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    names = {c.name for c in lift(lambda x: encoder(x) + 1, torch.ones(2, 3)).constants()}
    assert {"0.weight", "0.bias", "1.weight", "1.bias"} <= names


class Counting(nn.Module):
    """Writes into its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.calls += 1
        return x * self.calls


def test_copies_of_large_parameters_are_given_back_and_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "COPIED_BYTES", 0)
    module = Counting()
    bound = ds.program(module).bind(torch.ones(4))
    with state_kept():
        for _ in range(2):
            assert torch.equal(bound.program(bound), torch.ones(4))
            assert len(modules._COPIES) == 1
            lift_bound(bound)
            assert not modules._COPIES
    assert torch.equal(module.calls, torch.zeros(4))
