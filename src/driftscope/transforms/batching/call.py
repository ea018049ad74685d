"""One call of a batched function: its arguments flattened, its examples sliced, and the loop over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.programs import pytrees as pytree
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.batching.guard import Guarded, Steps
from driftscope.transforms.batching.results import Piece, Shape, piece_of_examples
from driftscope.transforms.batching.structures import Opening


@dataclass(frozen=True)
class Request:
    """What the user asked for: the arguments of ``ds.vmap``."""

    function: Callable[..., Any]
    in_dims: Any = 0
    out_dims: Any = 0
    randomness: str = "error"
    chunk_size: int | None = None
    ragged: str = "error"
    padding: float = 0.0

    @functools.cached_property
    def opening(self) -> Callable[..., Any]:
        """The function, its results open to torch's trees."""
        return Opening(self.function)

    @property
    def shape(self) -> Shape:
        """How the results are to be put together."""
        return Shape(self.out_dims, self.ragged, self.padding, internals.name_of(self.function))


@dataclass(frozen=True)
class BatchedCall:
    """The arguments of one call.

    Parameters
    ----------
    request : Request
    size : int
        Number of examples.
    dims : list of int or None
        Mapped axis of each leaf.
    leaves : list
        Flattened positional arguments.
    spec : TreeSpec
    given : tuple
        The positional arguments themselves.
    keywords : dict
        Never mapped, as in ``torch.vmap``.
    """

    request: Request
    size: int
    dims: list[int | None]
    leaves: list[Any]
    spec: Any
    given: tuple[Any, ...]
    keywords: dict[str, Any]

    @classmethod
    def read(cls, request: Request, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> BatchedCall:
        """Flatten and check arguments; what does not fit is refused in the words of ``torch.vmap``."""
        size, dims, leaves, spec = internals.read_arguments(request.function, request.in_dims, arguments)
        return cls(request, size, dims, leaves, spec, arguments, keywords)

    def picked(self, rows: torch.Tensor) -> list[Any]:
        """Return the leaves of the examples at ``rows``; mapped leaves are copies."""
        return [
            leaf if dim is None else leaf.index_select(dim, rows.to(leaf.device))
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]

    def examples(self, rows: Sequence[int], *, writing: bool = False) -> Iterator[tuple[Any, ...]]:
        """Yield the arguments of one example after another: views, as the loop passes them.

        An argument without a mapped tensor is the same object for every example. ``writing`` says that the function
        writes into the batch: views taken all at once cannot be written to where derivatives are wanted, views taken
        one by one cost a full-sized tensor each in the backward pass.
        """
        columns: list[Sequence[Any]] = []
        at = 0
        for argument, child in zip(self.given, pytree.children_of(self.spec), strict=True):
            leaves, dims = self.leaves[at : at + child.num_leaves], self.dims[at : at + child.num_leaves]
            at += child.num_leaves
            if all(dim is None for dim in dims):
                columns.append([argument] * len(rows))
                continue
            parts = [self._slices(leaf, dim, rows, writing) for leaf, dim in zip(leaves, dims, strict=True)]
            if child.is_leaf():
                columns.append(parts[0])
            else:
                columns.append([pytree.tree_unflatten(list(one), child) for one in zip(*parts, strict=True)])
        yield from zip(*columns, strict=True)

    def _slices(self, leaf: Any, dim: int | None, rows: Sequence[int], writing: bool) -> Sequence[Any]:
        if dim is None:
            return [leaf] * len(rows)
        if writing or len(rows) < self.size:
            return [leaf.select(dim, row) for row in rows]
        slices: Sequence[Any] = leaf.unbind(dim)
        return slices

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Every tensor among the arguments."""
        return [leaf for leaf in (*self.leaves, *self.keywords.values()) if isinstance(leaf, torch.Tensor)]

    @property
    def mapped(self) -> list[torch.Tensor]:
        """The tensors that are cut into examples."""
        return [leaf for leaf, dim in zip(self.leaves, self.dims, strict=True) if dim is not None]

    def plain(self, rows: Sequence[int]) -> BatchedCall:
        """Return the call on copies of a few examples, free of transforms and of the graph, for trials."""
        index = torch.tensor(rows)

        def copied(leaf: Any, dim: int | None) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            with internals.beneath_transforms():
                value, outer = internals.peel(leaf)
                value = value[(0,) * outer].detach()  # of what another vmap maps, the first example
                wants = internals.wants_derivative(leaf)
                value = value.clone() if dim is None else value.index_select(dim, index.to(value.device))
                return value.requires_grad_(wants) if value.is_floating_point() or value.is_complex() else value

        leaves = [copied(leaf, dim) for leaf, dim in zip(self.leaves, self.dims, strict=True)]
        keywords = {name: copied(value, None) for name, value in self.keywords.items()}
        rebuilt = pytree.tree_unflatten(leaves, self.spec)
        # What holds no tensor stays the same object, since the function may change it: that is to be seen.
        given = tuple(
            new if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(old)) else old
            for old, new in zip(self.given, rebuilt, strict=True)
        )
        return BatchedCall(self.request, len(rows), self.dims, leaves, self.spec, given, keywords)


def run_loop(
    call: BatchedCall,
    rows: Sequence[int] | None = None,
    *,
    writing: bool = False,
    watched: list[Steps | None] | None = None,
) -> list[Piece]:
    """Run the function on one example after another: the meaning of ``vmap``.

    With ``randomness="same"`` every example starts from the same state of torch's generator, so that all draw the
    same numbers. ``writing`` as for :meth:`BatchedCall.examples`. ``watched`` receives the steps of each example.
    """
    function, keywords = call.request.opening, call.keywords
    state = torch.get_rng_state() if call.request.randomness == "same" else None
    rows = range(call.size) if rows is None else rows
    outputs = []
    for arguments in call.examples(rows, writing=writing):
        if state is not None:
            torch.set_rng_state(state)
        if watched is None:
            outputs.append(function(*arguments, **keywords))
        else:
            guarded = Guarded(function)
            outputs.append(guarded(*arguments, **keywords))
            watched.append(tuple(guarded.runs[0].steps))
    return piece_of_examples(outputs, list(rows))


@dataclass
class LoopTrial:
    """What one loop over the tried examples did."""

    pieces: list[Piece]
    changed: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    printed: str = ""
    drew_torch: bool = False
    drew_others: bool = False
    wrote_mapped: bool = False
    wrote_shared: list[str] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    steps: list[Steps | None] = field(default_factory=list)
    cached: list[str] = field(default_factory=list)
    grown: list[int] = field(default_factory=list)
