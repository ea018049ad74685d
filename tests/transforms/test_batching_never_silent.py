"""What once made ``ds.vmap`` silently wrong, each with its honest twin: the loop, or a refusal in words."""

from __future__ import annotations

import contextvars
import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import driftscope as ds
from driftscope.errors import AuditFailed, ImpureFunction, InputError


def rows(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def looped(f, x):
    return torch.stack([f(row) for row in x])


def robust(x):
    try:
        scale = float(x.sum())
    except Exception:
        scale = 1.0
    return x * scale


def bare(x):
    try:
        scale = float(x.sum())
    except:  # noqa: E722  as users write it
        scale = 1.0
    return x * scale


X = rows(5, 4)


# --- a plan belongs to a function with its captured values ---------------------------------------------------------


def pipeline(steps):
    def apply(x):
        for step in steps:
            x = step(x)
        return x

    return apply


@pytest.mark.parametrize("last", [robust, bare, torch.cos])
def test_functions_in_a_captured_list_are_part_of_the_function(last):
    ds.vmap(pipeline([torch.sin]))(X)
    f = pipeline([last])
    torch.testing.assert_close(ds.vmap(f)(X), looped(f, X))


class Settings:
    def __init__(self):
        self.careful = False
        self.seen = []


def test_an_attribute_that_is_toggled_takes_another_path():
    settings = Settings()

    def f(x):
        return robust(x) if settings.careful else x.sin()

    mapped = ds.vmap(f)
    for careful in (False, True, False, True):
        settings.careful = careful
        torch.testing.assert_close(mapped(X), looped(f, X))


def test_state_that_is_changed_only_after_a_toggle_is_refused_and_put_back():
    settings = Settings()

    def f(x):
        if settings.careful:
            settings.seen.append(1)
        return x.sin()

    mapped = ds.vmap(f)
    torch.testing.assert_close(mapped(X), X.sin())
    settings.careful = True
    with pytest.raises(ImpureFunction):
        mapped(X)
    assert settings.seen == []
    settings.careful = False
    torch.testing.assert_close(mapped(X), X.sin())


MODE = {"power": 1.0}


def test_a_global_dict_is_read_on_every_call():
    def f(x):
        return x * MODE["power"] if MODE["power"] > 1 else robust(x)

    mapped = ds.vmap(f)
    try:
        for power in (3.0, 0.5, 2.0, 0.25):
            MODE["power"] = power
            torch.testing.assert_close(mapped(X), looped(f, X))
    finally:
        MODE["power"] = 1.0


def test_a_captured_tensor_that_decides_is_read_on_every_call():
    flag = torch.tensor(1.0)

    def f(x):
        return x.sin() if flag > 0 else robust(x)

    mapped = ds.vmap(f)
    for value in (1.0, -1.0, 2.0):
        flag.fill_(value)
        torch.testing.assert_close(mapped(X), looped(f, X))


def test_train_after_planning_is_refused_in_words():
    norm, dropout = torch.nn.BatchNorm1d(4).double().eval(), torch.nn.Dropout().eval()
    normed, dropped = ds.vmap(lambda x: norm(x)), ds.vmap(lambda x: dropout(x))
    x = rows(5, 3, 4)
    normed(x)
    dropped(x)
    norm.train()
    dropout.train()
    with pytest.raises(ImpureFunction) as caught:
        normed(x)
    assert caught.value.finding.code == "T024"
    assert not norm.running_mean.any()
    with pytest.raises(ImpureFunction) as caught:
        dropped(x)
    assert caught.value.finding.code == "T005"
    norm.eval()
    torch.testing.assert_close(normed(x), looped(norm, x))


# --- a plan holds for what was proved ------------------------------------------------------------------------------


def test_another_length_is_another_path():
    def f(x):
        return robust(x) if x.shape[0] > 6 else x.sin()

    mapped = ds.vmap(f)
    mapped(X)
    longer = rows(5, 8)
    torch.testing.assert_close(mapped(longer), looped(f, longer))


def center(x):
    try:
        return x - float(x.mean())
    except RuntimeError:
        return x


def test_a_batch_of_one_proves_nothing():
    mapped = ds.vmap(center)
    torch.testing.assert_close(mapped(X[:1]), looped(center, X[:1]))
    torch.testing.assert_close(mapped(X), looped(center, X))


def test_a_row_that_raises_in_torch_takes_its_own_branch():
    eye = torch.eye(3, dtype=torch.float64)

    def f(k):
        try:
            return torch.linalg.cholesky(k)
        except torch.linalg.LinAlgError:
            return torch.linalg.cholesky(k + 50 * eye)

    k = eye.repeat(7, 1, 1)
    torch.testing.assert_close(ds.vmap(f)(k), looped(f, k))
    k[1] *= -1
    torch.testing.assert_close(ds.vmap(f)(k), looped(f, k))


def test_a_bare_except_does_not_swallow_a_split():
    def f(x):
        try:
            if x.sum() > 0:
                return x.sin()
        except:  # noqa: E722
            return x * 100
        return x.cos()

    torch.testing.assert_close(ds.vmap(f)(rows(40, 4)), looped(f, rows(40, 4)))


def test_what_is_asked_of_the_memory_is_answered_by_the_loop():
    def f(x):
        return x * (2 if x.is_contiguous() else 3)

    mapped = ds.vmap(f)
    for x in (X, rows(4, 5).T, rows(5, 4, 2)[..., 0]):
        torch.testing.assert_close(mapped(x), looped(f, x))


def test_a_way_that_was_not_tried_may_not_change_state():
    seen = []

    def f(x):
        if x[0] > 5:
            seen.append(1)
        return x * 2 if x.sum() > 0 else x * 3

    x = rows(64, 4).clamp(-4, 4)
    mapped = ds.vmap(f)
    mapped(x)
    x[10, 0] = 7
    expected = looped(f, x)
    seen.clear()
    torch.testing.assert_close(mapped(x), expected)
    assert seen == [1], "the loop appends once"


# --- derivatives ---------------------------------------------------------------------------------------------------


def hooked(x):
    h = x * 3
    if h.requires_grad:
        h.register_hook(lambda g: -g)
    return h.sum()


class NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, slope):
        return slope * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return x.detach().sin(), in_dims[0]


