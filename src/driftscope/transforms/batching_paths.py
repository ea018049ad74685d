"""A batch split by path: examples that take the same decisions run together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from driftscope.transforms import (
    batching_rewrites,  # noqa: F401  registers what is made otherwise for a group
)
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching_call import BatchedCall, run_loop
from driftscope.transforms.batching_mode import OwnCopies, PathMode, Split, Unbatchable
from driftscope.transforms.batching_results import Piece
from driftscope.transforms.world import same_bits

# Below this many groups splitting is always tried; above, while groups hold several examples on average. Each run of
# a group costs two to four calls of the function (benchmarks/vmap.py), so smaller groups are slower than the loop.
FEW_GROUPS = 8
EXAMPLES_PER_GROUP = 6


@dataclass(frozen=True)
class Path:
    """A group of examples that took the same decisions so far."""

    rows: torch.Tensor
    decisions: tuple[Any, ...] = ()
    own: frozenset[int] = frozenset()


def most_groups(size: int) -> int:
    """Return how many groups a batch may fall into before the loop takes over."""
    return max(FEW_GROUPS, size // EXAMPLES_PER_GROUP)


def by_path(call: BatchedCall) -> list[Piece] | None:
    """Run a call in groups of examples that decide alike.

    Returns
    -------
    list of Piece, or None
        None when the loop should do it: too many groups, a call that has no batched form, or an error, which the
        loop will raise for the example that causes it.
    """
    limit = most_groups(call.size)
    chunk = call.request.chunk_size or call.size
    waiting = [Path(rows) for rows in torch.arange(call.size).split(chunk)]
    done: list[Piece] = []
    limit += len(waiting) - 1
    while waiting:
        if len(waiting) + len(done) > limit:
            return None
        path = waiting.pop()
        try:
            done.append(_run(call, path))
        except Split as split:
            if len(waiting) + len(done) + len(split.parts) > limit:
                return None
            waiting += [
                Path(path.rows[torch.tensor(rows)], (*split.before, answer), path.own) for answer, rows in split.parts
            ]
        except OwnCopies as needed:
            waiting.append(replace(path, own=path.own | {needed.call}))
        except Unbatchable:
            return None
        except Exception:  # the loop says it, at the example and in the words of the function
            return None
    return done


def _run(call: BatchedCall, path: Path) -> Piece:
    """Run one group under ``torch.vmap``."""
    returned: list[tuple[list[Any], Any]] = []
    size = len(path.rows)

    def group(*leaves: Any) -> tuple[torch.Tensor, ...]:
        mode = PathMode(internals.current_level(), size, path.decisions, path.own)
        arguments = pytree.tree_unflatten(list(leaves), call.spec)
        with mode:
            flat, spec = pytree.tree_flatten(call.request.function(*arguments, **call.keywords))
        returned.append((flat, spec))
        return tuple(leaf for leaf in flat if isinstance(leaf, torch.Tensor))

    stacked = iter(
        torch.vmap(group, in_dims=tuple(call.dims), randomness=call.request.randomness)(*call.picked(path.rows))
    )
    flat, spec = returned[0]
    leaves = [next(stacked) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    return Piece(path.rows.tolist(), leaves, spec)


def same_as_loop(call: BatchedCall, pieces: list[Piece], most: int = 16) -> bool:
    """Whether a sample of the examples of every group has the bits the loop gives it.

    A batched kernel may add in another order than the kernel for one example; groups that differ in bits from the loop
    are not what was promised.
    """
    each = max(1, most // len(pieces))
    for piece in pieces[:most]:
        step = max(1, len(piece.rows) // each)
        for position in range(0, len(piece.rows), step):
            (alone,) = run_loop(call, [piece.rows[position]])
            if alone.spec != piece.spec or not all(
                _same_leaf(mine, its, position) for mine, its in zip(piece.leaves, alone.leaves, strict=True)
            ):
                return False
    return True


def _same_leaf(group: Any, alone: Any, position: int) -> bool:
    if not isinstance(group, torch.Tensor) or not isinstance(alone, torch.Tensor):
        return type(group) is type(alone) and (group == alone or group != group)
    with internals.beneath_transforms():
        left, right = internals.peel(group)[0][position], internals.peel(alone)[0][0]
        return left.shape == right.shape and left.dtype == right.dtype and same_bits(left, right)
