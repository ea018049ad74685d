"""Complex outputs as pairs of reals: formats of files, and runtimes, know no complex numbers.

An exporter writes ``a + bi`` as ``[a, b]`` along a new last axis, as :func:`torch.view_as_real` does. So that both
sides are compared number by number, the side that gives complex numbers is run to give these pairs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from driftscope.programs.protocol import ArraySource, OnnxSource, Program, TorchSource
from driftscope.programs.value_trees import flatten, unflatten


def is_pair_of(one: Any, other: Any) -> bool:
    """Whether one value is complex and the other real, with the two parts along one more axis.

    Parameters
    ----------
    one, other : object
        Leaves; only tensors are.
    """
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.is_complex() and other.is_floating_point() and tuple(other.shape) == (*one.shape, 2)


def as_pair(value: torch.Tensor) -> torch.Tensor:
    """Give a complex tensor of shape ``S`` as reals of shape ``(*S, 2)``."""
    return torch.view_as_real(value.resolve_conj())


def in_pairs(program: Program, places: Collection[int]) -> Program:
    """Return the same program with some of its complex outputs as pairs of reals.

    Parameters
    ----------
    program : Program
    places : collection of int
        Positions among the leaves of its outputs.
    """
    made = copy.copy(program)
    made.__class__ = type(type(program).__name__, (_Paired, type(program)), {})
    made.__dict__["pairs"] = frozenset(places)
    return made


class _Paired(Program):
    """In front of a program's own class: what it gives, and its graph, end in pairs."""

    pairs: frozenset[int] = frozenset()

    def __call__(self, inputs: Any = None) -> Any:
        return _ending_in_pairs(lambda: super(_Paired, self).__call__(inputs), self.pairs)()  # type: ignore[safe-super]

    def lift_source(self, inputs: Any = None) -> TorchSource | OnnxSource | ArraySource:
        source = super().lift_source(inputs)
        if isinstance(source, OnnxSource):
            return source
        source = replace(source, function=_ending_in_pairs(source.function, self.pairs))
        # The graph of an exported program would be walked as it stands, without what comes after it.
        return replace(source, exported=None) if isinstance(source, TorchSource) else source

    def variant(self, **changes: Any) -> Program:
        return in_pairs(super().variant(**changes), self.pairs)

    def unoptimised(self) -> Program:
        return in_pairs(super().unoptimised(), self.pairs)


def _ending_in_pairs(function: Callable[..., Any], places: Collection[int]) -> Callable[..., Any]:
    def paired(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = flatten(function(*args, **kwargs))
        return unflatten([_paired(leaf) if k in places else leaf for k, (_, leaf) in enumerate(leaves)], spec)

    return paired


def _paired(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return as_pair(leaf)
    if type(leaf).__module__.startswith("jax"):
        import jax.numpy as jnp

        return jnp.stack([leaf.real, leaf.imag], -1)
    return np.stack([leaf.real, leaf.imag], -1)
