"""Calls of ``ds.vmap`` like one before are recognised by a few reads; the guards of the first call hold."""

from __future__ import annotations

import contextlib
import os

import pytest
import torch
import torch.nn.functional as F

import driftscope as ds
from driftscope.errors import AuditFailed
from driftscope.transforms.batching.runner import CallRunner


def rows(size=6, width=3):
    return torch.linspace(-2, 3, size * width).reshape(size, width)


def loop(function, x, *rest):
    return torch.stack([function(v, *rest) for v in x])


@pytest.fixture
def short(monkeypatch):
    """Count the calls that were made the short way and kept."""
    kept, again = [], CallRunner.again

    def counted(self, before, sketch):
        result = again(self, before, sketch)
        kept.append(isinstance(result, torch.Tensor))
        return result

    monkeypatch.setattr(CallRunner, "again", counted)
    return kept


def repeated(mapped, *arguments, times=4):
    for _ in range(times):
        result = mapped(*arguments)
    return result


def test_a_call_like_one_before_is_made_the_short_way_and_is_the_loop(short):
    def layer(weights, v):
        for w in weights["layers"]:
            v = torch.tanh(w @ v)
        return v

    weights = {"layers": [torch.eye(3), torch.ones(3, 3)]}
    mapped = ds.vmap(layer, in_dims=(None, 0))
    for i in range(5):
        x = rows() + i
        torch.testing.assert_close(mapped(weights, x), torch.stack([layer(weights, v) for v in x]))
    assert short == [True] * 3


class Switches:
    def __init__(self):
        self.square = False


def test_a_captured_switch_that_is_turned_is_seen():
    switches, squares = Switches(), []

    def by_attribute(v):
        return v * v if switches.square else v + 1

    def by_list(v):
        return v * v if squares else v + 1

    x = rows()
    turns = ((by_attribute, lambda: setattr(switches, "square", True)), (by_list, lambda: squares.append(1)))
    for function, turn in turns:
        mapped = ds.vmap(function)
        repeated(mapped, x)
        turn()
        assert torch.equal(mapped(x), x * x)


def test_another_road_by_what_nobody_reads_is_tried_anew(short, monkeypatch):
    def by_environment(v):
        return v.sin() if os.environ.get("DS_REPEATED") else v.cos()

    x, mapped = rows(), ds.vmap(by_environment)
    assert torch.equal(repeated(mapped, x), loop(torch.cos, x))
    monkeypatch.setenv("DS_REPEATED", "1")
    assert torch.equal(mapped(x), loop(torch.sin, x))
    assert short == [True, True, False]


def test_a_swallowed_decision_is_not_made_for_the_batch(monkeypatch):
    def bold(v):
        if os.environ.get("DS_REPEATED"):
            with contextlib.suppress(RuntimeError):
                if v.sum() > 0:
                    return v * 2
        return v * 3

    x, mapped = rows(), ds.vmap(bold)
    repeated(mapped, x)
    monkeypatch.setenv("DS_REPEATED", "1")
    assert torch.equal(mapped(x), loop(bold, x))


def test_positions_that_are_not_there_are_refused_as_the_loop_refuses_them():
    table = torch.arange(12.0).reshape(4, 3)
    mapped = ds.vmap(lambda i: F.embedding(i, table))
    assert torch.equal(repeated(mapped, torch.tensor([0, 3, 1])), table[[0, 3, 1]])
    with pytest.raises(IndexError):
        mapped(torch.tensor([0, 4, 1]))


def test_a_nan_where_the_place_decides_the_derivative_is_left_to_the_loop():
    mapped = ds.vmap(lambda v: F.hardtanh(v).sum())
    x = rows(9, 5).requires_grad_()
    repeated(mapped, x)
    bad = rows(9, 5).index_fill_(0, torch.tensor([1, 7]), float("nan")).requires_grad_()
    (mine,) = torch.autograd.grad(mapped(bad).sum(), bad)
    (its,) = torch.autograd.grad(torch.stack([F.hardtanh(v).sum() for v in bad]).sum(), bad)
    assert torch.equal(mine.nan_to_num(7.0), its.nan_to_num(7.0))


def test_values_and_structure_of_arguments_are_part_of_what_is_recognised():
    def by_option(v, options):
        return v * 2 if options["double"] else v - next(iter(options.values()))

    x, mapped = rows(), ds.vmap(by_option, in_dims=(0, None))
    for options in ({"double": True}, {"double": 0}, {"less": 1.5, "double": False}, {"less": -0.0, "double": 0}):
        for _ in range(3):
            assert torch.equal(mapped(x, options), loop(by_option, x, options)), options


