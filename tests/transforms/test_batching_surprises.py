"""What the examples tried first do not show: ``ds.vmap`` stays the loop when later values go another way."""

from __future__ import annotations

import functools
import sys
import threading

import pytest
import torch

import driftscope as ds
from driftscope.errors import ImpureFunction, InputError
from driftscope.transforms.batching.call import Request
from driftscope.transforms.batching.memory import CallPlan, plans_of

X = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
WEIGHTS = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


def looped(f, x):
    return torch.stack([f(v) for v in x])


def test_a_way_with_other_bits_that_is_taken_later_goes_to_the_loop():
    def f(v):
        return WEIGHTS @ v if v.sum() > 3 else v * 2

    small, large = X.abs() * 0.1, X + 1
    assert torch.equal(ds.vmap(f)(small), looped(f, small))
    assert [known.plan for known in plans_of(Request(f)).values()] == [CallPlan.VERIFIED_PATHS]
    assert torch.equal(ds.vmap(f)(large), looped(f, large))
    assert [known.plan for known in plans_of(Request(f)).values()] == [CallPlan.LOOP]


def test_a_way_that_writes_into_the_batch_writes_into_it():
    def f(v):
        if v.sum() > 3:
            v[0] = 0
        return v * 2

    assert torch.equal(ds.vmap(f)(X.abs() * 0.01), X.abs() * 0.01 * 2)
    one, two = X + 1, X + 1
    assert torch.equal(ds.vmap(f)(one), looped(f, two))
    assert torch.equal(one, two)
    assert not torch.equal(one, X + 1)


def test_a_way_that_torch_vmap_refuses_later_is_split():
    def f(v):
        return v * 2 if v.shape[0] < 5 or v.sum() > 0 else v - 1

    assert torch.equal(ds.vmap(f)(X[:, :4]), X[:, :4] * 2)
    assert torch.equal(ds.vmap(f)(X), looped(f, X))


def test_an_example_that_raises_raises_and_teaches_nothing():
    def f(v):
        if v.sum() > 0:
            raise ValueError("positive")
        return v * 2

    with pytest.raises(ValueError, match="positive"):
        ds.vmap(f)(X)
    assert torch.equal(ds.vmap(f)(-X.abs()), -X.abs() * 2)


def test_a_list_that_is_an_argument_is_the_same_list_for_every_example():
    def f(v, numbers):
        return v * numbers.pop()

    numbers = [float(i) for i in range(40)]
    with pytest.raises(ImpureFunction):
        ds.vmap(f, in_dims=(0, None))(X, numbers)
    assert len(numbers) == 40
    assert torch.equal(ds.vmap(lambda v, n: v * n[3], in_dims=(0, None))(X, numbers), X * 3)


def test_a_cache_of_numbers_is_pure_and_a_cache_of_tensors_is_not():
    @functools.lru_cache
    def number(positive):
        return 2.0 if positive else 3.0

    @functools.lru_cache
    def tensor(v):
        return v.sin()

    def f(v):
        return v * number(bool(v[0] > 0))

    assert torch.equal(ds.vmap(f)(X), looped(f, X))
    with pytest.raises(ImpureFunction) as caught:
        ds.vmap(lambda v: tensor(v) * 2)(X)
    assert caught.value.finding.code == "T001"


def test_a_generator_of_torch_counts_as_its_randomness():
    generator = torch.Generator().manual_seed(0)

    def f(v):
        return v + torch.randn((), generator=generator)

    with pytest.raises(ImpureFunction) as caught:
        ds.vmap(f)(X)
    assert caught.value.finding.code == "T005"
    state = generator.get_state()
    first = ds.vmap(f, randomness="different")(X)
    generator.set_state(state)
    assert torch.equal(first, ds.vmap(f, randomness="different")(X)), "the trial drew from the generator"
    assert len({round(float(row[0]), 5) for row in first - X}) == len(X)


def test_train_and_eval_of_a_module_are_two_functions():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(3))
    x = X.reshape(5, 8, 8)[:, None, :3].expand(5, 2, 3, 8)
    module.eval()
    torch.testing.assert_close(ds.vmap(module)(x), looped(module, x))
    module.train()
    with pytest.raises(ImpureFunction):
        ds.vmap(module)(x)


def test_inside_compile_it_is_torch_vmap():
    compiled = torch.compile(lambda x: ds.vmap(torch.sin)(x), backend="eager")
    assert torch.equal(compiled(X), X.sin())


