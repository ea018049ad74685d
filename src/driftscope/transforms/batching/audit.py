"""The audit of batched calls: some of their examples, run again by the loop."""

from __future__ import annotations

import random
from typing import Any

import torch

from driftscope.errors import AuditFailed, InputError
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.agreement import differ
from driftscope.transforms.batching.call import BatchedCall, run_loop


class Audit:
    """Chooses examples at random, with a generator of its own, and compares them with the loop.

    Parameters
    ----------
    share : float
        From 0, no example, to 1, every example.

    Raises
    ------
    InputError
        If ``share`` is no number from 0 to 1.
    """

    def __init__(self, share: float):
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 <= share <= 1:
            raise InputError(f"audit={share!r} is not a share of the examples; give a number from 0 to 1")
        self.share = share
        self._random = random.Random(0)

    def chosen(self, size: int) -> list[int]:
        """Return the rows of a batch that are looked at."""
        if not self.share:
            return []
        return [row for row in range(size) if self._random.random() < self.share]

    def check(self, call: BatchedCall, result: Any, rows: list[int]) -> None:
        """Compare some rows of a result with the loop.

        Raises
        ------
        AuditFailed
            At the first row that differs by more than rounding.
        """
        leaves, spec = internals.tree_flatten(result)
        dims = internals.spread_over(call.request.out_dims, spec) or [0] * len(leaves)
        for row in rows:
            try:
                (alone,) = run_loop(call, [row])
            except Exception as error:
                told = f"the loop raises {type(error).__name__}: {error}"
                raise AuditFailed(internals.name_of(call.request.function), row, told) from error
            mine = [_row(leaf, dim, row) for leaf, dim in zip(leaves, dims, strict=True)]
            its = [leaf[0] if isinstance(leaf, torch.Tensor) else leaf for leaf in alone.leaves]
            with internals.beneath_transforms():
                mine, its = [_value(leaf) for leaf in mine], [_value(leaf) for leaf in its]
                difference = differ(its, mine)
            if not difference.agrees:
                told = difference.detail.replace("with the transform", "batched")
                raise AuditFailed(internals.name_of(call.request.function), row, told)


def _row(leaf: Any, dim: int | None, row: int) -> Any:
    return leaf.select(dim, row) if isinstance(leaf, torch.Tensor) and dim is not None else leaf


def _value(leaf: Any) -> Any:
    return internals.peel(leaf)[0].detach() if isinstance(leaf, torch.Tensor) else leaf
