"""``ds.vmap`` gives what the loop gives, bit for bit, where torch.vmap refuses or is wrong; the impure it refuses."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
from batched_functions import FUNCTIONS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

import driftscope as ds
from driftscope.errors import ImpureFunction, InputError
from driftscope.transforms.batching import call as batching_call
from driftscope.transforms.batching import memory, paths
from driftscope.transforms.batching.memory import CallPlan


def batch(size=7, n=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, n, generator=generator, dtype=torch.float64)


def loop(f, x):
    """Return the stacked results of each example; numbers as they are."""
    results = [pytree.tree_flatten(f(v)) for v in x]
    columns = zip(*(leaves for leaves, _ in results), strict=True)
    stacked = [torch.stack([torch.as_tensor(leaf, dtype=_dtype(leaf)) for leaf in column]) for column in columns]
    return pytree.tree_unflatten(stacked, results[0][1])


def _dtype(leaf):
    return None if isinstance(leaf, torch.Tensor) else torch.float64


def same_bits(left, right):
    pairs = list(zip(pytree.tree_leaves(left), pytree.tree_leaves(right), strict=True))
    return all(a.shape == b.shape and torch.equal(a.double(), b.double()) for a, b in pairs)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_batch_is_the_loop_bit_for_bit(name):
    f, x = FUNCTIONS[name], batch()
    expected = loop(f, x)
    assert same_bits(ds.vmap(f)(x), expected)
    assert same_bits(ds.vmap(f)(x), expected), "the plan that is remembered gives something else"


DIFFERENTIABLE = [n for n in FUNCTIONS if n not in ("returns_a_number", "tensor_of_items", "fills_at_an_index")]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_are_those_of_the_loop(name):
    f, x = FUNCTIONS[name], batch()

    def total(results):
        return sum((leaf * leaf).sum() for leaf in pytree.tree_leaves(results))

    one, two = x.clone().requires_grad_(), x.clone().requires_grad_()
    total(loop(f, one)).backward()
    total(ds.vmap(f)(two)).backward()
    assert torch.equal(one.grad, two.grad)


@pytest.mark.parametrize("name", ["branches_on_a_sum", "halves_until_small", "sum_of_the_positive", "masked_zero"])
@pytest.mark.parametrize("take", ["grad", "jacrev", "jacfwd", "hessian"])
def test_torch_func_composes_with_it(name, take):
    f, x = FUNCTIONS[name], batch(size=3)
    transform = getattr(torch.func, take)

    def reduced(mapped):
        return lambda values: mapped(values).sin().sum()

    plain = transform(reduced(lambda values: torch.stack([f(v) for v in values])))(x)
    torch.testing.assert_close(transform(reduced(ds.vmap(f)))(x), plain)
    alone = torch.stack([transform(lambda v: f(v).sin().sum())(v) for v in x])
    torch.testing.assert_close(ds.vmap(transform(lambda v: f(v).sin().sum()))(x), alone)


def test_a_batch_of_batches():
    f, x = FUNCTIONS["branches_on_a_sum"], batch(size=6).reshape(2, 3, 4)
    expected = torch.stack([torch.stack([f(v) for v in row]) for row in x])
    assert torch.equal(ds.vmap(ds.vmap(f))(x), expected)


# --- which way it goes ---------------------------------------------------------------------------------------------


def plan_of(f, x, **options):
    memory.plans_of(batching_call.Request(f, **options)).clear()
    ds.vmap(f, **options)(x)
    return [known.plan for known in memory.plans_of(batching_call.Request(f, **options)).values()]


def test_where_torch_vmap_works_it_is_torch_vmap():
    calls = []

    def f(v):
        calls.append(1) if False else None
        return torch.tanh(v).sum()

    x = batch()
    assert plan_of(f, x) == [CallPlan.TORCH]
    assert torch.equal(ds.vmap(f)(x), torch.vmap(f)(x))


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("branches_on_a_sum", CallPlan.VERIFIED_PATHS),
        ("diagonal_buffer", CallPlan.VERIFIED_PATHS),
        ("sum_of_the_positive", CallPlan.VERIFIED_PATHS),
        ("swallows_the_refusal", CallPlan.VERIFIED_PATHS),
        ("written_out", CallPlan.LOOP),
        ("fills_at_an_index", CallPlan.LOOP),
    ],
)
def test_the_cheapest_way_that_is_right_is_taken(name, plan):
    assert plan_of(FUNCTIONS[name], batch(size=6)) == [plan]


def test_a_rule_that_is_wrong_is_not_used_even_where_the_tried_examples_agree():
    x = torch.ones(5, 4, dtype=torch.float64)
    assert plan_of(FUNCTIONS["fills_at_an_index"], x) == [CallPlan.LOOP]


def test_examples_that_decide_alike_run_together():
    runs = []

    def f(v):
        if v.sum() > 0:
            return v * 2
        return v * 3

    x = batch(size=64)
    call = batching_call.BatchedCall.read(batching_call.Request(f), (x,), {})
    pieces = paths.by_path(call)
    assert sorted(sorted(p.rows) for p in pieces) == sorted(
        [torch.nonzero(x.sum(1) > 0).squeeze(1).tolist(), torch.nonzero(x.sum(1) <= 0).squeeze(1).tolist()]
    )
    assert runs == []


def test_too_many_groups_are_left_to_the_loop():
    f = FUNCTIONS["times_a_float"]
    call = batching_call.BatchedCall.read(batching_call.Request(f), (batch(size=64),), {})
    assert paths.by_path(call) is CallPlan.LOOP
    few = batching_call.BatchedCall.read(batching_call.Request(f), (batch(size=4),), {})
    assert len(paths.by_path(few)) == 4


def test_bits_that_differ_from_the_loop_send_it_to_the_loop():
    weights = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))

    def f(v):
        if v.sum() > 0:
            return weights @ v
        return weights.T @ v

    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(1))
    assert same_bits(ds.vmap(f)(x), torch.stack([f(v) for v in x]))


@settings(max_examples=30)
@given(st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=12), st.floats(-3, 3, width=32))
def test_any_batch_of_a_function_with_three_ways_is_its_loop(values, threshold):
    def f(v):
        if v > threshold:
            return v * 2
        while v < -1:
            v = v / 2
        return v + 1 if v > 0 else v

    x = torch.tensor(values)
    assert torch.equal(ds.vmap(f)(x), torch.stack([f(v) for v in x]))


# --- the arguments of torch.vmap -----------------------------------------------------------------------------------


def test_axes_structures_and_keywords():
    def f(parameters, v, *, scale):
        y = parameters["w"] * v + parameters["b"]
        return (y * scale, y.sum()) if y.sum() > 0 else (-y, y.prod())

    parameters = {"w": batch(4, 5).T, "b": torch.ones(5, dtype=torch.float64)}  # w has its examples in axis 1
    x = batch(4, 5, seed=1)
    got = ds.vmap(f, in_dims=({"w": 1, "b": None}, 0), out_dims=(1, 0))(parameters, x, scale=2.0)
    rows = [f({"w": parameters["w"][:, i], "b": parameters["b"]}, x[i], scale=2.0) for i in range(4)]
    assert torch.equal(got[0], torch.stack([a for a, _ in rows], 1))
    assert torch.equal(got[1], torch.stack([b for _, b in rows]))


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
def test_chunks_change_nothing(chunk):
    f, x = FUNCTIONS["branches_on_a_sum"], batch()
    assert torch.equal(ds.vmap(f, chunk_size=chunk)(x), loop(f, x))


def test_an_unmapped_result_with_out_dims_none():
    def f(v):
        return (v * 2, torch.ones(2)) if v.sum() > 0 else (v, torch.ones(2))

    mapped, alone = ds.vmap(f, out_dims=(0, None))(batch())
    assert mapped.shape == (7, 4)
    assert alone.shape == (2,)


def test_a_result_that_depends_on_the_example_is_refused_with_out_dims_none():
    with pytest.raises(ValueError, match="depends on the example"):
        ds.vmap(lambda v: v * 2 if v.sum() > 0 else v, out_dims=None)(batch())


def test_arguments_that_do_not_fit_are_refused_as_torch_vmap_refuses_them():
    for arguments, options in (((batch(),), {"in_dims": (0, 0)}), ((3.0,), {}), ((batch(3), batch(4)), {})):
        errors = []
        for mapper in (torch.vmap, ds.vmap):
            with pytest.raises(ValueError) as caught:
                mapper(lambda *a: a[0], **options)(*arguments)
            errors.append(str(caught.value))
        assert errors[0] == errors[1]


def test_modules_partials_and_methods():
    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

        def forward(self, v):
            return v * self.scale if v.sum() > 0 else -v

        def shifted(self, by, v):
            return self(v) + by

    gate, x = Gate(), batch()
    assert torch.equal(ds.vmap(gate)(x), torch.stack([gate(v) for v in x]))
    shifted = functools.partial(gate.shifted, 1.0)
    assert torch.equal(ds.vmap(shifted)(x), torch.stack([shifted(v) for v in x]))
    ds.vmap(gate)(x).sum().backward()
    assert gate.scale.grad is not None


# --- ragged results ------------------------------------------------------------------------------------------------


def positive(v):
    return v[v > 0]


def test_ragged_results_by_request():
    x = batch()
    rows = [positive(v) for v in x]
    listed = ds.vmap(positive, ragged="list")(x)
    assert all(torch.equal(a, b) for a, b in zip(listed, rows, strict=True))
    jagged = ds.vmap(positive, ragged="jagged")(x)
    assert jagged.layout == torch.jagged
    assert all(torch.equal(a, b) for a, b in zip(jagged.unbind(), rows, strict=True))
    padded = ds.vmap(positive, ragged="pad", padding=-1.0)(x)
    assert padded.shape == (7, max(map(len, rows)))
    assert all(torch.equal(p[: len(r)], r) and (p[len(r) :] == -1).all() for p, r in zip(padded, rows, strict=True))


def test_ragged_results_that_were_not_asked_for_are_refused_with_what_to_do():
    with pytest.raises(InputError, match="ragged='jagged', 'pad' or 'list'"):
        ds.vmap(positive)(batch())


def test_results_that_stack_are_stacked_whatever_was_asked_for():
    for ragged in ("error", "jagged", "pad", "list"):
        assert torch.equal(ds.vmap(positive, ragged=ragged)(batch().abs()), batch().abs())


def test_what_a_jagged_tensor_cannot_hold_is_said():
    with pytest.raises(InputError, match="first axis of each example only"):
        ds.vmap(lambda v: v[None, v > 0], ragged="jagged")(batch())


def test_gradients_flow_through_padding():
    x = batch().requires_grad_()
    ds.vmap(positive, ragged="pad")(x).sum().backward()
    assert torch.equal(x.grad, (x > 0).double())


def test_other_structures_and_other_things_are_refused_or_listed():
    def structure(v):
        return (v, v) if v.sum() > 0 else v

    with pytest.raises(InputError, match="other structures"):
        ds.vmap(structure)(batch())
    assert len(ds.vmap(structure, ragged="list")(batch())) == 7
    with pytest.raises(InputError, match="returns str, which cannot be stacked"):
        ds.vmap(lambda v: (v, "name"))(batch())
    with pytest.raises(InputError, match="ragged='rows'"):
        ds.vmap(positive, ragged="rows")


# --- impure functions, and their honest neighbours -----------------------------------------------------------------


class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self, v):
        self.calls += 1
        return v * 2


KEPT: list[torch.Tensor] = []
NUMBERS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
BUFFER = torch.zeros(4, dtype=torch.float64)


def keeps(v):
    KEPT.append(v.cos())
    return v


def pops(v):
    return v * NUMBERS.pop()


def prints(v):
    print("hello")
    return v


def writes_a_buffer(v):
    BUFFER.add_(v)
    return v + BUFFER


def draws_from_numpy(v):
    return v * np.random.rand()


def draws_from_python(v):
    return v * random.random()


@pytest.mark.parametrize(
    ("f", "code"),
    [
        (keeps, "T001"),
        (pops, "T002"),
        (Counter(), "T002"),
        (prints, "T003"),
        (draws_from_numpy, "T004"),
        (draws_from_python, "T004"),
        (writes_a_buffer, "T007"),
        (torch.nn.BatchNorm1d(4, dtype=torch.float64), "T024"),
    ],
)
def test_an_impure_function_is_refused_with_the_finding_and_left_as_it_was(f, code, capsys):
    x = batch()[:, None].expand(7, 3, 4) if isinstance(f, torch.nn.Module) else batch()
    numbers, kept, buffer, state = list(NUMBERS), len(KEPT), BUFFER.clone(), np.random.get_state()[1].tolist()
    with pytest.raises(ImpureFunction) as caught:
        ds.vmap(f)(x)
    assert caught.value.finding.code == code
    assert caught.value.finding.fix
    assert (numbers, kept) == (NUMBERS, len(KEPT))
    assert torch.equal(buffer, BUFFER)
    assert state == np.random.get_state()[1].tolist()
    assert capsys.readouterr().out == ""


def test_the_refusal_is_placed_on_the_expression():
    with pytest.raises(ImpureFunction, match=r"test_batching\.py") as caught:
        ds.vmap(pops)(batch())
    assert caught.value.finding.where.expression == "NUMBERS.pop()"


def reads_a_buffer(v):
    return v + BUFFER if v.sum() > 0 else v * NUMBERS[0]


def makes_a_list(v):
    parts = []
    for item in v:
        parts.append(item * 2 if item > 0 else item)
    return torch.stack(parts)


@pytest.mark.parametrize("f", [reads_a_buffer, makes_a_list])
def test_reading_state_and_local_changes_are_pure(f):
    x = batch()
    assert torch.equal(ds.vmap(f)(x), torch.stack([f(v) for v in x]))


def test_writing_into_the_batch_itself_is_what_the_loop_does():
    def clamps(v):
        v[v < 0] = 0.0
        return v * 2

    one, two = batch(), batch()
    expected = torch.stack([clamps(v) for v in one])
    assert torch.equal(ds.vmap(clamps)(two), expected)
    assert torch.equal(one, two)


# --- randomness ----------------------------------------------------------------------------------------------------


def noisy(v):
    return v + torch.randn(4) if v.sum() > 0 else v - torch.randn(4)


def test_randomness_is_asked_for_as_in_torch_vmap():
    x = batch()
    with pytest.raises(ImpureFunction) as caught:
        ds.vmap(noisy)(x)
    assert caught.value.finding.code == "T005"
    torch.manual_seed(5)
    got = ds.vmap(noisy, randomness="different")(x)
    torch.manual_seed(5)
    assert torch.equal(got, torch.stack([noisy(v) for v in x]))
    same = ds.vmap(noisy, randomness="same")(x) - x
    assert len({tuple(row.abs().tolist()) for row in same.round(decimals=9)}) == 1


def test_the_trial_draws_nothing_from_the_generator():
    torch.manual_seed(3)
    ds.vmap(FUNCTIONS["branches_on_a_sum"])(batch(seed=9))
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


def test_a_function_that_raises_raises_what_it_raises():
    def f(v):
        if v[0] > 0:
            raise KeyError("positive")
        return v

    with pytest.raises(KeyError, match="positive"):
        ds.vmap(f)(batch())
