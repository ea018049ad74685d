"""In-place calls, views and `out=`: the tape keeps what shares memory with what."""

from __future__ import annotations

import pytest
import torch
from float64_truth import assert_truth, distance, lift
from torch import nn

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.torch.tape import lift_torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


X = torch.linspace(-2, 3, 24).reshape(4, 6).sin()
Y = torch.linspace(1, 2, 4).exp()


def _column_of_a_copy(x, y):
    x = x * 1
    x[:, 0] = y
    return x * 2


def _column_of_the_input(x, y):
    x[:, 0] = y
    return x * 2


def _view_sees_write(x, y):
    view = x[1]
    x.add_(y[:, None])
    return view * 1, x


def _out(x):
    result = torch.empty_like(x)
    torch.add(x, x, out=result)
    return result * 3


def _out_into_a_viewed_buffer(x):
    result = torch.zeros(4, 6, dtype=x.dtype)
    view = result[0]
    torch.mul(x, 2, out=result)
    return result, view + 1


def _index_put(x, y):
    x = x.clone()
    x[torch.tensor([0, 2]), torch.tensor([1, 1])] = y[:2]
    x.index_put_((torch.tensor([0, 0]),), y[:1] * torch.ones(2, 6, dtype=y.dtype), accumulate=True)
    return x


def _masked(x):
    mask = x > 0
    kept = x[mask]
    return x.masked_fill_(mask, -1e4).softmax(-1), kept


def _boolean_assignment(x):
    x = x.clone()
    x[x > 0] = 0.5
    x[x < 0] *= 2
    return x


def _filled_in_a_loop(x):
    rows = torch.zeros(3, 4, 6, dtype=x.dtype)
    for i in range(3):
        rows[i] = x * i
    return rows.sum(0), rows.mean()


def _versions_of_a_constant(x):
    a = torch.zeros(4, dtype=x.dtype)
    first = x[:, 0] + a
    a += 1
    second = x[:, 0] + a
    a.add_(x[:, 1])
    return first, second, a, x[:, 0] + a


def _restriding(x):
    y = x.t().contiguous().view(-1).clone()
    y.unsqueeze_(0).t_()
    y.mul_(2)
    return y, x.data * 2, x.detach()[1:].data + 1


def _chunks(x):
    a, b = x.chunk(2, 1)
    a = a.clone()
    c, d = a.split(1, 1)[:2]
    c.mul_(2)
    d.zero_()
    return a, b


def _strided(x):
    return torch.as_strided(x, (2, 2), (1, 2), 1), torch.as_strided(x[1:], (2, 2), (1, 2), 7)


def _swapped(x):
    x = x.clone()
    x[[0, 1]] = x[[1, 0]]
    return x


ONE = [_out, _out_into_a_viewed_buffer, _masked, _boolean_assignment, _filled_in_a_loop, _versions_of_a_constant,
       _restriding, _chunks, _strided, _swapped]  # fmt: skip
TWO = [_column_of_a_copy, _column_of_the_input, _view_sees_write, _index_put]


@pytest.mark.parametrize("function", ONE, ids=lambda f: f.__name__)
def test_writes_of_one_input(function):
    before = X.clone()
    assert_truth(function, X)
    assert torch.equal(X, before)


@pytest.mark.parametrize("function", TWO, ids=lambda f: f.__name__)
def test_writes_of_two_inputs(function):
    before = X.clone(), Y.clone()
    tape = assert_truth(function, X, Y)
    assert torch.equal(X, before[0])
    assert torch.equal(Y, before[1])
    assert distance(tape.run(), [o.value for o in tape.run()]) == 0.0