def test_a_change_of_torchs_state_is_another_call():
    weight = torch.ones(3, requires_grad=True)
    mapped, x = ds.vmap(lambda v: v * weight), rows()
    assert repeated(mapped, x).requires_grad
    with torch.no_grad():
        assert not mapped(x).requires_grad
    weight.requires_grad_(False)
    assert not mapped(x).requires_grad
    half = repeated(ds.vmap(lambda v: v @ torch.ones(3, 3)), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ds.vmap(lambda v: v @ torch.ones(3, 3))(x).dtype == torch.bfloat16 != half.dtype


def test_a_module_that_is_put_to_training_is_another_call():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5)).eval()
    mapped, x = ds.vmap(module, randomness="different"), rows()
    plain = repeated(mapped, x)
    torch.testing.assert_close(plain, module(x))
    module.train()
    assert (mapped(x) == 0).any()
    module.eval()
    torch.testing.assert_close(mapped(x), plain)


def test_results_lie_in_memory_of_their_own():
    x = rows()
    given = repeated(ds.vmap(lambda v: v), x)
    constant = repeated(ds.vmap(lambda v: torch.ones(2)), x)
    given += 1
    constant[0] += 1
    assert torch.equal(x, rows())
    assert torch.equal(constant[1], torch.ones(2))


def test_the_same_tensor_twice_is_another_call_than_two_alike():
    def product(v, pair):
        return v * pair[0] - pair[1]

    x, one, other = rows(), torch.ones(3), torch.ones(3)
    mapped = ds.vmap(product, in_dims=(0, None))
    for pair in ([one, other], [one, one], (one, one)):
        for _ in range(3):
            assert torch.equal(mapped(x, pair), loop(product, x, pair))


def test_under_a_transform_a_mode_or_hooks_the_long_way_is_taken(short):
    mapped, x = ds.vmap(torch.sin), rows()
    repeated(mapped, x)
    short.clear()
    torch.testing.assert_close(torch.func.grad(lambda v: mapped(v).sum())(x), x.cos())
    torch.testing.assert_close(torch.vmap(mapped)(x[None]), x.sin()[None])
    with torch.autograd.graph.save_on_cpu():
        assert torch.equal(mapped(x), x.sin())
    assert not short
    assert torch.equal(mapped(x), x.sin())
    assert short == [True]


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


OTHERS = {
    "more examples": (contextlib.nullcontext, lambda: (rows(7), [1.0])),
    "longer examples": (contextlib.nullcontext, lambda: (rows(6, 4), [1.0])),
    "a derivative": (contextlib.nullcontext, lambda: (rows().requires_grad_(), [1.0])),
    "the derivative of a result": (contextlib.nullcontext, lambda: (rows().requires_grad_() * 1, [1.0])),
    "another dtype": (contextlib.nullcontext, lambda: (rows().double(), [1.0])),
    "another number": (contextlib.nullcontext, lambda: (rows(), [2.0])),
    "minus zero": (contextlib.nullcontext, lambda: (rows(), [-0.0])),
    "a whole number": (contextlib.nullcontext, lambda: (rows(), [1])),
    "another container": (contextlib.nullcontext, lambda: (rows(), (1.0,))),
    "one more": (contextlib.nullcontext, lambda: (rows(), [1.0, 2.0])),
    "a parameter": (contextlib.nullcontext, lambda: (torch.nn.Parameter(rows(), requires_grad=False), [1.0])),
    "no_grad": (torch.no_grad, lambda: (rows(), [1.0])),
    "inference_mode": (torch.inference_mode, lambda: (rows(), [1.0])),
    "another default dtype": (lambda: default_dtype(torch.float64), lambda: (rows().float(), [1.0])),
    "autocast": (lambda: torch.autocast("cpu"), lambda: (rows(), [1.0])),
    "a default device": (lambda: torch.device("cpu"), lambda: (rows(), [1.0])),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_calls_are_not_recognised_as_those_before(short, other):
    mapped = ds.vmap(lambda v, held: v * held[0], in_dims=(0, None))
    repeated(mapped, rows(), [1.0])
    assert short == [True, True]
    around, make = OTHERS[other]
    with around():
        x, held = make()
        assert torch.equal(mapped(x, held), x * held[0])
    assert short == [True, True]


def test_an_audit_looks_at_repeated_calls_too(monkeypatch):
    mapped, x = ds.vmap(torch.sin, audit=1.0), rows()
    repeated(mapped, x)
    theirs = torch.vmap
    monkeypatch.setattr(torch, "vmap", lambda function, *rest, **more: lambda v: theirs(function, *rest, **more)(v) + 1)
    with pytest.raises(AuditFailed):
        mapped(x)


@pytest.mark.parametrize("out_dims", [0, 1, -1])
def test_structures_of_results_and_axes_are_torchs(out_dims):
    def several(v):
        return {"a": v * 2, "b": [v.sin(), v.cos()]}

    x = rows()
    mapped = ds.vmap(several, out_dims=out_dims)
    got, want = repeated(mapped, x), torch.vmap(several, out_dims=out_dims)(x)
    assert torch.equal(got["a"], want["a"])
    assert all(map(torch.equal, got["b"], want["b"]))
