"""Exported programs: nodes, source lines, control flow and nested graphs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from float64_truth import distance, truth
from torch import nn

import driftscope as ds
from driftscope.lift.torch.tape import lift_torch


class _Program(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x, scale=None):
        self.total.add_(x[0])
        self.calls += 1
        with torch.no_grad():
            h = self.fc(x) * 0.1
        h = torch.cond(h.sum() > 0, lambda t: t + 1, lambda t: t - 1, (h,))
        if scale is not None:
            h = h * scale
        return {"h": F.layer_norm(h, (4,)) + self.total, "calls": self.calls, "k": torch.tensor([1.0, 2.0]) + h[0, :2]}


def _lift(exported, *args, **kwargs):
    return lift_torch(exported.module(), args, kwargs, exported=exported)


@pytest.fixture(scope="module")
def program():
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    module = _Program().eval()
    return module, x, torch.export.export(module, (x,), {"scale": torch.tensor(0.5)})


def test_exported_program_is_its_module(program):
    module, x, exported = program
    lifted = _lift(exported, x, scale=torch.tensor(0.5)).run()
    assert distance(lifted, truth(module, x, scale=torch.tensor(0.5))) <= 1e-14
    assert [str(o.path) for o in lifted] == ["out['h']", "out['calls']", "out['k']"]
    assert torch.equal(exported.state_dict["total"], torch.zeros(4))


def test_both_branches(program):
    module, x, exported = program
    for sign in (1, -1):
        given = x * 0 + sign * module.fc.weight.detach().sum(0) * 100
        lifted = _lift(exported, given, scale=torch.tensor(0.5)).run()
        assert distance(lifted, truth(module, given, scale=torch.tensor(0.5))) <= 1e-12


def test_steps_have_node_names_modules_and_lines(program):
    _, x, exported = program
    tape = _lift(exported, x, scale=torch.tensor(0.5))
    nodes = {n.name for n in exported.graph.nodes}
    entries = {e.name: e for e in tape.tape.entries}
    assert {"layer_norm", "add_", "linear"} <= set(entries)
    assert "layer_norm" in nodes
    assert entries["linear"].where.module == "fc"
    assert entries["linear"].where.file == __file__
    assert entries["linear"].where.expression == "h = self.fc(x) * 0.1"
    assert entries["linear"].facts.name == "addmm"
    assert entries["linear.t"].constant
    names = {c.name for c in tape.constants()}
    assert {"fc.weight", "fc.bias", "total", "mul.other", "layer_norm.eps"} <= names


def test_dynamic_shapes_and_decomposed_programs():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x):
            q, k, v = self.qkv(x).view(x.shape[0], x.shape[1], 3, 2, 4).permute(2, 0, 3, 1, 4)
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape[0], -1, 8)

    torch.manual_seed(0)
    module = Attention().eval()
    batch = torch.export.Dim("batch", min=2, max=8)
    exported = torch.export.export(module, (torch.randn(2, 5, 8),), dynamic_shapes=({0: batch},))
    x = torch.randn(3, 5, 8)
    for graph in (exported, exported.run_decompositions()):
        assert distance(_lift(graph, x).run(), truth(module, x)) <= 1e-14


_PRIMS = torch.ops.prims
_MOVED = {
    "copy_strided": lambda x: _PRIMS.copy_strided(x, [1, 2]),
    "broadcast_in_dim": lambda x: _PRIMS.broadcast_in_dim(x, [3, 2, 4], [1, 2]),
    "rev": lambda x: _PRIMS.rev(x, [1]),
    "collapse": lambda x: _PRIMS.collapse_view(x, 0, 1),
    "split_dim": lambda x: _PRIMS.split_dim(x, 1, 2),
}


@pytest.mark.parametrize("move", _MOVED.values(), ids=_MOVED)
def test_what_decompositions_only_move(move):
    x = torch.randn(2, 4)
    (out,) = lift_torch(lambda x: move(x) / 3.0, (x,), {}).run()
    assert torch.equal(out.value, move(x.double()) / 3.0)


def test_while_loop():
    class Halving(nn.Module):
        def forward(self, x):
            def goes_on(n, y):
                return n > 0

            def halve(n, y):
                return n - 1, y * 0.3

            return torch._higher_order_ops.while_loop(goes_on, halve, (torch.tensor(3), x))[1]

    x = torch.randn(3)
    exported = torch.export.export(Halving(), (x,))
    tape = _lift(exported, x)
    assert distance(tape.run(), [x.double() * 0.3 * 0.3 * 0.3]) <= 1e-15
    assert len({e.name for e in tape.tape.entries}) == len(tape.tape.entries)


def test_autocast_and_inference_regions():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                y = self.fc(x)
            return y.float() * 0.1

    torch.manual_seed(0)
    module, x = Mixed().eval(), torch.randn(3, 4)
    exported = torch.export.export(module, (x,))
    stored = module.fc.bfloat16()  # casts of weights are constants, folded natively
    exact = F.linear(x.double(), stored.weight.double(), stored.bias.double()) * 0.1
    assert distance(_lift(exported, x).run(), [exact]) <= 1e-14


def test_wrong_inputs_do_not_leave_a_mode_behind(program):
    _, _, exported = program
    with pytest.raises(Exception, match=r".+"):
        _lift(exported, torch.randn(2, 7), scale=torch.tensor(0.5))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_control_flow_called_eagerly():
    def branch(x):
        return torch.cond(x.sum() > 0, lambda t: t * 0.1, lambda t: t - 0.3, (x,))

    def loop(x):
        return torch._higher_order_ops.while_loop(
            lambda n, y: n > 0, lambda n, y: (n - 1, y * 0.3), (torch.tensor(3), x)
        )[1]

    x = torch.rand(3)
    for function, exact in (
        (branch, x.double() * 0.1),
        (lambda x: branch(-x), -x.double() - 0.3),
        (loop, x.double() * 0.3 * 0.3 * 0.3),
    ):
        assert distance(lift_torch(function, (x,), {}).run(), [exact]) <= 1e-15


def _scanned(x):
    return torch._higher_order_ops.scan(lambda c, a: (torch.tanh(c * 0.3 + a), c + a), x[0] * 0.1, x[1:], dim=0)


def _scanned_by_hand(x):
    carried, made = x[0] * 0.1, []
    for row in x[1:]:
        carried, step = torch.tanh(carried * 0.3 + row), carried + row
        made.append(step)
    return carried, torch.stack(made)


class _Scanning(nn.Module):
    def forward(self, x):
        return _scanned(x)


class _Strict(nn.Module):
    def forward(self, x):
        return torch._higher_order_ops.strict_mode(lambda t: (t.sin() * 0.3, t + 1), (x,))


@pytest.mark.parametrize(
    ("module", "by_hand"), [(_Scanning(), _scanned_by_hand), (_Strict(), lambda x: (x.sin() * 0.3, x + 1))]
)
def test_what_torch_runs_only_unwatched(module, by_hand):
    x = torch.randn(5, 3)
    exact = by_hand(x.double())
    for tape in (lift_torch(module, (x,), {}), _lift(torch.export.export(module, (x,)), x)):
        assert distance(tape.run(), exact) <= 1e-15
        assert not any(e.name.startswith("~") for e in tape.tape.entries)


def test_operators_that_only_call_a_graph():
    graph = torch.fx.symbolic_trace(lambda a: (a.sin() * 0.3,))
    x = torch.randn(3)
    for name in ("tag_activation_checkpoint", "invoke_quant_packed"):
        operator = getattr(torch.ops.higher_order, name)
        tape = lift_torch(lambda x, call=operator: call(graph, x)[0], (x,), {})
        assert distance(tape.run(), [x.double().sin() * 0.3]) <= 1e-15


def test_a_number_that_is_cast_like_a_tensor():
    def scored(q, factor):
        return torch.vmap(lambda row: row * torch.ops.aten.to.dtype(factor, torch.float32))(q)

    x = torch.rand(3, 2)
    found = ds.compare(lambda x: scored(x, 0.7), lambda x: scored(x, 0.707), (x,))
    assert found.verdict is ds.Verdict.DIFFERENT


def test_flexible_attention():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.randn(1, 2, 16, 16)
    exact = F.scaled_dot_product_attention(*[q.double()] * 3)
    tape = lift_torch(lambda q: flex_attention(q, q, q), (q,), {})
    assert distance(tape.run(), [exact]) <= 1e-12


def test_mapped_functions():
    class Mapped(nn.Module):
        def forward(self, x):
            return torch._higher_order_ops.map(lambda row: row.sin() * 0.1, x) + 1

    x = torch.rand(3, 2)
    exported = torch.export.export(Mapped(), (x,))
    tape = _lift(exported, x)
    assert distance(tape.run(), [x.double().sin() * 0.1 + 1]) <= 1e-15
    assert not any(e.name.startswith("~") for e in tape.tape.entries)
