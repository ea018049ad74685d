"""What groups of examples return, put together as ``torch.vmap`` would return it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from driftscope.errors import InputError
from driftscope.programs import pytrees as pytree
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.structures import described
from driftscope.transforms.world.snapshot import same_bits

RAGGED = ("error", "jagged", "pad", "list")

_NUMBERS = (bool, int, float, complex, np.number, np.bool_)
# A Python number has 64 bits; a narrower tensor would not hold what the loop returned.
_NUMBER_DTYPE = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


@dataclass(frozen=True)
class Piece:
    """What one group of examples returned.

    Parameters
    ----------
    rows : list of int
        The examples, by position in the batch.
    leaves : list
        Flattened results. A tensor has the group's examples along its first axis; anything else is the same for all.
    spec : TreeSpec
    steps : tuple or None
        The calls of torch with the kinds of their results, where they were watched.
    """

    rows: list[int]
    leaves: list[Any]
    spec: Any
    steps: Any = None


def piece_of_examples(outputs: Sequence[Any], rows: list[int]) -> list[Piece]:
    """Make pieces of results that were returned one by one: a single piece where they can be stacked."""
    if outputs and _stackable(outputs):
        return [Piece(rows, [torch.stack(list(outputs))], pytree.tree_structure(outputs[0]))]
    flat = [pytree.tree_flatten(output) for output in outputs]
    columns = list(zip(*(leaves for leaves, _ in flat), strict=False))
    if all(spec == flat[0][1] for _, spec in flat) and all(_stackable(column) for column in columns):
        return [Piece(rows, [torch.stack(list(column)) for column in columns], flat[0][1])] if flat else []
    return [
        Piece([row], [leaf.unsqueeze(0) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec)
        for row, (leaves, spec) in zip(rows, flat, strict=True)
    ]


def _stackable(column: Sequence[Any]) -> bool:
    shape = getattr(column[0], "shape", None)
    return all(isinstance(leaf, torch.Tensor) and leaf.shape == shape for leaf in column)


@dataclass(frozen=True)
class Shape:
    """How results are to be put together: ``out_dims`` as in ``torch.vmap``, and what to do with ragged ones."""

    out_dims: Any = 0
    ragged: str = "error"
    padding: float = 0.0
    name: str = "the function"


def put_together(pieces: list[Piece], size: int, wanted: Shape) -> Any:
    """Return the results of all groups in the order of the batch.

    Raises
    ------
    InputError
        If examples return different structures, ragged results that were not asked for, or things that are neither
        tensors nor numbers.
    ValueError
        If ``out_dims`` does not fit the structure.
    """
    spec = pieces[0].spec
    if any(piece.spec != spec for piece in pieces):
        if wanted.ragged == "list":
            return _as_list(pieces, size)
        raise InputError(
            f"{wanted.name} returns other structures for different examples ({described(spec)} and "
            f"{described(next(p.spec for p in pieces if p.spec != spec))}); return the same structure, or ask for "
            f"ragged='list'"
        )
    dims = internals.spread_over(wanted.out_dims, spec)
    if dims is None and isinstance(wanted.out_dims, tuple) and len(wanted.out_dims) == len(pieces[0].leaves) == 1:
        dims = list(wanted.out_dims)
    if dims is None:
        raise ValueError(f"out_dims={wanted.out_dims} does not fit the results of {wanted.name}: {spec}")
    leaves = [
        _column([(piece.rows, piece.leaves[i]) for piece in pieces], size, dim, wanted) for i, dim in enumerate(dims)
    ]
    return pytree.tree_unflatten(leaves, spec)


def _as_list(pieces: list[Piece], size: int) -> list[Any]:
    """Return one result per example, as the function returned it."""
    found: list[Any] = [None] * size
    for piece in pieces:
        for k, row in enumerate(piece.rows):
            leaves = [leaf[k] if isinstance(leaf, torch.Tensor) else leaf for leaf in piece.leaves]
            found[row] = pytree.tree_unflatten(leaves, piece.spec)
    return found


Column = list[tuple[list[int], Any]]


def _column(column: Column, size: int, dim: int | None, wanted: Shape) -> Any:
    """Put one leaf together."""
    if dim is None:
        return _unmapped(column, wanted)
    values = _as_tensors(column)
    if values is None:
        if wanted.ragged == "list":
            return _examples(column, size)
        kinds = sorted({type(value).__name__ for _, value in column if not isinstance(value, torch.Tensor)})
        raise InputError(
            f"{wanted.name} returns {' and '.join(kinds)}, which cannot be stacked; return tensors or numbers, give "
            f"out_dims=None for what does not depend on the example, or ask for ragged='list'"
        )
    shapes = {tuple(value.shape[1:]) for _, value in values}
    if len(shapes) == 1 and wanted.ragged in ("error", "jagged", "pad", "list"):
        return _in_order(values, size).movedim(0, dim)
    return _ragged(_examples(values, size), dim, shapes, wanted)


def _unmapped(column: Column, wanted: Shape) -> Any:
    """``out_dims=None``: every example must return the same, and one of them is it."""
    values = [v[k] if isinstance(v, torch.Tensor) else v for rows, v in column for k in range(len(rows))]
    first = values[0]
    for value in values[1:]:
        alike = same_bits(value, first) if isinstance(first, torch.Tensor) else value is first or value == first
        if not alike:
            raise ValueError(f"{wanted.name} returns something that depends on the example where out_dims is None")
    return first


def _as_tensors(column: Column) -> list[tuple[list[int], torch.Tensor]] | None:
    """Turn numbers into tensors; None when something is neither.

    A number beside tensors takes their dtype as it would in arithmetic with them (``return x`` here and ``return 0``
    there); numbers alone keep their 64 bits.
    """
    beside = next((value for _, value in column if isinstance(value, torch.Tensor)), None)
    found = []
    for rows, value in column:
        if isinstance(value, torch.Tensor):
            found.append((rows, value))
        elif isinstance(value, _NUMBERS):
            number = value.item() if isinstance(value, np.generic) else value
            dtype = _dtype_of(value) if beside is None else torch.result_type(beside, number)
            device = None if beside is None else beside.device
            found.append((rows, torch.full((len(rows),), number, dtype=dtype, device=device)))
        else:
            return None
    return found


def _dtype_of(number: Any) -> torch.dtype:
    if isinstance(number, np.generic):
        return torch.as_tensor(np.asarray(number)).dtype
    return next(dtype for kind, dtype in _NUMBER_DTYPE.items() if isinstance(number, kind))


def _in_order(values: list[tuple[list[int], torch.Tensor]], size: int) -> torch.Tensor:
    order = [row for rows, _ in values for row in rows]
    joined = values[0][1] if len(values) == 1 else torch.cat([value for _, value in values])
    if order == list(range(size)):
        return joined
    inverse = torch.empty(size, dtype=torch.int64)
    inverse[torch.tensor(order)] = torch.arange(size)
    return joined.index_select(0, inverse.to(joined.device))


def _examples(column: Column, size: int) -> list[Any]:
    found: list[Any] = [None] * size
    for rows, value in column:
        for k, row in enumerate(rows):
            found[row] = value[k] if isinstance(value, torch.Tensor) else value
    return found


def _ragged(examples: list[torch.Tensor], dim: int, shapes: set[tuple[int, ...]], wanted: Shape) -> Any:
    if wanted.ragged == "list":
        return examples
    told = ", ".join(map(str, sorted(shapes)[:4])) + (" ..." if len(shapes) > 4 else "")
    if wanted.ragged == "error":
        raise InputError(
            f"{wanted.name} returns tensors of different shapes for different examples ({told}), which cannot be "
            f"stacked; ask for ragged='jagged', 'pad' or 'list'"
        )
    if len({len(shape) for shape in shapes}) > 1:
        raise InputError(f"{wanted.name} returns tensors of different rank ({told}); only ragged='list' holds them")
    if wanted.ragged == "pad":
        return _padded(examples, wanted.padding).movedim(0, dim)
    if dim != 0 or len({shape[1:] for shape in shapes}) > 1:
        raise InputError(
            f"a jagged tensor may be ragged in the first axis of each example only, with out_dims=0; {wanted.name} "
            f"returns {told}; ask for ragged='pad' or 'list'"
        )
    return torch.nested.as_nested_tensor(examples, layout=torch.jagged)


def _padded(examples: list[torch.Tensor], padding: float) -> torch.Tensor:
    dtype = examples[0].dtype
    if not (dtype.is_floating_point or dtype.is_complex) and torch.tensor(padding).to(dtype) != padding:
        raise InputError(f"padding={padding!r} cannot be held by results of {dtype}; give a whole number that fits")
    largest = [max(sizes) for sizes in zip(*(example.shape for example in examples), strict=True)]
    padded = []
    for example in examples:
        missing = [want - have for want, have in zip(largest, example.shape, strict=True)]
        ends = [n for have in reversed(missing) for n in (0, have)]
        padded.append(F.pad(example, ends, value=padding))
    return torch.stack(padded)