@pytest.mark.parametrize(
    "f",
    [
        hooked,
        lambda x: NoSlope.apply(x).sum(),
        lambda x: checkpoint(lambda h: torch.tanh(h) * h, x, use_reentrant=False).sum(),
        lambda x: (x * 2 if x.requires_grad else x * 3).sum(),
        lambda x: (x * 2 if x.requires_grad and x.sum() > 0 else x * 3).sum(),
        lambda x: (x * x).sum(),
    ],
    ids=["hook", "vmap-rule", "checkpoint", "requires_grad", "requires_grad and a way", "plain"],
)
def test_derivatives_are_the_loops(f):
    x = rows(5, 4)
    for wants in (False, True, False):
        torch.testing.assert_close(ds.vmap(f)(x.requires_grad_(wants)), looped(f, x))
    x.requires_grad_()
    (mine,) = torch.autograd.grad(ds.vmap(f)(x).sum(), x)
    (its,) = torch.autograd.grad(looped(f, x).sum(), x)
    torch.testing.assert_close(mine, its)


def test_the_slope_of_a_captured_weight_is_the_loops():
    w = rows(4, seed=3).requires_grad_()

    def f(x):
        return robust(x * w).sum()

    mine, its = (torch.autograd.grad(run(f, X).sum(), w)[0] for run in (lambda f, x: ds.vmap(f)(x), looped))
    torch.testing.assert_close(mine, its)
    torch.testing.assert_close(torch.func.grad(lambda w: ds.vmap(lambda x: robust(x * w).sum())(X).sum())(w), its)


# --- inside and around other transforms ----------------------------------------------------------------------------


