"""Functions that ``torch.vmap`` refuses or gets wrong, each a pure function of one example."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def function(f):
    FUNCTIONS[f.__name__] = f
    return f


# --- control flow --------------------------------------------------------------------------------------------------


@function
def branches_on_a_sum(v):
    if v.sum() > 0:
        return v * 3
    return v - 1


@function
def chain_of_branches(v):
    if v[0] > 1:
        y = v.exp()
    elif v[0] > 0:
        y = v * v
    else:
        y = -v
    return y + 1


@function
def branch_inside_a_branch(v):
    if v.max() > 1:
        if v.min() < -1:
            return v * 2
        return v * 3
    return v * 5


@function
def halves_until_small(v):
    while v.abs().max() > 0.3:
        v = v * 0.5
    return v


@function
def repeats_as_often_as_a_value(v):
    for _ in range(int(v.abs().sum())):
        v = v * 0.75 + 0.1
    return v


@function
def leaves_a_loop_early(v):
    total = v[0] * 0
    for item in v:
        if item < 0:
            break
        total = total + item
    return total


@function
def asserts(v):
    assert (v.abs() < 100).all()
    return v * 2


@function
def larger_of_two(v):
    return max(v[0], v[1]) * 2


@function
def sorted_by_python(v):
    return torch.stack(sorted([v[0], v[1], v[2]]))


@function
def both_conditions(v):
    return v * 2 if v[0] > 0 and v[1] > 0 else v * 3


@function
def either_or_not(v):
    return v * 2 if not v[0] > 0 or v[1] > 1 else v * 3


@function
def chained_comparison(v):
    return v.sum() if -1 < v[0] < 1 else v.prod()


@function
def any_of_a_generator(v):
    return v * (2.0 if any(item > 1 for item in v) else -1.0)


@function
def picks_by_comprehension(v):
    return torch.stack([item if item > 0 else -item for item in v])


@function
def close_to_itself(v):
    return v * (2.0 if torch.allclose(v, v.round(), atol=0.3) else 3.0)


@function
def equal_to_its_sign(v):
    return v + (1.0 if torch.equal(v.sign(), v.sign().abs()) else 2.0)


# --- values as Python numbers --------------------------------------------------------------------------------------


@function
def times_an_item(v):
    return v * v.max().item()


@function
def times_a_float(v):
    return v / float(v.abs().sum())


@function
def times_an_int(v):
    return v * int(v.abs().max())


@function
def over_a_math_root(v):
    return v / math.sqrt(v.pow(2).sum())


@function
def sum_of_a_list(v):
    return v * sum(v.tolist())


@function
def through_numpy(v):
    return v + torch.as_tensor(np.tanh(v.detach().numpy()))


@function
def tensor_of_a_tensor(v):
    return torch.tensor(v.detach()) * v


@function
def tensor_of_items(v):
    return torch.tensor([v[0].item(), v[1].item()], dtype=v.dtype)


@function
def formatted(v):
    return v * len(f"{v.sum():.2f}")


@function
def key_of_a_dict(v):
    return v * {True: 2.0, False: 5.0}[bool(v[0] > 0)]


@function
def index_of_a_list(v):
    return v * [2.0, 3.0, 5.0, 7.0][v.argmax()]


@function
def contains_a_number(v):
    return v * (2.0 if 1 in v.round() else 3.0)


@function
def deep_copy(v):
    return copy.deepcopy(v.detach()) * v


@function
def returns_a_number(v):
    return v.sum().item()


@function
def tensor_here_number_there(v):
    return v[0] if v[0] > 0 else 0


# --- shapes that depend on values ----------------------------------------------------------------------------------


@function
def sum_of_the_positive(v):
    return v[v > 0].sum()


@function
def sum_at_nonzero(v):
    return v[torch.nonzero(v > 0).squeeze(1)].sum()


@function
def sum_selected(v):
    return torch.masked_select(v, v.abs() > 0.5).exp().sum()


@function
def where_alone(v):
    (index,) = torch.where(v > 0)
    return v[index].sum() + index.sum()


@function
def distinct(v):
    return torch.unique(v.detach().round()).sum() * v


@function
def repeated(v):
    return torch.repeat_interleave(v, (v > 0).long() + 1).cumsum(0)[0] + v


@function
def counted_positions(v):
    return torch.argwhere(v > 0).sum() + v.sum()


@function
def as_long_as_a_value(v):
    return torch.arange(v.argmax() + 1).sum() * v


@function
def up_to_a_bound(v):
    return v[: v.argmax() + 1].sum()


@function
def true_or_not(v):
    return v * (1.0 if torch.is_nonzero(v.sum() > 0) else 2.0)


@function
def masked_zero(v):
    v = v.clone()
    v[v < 0] = 0.0
    return v * 2


@function
def masked_values(v):
    w = v.clone()
    w[v < 0] = v[v < 0] * 2
    return w


@function
def largest_few(v):
    return v.topk(int((v > 0).sum()) + 1).values.sum()


# --- buffers -------------------------------------------------------------------------------------------------------


@function
def diagonal_buffer(v):
    r = torch.zeros(v.shape[0], v.shape[0], dtype=v.dtype)
    r.diagonal().copy_(v)
    return r


@function
def filled_by_index(v):
    r = torch.empty(2 * v.shape[0], dtype=v.dtype)
    r[::2] = v
    r[1::2] = -v
    return r


@function
def accumulated(v):
    total = torch.zeros((), dtype=v.dtype)
    for item in v:
        total += item
    return total


@function
def written_out(v):
    o = torch.empty(v.shape, dtype=v.dtype)
    torch.sin(v.detach(), out=o)
    return o + v


@function
def buffer_and_branch(v):
    r = torch.ones(v.shape[0], dtype=v.dtype)
    if v.sum() > 0:
        r[0] = v[0]
    else:
        r *= v
    return r


# --- torch.vmap answers, and wrongly -------------------------------------------------------------------------------


@function
def swallows_the_refusal(v):
    try:
        factor = float(v.sum())
    except RuntimeError:
        factor = 1.0
    return v * factor


@function
def fills_at_an_index(v):
    return torch.index_fill(torch.ones(2, 3, dtype=v.dtype), 0, torch.tensor([1]), v[0])


@function
def asks_where_its_memory_begins(v):
    return v * (1.0 + v.storage_offset())


@function
def promotes(v):
    weights = torch.arange(4, dtype=torch.float32)
    return torch.where(weights > 1, weights, v[0])


# --- structures ----------------------------------------------------------------------------------------------------


@function
def returns_a_dict(v):
    if v.sum() > 0:
        return {"a": v, "b": (v.sum(), v * 2)}
    return {"a": -v, "b": (v.prod(), v * 3)}
