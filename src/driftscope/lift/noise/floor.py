"""The noise floor: what ordinary rounding of this program in this dtype does to its outputs.

The lifted graph is run once more, and an observer adds to the outputs of every step the noise of one ordinary
rounding of that operator (:mod:`driftscope.numerics.error_model`). The difference from the clean run is a sample of
the program's own rounding error, propagated by the program itself; its root mean square is the floor.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from driftscope.lift.noise.arithmetics import ARITHMETICS, ORDINARY, Arithmetic
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.noise.measured import TORCH
from driftscope.lift.steps import Lifted, LiftedOutput, Step
from driftscope.numerics import error_model
from driftscope.numerics.error_model import Kernels
from driftscope.numerics.groupings import Growth

__all__ = [
    "ARITHMETICS",
    "ORDINARY",
    "Arithmetic",
    "NoiseSample",
    "carriers",
    "floor64_sample",
    "kernels_of",
    "noise_sample",
    "noise_samples",
    "noisy_run",
]

Watch = Callable[[Step], object]
Allows = Callable[[str, float], bool]

FLOAT64_UNIT = 2.0**-53
#: Floors at ``FLOAT64_UNIT`` come from a run at this unit roundoff, scaled: anything smaller drowns in float64 itself.
SMALL_UNIT = 2.0**-40
#: Where a program amplifies that so far that it saturates (a map iterated fifty times), scaling would hide it: the run
#: is made again a few bits above float64's own rounding. Values that turn over, as beside a mask of -3e38, stay far
#: below the size of the outputs at any unit, and are no amplification.
SMALLEST_UNIT, SATURATED = 2.0**-49, 0.1
#: Noise relative to the values below which a floor is linear in the unit roundoff.
LINEAR = 1e-3
#: A sample carried by fewer elements than this is a poor estimate of the floor, and is taken ``RUNS`` times.
#: Gaussian noise is carried by a third of its elements, so this is an output of 512.
FEW_CARRIERS = 170.0
RUNS = 4


class NoiseSample(list[torch.Tensor | None]):
    """What rounding did to each output in one noise run; None for outputs that hold no floats.

    Parameters
    ----------
    noise : iterable of float64 or complex128 tensor, or None
        In each output's shape; 0 where either run was not finite, or not in the output's format.
    unit : float or None
        The one unit roundoff behind all of it; None when several formats took part.
    lost : sequence of bool tensor or None
        Per output the elements that rounding took from a finite value to none; None where there is no such element.
    """

    def __init__(
        self,
        noise: Iterable[torch.Tensor | None] = (),
        unit: float | None = None,
        lost: Sequence[torch.Tensor | None] = (),
    ):
        super().__init__(noise)
        self.unit = unit
        self.lost = lost

    @property
    def any_lost(self) -> bool:
        """Whether rounding took any finite value away."""
        return any(lost is not None for lost in self.lost)


def noisy_run(
    lifted: Lifted,
    *,
    arithmetic: Arithmetic = ORDINARY,
    seed: int = 0,
    scale: float = 1.0,
    replace: Mapping[str, torch.Tensor] | None = None,
) -> list[LiftedOutput]:
    """Evaluate a lifted graph once, with the noise of ordinary rounding in every step.

    Parameters
    ----------
    lifted : Lifted
    arithmetic : Arithmetic
        What "ordinary" means: the declared formats, or a named cheaper arithmetic.
    seed : int
    scale : float
        Factor on all noise; 0.0 gives the clean run.
    replace : mapping of constant name to float64 tensor, or None

    Raises
    ------
    CannotLift
        Naming the operator that has no float64 evaluation.
    """
    injector = NoiseInjector(arithmetic, seed, scale, kernels=kernels_of(lifted.kind))
    return lifted.run(observe=injector, replace=replace)


def noise_sample(
    lifted: Lifted,
    clean: Sequence[LiftedOutput],
    *,
    arithmetic: Arithmetic = ORDINARY,
    seed: int = 0,
    replace: Mapping[str, torch.Tensor] | None = None,
    revealed: Mapping[str, Growth] | None = None,
    watch: Watch | None = None,
) -> NoiseSample:
    """Sample the rounding error of a program at its outputs: a noisy run minus the clean one.

    Parameters
    ----------
    lifted : Lifted
    clean : sequence of LiftedOutput
        The run without noise (and with the same ``replace``).
    arithmetic, seed, replace
        As for :func:`noisy_run`.
    revealed : mapping of str to Growth, or None
        What the known trees of additions do, by the name of their step.
    watch : callable or None
        Sees every step of one run, so that looking at a program needs no run of its own; its values carry noise.
    """
    kernels = dataclasses.replace(kernels_of(lifted.kind), revealed=revealed or {})
    doubles = [output.format in (torch.float64, torch.complex128) for output in clean]
    sample = NoiseSample([None] * len(clean))
    if not all(doubles):
        sample = _sample(lifted, clean, NoiseInjector(arithmetic, seed, kernels=kernels, watch=watch), replace)
    if any(doubles):
        # Noise of half an ulp of float64 would itself be rounded away: amplify it, and divide again.
        wide = NoiseInjector(
            arithmetic, seed, SMALL_UNIT / FLOAT64_UNIT, kernels=kernels, watch=watch if all(doubles) else None
        )
        fine = _sample(lifted, clean, wide, replace)
        unit = fine.unit if all(doubles) else None
        sample = NoiseSample((f if d else s for s, f, d in zip(sample, fine, doubles, strict=True)), unit)
    return sample


def noise_samples(
    lifted: Lifted,
    clean: Sequence[LiftedOutput],
    *,
    arithmetic: Arithmetic = ORDINARY,
    seed: int = 0,
    revealed: Mapping[str, Growth] | None = None,
    watch: Watch | None = None,
    allows: Allows = lambda _step, _seconds: True,
) -> list[NoiseSample]:
    """Take as many noise samples as a floor needs: one, or more where few elements carry the noise.

    Small outputs are such a case; so is a softmax among near ties, where rounding turns a few rows over and leaves
    the others alone: on attention with inputs x30 one sample lay at 0.48 to 1.50 of the floor, four at 0.80 to 1.27.

    Parameters
    ----------
    lifted, clean, arithmetic, revealed, watch
        As for :func:`noise_sample`.
    seed : int
        Of the first sample; the others follow it.
    allows : callable
        ``allows("noise repeats", seconds)``: whether more than one may be taken.
    """
    options: dict[str, Any] = {"arithmetic": arithmetic, "revealed": revealed}
    begun = time.perf_counter()
    first = noise_sample(lifted, clean, seed=seed, watch=watch, **options)
    took = time.perf_counter() - begun
    fewest = min((carriers(noise) for noise in first if noise is not None), default=math.inf)
    repeated = fewest < FEW_CARRIERS and allows("noise repeats", (RUNS - 1) * took)
    more = range(seed + 1, seed + RUNS) if repeated else ()
    return [first, *(noise_sample(lifted, clean, seed=s, **options) for s in more)]


def carriers(noise: torch.Tensor) -> float:
    """Count the elements that carry a noise sample, as ``(sum n^2)^2 / sum n^4``; infinite without noise."""
    power = noise.abs().square()
    largest = float(power.max()) if power.numel() else 0.0
    if largest == 0.0:
        return math.inf
    power = power / largest  # its square must not underflow
    return float(power.sum() ** 2 / power.square().sum())


def floor64_sample(
    lifted: Lifted,
    clean: Sequence[LiftedOutput],
    ordinary: Sequence[torch.Tensor | None] | None = None,
    *,
    seed: int = 0,
    replace: Mapping[str, torch.Tensor] | None = None,
) -> NoiseSample:
    """Sample what the rounding of float64 itself does to a lifted run: the floor at u = 2^-53.

    It comes from a run at a larger unit roundoff, scaled. That run is saved when ``ordinary`` is a
    :class:`NoiseSample` all of whose noise has one unit roundoff, and is small enough to be linear in it; a program
    in float16 or bfloat16 is run again, because it accumulates in float32 and its sums would be scaled wrongly.
    A value that rounding takes away at the smallest unit too (the logarithm of a determinant whose sign is rounding)
    has noise as large as itself.

    Parameters
    ----------
    lifted, clean, replace
        As for :func:`noise_sample`.
    ordinary : sequence of tensor or None
        An ordinary noise sample of the same graph, when there is one.
    seed : int
    """
    if isinstance(ordinary, NoiseSample) and ordinary.unit is not None and _is_beside(ordinary, clean, LINEAR):
        ratio = FLOAT64_UNIT / ordinary.unit
        return NoiseSample((None if noise is None else noise * ratio for noise in ordinary), FLOAT64_UNIT)
    for unit in (SMALL_UNIT, SMALLEST_UNIT):
        wide = _sample(lifted, clean, NoiseInjector(seed=seed, unit=unit, kernels=kernels_of(lifted.kind)), replace)
        if _is_beside(wide, clean, SATURATED):
            break
    ratio = FLOAT64_UNIT / unit
    noises = [None if noise is None else noise * ratio for noise in wide]
    for k, lost in enumerate(wide.lost):
        value, noise = clean[k].value, noises[k]
        if lost is not None and value is not None and noise is not None:
            noises[k] = torch.where(lost, value.abs(), noise)
    return NoiseSample(noises, FLOAT64_UNIT)


def _sample(
    lifted: Lifted,
    clean: Sequence[LiftedOutput],
    injector: NoiseInjector,
    replace: Mapping[str, torch.Tensor] | None,
) -> NoiseSample:
    noisy = lifted.run(observe=injector, replace=replace)
    seen = {unit for units in injector.units for unit in (units.storage, units.accumulator)}
    noise = (_difference(a, b, injector.scale) for a, b in zip(clean, noisy, strict=True))
    lost = [_lost(a, b) for a, b in zip(clean, noisy, strict=True)]
    return NoiseSample(noise, seen.pop() if len(seen) == 1 else None, lost)


def _lost(clean: LiftedOutput, noisy: LiftedOutput) -> torch.Tensor | None:
    before, after = clean.value, noisy.value
    if before is None or after is None or before.shape != after.shape:
        return None
    if not (before.is_floating_point() or before.is_complex()) or bool(torch.isfinite(after).all()):
        return None
    lost = torch.isfinite(before) & ~torch.isfinite(after)
    return lost if bool(lost.any()) else None


def _difference(clean: LiftedOutput, noisy: LiftedOutput, scale: float) -> torch.Tensor | None:
    before, after = clean.value, noisy.value
    if before is None or after is None or before.shape != after.shape:
        return None
    if not (before.is_floating_point() or before.is_complex()):
        return None
    gap = (after - before) / scale
    held = torch.isfinite(gap)
    if clean.format is not None and clean.format.is_floating_point:
        # What overflows in the native format is not rounded, and its noise would drown everything else.
        held &= before.abs() <= torch.finfo(clean.format).max
    return torch.where(held, gap, torch.zeros((), dtype=gap.dtype, device=gap.device))


def _is_beside(sample: NoiseSample, clean: Sequence[LiftedOutput], share: float) -> bool:
    """Whether the noise is no more than a share of every output it was measured on, and took no value away."""
    if sample.any_lost:
        return False
    for noise, output in zip(sample, clean, strict=True):
        if noise is None or output.value is None or not noise.numel():
            continue
        finite = output.value[torch.isfinite(output.value)]
        if noise.norm() > share * finite.norm():
            return False
    return True


def kernels_of(kind: str) -> Kernels:
    """Groupings of additions that the programs of a kind run with, before any tree of theirs is known."""
    return error_model.ONNXRUNTIME if kind == "onnx" else TORCH
