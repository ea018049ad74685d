"""One change each; what is said of it is true, and the fix is one that can be made."""

from __future__ import annotations

import copy

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional

import driftscope as ds

X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))


def pair(made, first=False, second=True):
    torch.manual_seed(0)
    a, b = made(first), made(second)
    b.load_state_dict(a.state_dict())
    return a, b


class Plus(nn.Module):
    """Add a tenth of what a Relu takes to what it gives."""

    def __init__(self, more):
        super().__init__()
        self.first, self.last, self.more = nn.Linear(8, 8), nn.Linear(8, 3), more

    def forward(self, x):
        t = self.last(torch.sigmoid(self.first(torch.tanh(x.pow(2)))))
        return torch.relu(t) + 0.1 * t if self.more else torch.relu(t)


def test_steps_at_the_end_begin_behind_what_is_kept():
    found = ds.compare(*pair(Plus), X).first
    assert found.where.node == "mul"
    assert "pow" not in found.fix


class Borrowed(nn.Module):
    """Read the bias of another layer, which reads it too."""

    def __init__(self, other):
        super().__init__()
        self.a, self.b, self.other = nn.Linear(8, 8), nn.Linear(8, 8), other

    def forward(self, x):
        x = torch.tanh(functional.linear(x, self.a.weight, (self.b if self.other else self.a).bias))
        return x @ self.b.weight + self.b.bias


def test_a_tensor_read_in_the_place_of_another_is_not_to_be_stored_anew():
    found = ds.compare(*pair(Borrowed), X).first
    assert "reads b.bias where" in found.what
    assert found.fix == "Let addmm read a.bias as A reads it."