@pytest.mark.parametrize("f", [robust, torch.sin])
def test_compile_leaves_the_graph_for_it(f):
    compiled = torch.compile(lambda x: ds.vmap(f)(x), backend="eager")
    torch.testing.assert_close(compiled(X), looped(f, X))


def test_inside_torch_vmap_what_torch_vmap_gets_wrong_is_refused():
    x = rows(3, 5, 4)
    with pytest.raises(InputError, match=r"ds\.vmap\(robust\) stands inside another vmap"):
        torch.vmap(ds.vmap(robust))(x)
    torch.testing.assert_close(torch.vmap(ds.vmap(torch.sin))(x), x.sin())
    expected = torch.stack([looped(robust, part) for part in x])
    torch.testing.assert_close(ds.vmap(ds.vmap(robust))(x), expected)


class Out:
    def __init__(self, y):
        self.y = y


def test_an_object_is_refused_in_words():
    with pytest.raises(InputError, match="returns Out, which cannot be stacked"):
        ds.vmap(lambda x: Out(x * 2))(X)
    with pytest.raises(InputError, match="returns Out, which cannot be stacked"):
        ds.vmap(lambda x: Out(x * 2) if x.sum() > 0 else Out(x))(X)


def test_a_cached_constant_is_pure_and_a_cached_example_is_not():
    @functools.cache
    def window(n):
        return torch.hann_window(n, dtype=torch.float64)

    f = lambda x: x * window(x.shape[-1])  # noqa: E731
    torch.testing.assert_close(ds.vmap(f)(X), looped(f, X))
    torch.testing.assert_close(ds.vmap(f)(X), looped(f, X))

    @functools.cache
    def of(n, key):
        return key.value * 2

    class Key:
        def __init__(self, value):
            self.value = value

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return True

    with pytest.raises(ImpureFunction):
        ds.vmap(lambda x: x * of(4, Key(x.sum())))(X)


def test_an_empty_batch_of_a_function_that_decides_is_refused():
    with pytest.raises(InputError, match="no examples"):
        ds.vmap(robust)(torch.empty(0, 4))


def test_results_have_memory_of_their_own():
    x, w = rows(5, 4), rows(4)
    ds.vmap(lambda v: v[:2])(x).zero_()
    ds.vmap(lambda v: w)(x)[0].zero_()
    assert x[0, 0] != 0
    assert w.any()


def test_a_generator_is_used_up_as_the_loop_uses_it():
    one, two = (n for n in range(100)), (n for n in range(100))
    expected = torch.stack([v * next(one) for v in X])
    torch.testing.assert_close(ds.vmap(lambda v: v * next(two))(X), expected)


# --- the audit -----------------------------------------------------------------------------------------------------


BROKEN: contextvars.ContextVar[bool] = contextvars.ContextVar("BROKEN", default=False)


def wrong_in_a_batch(x, index):
    batched = torch._C._functorch.maybe_current_level() is not None and BROKEN.get()
    return x * (1 + (index == 3) * int(batched))


def test_the_audit_finds_a_row_that_differs_and_no_honest_one():
    index = torch.arange(5)
    mapped, unwatched = ds.vmap(wrong_in_a_batch, audit=1.0), ds.vmap(wrong_in_a_batch)
    torch.testing.assert_close(mapped(X, index), X)
    torch.testing.assert_close(ds.vmap(robust, audit=0.5)(X), looped(robust, X))
    token = BROKEN.set(True)
    try:
        assert not torch.equal(unwatched(X, index), X), "nothing to find: another defect must be planted"
        with pytest.raises(AuditFailed, match="example 3 of the batch") as caught:
            mapped(X, index)
    finally:
        BROKEN.reset(token)
    assert caught.value.row == 3


@pytest.mark.parametrize("audit", [-0.1, 1.5, "all", True])
def test_a_share_that_is_none_is_refused(audit):
    with pytest.raises(InputError, match="audit="):
        ds.vmap(torch.sin, audit=audit)