class _Cached(nn.Module):
    """A static key cache: written at some places, read as a whole, and a count of calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", torch.ones(2, 8, 6))
        self.register_buffer("calls", torch.tensor(0))
        self.last = None

    def forward(self, x):
        view = self.cache[:, :4]
        view[0].copy_(x)
        total = self.cache.sum(1)
        self.cache[1, 2:6] = x * 3
        self.calls += 1
        self.last = x
        return total, self.cache * 1, self.calls


def test_static_cache_is_written_in_the_lift_and_not_in_the_module():
    module = _Cached()
    tape = lift(module, X)
    exact = torch.ones(2, 8, 6, dtype=torch.float64)
    exact[0, :4] = X.double()
    total = exact.sum(1)
    exact[1, 2:6] = X.double() * 3
    for _ in range(2):
        assert distance(tape.run(), [total, exact, torch.tensor(1)]) <= 1e-15
    assert torch.equal(module.cache, torch.ones(2, 8, 6))
    assert int(module.calls) == 0
    assert module.last is None


def test_captured_buffer_keeps_its_versions_apart():
    buffer = torch.zeros(4)

    def run(x):
        first = x[:, 0] + buffer
        buffer.add_(1)
        second = x[:, 0] + buffer
        buffer.add_(x[:, 1])
        return first, second, buffer, x[:, 0] + buffer

    a, b = X.double()[:, 0], X.double()[:, 1]
    assert distance(lift(run, X).run(), [a, a + 1, 1 + b, a + 1 + b]) <= 1e-15
    assert torch.equal(buffer, torch.zeros(4))


def test_unshared_in_place_calls_write_no_memory():
    """`relu_` after a convolution is a new value: nobody else sees it."""
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)).eval()
    assert not assert_truth(module, X).tape.written


def test_replaced_buffer_enters_before_the_write():
    module = _Cached()
    tape = lift(module, X)
    lifted = tape.run(replace={"cache": torch.full((2, 8, 6), 2.0, dtype=torch.float64)})
    exact = torch.full((2, 8, 6), 2.0, dtype=torch.float64)
    exact[0, :4] = X.double()
    assert torch.allclose(lifted[0].value, exact.sum(1), rtol=1e-14)


def test_strided_views_of_an_input_that_is_a_view():
    wide = torch.arange(30.0)
    x = wide[6:]
    offset = x.storage_offset() + 2
    exact = torch.tensor([[8.0, 9.0], [11.0, 12.0]], dtype=torch.float64)
    assert distance(lift(lambda x: x.as_strided((2, 2), (3, 1), offset), x).run(), [exact]) == 0


def test_inputs_that_share_memory():
    base = torch.arange(6.0)

    def run(a, b):
        a[0] = b[1] * 0.1
        return a + 0, b + 0

    exact = base.double()
    exact[0] = exact[1] * 0.1
    assert distance(lift(run, base[:3], base).run(), [exact[:3], exact]) <= 1e-15
    assert torch.equal(base, torch.arange(6.0))


def test_a_part_of_a_captured_buffer_is_seen_through_the_whole():
    buffer = torch.zeros(4, 6)
    part = buffer[1:3]

    def run(x):
        part.add_(x[:2])
        return buffer * 2, part.data + 1

    exact = torch.zeros(4, 6, dtype=torch.float64)
    exact[1:3] = X.double()[:2]
    assert distance(lift(run, X).run(), [exact * 2, exact[1:3] + 1]) <= 1e-15
    assert torch.count_nonzero(buffer) == 0


def test_the_whole_written_first_is_seen_through_its_parts():
    buffer = torch.zeros(4, 6)
    part = buffer[1:3]

    def run(x):
        buffer.add_(x)
        first = part * 2
        part.mul_(0.1)
        return first, buffer + 0

    exact = X.double().clone()
    first = exact[1:3] * 2
    exact[1:3] *= 0.1
    assert distance(lift(run, X).run(), [first, exact]) <= 1e-15


@pytest.mark.parametrize("written", ["whole", "view of the whole", "part"])
def test_a_constant_written_in_place_is_evaluated_with_all_that_see_it(written):
    weight = torch.ones(4, 6)

    def run(x):
        table = weight * 2
        row, turned = table[0], table.t()
        target = {"whole": table, "view of the whole": table.view(24), "part": table[:, ::2]}[written]
        target.add_(weight.reshape(target.shape) if written != "part" else weight[:, ::2])
        return x + row, x.t() + turned

    sums = torch.full((4, 6), 2.0, dtype=torch.float64)
    sums[:, :: 2 if written == "part" else 1] += 1
    exact = X.double()
    tape = lift(run, X)
    assert distance(tape.run(), [exact + sums[0], exact.t() + sums.t()]) <= 1e-15
    twice = tape.run(replace={"captured_0": torch.full((4, 6), 2.0, dtype=torch.float64)})
    assert distance(twice, [exact + 2 * sums[0], exact.t() + 2 * sums.t()]) <= 1e-15


def test_a_constant_that_is_written_in_another_format_is_not_evaluated_again():
    weight = torch.ones(4, 6)

    def run(x):
        table = weight * 2
        table.view(torch.int32).add_(1)
        return x + table

    tape = lift(run, X)
    with pytest.raises(CannotLift, match="memory that others see"):
        tape.run(replace={"captured_0": torch.full((4, 6), 2.0, dtype=torch.float64)})


def test_foreach_in_place():
    def run(x):
        pair = [x * 1, x + 1]
        torch._foreach_mul_(pair, 0.3)
        torch._foreach_add_(pair, [x, x])
        return pair

    assert_truth(run, X)


@pytest.mark.parametrize(("rows", "again"), [(2, True), (6, False)])
def test_a_table_filled_row_by_row_is_evaluated_again_while_its_copies_are_few(rows, again, monkeypatch):
    """Each write copies the table: a mask of a thousand rows would take a thousand times its memory."""
    monkeypatch.setattr("driftscope.lift.torch.ledger._SCATTERED", 4 * 24)
    weight = torch.ones(6)

    def run(x):
        table = torch.zeros(4, 6)
        for row in range(rows):
            table[row % 4] = weight * (row + 1)
        return x + table

    tape = lift(run, X)
    assert distance(tape.run(), [run(X.double())]) <= 1e-15
    double = {"captured_0": torch.full((6,), 2.0, dtype=torch.float64)}
    if again:
        assert distance(tape.run(replace=double), [X.double() + 2 * (run(X) - X).double()]) <= 1e-6
    else:
        with pytest.raises(CannotLift, match="memory that others see"):
            tape.run(replace=double)


def stepped(x: torch.Tensor, rate: float = 0.1) -> torch.Tensor:
    held = nn.Parameter(x * 2)  # the tensor that it is made of is gone
    held.grad = torch.tanh(x)
    torch.optim.Adam([held], lr=rate).step()
    return held.detach()


def stepped_by_hand(x: torch.Tensor) -> torch.Tensor:
    slope = torch.tanh(x)
    return x * 2 - 0.1 * slope / (slope.square().sqrt() + 1e-8)


def a_part_written(x: torch.Tensor) -> torch.Tensor:
    made = x.clone()
    made.mul_(2)
    held = nn.Parameter(made)
    del made
    with torch.no_grad():
        held[0].add_(1)
    turned = nn.Parameter(held.data.T)
    del held
    with torch.no_grad():
        turned.mul_(3)
    return turned.detach() + 1


def a_constant_written(x: torch.Tensor) -> torch.Tensor:
    made = torch.ones(x.shape)
    held = nn.Parameter(made)
    made[0] = x[0]
    del made
    again = nn.Parameter(held.data)
    del held
    return again.detach() * 2


@pytest.mark.parametrize("function", [stepped, a_part_written, a_constant_written])
def test_a_parameter_made_of_a_tensor_that_is_gone_is_that_tensor(function):
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    (found,) = lift_torch(function, (x,), {}).run()
    torch.testing.assert_close(found.value.float(), function(x))


def test_a_step_of_an_optimiser_is_compared_with_one_by_hand():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(2))
    for a, b in ((stepped, stepped_by_hand), (stepped_by_hand, stepped)):
        assert str(ds.compare(a, b, (x,)).verdict) == "ROUNDING"
    for a, b in ((lambda x: stepped(x, 0.101), stepped_by_hand), (stepped_by_hand, lambda x: stepped(x, 0.101))):
        assert str(ds.compare(a, b, (x,)).verdict) == "DIFFERENT"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_on_a_vector_is_compared_like_one_on_a_matrix(dtype):
    """torch multiplies it as a matrix of one row, and takes the row away in place (``squeeze_``)."""
    layer = nn.Linear(4, 4, bias=False).to(dtype).eval()
    other = nn.Linear(4, 4, bias=False).to(dtype).eval()
    other.load_state_dict(layer.state_dict())
    assert str(ds.compare(layer, other, (torch.ones(4, dtype=dtype),)).verdict) == "IDENTICAL"
    other.weight.data[1, 2] *= 1.1
    for pair in ((layer, other), (other, layer)):
        found = ds.compare(*pair, (torch.ones(4, dtype=dtype),))
        assert str(found.verdict) == "DIFFERENT"
        assert "weight" in str(found)


def test_steps_that_turn_a_tensor_in_place_show_what_they_were_given():
    seen = []
    lifted = lift_torch(lambda x: (x * 2).unsqueeze_(0).transpose_(0, 2).squeeze_(2), (X,), {})
    lifted.run(observe=lambda step: seen.append((step.operator, step.inputs[0].shape, step.outputs[0].shape)))
    assert [given for _, given, _ in seen] == [(4, 6), (4, 6), (1, 4, 6), (6, 4, 1)]
    assert seen[-1][2] == (6, 4)
