"""Constant subgraphs: what a program computes from constants alone, judged in its own measured floor.

Rotary tables, relative embeddings, normalised weights, interpolated positions, masks: exporters and runtimes evaluate
them natively and store the result, or another format or another spelling gives other last bits. Evaluated in float64
both are one function or they are not. So the native value of each is held against its float64 value in the floor that
noise going the same way has there, and where it is rounding the float64 value takes its place: on the side that
computes it, and on the other side where a stored tensor is the same table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.comparison.measuring.spread import drift_in_floors, finite, shared_sentinels
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.reconcile.matching import Repair, rearrangements
from driftscope.lift.steps import Constant, Lifted, Origin
from driftscope.numerics import error_model

#: What a constant is that its own program computes from others.
OWN = "what its own constants give in float64, rounded on the way"
# A single noise sample says little about a table of a few elements, and is free there.
_RUNS = 4
_MANY = 1 << 20
# Norms of a table and of its rounding agree this well, whatever the order of the elements.
_ALIKE = 2e-2


@dataclass(slots=True)
class Subgraphs:
    """The constant subgraphs of one lifted program.

    Parameters
    ----------
    exact : dict of str to Tensor
        Every real value they compute, in float64, from constants as stored.
    meant : dict of str to Tensor
        The same from repaired constants.
    noises : list of dict of str to Tensor
        What ordinary rounding did to each, once per noise run.
    """

    exact: dict[str, torch.Tensor]
    meant: dict[str, torch.Tensor]
    noises: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def noise_of(self, name: str) -> list[torch.Tensor]:
        """The noise samples of one value, scaled so that their squares add up to its floor squared."""
        found = [run[name] for run in self.noises if name in run and run[name].shape == self.exact[name].shape]
        return [n * len(found) ** -0.5 for n in found]


def evaluate(graph: Lifted, repaired: Mapping[str, torch.Tensor], seed: int = 0) -> Subgraphs:
    """Evaluate the constant subgraphs of a program in float64, with and without the noise of ordinary rounding.

    Parameters
    ----------
    graph : Lifted
    repaired : mapping of constant name to float64 tensor
        Constants known to be another number, rounded.
    seed : int
    """
    exact = graph.constant_values()
    if not exact:
        return Subgraphs({}, {})
    meant = graph.constant_values(replace=repaired) if repaired else exact
    kernels = error_model.ONNXRUNTIME if graph.kind == "onnx" else error_model.TORCH
    runs = _RUNS if sum(v.numel() for v in exact.values()) <= _MANY else 1
    noises = []
    for run in range(runs):
        noisy = graph.constant_values(observe=NoiseInjector(seed=seed + run, kernels=kernels))
        noises.append({name: finite(noisy[name] - value) for name, value in exact.items() if name in noisy})
    return Subgraphs(exact, meant, noises)


def computed_repairs(constants: Sequence[Constant], found: Subgraphs, limit: float) -> list[Repair]:
    """Give the computed constants of a program their float64 values, where what they natively are is rounding of it.

    Parameters
    ----------
    constants : sequence of Constant
    found : Subgraphs
        Of the same program.
    limit : float
        Floors that ordinary rounding may reach.
    """
    repairs = []
    for constant in constants:
        if constant.origin is not Origin.COMPUTED or not constant.frontier or constant.name not in found.exact:
            continue
        exact, meant = found.exact[constant.name], found.meant.get(constant.name)
        native = _wide(constant.value)
        if meant is None or native.shape != meant.shape or torch.equal(native, meant):
            continue
        # Numbers that a program writes into a tensor are rounded to its format by no step of their own.
        noises = [*found.noise_of(constant.name), _storing(exact, constant.value.dtype)]
        if _is_rounding(native, exact, noises, limit):
            repairs.append(Repair(constant.name, meant, "table", OWN, constant))
    return repairs


def stored_repairs(left: Sequence[Constant], found: Subgraphs, limit: float) -> list[Repair]:
    """Match stored tensors with what the other program computes from constants.

    Parameters
    ----------
    left : sequence of Constant
        Tensors of one program that are no stored tensor of the other.
    found : Subgraphs
        Of the other program.
    limit : float
    """
    sizes = {name: _norms(value) for name, value in found.exact.items() if value.numel() > 1}
    by_count: dict[int, list[str]] = {}
    for name in sizes:
        by_count.setdefault(found.exact[name].numel(), []).append(name)
    repairs = []
    for constant in left:
        repair = _match(constant, found, [(n, sizes[n]) for n in by_count.get(constant.value.numel(), ())], limit)
        if repair is not None:
            repairs.append(repair)
    return repairs


def _match(
    constant: Constant, found: Subgraphs, candidates: Sequence[tuple[str, tuple[float, float]]], limit: float
) -> Repair | None:
    if not candidates:
        return None
    stored = _wide(constant.value)
    own = _norms(stored)
    for name, norms in candidates:
        if not all(math.isclose(one, other, rel_tol=_ALIKE) for one, other in zip(own, norms, strict=True)):
            continue
        exact = found.exact[name]
        noises = [*found.noise_of(name), _storing(exact, constant.value.dtype)]
        largest = max(float(n.abs().max()) for n in noises)
        for arranged, *samples, meant in _alike([exact, *noises, found.meant.get(name, exact)], stored.shape):
            near = float(finite(stored - arranged).abs().max()) <= 8.0 * limit * largest
            if near and _is_rounding(stored, arranged, samples, limit):
                words = f"{name}, computed natively"
                return Repair(constant.name, meant.contiguous(), "table", words, constant, (name,))
    return None


def _alike(tensors: Sequence[torch.Tensor], shape: torch.Size) -> Iterator[tuple[torch.Tensor, ...]]:
    """Arrange several tensors alike, in every way that fits a shape."""
    return zip(*(rearrangements(t, shape) for t in tensors), strict=True)


def _storing(exact: torch.Tensor, fmt: torch.dtype) -> torch.Tensor:
    """What storing a value in a format does to it."""
    return finite(_wide(exact.to(fmt)) - exact) if fmt.is_floating_point or fmt.is_complex else exact.new_zeros(())


def _is_rounding(native: torch.Tensor, exact: torch.Tensor, noises: Sequence[torch.Tensor], limit: float) -> bool:
    if not torch.equal(torch.isnan(native), torch.isnan(exact)):
        return False
    keep = ~shared_sentinels(native, exact)
    if bool((~torch.isfinite(native) & keep).any()):
        return False  # it left the range of its format
    gap = torch.where(keep, native - exact, exact.new_zeros(()))
    return drift_in_floors(finite(gap), [torch.where(keep, n, n.new_zeros(())) for n in noises]).value <= limit


def _norms(value: torch.Tensor) -> tuple[float, float]:
    flat = value.reshape(-1)
    norms = float(torch.linalg.vector_norm(flat, 1.0)), float(torch.linalg.vector_norm(flat, 2.0))
    return norms if math.isfinite(norms[0]) else _norms(finite(flat))


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)
