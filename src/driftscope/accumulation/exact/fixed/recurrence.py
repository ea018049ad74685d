"""The backward pass of an LSTM, step by step."""

from __future__ import annotations

import torch

from driftscope.accumulation.exact import reductions
from driftscope.accumulation.exact.fixed import kernels
from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.accumulation.exact.pools import Sizes, lstm_gates, refuse_packed

Given = torch.Tensor | None


def lstm_backward(
    x: torch.Tensor, inner: torch.Tensor, outer: torch.Tensor, inner_bias: torch.Tensor, outer_bias: torch.Tensor,
    hidden: torch.Tensor, cell: torch.Tensor, _output: torch.Tensor, _last: torch.Tensor, _last_cell: torch.Tensor,
    grad: Given, grad_hidden: Given, grad_cell: Given, reverse: bool, mode: int, hidden_size: int, num_layers: int,
    has_biases: bool, train: bool, bidirectional: bool, batch_sizes: Sizes, batch_first: bool, _kept: torch.Tensor,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Gradients of one direction of one layer, in float64 from gates that are computed again, each rounded once.

    Raises
    ------
    InputError
        For sequences that are packed by oneDNN.
    """
    refuse_packed(batch_sizes, mode)
    steps = list(lstm_gates(x, (inner, outer), (inner_bias, outer_bias), (hidden, cell), reverse, has_biases))
    of_hidden, of_cell = (_wide(g, steps[0].before) for g in (grad_hidden, grad_cell))
    found = x.new_zeros(len(x), *steps[0].before.shape[:-1], inner.shape[0], dtype=torch.float64)
    for step in reversed(steps):
        above = of_hidden if grad is None else of_hidden + grad[step.at].double()
        i, f, g, o, end = step.input, step.forget, step.new, step.output, step.squashed
        of_cell = of_cell + above * o * (1.0 - end * end)
        parts = (of_cell * g * i * (1.0 - i), of_cell * step.cell * f * (1.0 - f), of_cell * i * (1.0 - g * g),
                 above * end * o * (1.0 - o))  # fmt: skip
        found[step.at] = torch.cat(parts, -1)
        of_cell = of_cell * f
        of_hidden = kernels.product(found[step.at], outer.double())
    flat = found.reshape(-1, found.shape[-1])
    before = torch.stack([s.before for s in sorted(steps, key=lambda s: s.at)]).double()
    of_bias = reductions.sum(flat, 0)
    results = (
        (kernels.product(flat, inner.double()), x),
        (kernels.product(flat.t(), x.double().reshape(-1, x.shape[-1])), inner),
        (kernels.product(flat.t(), before.reshape(-1, before.shape[-1])), outer),
        (of_bias, inner_bias), (of_bias, outer_bias), (of_hidden, hidden), (of_cell, cell),
    )  # fmt: skip
    return tuple(
        rounded_once(g.reshape(like.shape), like.dtype) if like.numel() == g.numel() else torch.zeros_like(like)
        for g, like in results
    )


def _wide(grad: Given, like: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(like, dtype=torch.float64) if grad is None else grad.double().reshape(like.shape)
