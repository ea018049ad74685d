"""Habits of Python code around tensors: state, exceptions, views, custom rules, containers."""

import contextlib
import copy
import dataclasses
import time
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.checkpoint import checkpoint

from transforms.users.cases import case, floats, integers

CONFIG = {"scale": 2.0, "steps": [1, 2, 3]}
CACHE = {}
SCRATCH = torch.zeros(4)
WEIGHT = torch.nn.Parameter(torch.arange(4.0))


class Pair(NamedTuple):
    low: torch.Tensor
    high: torch.Tensor


@dataclasses.dataclass
class Result:
    value: torch.Tensor


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Clip(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clamp(-1, 1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() <= 1)


@case(floats(4))
def named_tuple(x):
    return Pair(x.min(), x.max())


@case(floats(4))
def dataclass_result(x):
    return Result(x * 2)  #! vmap jac


@case(floats(4))
def nested_dict(x):
    return {"a": {"b": x.sum()}, "c": [x, x * 2]}


@case(floats(4))
def scaled_by_config(x):
    return x * CONFIG["scale"] + sum(CONFIG["steps"])


@case(floats(4))
def cached_by_shape(x):
    if x.shape not in CACHE:
        CACHE[x.shape] = torch.hann_window(x.shape[0], periodic=False)
    return x * CACHE[x.shape]


@case(floats(4))
def memo_of_value(x):
    key = round(float(x.sum()), 3)  #!
    return x * CONFIG.get(key, 1.5)


@case(floats(4))
def scratch_buffer(x):
    SCRATCH.copy_(x)  #! vmap grad vjp jvp jac hess
    return SCRATCH.sum() * x


@case(floats(4))
def scratch_out(x):
    out = torch.empty(4)
    torch.mul(x, 2.0, out=out)  #!
    return out.sum()


@case(floats(4))
def custom_old_style(x):
    return Square.apply(x).sum()  #!


@case(floats(4))
def custom_new_style(x):
    return Clip.apply(x).sum()  #! jvp jacfwd hess linear


@case(floats(4))
def no_grad_statistics(x):
    with torch.no_grad():
        m = x.mean()  #! jvp jacfwd hess linear
        s = x.std()
    return (x - m) / s


@case(floats(4))
def detached_statistics(x):
    return (x - x.mean().detach()) / x.std().detach()


@case(floats(4))
def straight_through(x):
    return x + (x.round() - x).detach()


@case(floats(4))
def data_attribute(x):
    return x * x.data  #!


@case(floats(4))
def checkpointed(x):
    return checkpoint(torch.tanh, x, use_reentrant=False).sum()  #! grad vjp jacrev hess


@case(floats(4))
def deep_copied(x):
    y = copy.deepcopy(x)  #!
    y += 1
    return x * y


@case(floats(4))
def list_sorted(x):
    return torch.stack(sorted(x, key=float))  #! vmap jac


@case(floats(4))
def max_of_list(x):
    return max(x)  #! vmap


@case(floats(4))
def python_sum_of_squares(x):
    return sum(v**2 for v in x)


@case(floats(4))
def string_key(x):
    name = f"{x.sum():.1f}"  #!
    return x * (2.0 if name.startswith("-") else 1.0)


@case(floats(4))
def loop_over_range(x):
    for _ in range(int(x.abs().sum()) + 1):  #! vmap
        x = x * 0.5
    return x


@case(floats(4))
def early_return(x):
    if x[0] < -1:  #! vmap
        return torch.zeros_like(x)
    if x[0] > 1:
        return torch.ones_like(x)
    return x


@case(floats(4))
def nested_conditions(x):
    if x.sum() > 0:  #! vmap
        y = x * 2 if x[0] > 0 else x * 3
    else:
        y = x.abs()
    return y + 1


@case(floats(4))
def any_negative(x):
    if any(v < 0 for v in x):  #! vmap
        return x.abs()
    return x


@case(floats(4))
def bool_of_mask(x):
    mask = x > 0
    return x[mask].sum() if mask.any() else x.sum() * 0  #! vmap


@case(floats(4))
def suppress_all(x):
    with contextlib.suppress(Exception):
        x = x * float(x.mean())  #!
    return x


@case(floats(4))
def fallback_value(x):
    try:
        scale = CONFIG["missing"]
    except KeyError:
        scale = 1.0
    return x * scale


@case(floats(4))
def numpy_there_and_back(x):
    return torch.from_numpy(np.sin(x.detach().numpy()))  #!


@case(floats(4), vmap="wrong")
def numpy_noise(x):
    return x + torch.tensor(np.random.randn(4), dtype=x.dtype)  #! vmap jac hess


@case(floats(4))
def numpy_constant(x):
    return x * torch.from_numpy(np.linspace(0, 1, 4).astype(np.float32))


@case(floats(4))
def timed(x):
    start = time.perf_counter()
    y = x.sin()
    elapsed = time.perf_counter() - start
    return y + 0 * min(elapsed, 0.0)


@case(floats(4))
def contiguous_shortcut(x):
    y = x.T if x.dim() == 2 else x
    return y.view(2, 2).sum(0) if y.is_contiguous() else y.reshape(2, 2).sum(0)


@case(floats(2, 3))
def viewed(x):
    y = x * 1.0
    flat = y.view(-1)
    flat[0] = 0.0
    return y.sum(0)


@case(floats(2, 3))
def transposed_write(x):
    y = x.clone()
    y.T[0] = 1.0
    return y


@case(floats(4))
def alias_of_argument(x):
    y = x[:2]
    y.mul_(2)
    return x.sum()


@case(floats(4))
def where_one_argument(x):
    (index,) = torch.where(x > 0)  #! vmap
    return x[index].sum()


@case(floats(4))
def masked_select_mean(x):
    return torch.masked_select(x, x > -10).mean()  #! vmap


@case(floats(4))
def dynamic_arange(x):
    n = int(x.abs().max()) + 1  #! vmap
    return torch.arange(n).sum() + x.sum()


@case(floats(4), integers(high=3, low=1))
def repeat_by_count(x, n):
    return x.repeat(int(n)).sum()  #! vmap


@case(floats(4), integers(4, high=3))
def repeat_interleaved(x, n):
    return torch.repeat_interleave(x, n).sum()  #! vmap


@case(floats(4))
def scalar_promotion(x):
    half = torch.tensor(0.5, dtype=torch.float64)
    return x * half


@case(floats(4))
def integer_division(x):
    n = (x > 0).sum()
    return x.sum() / n.clamp(min=1)


@case(floats(4))
def requires_grad_branch(x):
    return x * 2 if x.requires_grad else x  #! grad vjp jvp jac hess


@case(floats(4))
def hook_on_hidden(x):
    h = x * 3
    if h.requires_grad:  #!
        h.register_hook(lambda g: g.clamp(-0.5, 0.5))  #!
    return h.sum()


@case(floats(4))
def captured_parameter(x):
    return (WEIGHT * x).sum()


@case(floats(4))
def detach_parameter(x):
    return (WEIGHT.detach().clone() * x).sum()


@case(floats(4), floats(4, batch=False), in_dims=(0, None))
def shared_argument(x, w):
    return (x * w).sum()


@case(floats(4), floats(4, batch=False), in_dims=(0, None))
def writes_shared(x, w):
    w += x  #!
    return w.sum()


@case(floats(4))
def equal_shortcut(x):
    return x if torch.equal(x, x.abs()) else -x  #! vmap


@case(floats(4))
def in_operator(x):
    return x * 2 if 0.0 in x else x  #! vmap


@case(floats(4))
def tolist_mean(x):
    values = x.tolist()  #!
    return x - sum(values) / len(values)


@case(floats(4))
def enumerate_with_weights(x):
    total = torch.zeros(())
    for i, v in enumerate(x):
        total += v * (i + 1)  #! vmap
    return total


@case(floats(4))
def accumulates_float(x):
    total = 0.0
    for v in x:
        total += v.item()  #!
    return x / (abs(total) + 1)


@case(floats(4))
def full_like_argument(x):
    return torch.full((4,), x[0].item()) + x  #!


@case(floats(4))
def zeros_like_filled(x):
    y = torch.zeros_like(x)
    y[1:] = x[:-1]
    return y


@case(floats(4))
def scatter_new(x):
    return torch.zeros(6).scatter(0, torch.tensor([0, 2, 4, 5]), x)


@case(floats(4))
def half_precision(x):
    return x.half().float().sum()


@case(floats(4))
def global_flag(x):
    return x.double().sum() if torch.is_grad_enabled() else x.sum().double()


@case(integers(4, high=5))
def integers_only(x):
    return (x % 3).cumsum(0)


@case(floats(4))
def constant_output(x):
    return torch.ones(3)


@case(floats(4))
def returns_input(x):
    return x


@case(floats(4))
def while_with_counter(x):
    n = 0
    while x.norm() > 0.5 and n < 20:  #! vmap
        x = x * 0.7
        n += 1
    return x, torch.tensor(n)


@case(floats(4))
def lambda_inside(x):
    pick = lambda v: v if v > 0 else -v  # noqa: E731  #! vmap
    return torch.stack([pick(v) for v in x])


@case(floats(4))
def gradient_with_aux(x):
    def loss(q):
        return (q**3).sum(), q.mean()

    g, aux = torch.func.grad(loss, has_aux=True)(x)
    return g * aux


@case(floats(4))
def autograd_with_aux(x):
    y = x.detach().requires_grad_()  #!
    aux = y * 2
    loss = (aux**2).sum()
    (g,) = torch.autograd.grad(loss, y)
    return g, aux.detach()


@case(floats(4))
def hvp_old_style(x):
    return torch.autograd.functional.hvp(lambda q: (q**4).sum(), x, torch.ones(4))[1]  #!