def test_an_empty_batch_is_what_torch_vmap_makes_of_it():
    assert ds.vmap(lambda v: v * 2)(torch.empty(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_other_dtypes(dtype):
    def f(v):
        return v[0] if v.abs().sum().real > 2 else v[1]

    x = (X * 2).to(dtype)
    f = f if dtype is not torch.bool else lambda v: v[0] if v.any() else v[1]
    assert torch.equal(ds.vmap(f)(x), looped(f, x))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    def f(v):
        return v * 2 if v.sum() > 0 else v - 1

    with mode():
        assert torch.equal(ds.vmap(f)(X), looped(f, X))


def test_functions_of_one_code_with_other_defaults_or_closures_are_other_functions():
    def with_default(v, op=torch.sin):
        return op(v)

    def other(v, op=lambda v: v * (2.0 if v.sum() > 0 else 3.0)):
        return op(v)

    other.__code__ = with_default.__code__
    assert torch.equal(ds.vmap(with_default)(X), X.sin())
    assert torch.equal(ds.vmap(other)(X), looped(other, X))


def test_a_mistake_of_our_own_is_not_hidden_by_the_loop(monkeypatch):
    from driftscope.transforms.batching import guard

    def f(x):
        return x.sin() * x.size(0)

    monkeypatch.setattr(guard, "_PLAIN", "no type")
    with pytest.raises(TypeError, match="must be a type"):
        ds.vmap(f)(torch.randn(4, 3))


def test_an_error_of_the_users_function_is_the_users():
    def f(x):
        return x + "1"

    with pytest.raises(TypeError) as mine:
        f(torch.randn(3))
    with pytest.raises(TypeError, match=str(mine.value)[:20].replace("(", ".")):
        ds.vmap(f)(torch.randn(4, 3))


@pytest.mark.parametrize("branch", [False, True], ids=["straight", "branches"])
@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
def test_ties_share_the_derivative_as_in_the_loop(name, branch):
    def f(x):
        if branch and x.sum() > 100:
            return x.sum()
        return getattr(x, name)() * 2

    def slope(mapped, x):
        x = x.clone().requires_grad_()
        return torch.autograd.grad(mapped(x).sum(), x)[0]

    mapped = ds.vmap(f)
    apart, tied = torch.tensor([[1.0, 3, 2], [5, 4, 6]]), torch.tensor([[1.0, 1, 1], [2, 2, 2]])
    for x in (apart, tied, 20 * tied):
        assert torch.equal(slope(mapped, x), slope(lambda x: torch.stack([f(row) for row in x]), x))
        assert torch.equal(mapped(x), torch.stack([f(row) for row in x]))


def test_an_extreme_along_an_axis_is_left_to_torch():
    def f(x):
        return x.max(0).values.sum()

    x = torch.ones(3, 4, 2, requires_grad=True)
    loop = torch.autograd.grad(torch.stack([f(row) for row in x]).sum(), x)[0]
    assert torch.equal(torch.autograd.grad(ds.vmap(f)(x).sum(), x)[0], loop)


def test_a_group_that_ends_inside_no_grad_leaves_gradients_on():
    def steadied(x):
        with torch.no_grad():
            if x.norm() > 3:
                x = x.tanh()
        return x * 2

    x = torch.randn(5, 6, generator=torch.Generator().manual_seed(1)).requires_grad_()
    mapped = ds.vmap(steadied)(x)
    assert torch.is_grad_enabled()
    looped = torch.stack([steadied(row) for row in x])
    assert mapped.requires_grad
    assert torch.equal(mapped, looped)
    assert torch.equal(*(torch.autograd.grad(y.sum(), x)[0] for y in (mapped, looped)))
    with torch.no_grad():
        ds.vmap(steadied)(x)
        assert not torch.is_grad_enabled()


@pytest.mark.parametrize("hooks", ["checkpoint", "save on cpu"])
@pytest.mark.parametrize(
    "function",
    [lambda x: x.sin() * x.max(), lambda x: x * 2 if x.sum() > 0 else x.exp() * x, lambda x: x * x.sum().item()],
    ids=["one way", "two ways", "a number"],
)
def test_checkpoints_around_a_batch_count_alike(function, hooks):
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    mapped = ds.vmap(function)
    expected = torch.autograd.grad(torch.stack([function(row) for row in x]).sum(), x)[0]
    for _ in range(2):
        if hooks == "checkpoint":
            y = torch.utils.checkpoint.checkpoint(mapped, x, use_reentrant=False)
        else:
            with torch.autograd.graph.save_on_cpu():
                y = mapped(x)
        assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], expected)


def test_a_checkpoint_that_strays_after_it_was_proved():
    """Other values take the other way under the hooks: what is saved twice is counted alike all the same."""
    function = lambda x: x * 2 if x.sum() > 0 else x.exp() * x  # noqa: E731
    mapped = ds.vmap(function)
    x = torch.rand(6, 4, dtype=torch.float64) + 0.1
    mapped(x)
    x = (x - 0.5).requires_grad_()
    y = torch.utils.checkpoint.checkpoint(mapped, x, use_reentrant=False)
    expected = torch.autograd.grad(torch.stack([function(row) for row in x]).sum(), x)[0]
    assert torch.allclose(torch.autograd.grad(y.sum(), x)[0], expected)


