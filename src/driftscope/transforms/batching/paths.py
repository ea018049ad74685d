"""A batch split by path: examples that take the same decisions run together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from driftscope.programs import pytrees as pytree
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching import rewrites  # noqa: F401  fills the table that PathMode reads
from driftscope.transforms.batching.call import BatchedCall, run_loop
from driftscope.transforms.batching.guard import Steps
from driftscope.transforms.batching.memory import CallPlan
from driftscope.transforms.batching.mode import OwnCopies, PathMode, Split, Unbatchable
from driftscope.transforms.batching.results import Piece
from driftscope.transforms.world.snapshot import same_bits

# Splitting is given up after this many runs of groups, or one run for so many examples: a call of torch in a group
# costs about a dozen of those in the loop (benchmarks/vmap.py), so smaller groups are slower than the loop.
FEW_RUNS = 8
EXAMPLES_PER_RUN = 12
# Examples of each group that are compared with the loop on every call, and of all groups together on the first.
ALWAYS_COMPARED = 2
FIRST_COMPARED = 16
# What may be returned beside tensors: it holds none.
_VALUES = (bool, int, float, complex, str, bytes, type(None))


class WritesIntoBatch(Exception):
    """The function wrote into its mapped arguments: the loop does so in the batch itself, a group in a copy."""


@dataclass(frozen=True)
class ExamplePath:
    """A group of examples that took the same decisions so far."""

    rows: torch.Tensor
    decisions: tuple[Any, ...] = ()
    own: frozenset[int] = frozenset()


def most_runs(size: int) -> int:
    """Return how many runs of groups a batch may take before the loop takes over."""
    return max(FEW_RUNS, size // EXAMPLES_PER_RUN)


def by_path(call: BatchedCall) -> list[Piece] | CallPlan:
    """Run a call in groups of examples that decide alike.

    Returns
    -------
    list of Piece, or Plan
        Which loop should do it instead: too many groups, a call that has no batched form, a function that writes into
        the batch, or an error, which the loop will raise for the example that causes it.
    """
    chunk = call.request.chunk_size or call.size
    waiting = [ExamplePath(rows) for rows in torch.arange(call.size).split(chunk)]
    left = most_runs(call.size) + len(waiting) - 1
    done: list[Piece] = []
    while waiting:
        if left < len(waiting):
            return CallPlan.LOOP
        path, left = waiting.pop(), left - 1
        try:
            done.append(_run(call, path))
        except Split as split:
            if len(waiting) + len(split.parts) > left:
                return CallPlan.LOOP
            waiting += [
                ExamplePath(path.rows[torch.tensor(rows)], (*split.before, answer), path.own)
                for answer, rows in split.parts
            ]
        except OwnCopies as needed:
            waiting.append(replace(path, own=path.own | {needed.call}))
        except WritesIntoBatch:
            return CallPlan.WRITING_LOOP
        except (Unbatchable, Exception):  # the loop says it, at the example and in the words of the function
            return CallPlan.LOOP
    return done


def _run(call: BatchedCall, path: ExamplePath) -> Piece:
    """Run one group under ``torch.vmap``."""
    returned: list[tuple[list[Any], Any, Steps]] = []
    size = len(path.rows)

    def group(*leaves: Any) -> tuple[torch.Tensor, ...]:
        mode = PathMode(internals.current_level(), size, path.decisions, path.own)
        arguments = pytree.tree_unflatten(list(leaves), call.spec)
        with mode:
            flat, spec = pytree.tree_flatten(call.request.opening(*arguments, **call.keywords))
        if mode.ended is not None:
            raise mode.ended
        if not all(isinstance(leaf, (torch.Tensor, *_VALUES)) for leaf in flat):
            raise Unbatchable("an object is returned, which may hold tensors")
        returned.append((flat, spec, tuple(mode.steps)))
        return tuple(leaf for leaf in flat if isinstance(leaf, torch.Tensor))

    leaves = call.picked(path.rows)
    versions = [leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)]
    mapped = torch.vmap(group, in_dims=tuple(call.dims), randomness=call.request.randomness)
    stacked = iter(mapped(*leaves))
    if versions != [leaf._version for leaf in leaves if isinstance(leaf, torch.Tensor)]:
        raise WritesIntoBatch
    flat, spec, steps = returned[0]
    results = [next(stacked) if isinstance(leaf, torch.Tensor) else leaf for leaf in flat]
    return Piece(path.rows.tolist(), results, spec, steps)


def same_as_loop(call: BatchedCall, pieces: list[Piece], *, first: bool) -> bool:
    """Whether examples of every group take its steps and have the bits the loop gives them; more on the first call.

    A batched kernel may add in another order than the kernel for one example, by the size of the group too; groups
    that differ in bits from the loop are not what was promised.
    """
    each = max(ALWAYS_COMPARED, FIRST_COMPARED // len(pieces)) if first else ALWAYS_COMPARED
    for piece in pieces:
        last = len(piece.rows) - 1
        for position in sorted({last * k // max(each - 1, 1) for k in range(each)}):
            watched: list[Steps | None] = []
            (alone,) = run_loop(call, [piece.rows[position]], watched=watched)
            if alone.spec != piece.spec or watched != [piece.steps]:
                return False
            pairs = zip(piece.leaves, alone.leaves, strict=True)
            if not all(_same_leaf(mine, its, position) for mine, its in pairs):
                return False
    return True


def _same_leaf(group: Any, alone: Any, position: int) -> bool:
    if not isinstance(group, torch.Tensor) or not isinstance(alone, torch.Tensor):
        return type(group) is type(alone) and (group == alone or group != group)
    with internals.beneath_transforms():
        left, right = internals.peel(group)[0][position], internals.peel(alone)[0][0]
        return left.shape == right.shape and left.dtype == right.dtype and same_bits(left, right)