class Turned(nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.w, self.turned = nn.Parameter(torch.randn(8, 8)), turned

    def forward(self, x):
        return torch.tanh(x @ (self.w.T if self.turned else self.w))


def test_a_tensor_that_is_read_transposed_holds_the_same_numbers():
    found = ds.compare(*pair(Turned), X).first
    assert "holds the same numbers: transposed" in found.what
    assert found.fix == "Let mm read w as A reads it."


def test_a_tensor_that_is_stored_transposed_is_to_be_stored_anew():
    a, b = pair(Turned, False, False)
    b.w.data = b.w.data.T.contiguous()
    found = ds.compare(a, b, X).first
    assert found.fix == "Store w of A in w again."


class Twice(nn.Module):
    def __init__(self, twice):
        super().__init__()
        self.layer, self.last, self.twice = nn.Linear(8, 8), nn.Linear(8, 3), twice

    def forward(self, x):
        x = self.layer(self.layer(x)) if self.twice else self.layer(x)
        return self.last(torch.tanh(x))


def test_a_value_is_not_exchanged_with_what_is_computed_from_it():
    found = ds.compare(*pair(Twice), X).first
    assert found.fix.startswith("Remove addmm_1")


class OnShares(nn.Module):
    def __init__(self, more):
        super().__init__()
        self.first, self.last, self.more = nn.Linear(8, 4), nn.Linear(2, 3), more

    def forward(self, x):
        shares = torch.softmax(self.first(x), -1)
        shares = torch.tanh(shares) if self.more else shares
        return self.last(torch.topk(shares, 2, -1).values)


def test_a_function_that_changes_nothing_here_stands_for_none():
    found = ds.compare(*pair(OnShares), X).first
    assert found.fix.startswith("Remove tanh")


def test_the_plain_operator_is_tried_before_one_that_agrees_on_positive_numbers():
    class Summed(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            return self.last(x.sum(-1))

    torch.manual_seed(0)
    model, x = Summed().eval(), torch.rand(5, 4, 6)
    proto = copy.deepcopy(torch.onnx.export(model, (x,), dynamo=True, verbose=False).model_proto)
    next(n for n in proto.graph.node if n.op_type == "ReduceSum").op_type = "ReduceMean"
    onnx.checker.check_model(proto)
    assert "Put ReduceSum in the place of ReduceMean" in ds.compare(model, proto, x).first.fix


class Routed(nn.Module):
    """The best experts, weighed; or the first alone."""

    def __init__(self, alone):
        super().__init__()
        self.router, self.alone = nn.Linear(8, 3), alone
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        shares, places = torch.topk(torch.softmax(self.router(x), -1), 2, -1)
        shares = shares / shares.sum(-1, keepdim=True)
        each = [expert(x) for expert in self.experts]
        best = torch.gather(torch.stack(each, -2), 1, places[..., None].expand(-1, -1, 8))
        return torch.tanh(x + (each[0] if self.alone else (best * shares[..., None]).sum(-2)))


@pytest.mark.parametrize("first", [True, False])
def test_results_of_two_kinds_are_not_exchanged(first):
    found = ds.compare(*pair(Routed, first, not first), X)
    assert found.verdict is ds.Verdict.DIFFERENT
    assert "Exchange the results" not in str(found)


class Clamped(nn.Module):
    """A clamp that clamps nothing here, read twice."""

    def __init__(self, squared):
        super().__init__()
        self.layer, self.squared = nn.Linear(8, 8), squared

    def forward(self, x):
        u = self.layer(x).clamp(-9, 9)
        q = u.pow(2) if self.squared else u.abs()
        return u * torch.exp(-q.sum(-1, keepdim=True) / 16)


@pytest.mark.parametrize(("first", "wrong"), [(True, "abs"), (False, "pow")])
def test_a_step_that_is_idle_here_is_not_blamed_for_one_of_its_readers(first, wrong):
    found = ds.compare(*pair(Clamped, first, not first), X).first
    assert found.where.node.startswith(wrong)
    assert "clamp" not in found.fix


class Masked(nn.Module):
    """Attention by hand; padding hides keys, or the queries in their place, or shares are taken along the queries."""

    def __init__(self, how):
        super().__init__()
        self.project, self.how = nn.Linear(8, 24), how

    def forward(self, x, padding):
        q, k, v = self.project(x).chunk(3, -1)
        masked = (q @ k.mT * 8**-0.5).masked_fill(padding[:, None], -1e9)
        if self.how == "queries":  # and the scores that A masks are computed for nothing
            masked = (q @ k.mT * 8**-0.5).masked_fill(padding[:, :, None], -1e9)
        return masked.softmax(-2 if self.how == "turned" else -1) @ v


def test_the_same_step_with_the_same_settings_is_not_what_a_computes_of_the_same_values():
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    inputs = x, torch.arange(6) > torch.tensor([[9], [3]])
    found = ds.compare(*pair(Masked, "keys", "queries"), inputs)
    assert found.verdict == "DIFFERENT"
    assert all("of the same values" not in f.why and "Compute in" not in f.fix for f in found.findings)
    turned = ds.compare(*pair(Masked, "keys", "turned"), inputs).first
    assert (turned.verified, turned.where.operator) == (True, "aten._softmax")
    assert "axis is 1 here and 2 in A" in turned.why


class Cached(nn.Module):
    """Attention position by position with a cache of keys, turned by their positions, or all by the first one's."""

    def __init__(self, forgets):
        super().__init__()
        self.project, self.last, self.forgets = nn.Linear(8, 24), nn.Linear(8, 3), forgets

    @staticmethod
    def turned(x, position):
        angles = torch.as_tensor([position]).float().view(-1, 1) * 1e4 ** (-torch.arange(0, 8, 2) / 8.0)
        one, other = x.chunk(2, -1)
        return torch.cat([one * angles.cos() - other * angles.sin(), other * angles.cos() + one * angles.sin()], -1)

    def forward(self, x):
        keys, values, rows = [], [], []
        for k in range(len(x)):
            query, key, value = self.project(x[None, None, k : k + 1]).chunk(3, -1)
            keys.append(self.turned(key, 0 if self.forgets else k))
            values.append(value)
            seen = torch.cat(keys, 2), torch.cat(values, 2)
            rows.append(functional.scaled_dot_product_attention(self.turned(query, k), *seen))
        return self.last(torch.cat(rows, 2))


def test_angles_that_both_sides_compute_are_in_no_checkpoint():
    found = ds.compare(*pair(Cached), X).findings
    assert any("computes other numbers ahead of its inputs" in f.what for f in found)
    assert all("checkpoint" not in f.fix and "other weights" not in f.what for f in found)
    a, b = pair(Cached, second=False)
    torch.manual_seed(1)
    for layer in (b.project, b.last):
        layer.reset_parameters()
    found = ds.compare(a, b, X).first
    assert "holds other weights" in found.what
    assert "checkpoint" in found.fix


class Shuffled(nn.Module):
    """Channels in so many groups, shuffled."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(2, self.groups, 6 // self.groups, -1).transpose(1, 2).reshape(2, 6, -1).tanh()


@pytest.mark.parametrize("groups", [(2, 3), (3, 2)])
def test_a_view_of_another_shape_is_not_said_to_be_missing_in_the_reference(groups):
    found = ds.compare(*map(Shuffled, groups), torch.randn(2, 6, 5))
    assert found.verdict == "DIFFERENT"
    assert found.first.where.operator in ("aten.view", "aten.transpose")
    assert "as it is" not in found.first.why, found.first
    assert "Remove" not in found.first.fix


def test_a_padding_that_the_reference_does_not_have_is_still_named():
    def padded(x):
        return functional.max_pool1d(functional.pad(x, (1, 1)), 3, 2)

    def plain(x):
        return functional.max_pool1d(x, 3, 2, padding=1)

    found = ds.compare(plain, padded, -torch.rand(2, 6, 5) - 1.0).first
    assert found.where.node == "constant_pad_nd"
    assert found.verified
