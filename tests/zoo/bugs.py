"""Bugs planted in the weights of a model, from what tools and people really do wrong."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

#: Changes a model and names the parameters that it changed, a word each.
Plant = Callable[[nn.Module], str]


def _matrices(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The weights that layers multiply with: no tables, of which an input may use no row, and no factors."""
    named = model.named_parameters()
    return [
        (name, p) for name, p in named
        if p.ndim >= 2 and p[0].numel() > 1 and not re.search(r"emb|wte|wpe|original0", name)
    ]  # fmt: skip


def _vectors(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Biases and gains in use.

    Of the two biases of a recurrent layer, which are added, only one; none of keys, which adds one number to all scores
    of a query and which the softmax cancels.
    """
    unused = re.compile(r"bias_hh|masked|(k_proj|key)\.bias$")
    return [(name, p) for name, p in model.named_parameters() if p.ndim == 1 and not unused.search(name)]


def _scale_row(model: nn.Module) -> str:
    name, weight = _matrices(model)[1]
    weight[2] *= 1 + 1e-3
    return name


def _transpose(model: nn.Module) -> str:
    """Turn a square weight; where there is none, turn a filter's numbers round."""
    square = [(name, p) for name, p in _matrices(model) if p.ndim == 2 and p.shape[0] == p.shape[1]]
    name, weight = square[0] if square else _matrices(model)[-1]
    weight.copy_(weight.T.clone() if square else weight.flip(-1))
    return name


def _swap_rows(model: nn.Module) -> str:
    name, weight = _matrices(model)[1]
    weight[[0, 1]] = weight[[1, 0]]
    return name


def _lose_bias(model: nn.Module) -> str:
    name, bias = _vectors(model)[0]
    bias.zero_()
    return name


def _flip_bit(model: nn.Module) -> str:
    """Change the eighth bit behind the point of one number."""
    name, weight = _matrices(model)[1]
    number = weight.view(-1)[3:4]
    number.copy_((number.view(torch.int32) ^ (1 << 15)).view(torch.float32))
    return name


def _exchange(model: nn.Module) -> str:
    """Exchange two vectors of one shape: the biases of two directions or layers, the weight and bias of a norm."""
    vectors = _vectors(model)
    pairs = ((a, b) for k, a in enumerate(vectors) for b in vectors[k + 1 :] if a[1].shape == b[1].shape)
    (name, one), (other, two) = next(pairs)
    kept = one.clone()
    one.copy_(two)
    two.copy_(kept)
    return f"{name} {other}"


BUGS: dict[str, Plant] = {
    "scaled row": _scale_row, "transposed": _transpose, "swapped rows": _swap_rows, "lost bias": _lose_bias,
    "one bit": _flip_bit, "exchanged": _exchange,
}  # fmt: skip