def test_an_audit_runs_nothing_again_that_the_loop_has_run():
    counted = []

    def counts(x):
        if x[0] > 2:
            counted.append(1)
        return x * 2 if x.sum() > 0 else x

    x = torch.linspace(-1, 1, 9)[:, None].repeat(1, 3)
    x[4, 0] = 3.0  # none of the four rows that are tried
    ds.vmap(counts, audit=1.0)(x)
    assert len(counted) == 1


@pytest.mark.parametrize("around", ["grad", "checkpoint"])
def test_a_single_row_that_draws_is_refused_in_our_words_under_a_derivative(around):
    mapped = ds.vmap(lambda x: torch.nn.functional.dropout(x, 0.5))
    x = torch.ones(1, 3, requires_grad=around == "checkpoint")
    run = {
        "grad": torch.func.grad(lambda z: mapped(z).sum()),
        "checkpoint": lambda z: torch.utils.checkpoint.checkpoint(mapped, z, use_reentrant=False),
    }[around]
    with pytest.raises(ImpureFunction, match="draws random numbers"):
        run(x)
    with torch.autograd.graph.disable_saved_tensors_hooks("a checkpoint's hooks are gone with it"):
        assert torch.func.grad(torch.sin)(torch.zeros(())) == 1


class Boxes(torch.Tensor):
    """A class of the user's, on which a function may decide."""


def test_examples_of_a_class_of_their_own_are_of_it_again():
    def flip(v):
        return v.neg() if isinstance(v, Boxes) else v.flip(0)

    x = torch.arange(12.0).reshape(4, 3).as_subclass(Boxes)
    got = ds.vmap(flip)(x)
    assert isinstance(got, Boxes)
    assert torch.equal(got, looped(flip, x))
    plain = ds.vmap(flip)(torch.arange(12.0).reshape(4, 3))
    assert torch.equal(plain, torch.arange(12.0).reshape(4, 3).flip(1))


def test_a_draw_that_decides_is_not_drawn_again():
    x = torch.ones(9, 4, dtype=torch.float64)

    def f(v):
        return v * 2 if torch.rand(()) > 0.5 else v

    mapped, theirs = ds.vmap(f, randomness="same"), torch.vmap(f, randomness="same")
    with torch.random.fork_rng(devices=[]):
        for seed in range(40):
            torch.manual_seed(seed)
            got = mapped(x)
            torch.manual_seed(seed)
            assert torch.equal(got, theirs(x)), seed


@pytest.mark.parametrize(
    "options", [{"randomness": "Same"}, {"randomness": None}, {"chunk_size": 0}, {"chunk_size": -1}]
)
def test_what_torch_vmap_does_not_take_is_not_taken(options):
    with pytest.raises(InputError):
        ds.vmap(torch.sin, **options)


def test_what_torch_vmap_takes_is_taken():
    for randomness in ("error", "same", "different"):
        assert torch.equal(ds.vmap(torch.sin, randomness=randomness, chunk_size=3)(X), X.sin())


def scaled(k):
    return lambda v: v * 2 if v[0] > 0 else v - k  # a new function each time: it is tried anew


def test_threads_leave_the_streams_alone(capsys):
    before, wrong, begun = (sys.stdout, sys.stderr), [], threading.Event()

    def work(k):
        x = torch.linspace(-1, 1, 28).reshape(7, 4) * k
        for _ in range(10):
            f = scaled(k)
            if not torch.equal(ds.vmap(f)(x), looped(f, x)):
                wrong.append(k)
        begun.set()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    begun.wait()
    print("said by another thread")  # while trials catch what their own threads print
    for thread in threads:
        thread.join()
    assert not wrong
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "said by another thread\n"


@pytest.mark.parametrize(
    ("function", "row"),
    [
        (torch.nn.functional.binary_cross_entropy_with_logits, [-torch.inf, 1.0]),
        (lambda a, b: a.prod() * b.sum(), [torch.nan, 3.0]),
    ],
)
def test_derivatives_at_what_is_no_number_are_the_loops(function, row):
    x, y = torch.ones(8, 2, dtype=torch.float64), torch.rand(8, 2, dtype=torch.float64)
    x[1], x[2] = torch.tensor(row), 0.0  # neither is among the examples tried
    found = []
    for run in (
        lambda a: torch.stack([function(p, q) for p, q in zip(a, y, strict=True)]),
        lambda a: ds.vmap(function)(a, y),
    ):
        given = x.clone().requires_grad_()
        run(given).sum().backward()
        found.append(given.grad)
    torch.testing.assert_close(*found, equal_nan=True)


def test_what_results_are_padded_with_has_to_fit_them():
    def positive(v):
        return torch.nonzero(v > 0)[:, 0]

    padded = ds.vmap(positive, ragged="pad", padding=-1.0)(X)
    assert bool((padded == -1).any())
    with pytest.raises(InputError, match="cannot be held"):
        ds.vmap(positive, ragged="pad", padding=0.5)(X)
    with pytest.raises(InputError, match="cannot be held"):
        ds.vmap(positive, ragged="pad", padding=float("nan"))(X)
