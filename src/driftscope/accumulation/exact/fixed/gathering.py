"""Sums into places that indices name, each in the order of its terms: what gradients of gathers and poolings need."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.accumulation.exact.layer_norm import rounded_once
from driftscope.errors import InputError


def added_at(base: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Add rows into the rows of a matrix, one after the other in float64, and round once.

    Parameters
    ----------
    base : Tensor, shape ``(N, D)``
    at : Tensor of int64, shape ``(P,)``
        Which row of ``base`` each row of ``values`` is added to.
    values : Tensor, shape ``(P, D)``

    Returns
    -------
    Tensor, shape ``(N, D)``, of the dtype of ``base``
    """
    total = base.double().clone()
    sorted_at, order = at.sort(stable=True)
    turn = torch.arange(len(at), device=at.device) - torch.searchsorted(sorted_at, sorted_at)
    # Everyone's first term, then everyone's second, ...: inside one turn no place comes twice.
    turn, by_turn = turn.sort(stable=True)
    many = torch.bincount(turn).tolist()
    for some in by_turn.split(many):
        places = sorted_at[some]
        total[places] = total[places] + values[order[some]].double()
    return rounded_once(total, base.dtype)


def added_flat(base: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Add ``values`` into the elements of ``base`` whose flat positions are ``at``."""
    columns = added_at(base.reshape(-1, 1), at.reshape(-1), values.reshape(-1, 1))
    return columns.reshape(base.shape)


def positions(shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return the flat position of each element of a tensor of this shape."""
    return torch.arange(torch.Size(shape).numel(), device=device).reshape(tuple(shape))


def put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """``index_put``; what falls on one place is added in the order in which it is given."""
    if not accumulate:
        plain: torch.Tensor = torch.ops.aten.index_put(x, indices, values)
        return plain
    at = torch.ops.aten.index(positions(x.shape, x.device), indices)
    return added_flat(x, at, values.to(x.dtype).expand(at.shape))


def put_in_place(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """``index_put_``."""
    return x.copy_(put(x, indices, values, accumulate))


def scatter_add(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``scatter_add``; what falls on one place is added in the order in which it lies in ``source``."""
    if not x.dim() or not index.numel():
        return x + source if index.numel() else x.clone()
    axes = [torch.arange(n, device=x.device) for n in index.shape]
    grid = list(torch.meshgrid(*axes, indexing="ij"))
    grid[dim] = index
    part = source[tuple(slice(n) for n in index.shape)]
    return added_flat(x, positions(x.shape, x.device)[tuple(grid)], part)


def scatter_add_in_place(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """``scatter_add_``."""
    return x.copy_(scatter_add(x, dim, index, source))


def index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: float = 1
) -> torch.Tensor:
    """``index_add``; slices are added in the order of ``index``."""
    rows, terms = x.movedim(dim, 0), source.movedim(dim, 0)
    flat = rows.reshape(len(rows), -1)
    found = added_at(flat, index, (terms if alpha == 1 else terms * alpha).reshape(len(index), flat.shape[1]))
    return found.reshape(rows.shape).movedim(0, dim)


def embedding(
    grad: torch.Tensor, indices: torch.Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> torch.Tensor:
    """The gradient of an embedding's table."""
    at, rows = indices.reshape(-1), grad.reshape(-1, grad.shape[-1])
    kept = at != padding_idx
    at, rows = at[kept], rows[kept]
    if scale_grad_by_freq:
        rows = rows / torch.bincount(at, minlength=num_weights)[at, None]
    return added_at(rows.new_zeros(num_weights, rows.shape[1]), at, rows)


def embedding_bag(
    grad: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, _bags: torch.Tensor, bag_size: torch.Tensor,
    maximum_indices: torch.Tensor, num_weights: int, scale_grad_by_freq: bool, mode: int, sparse: bool,
    per_sample_weights: torch.Tensor | None, padding_idx: int = -1,
) -> torch.Tensor:  # fmt: skip
    """The gradient of an embedding bag's table, for sums (mode 0), means (1) and maxima (2).

    Raises
    ------
    InputError
        For a sparse gradient.
    """
    if sparse:
        raise InputError("ds.reproducible() makes no sparse gradient: give the embedding bag sparse=False.")
    if mode == 2:
        columns = torch.arange(grad.shape[1], device=grad.device).expand(grad.shape)
        table = grad.new_zeros(num_weights, grad.shape[1])
        kept = (bag_size > 0)[:, None].expand(grad.shape)
        return added_flat(table, (maximum_indices * grad.shape[1] + columns)[kept], grad[kept])
    bag = torch.searchsorted(offsets, torch.arange(len(indices), device=offsets.device), right=True) - 1
    rows = grad[bag]
    rows = rows / bag_size[bag, None] if mode == 1 else rows
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    return embedding(rows, indices, num_weights, padding_idx, scale_grad_by_freq)


def windows(grad: torch.Tensor, sizes: Sequence[int], dim: int, size: int, step: int) -> torch.Tensor:
    """The gradient of ``unfold``: every element gets the sum of the windows that hold it."""
    at = positions(sizes, grad.device).unfold(dim, size, step)
    return added_flat(grad.new_zeros(tuple(sizes)), at, grad)


def max_pool(
    grad: torch.Tensor, x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], ceil_mode: bool, indices: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """The gradient of a pooling by maxima over as many last axes as the kernel has."""
    inside = x.shape[-len(kernel) :].numel()
    planes = torch.arange(x.numel() // max(inside, 1), device=x.device)
    at = indices.reshape(len(planes), -1) + planes[:, None] * inside
    return added_flat(torch.zeros(x.shape, dtype=x.dtype, device=x.device), at, grad)
