"""Constant subgraphs: what a program computes from constants alone, judged in its own measured floor.

Rotary tables, relative embeddings, normalised weights, interpolated positions, masks: exporters and runtimes evaluate
them natively and store the result, or another format or another spelling gives other last bits. Evaluated in float64
both are one function or they are not. So the native value of each is held against its float64 value in the floor that
noise going the same way has there, and where it is rounding the float64 value takes its place: on the side that
computes it, and on the other side where a stored tensor is the same table.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

import torch

from driftscope.comparison.measuring.spread import drift_in_floors, finite, largest_magnitude, shared_sentinels
from driftscope.lift.noise.injector import NoiseInjector
from driftscope.lift.reconcile.arrangements import ALIKE, expanded_axis, near, numbered, sizes_of, widened
from driftscope.lift.reconcile.maps import LayersOfConstants
from driftscope.lift.reconcile.matching import HALF_ULP, Repair, clamped_elements, same_name, ulp
from driftscope.lift.reconcile.sides import has_more_digits
from driftscope.lift.steps import Constant, Lifted, Observer, Origin
from driftscope.numerics import error_model

#: What a constant is that its own program computes from others.
GIVEN = "what its own constants give in float64"
OWN = f"{GIVEN}, rounded on the way"
# A single noise sample says little about a table of a few elements, and is free there.
_RUNS = 4
_MANY = 1 << 20
# Bytes that all values of a program's constant subgraphs may take, once for each run; and elements of small ones.
_ROOM, _SMALL = 1 << 30, 1 << 16
# How much larger than the samples of noise added up the error of an element may be.
_EACH = 2.0
# How well the norms of a multiple of a table and of its rounding agree: there are more of them than of tables.
_FACTOR = 1e-3
# Below the most negative number of any format: no mask.
_USUAL = 65504.0


@dataclass(slots=True)
class Subgraphs:
    """The constant subgraphs of one lifted program.

    Parameters
    ----------
    exact : dict of str to Tensor
        Every real value they compute, in float64, from constants as stored.
    meant : dict of str to Tensor
        The same from repaired constants.
    noisy : list of dict of str to Tensor
        The same as ``exact`` with the noise of ordinary rounding, once per noise run.
    loose : dict of str to Tensor
        What rounding constants that only this program stores does to the values that depend on them.
    rounded : dict of str to bool
        Whether the native value of a constant is rounding of its exact one, for those that were asked for.
    formats : dict of str to dtype
        What the values natively are, as far as steps make them.
    finer : callable or None
        Gives ``noisy`` for one unit roundoff in place of every format's own.
    """

    exact: dict[str, torch.Tensor]
    meant: dict[str, torch.Tensor]
    noisy: list[dict[str, torch.Tensor]] = field(default_factory=list)
    loose: dict[str, torch.Tensor] = field(default_factory=dict)
    rounded: dict[str, bool] = field(default_factory=dict)
    formats: dict[str, torch.dtype | None] = field(default_factory=dict)
    finer: Callable[[float], list[dict[str, torch.Tensor]]] | None = None

    def noise_of(self, name: str, stored: torch.Tensor | None = None) -> list[torch.Tensor]:
        """The noise samples of one value, scaled so that their squares add up to its floor squared.

        A tensor that another program stores in a wider format, with more digits than the value natively has, was not
        computed as this program does: its rounding is that of its own format.
        """
        exact, runs = self.exact[name], self.noisy  # few of them are asked for
        if stored is not None and self.finer is not None and has_more_digits(stored, self.formats.get(name)):
            runs = self.finer(torch.finfo(stored.dtype).eps / 2)
        found = [finite(run[name] - exact) for run in runs if name in run and run[name].shape == exact.shape]
        return [n * len(found) ** -0.5 for n in found]


def evaluate(
    graph: Lifted, repaired: Mapping[str, torch.Tensor], seed: int = 0, own: Sequence[Constant] = ()
) -> Subgraphs:
    """Evaluate the constant subgraphs of a program in float64, with and without the noise of ordinary rounding.

    Parameters
    ----------
    graph : Lifted
    repaired : mapping of constant name to float64 tensor
        Constants known to be another number, rounded.
    seed : int
    own : sequence of Constant
        Stored tensors that the other program does not have: what somebody computed ahead of time and stored.
    """
    seen = LayersOfConstants()
    exact = graph.constant_values(observe=seen) | seen.found
    runs, asked = _RUNS if sum(v.numel() for v in exact.values()) <= _MANY else 1, _asked_for(graph, exact)
    if not asked:
        return Subgraphs({}, {})
    exact = {name: exact[name] for name in asked}
    meant = computed(graph, repaired, asked=asked) if repaired else exact
    kernels = error_model.ONNXRUNTIME if graph.kind == "onnx" else error_model.TORCH
    kernels = replace(kernels, divides=True)  # an optimiser evaluates in onnxruntime what it stores

    @cache
    def noisy_in(unit: float | None) -> list[dict[str, torch.Tensor]]:
        noises = (NoiseInjector(seed=seed + run, kernels=kernels, unit=unit) for run in range(runs))
        return [computed(graph, noise=noise, asked=asked) for noise in noises]

    loose: dict[str, torch.Tensor] = {}
    if own:
        moved = computed(graph, {**repaired, **{c.name: _restored(c, seed) for c in own}}, asked=asked)
        gaps = ((n, finite(moved[n] - v)) for n, v in meant.items() if n in moved and not torch.equal(moved[n], v))
        loose = {name: gap for name, gap in gaps if bool(gap.any())}
    return Subgraphs(exact, meant, noisy_in(None), loose, formats=seen.formats, finer=noisy_in)


def _asked_for(graph: Lifted, exact: Mapping[str, torch.Tensor]) -> list[str]:
    """The values that others may store: of large ones only what the program goes on with, or they would fill memory."""
    if 8 * sum(v.numel() for v in exact.values()) <= _ROOM:
        return list(exact)
    used = {c.name for c in graph.constants() if c.origin is Origin.COMPUTED and c.frontier}
    return [name for name, value in exact.items() if name in used or value.numel() <= _SMALL]


def computed(
    graph: Lifted, repaired: Mapping[str, torch.Tensor] | None = None, noise: Observer | None = None,
    asked: Iterable[str] | None = None,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """What a program computes from constants, in float64; and what its layers of constants may be stored as."""
    layers = LayersOfConstants(noise)
    found = graph.constant_values(observe=layers, replace=repaired) | layers.found
    return found if asked is None else {name: found[name] for name in asked if name in found}


def _restored(constant: Constant, seed: int) -> torch.Tensor:
    """A stored tensor, anywhere within the rounding of its format."""
    stored = constant.value.to(torch.float64)
    generator = torch.Generator().manual_seed(seed)
    return stored + (torch.rand(stored.shape, generator=generator, dtype=torch.float64) - 0.5) * ulp(
        stored, constant.value.dtype
    )


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
        native = widened(constant.value)
        if meant is None or native.shape != meant.shape or torch.equal(native, meant):
            continue
        if constant.name not in found.rounded:
            # Numbers that a program writes into a tensor are rounded to its format by no step of their own.
            noises = [*found.noise_of(constant.name), _storing(exact, constant.value.dtype)]
            found.rounded[constant.name] = _is_rounding(native, exact, noises, limit)
        if found.rounded[constant.name]:
            repairs.append(Repair(constant.name, meant, "table", OWN, constant))
    return repairs


def stored_repairs(
    left: Sequence[Constant], found: Subgraphs, limit: float, factors: Sequence[float] = (),
    own: Subgraphs | None = None,
) -> list[Repair]:  # fmt: skip
    """Match stored tensors and numbers with what the other program computes from constants.

    A tensor that was stored in a narrow format and is only cast, or laid out otherwise, is a stored one too.

    Parameters
    ----------
    left : sequence of Constant
        Constants of one program that are no stored ones of the other; those that it does not store (in a tensor, or as
        an attribute of a node) are left out.
    found : Subgraphs
        Of the other program.
    limit : float
    factors : sequence of float
        Numbers of the other program that a table may have been multiplied by.
    own : Subgraphs or None
        Of the same program.
    """
    table = _Tables(found, limit, factors)
    held = (c for c in left if c.origin in (Origin.WEIGHT, Origin.ATTRIBUTE))
    stored = (c for c in held if c.value.dtype.is_floating_point or c.value.numel() > 1)
    repairs = [table.match(c, widened(c.value), []) for c in stored]
    if own is not None:
        repairs += [table.match(c, widened(c.value), [own.loose[c.name]]) for c in left if _is_carried(c, own)]
    return [r for r in repairs if r is not None]


def made_of(repairs: Sequence[Repair], computed: Sequence[Repair]) -> list[Constant]:
    """Constants that were matched with native values of the other program which have others now: to be made anew."""
    replaced = {r.name for r in computed}
    return [r.constant for r in repairs if not replaced.isdisjoint(r.sources)]


def remade(inner: Sequence[Repair], computed: Sequence[Repair], found: Subgraphs, limit: float) -> list[Repair]:
    """Constants of subgraphs that store a table which the other program computes: they mean its float64 values too.

    ``inner`` are repairs of one program, ``computed`` the tables of the other one in float64, ``found`` is of that one.
    """
    return stored_repairs(made_of(inner, computed), found, limit)


def _is_carried(constant: Constant, own: Subgraphs) -> bool:
    """Whether a computed constant has no rounding but that of tensors which only its program stores."""
    exact = own.exact.get(constant.name) if constant.name in own.loose else None
    native = constant.value
    same = exact is not None and exact.shape == native.shape and torch.equal(widened(native), exact)
    return same and constant.origin is Origin.COMPUTED and native.numel() > 1


def paired_repairs(
    repairs: Sequence[Repair], own: Subgraphs, other: Subgraphs, limit: float, factors: Sequence[float] = ()
) -> list[Repair]:
    """Match what both programs compute from constants where one of them stores a part of that computed ahead of time.

    An exporter folds a part of a constant subgraph and leaves the rest: in float64 the rest still carries the rounding
    of that part. Where that is all the difference, the value is the other program's.

    Parameters
    ----------
    repairs : sequence of Repair
        Computed constants of one program that are rounding of their float64 values.
    own, other : Subgraphs
        Of the same program, and of the other one. What is matched is meant in ``own`` from now on.
    limit : float
    factors : sequence of float
        Numbers of the other program that a value may have been multiplied by.
    """
    table = _Tables(other, limit, factors)
    paired = []
    for repair in repairs:
        if repair.value.numel() > 1 and (repair.name in own.loose or other.loose):
            floor = [*own.noise_of(repair.name), *(own.loose[n] for n in (repair.name,) if n in own.loose)]
            found = table.match(repair.constant, repair.value, floor, None if repair.name in own.loose else other.loose)
            if found is not None:
                own.meant[found.name] = found.value
                paired.append(found)
    return paired


class _Tables:
    """What a program computes from constants, by size; ``factors`` are numbers that it may be multiplied by."""

    def __init__(self, found: Subgraphs, limit: float, factors: Sequence[float]):
        self._found, self._limit, self._factors = found, limit, sorted(factors)
        self._by_count: dict[int, list[tuple[str, _Part]]] = {}
        self._taken: set[tuple[str, _Part]] = set()
        self._read: dict[tuple[str, _Part], tuple[float, ...]] = {}
        for name, value in found.exact.items():
            for part in _parts(value) if value.numel() else ():
                self._by_count.setdefault(part(value).numel(), []).append((name, part))

    def match(
        self, constant: Constant, value: torch.Tensor, floor: Sequence[torch.Tensor],
        among: Mapping[str, torch.Tensor] | None = None,
    ) -> Repair | None:  # fmt: skip
        """Find the table (of some, where these are given) that a value of a constant is, within the floors of both."""
        # Rounded, two tables may be one: then names tell them apart, or the order in which they stand.
        candidates = sorted(
            self._by_count.get(value.numel(), []),
            key=lambda c: (not same_name(c[0], constant.name), c in self._taken),
        )
        own = sizes_of(value) if candidates else ()
        top = _largest(floor) if candidates else 0.0
        factors = self._factors if value.numel() > 1 else ()  # one number is a multiple of any other
        named = [c for c in candidates if among is None or c[0] in among]
        for factor, (name, part) in self._multiplied(own, named, factors):
            close = ALIKE if factor == 1.0 else _FACTOR
            wanted = [abs(factor) * n for n in self._readings(name, part)]
            if not all(math.isclose(one, other, rel_tol=close) for one, other in zip(own[:2], wanted[:2], strict=True)):
                continue
            noises = [factor * part(n) for n in self._found.noise_of(name, constant.value)]
            reach = 8.0 * self._limit * max(_largest(noises), _eps(constant.value.dtype) * wanted[2], top)
            # No element is further off: nor is the largest, nor the root of their squares by more than all together.
            far = (abs(one - other) for one, other in zip(own[1:], wanted[1:], strict=True))
            if any(gap > width * reach for gap, width in zip(far, (math.sqrt(value.numel()), 1.0), strict=True)):
                continue
            meant = self._arranged(constant, value, name, part, factor, (noises, floor), reach)
            if meant is not None:
                self._taken.add((name, part))
                words = f"{name}, computed natively" if factor == 1.0 else f"{name} times {factor:.6g}"
                return Repair(constant.name, meant.contiguous(), "table", words, constant, (name,))
        return None

    def _multiplied(
        self, own: Sequence[float], candidates: Sequence[tuple[str, _Part]], factors: Sequence[float]
    ) -> list[tuple[float, tuple[str, _Part]]]:
        """Tables with the factors that may make them as large as a value: as they are first, then the least factor.

        A quantised program has a thousand numbers that could be factors: they are looked up, not tried.
        """
        found = [(False, 1.0, k) for k in range(len(candidates))]
        for k, candidate in enumerate(candidates if factors else ()):
            theirs = self._readings(*candidate)[0]
            ratio = own[0] / theirs if theirs else 0.0
            first = bisect.bisect_left(factors, ratio * (1.0 - 2.0 * _FACTOR))
            last = bisect.bisect_right(factors, ratio * (1.0 + 2.0 * _FACTOR))
            found += [(True, factor, k) for factor in factors[first:last]]
        return [(factor, candidates[k]) for _, factor, k in sorted(found)]

    def _readings(self, name: str, part: _Part) -> tuple[float, ...]:
        """The sizes of a table, read when they are first asked for."""
        known = self._read.get((name, part))
        return known or self._read.setdefault((name, part), sizes_of(part(self._found.exact[name])))

    def _arranged(
        self, constant: Constant, value: torch.Tensor, name: str, part: _Part, factor: float,
        floors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]], reach: float,
    ) -> torch.Tensor | None:  # fmt: skip
        (theirs, floor), exact = floors, factor * part(self._found.exact[name])
        for k, laid in near(exact, value, reach):
            if float(finite(value - laid).abs().max()) > reach:
                continue
            meant = factor * part(self._found.meant.get(name, self._found.exact[name]))
            noises = [*theirs, _storing(exact, constant.value.dtype)]
            *samples, found = (numbered(t, value.shape, k) for t in (*noises, meant))
            each = _each_is_rounding(value, laid, constant.value.dtype, [*samples[:-1], *floor])
            if each and _is_rounding(value, laid, [*samples, *floor], self._limit):
                return found
        return None


def _largest(samples: Sequence[torch.Tensor]) -> float:
    return max((float(n.abs().max()) for n in samples), default=0.0)


_Part = Callable[[torch.Tensor], torch.Tensor]


def _interleaved(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj())


def _parts(value: torch.Tensor) -> Sequence[_Part]:
    """What a program may store of a table: of rotations their cosines and sines, of equal rows one."""
    if value.is_complex():
        return torch.positive, torch.real, torch.imag, _interleaved
    return (torch.positive, *(partial(torch.narrow, dim=axis, start=0, length=1) for axis in expanded_axis(value)))


def _eps(fmt: torch.dtype) -> float:
    return torch.finfo(fmt).eps if fmt.is_floating_point or fmt.is_complex else 0.0


def _storing(exact: torch.Tensor, fmt: torch.dtype) -> torch.Tensor:
    """What storing a value in a format does to it."""
    return finite(widened(exact.to(fmt)) - exact) if fmt.is_floating_point or fmt.is_complex else exact.new_zeros(())


def _is_rounding(native: torch.Tensor, exact: torch.Tensor, noises: Sequence[torch.Tensor], limit: float) -> bool:
    reals = native.numel() > 0 and not (native.is_complex() or exact.is_complex())
    # Nor NaN, which is less than nothing.
    if reals and all(largest_magnitude(x) < _USUAL for x in (native, exact, *noises)):
        return drift_in_floors(native - exact, list(noises), limit).value <= limit
    if not torch.equal(torch.isnan(native), torch.isnan(exact)):
        return False
    keep = ~shared_sentinels(native, exact)
    if bool((~(torch.isfinite(native) & torch.isfinite(exact)) & keep).any()):
        return False  # it left the range of its format, or a mask has its infinities elsewhere
    gap = torch.where(keep, native - exact, exact.new_zeros(()))
    return drift_in_floors(finite(gap), [torch.where(keep, n, n.new_zeros(())) for n in noises], limit).value <= limit


def _each_is_rounding(
    value: torch.Tensor, exact: torch.Tensor, fmt: torch.dtype, noises: Sequence[torch.Tensor]
) -> bool:
    """Whether no element is further off than storing it, and noise as large as the largest sample, put it.

    Of a few elements chance excuses much; but none of them is stored further off than half an ulp.
    """
    if not fmt.is_floating_point:
        return True
    top, size = sum(float(n.abs().max()) for n in noises if n.numel()), torch.maximum(value.abs(), exact.abs())
    gap = finite(value - exact).abs_().sub_(_EACH * top)
    # An ulp is at least half an epsilon of its number: nearly always that is enough, and cheap.
    if bool((gap <= 0.5 * HALF_ULP * torch.finfo(fmt).eps * size).all()):
        return True
    return bool(((gap <= HALF_ULP * ulp(size, fmt)) | clamped_elements(exact, value)).all())
