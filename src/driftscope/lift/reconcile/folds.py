"""Which stored tensors of one program are an affine piece of the other, folded.

The stored tensor was computed in the model's dtype, so as a float64 function the export is off by that rounding.
Within two ulps of float32, at the size of the terms that were added up, it is that fold, and the exact one takes its
place. Two ulps of a narrower format would also hide another epsilon: there the tensor has to be the rounding of the
exact fold, or the very bits of the fold computed again in that format, in each way that exporters and optimisers
write it. Nothing is fitted here.

Each tensor is read once for two norms that do not depend on the order of its elements; only tensors whose norms agree
are compared, so the cost is linear in the weights.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from driftscope.comparison.measuring.spread import largest_magnitude
from driftscope.lift.constant_cache import Product
from driftscope.lift.kept import look, remember, remembered
from driftscope.lift.readings import norms_of
from driftscope.lift.reconcile.affine import AffinePieces
from driftscope.lift.reconcile.arrangements import arranged, rearrangements
from driftscope.lift.reconcile.made import MadeAhead
from driftscope.lift.reconcile.maps import Map, Statistic
from driftscope.lift.reconcile.matching import (
    Repair,
    WeightIndex,
    is_folded,
    match_joined,
    narrower,
    rounded_twice,
    uniform,
    within_ulps,
)
from driftscope.lift.reconcile.scalars import MeantNumber, numbers
from driftscope.lift.reconcile.sides import ReconciledSide
from driftscope.lift.steps import Constant, Lifted, Observer, Origin, Step
from driftscope.records.finding import Where

# Elements of a tensor that are looked at before all of it, and how far off they may be for that: units of rounding of
# the largest terms, and a share of their own size.
_PROBED, _PROBE_REACH, _PROBE_SHARE = 64, 64.0, 0.05
# Tensors of so few elements are all looked at; of larger ones those of one size, or of one filter.
_FEW, _SMALL = 4096, "small"
# Agreement of norms, in roundings of the terms.
_ALIKE = 16.0


@dataclass(frozen=True)
class _Candidate:
    """A tensor that folding would compute, with the sizes of its terms; multiplied out where somebody looks."""

    exact: Product
    size: Product
    replays: tuple[torch.Tensor, ...]
    words: str
    sources: tuple[str, ...]

    @property
    def shape(self) -> torch.Size:
        """Its shape."""
        return self.exact.value.shape

    @property
    def norms(self) -> tuple[float, float]:
        """Its norms."""
        return self._looked[0]

    @cached_property
    def _looked(self) -> tuple[tuple[float, float], float]:
        """Its norms and its largest number, of one product."""
        made = self.exact.fresh()
        return norms_of(made), largest_magnitude(made)

    @cached_property
    def slack(self) -> tuple[float, float]:
        """The norms of the sizes of its terms."""
        return self.norms if self.size is self.exact else norms_of(self.size.fresh())

    @cached_property
    def largest(self) -> float:
        """The largest term."""
        return self._looked[1] if self.size is self.exact else largest_magnitude(self.size.fresh())


class Folds:
    """Everything that folding affine pieces of one program can store.

    Parameters
    ----------
    graph : Lifted
        The program; it is run once to read its graph.
    constants : sequence of Constant
        Its constants.
    meant : mapping of str to Tensor
        What constants of it are meant to be, where that is not what is stored.
    keep : bool
        Whether others will look at that run too.
    """

    def __init__(
        self, graph: Lifted, constants: Sequence[Constant], meant: Mapping[str, torch.Tensor] | None = None,
        keep: bool = False,
    ):  # fmt: skip
        known = None if meant else remembered(graph, AffinePieces)
        pieces = known or AffinePieces.of(constants)
        if known is None:
            look(graph, _as_meant(pieces, meant) if meant else pieces, keep=keep)
        self.maps = pieces.folded
        found = [c for piece in self.maps for c in _candidates(piece)]
        found += [_statistic(made) for made in pieces.statistics if made.value.numel() > 1]
        self._groups: dict[Hashable, list[tuple[int, _Candidate]]] = {}
        for each in enumerate(found):
            for group in _groups_of(each[1].shape):
                self._groups.setdefault(group, []).append(each)
        self._by_norm: dict[Hashable, tuple[list[float], list[tuple[int, _Candidate]]]] = {}
        self._pool = sorted((n for n in numbers(constants) if n.value > 0 and n.value != 1.0), key=lambda n: n.value)
        self._values = [n.value for n in self._pool]
        self._constants = constants

    def match(self, constant: Constant, ulps: float, sign: float = 1.0) -> Repair | None:
        """Find the fold that a stored tensor is, or what the sign makes of it.

        Parameters
        ----------
        constant : Constant
        ulps : float
            Largest distance for each of two roundings, in ulps of the stored format at the size of the terms.
        """
        norms = norms_of(constant.value)
        spacing = torch.finfo(constant.value.dtype).eps
        for candidate in self._near(norms, spacing, constant.value.shape):
            value = _fitting(sign * constant.value, candidate, ulps)
            if value is not None:
                words = candidate.words if sign > 0.0 else f"-({candidate.words})"
                return Repair(constant.name, sign * value, "fold", words, constant, candidate.sources)
        return self._scaled(constant, norms, ulps) if sign > 0.0 else None

    def resembles(self, constant: Constant) -> bool:
        """Whether a stored tensor has the norms of some fold: what has not is none, with either sign."""
        value = constant.value
        return next(self._near(norms_of(value), torch.finfo(value.dtype).eps, value.shape), None) is not None

    @cached_property
    def _weights(self) -> Mapping[int, list[Constant]]:
        found: dict[int, list[Constant]] = {}
        for c in self._constants:
            if c.value.dtype.is_floating_point and c.value.numel() > 1:
                found.setdefault(c.value.numel(), []).append(c)
        return found

    def _near(self, norms: tuple[float, float], spacing: float, shape: torch.Size) -> Iterator[_Candidate]:
        # Cancelled biases have norms far below those of their terms, so the window is taken wide and then checked.
        reach = norms[1] * (_ALIKE * spacing + 2e-2)
        found: dict[int, _Candidate] = {}
        for group in (_SMALL, *_groups_of(shape)):
            sizes, candidates = self._ordered(group)
            first = bisect.bisect_left(sizes, norms[1] - reach)
            found.update(candidates[first : bisect.bisect_right(sizes, norms[1] + reach)])
        for _, candidate in sorted(found.items(), key=lambda item: (item[1].norms[1], item[0])):
            pairs = zip(norms, candidate.norms, candidate.slack, strict=True)
            # What was folded in a narrow format may be stored in a wider one.
            coarsest = max([spacing, *(torch.finfo(r.dtype).eps for r in candidate.replays[:1])])
            if all(abs(mine - theirs) <= _ALIKE * coarsest * slack for mine, theirs, slack in pairs):
                yield candidate

    def _ordered(self, group: Hashable) -> tuple[list[float], list[tuple[int, _Candidate]]]:
        """The folds of a group by their norms, which are read when somebody asks for the group."""
        if group not in self._by_norm:
            found = sorted(self._groups.get(group, ()), key=lambda item: item[1].norms[1])
            self._by_norm[group] = [c.norms[1] for _, c in found], found
        return self._by_norm[group]

    def _scaled(self, constant: Constant, norms: tuple[float, float], ulps: float) -> Repair | None:
        """A weight with a number multiplied in that the program holds: a scale inside a fused kernel."""
        own, stored = constant.value.dtype, constant.value.to(torch.float64)
        for partner in self._weights.get(constant.value.numel(), ()):
            theirs = norms_of(partner.value)
            if narrower(partner.value.dtype, own) or uniform(partner) is not None or not min(theirs) > 0:
                continue
            wider = narrower(own, partner.value.dtype)
            rounded = rounded_twice if wider else partial(within_ulps, ulps=ulps)
            ratios = [mine / other for mine, other in zip(norms, theirs, strict=True)]
            if not math.isclose(*ratios, rel_tol=1e-3) or ratios[1] == 0.0:
                continue
            for number in self.numbers_near(ratios[1], torch.finfo(own).eps):
                if number.derived and abs(number.value - 1.0) < 0.5 * torch.finfo(own).eps:
                    continue  # 1 - 1e-12, which anybody has who has 1e-12: it changes nothing here
                exact = partner.value.to(torch.float64) * number.value
                for laid in rearrangements(exact, constant.value.shape):
                    if rounded(stored, laid, laid, own):
                        words = f"{partner.name} times {number.words}"
                        return Repair(constant.name, laid.contiguous(), "fold", words, constant, (partner.name,))
        return None

    def numbers_near(self, factor: float, spacing: float) -> Sequence[MeantNumber]:
        """The numbers of the program that may be a factor, rounded."""
        first = bisect.bisect_left(self._values, factor * (1 - spacing))
        return self._pool[first : bisect.bisect_right(self._values, factor * (1 + spacing))]


def match_folds(
    left: Sequence[Constant], other: ReconciledSide, ulps: float, repairs: Sequence[Repair] = (), *,
    joined: bool = False, keep: bool = False,
) -> list[Repair]:  # fmt: skip
    """Match stored tensors that nothing else explains with the folds the other program's graph allows.

    Parameters
    ----------
    left : sequence of Constant
        Constants of one program without a partner; which of them resemble no fold the other side remembers.
    other : ReconciledSide
    ulps : float
    repairs : sequence of Repair
        In force in the other program: what is folded from a constant subgraph is meant as that is.
    joined : bool
        Whether a tensor may be joined of folds and weights (query, key and value).
    keep : bool
        Whether others will look at a run of the other program too.
    """
    if not left:
        return []
    index, meant = other.index if joined else None, _tables(repairs)
    folds = folds_of(other, meant, keep)
    found = _matches(left, folds, ulps, index)
    names = {r.name for r in found}
    rest = [c for c in left if c.name not in names]
    other.unlike.update(c.name for c in rest if not folds.resembles(c))
    found += _matches(rest, folds_of(other), ulps, index) if rest and meant else []
    if joined and len(found) < len(left):
        settled, stored = {r.name for r in found}, {c.name: c.value for c in other.constants}
        made = MadeAhead({**stored, **other.computed, **meant}, folds.maps, folds.numbers_near)
        unknown = [c for c in rest if c.name not in settled and not made.has_nearly(c)]
        found += _matches(unknown, made, ulps, index)
    return found


def folds_of(side: ReconciledSide, meant: Mapping[str, torch.Tensor] | None = None, keep: bool = False) -> Folds:
    """The folds of a program; as it is stored they are remembered where its pieces are. See :class:`Folds`."""
    if meant:
        return Folds(side.graph, side.constants, meant, keep=keep)
    known = remembered(side.graph, Folds)
    if known is None:
        known = Folds(side.graph, side.constants, keep=keep)
        if remembered(side.graph, AffinePieces) is not None:
            remember(side.graph, known)
    return known


def folds_are_known(side: ReconciledSide) -> bool:
    """Whether a program has pieces that can be folded, as an earlier run of it has shown."""
    pieces = remembered(side.graph, AffinePieces)
    return pieces is not None and any(piece.weight_rounds or piece.bias_rounds for piece in pieces.folded)


def all_folded(left: Sequence[Constant], other: ReconciledSide, ulps: float) -> list[Repair]:
    """The folds of the other program that stored tensors are, where no run is needed to know them and all are some."""
    found: list[Repair] = []
    if not left or not folds_are_known(other):
        return found
    folds = folds_of(other)
    for constant in left:
        matches = _matches([constant], folds, ulps, other.index)
        if not matches:
            return []
        found += matches
    return found


def match_parts(
    stored: Sequence[Constant], other: ReconciledSide, ulps: float, repairs: Sequence[Repair]
) -> list[Repair]:
    """Match tensors with the folds of the other program, or with what is subtracted there: by themselves no proof."""
    floats = (c for c in stored if c.value.dtype.is_floating_point and c.value.numel() > 1)
    tensors = [c for c in floats if c.name not in other.unlike]
    if not tensors:
        return []
    folds = folds_of(other, _tables(repairs))
    found = (folds.match(c, ulps) or folds.match(c, ulps, -1.0) for c in tensors)
    return [repair for repair in found if repair is not None]


def _tables(repairs: Sequence[Repair]) -> dict[str, torch.Tensor]:
    return {r.name: r.value for r in repairs if r.kind == "table"}


def _as_meant(pieces: AffinePieces, meant: Mapping[str, torch.Tensor]) -> Observer:
    """Let pieces be read with constants as they are meant."""

    def see(step: Step) -> None:
        given = zip(step.input_names, step.inputs, step.held or [False] * len(step.inputs), strict=True)
        inputs = [meant[name].to(x) if held and x is not None and name in meant else x for name, x, held in given]
        pieces(dataclasses.replace(step, inputs=inputs))

    return see


def _matches(
    left: Sequence[Constant], folds: Folds | MadeAhead, ulps: float, index: WeightIndex | None
) -> list[Repair]:
    repairs = []
    for constant in left:
        found = folds.match(constant, ulps)
        if found is None and index is not None:
            found = match_joined(constant, index, joins=1, more=lambda block: folds.match(block, ulps))
            found = None if found is None else dataclasses.replace(found, kind="fold")
        repairs += [] if found is None else [found]
    return repairs


def folded_values(graph: Lifted, sizes: Collection[int] | None = None) -> dict[str, tuple[Constant, tuple[str, ...]]]:
    """Every tensor that folding affine pieces of a program computes, by what was folded.

    Parameters
    ----------
    graph : Lifted
    sizes : collection of int, or None
        Numbers of elements that are asked for; None for all.

    Returns
    -------
    dict of str to (Constant, tuple of str)
        The fold, exact in float64, and the names of the constants that it was computed from.
    """
    known = remembered(graph, AffinePieces)
    pieces = known or AffinePieces.of(graph.constants())
    if known is None:
        look(graph, pieces)
    found: dict[str, _Candidate] = {}
    for candidate in (c for piece in pieces.folded for c in _candidates(piece)):
        # A piece gives a weight and a bias; the weight comes first.
        found[f"{candidate.words} (bias)" if candidate.words in found else candidate.words] = candidate
    return {
        name: (Constant(name, candidate.exact.made(), Origin.COMPUTED, Where()), candidate.sources)
        for name, candidate in found.items()
        if sizes is None or candidate.shape.numel() in sizes
    }


def _candidates(piece: Map) -> Iterator[_Candidate]:
    words = f"{piece.steps[0]} folded with {', '.join(piece.steps[1:])}" if piece.steps[1:] else piece.steps[0]
    parts = (
        (piece.product, piece.terms, piece.weight_rounds, tuple(w for w, _ in piece.replays)),
        (Product(piece.bias), Product(piece.magnitude), piece.bias_rounds, tuple(b for _, b in piece.replays)),
    )
    for exact, size, rounds, replays in parts:
        if rounds:
            yield _Candidate(exact, size, replays, words, piece.sources)


def _statistic(made: Statistic) -> _Candidate:
    exact = Product(made.value)
    return _Candidate(exact, exact if made.size is made.value else Product(made.size), (), made.words, made.sources)


def _fitting(native: torch.Tensor, candidate: _Candidate, ulps: float) -> torch.Tensor | None:
    """The exact fold in the stored arrangement, where the stored tensor is its rounding."""
    stored = native.to(torch.float64)
    coarsest = max(torch.finfo(t.dtype).eps for t in (native, *candidate.replays))
    probe = np.linspace(0, stored.numel() - 1, min(stored.numel(), _PROBED)).astype(np.int64)
    # Not torch.unravel_index, which imports sympy.
    places = tuple(torch.from_numpy(place) for place in np.unravel_index(probe, stored.shape)) if stored.ndim else ...
    few, reach = stored[places], _PROBE_REACH * coarsest * candidate.largest
    exact = candidate.exact.fresh()
    for k, value in enumerate(arranged(exact, stored.shape)):
        some = value[places]
        # A large weight has many arrangements, most of which a few elements rule out.
        if bool(((few - some).abs() > reach + _PROBE_SHARE * some.abs()).any()):
            continue
        sizes = exact if candidate.size is candidate.exact else candidate.size.fresh()
        size = next(itertools.islice(arranged(sizes, stored.shape), k, None))
        again = (arranged(r.to(torch.float64), stored.shape) for r in candidate.replays)
        natives = [next(itertools.islice(r, k, None), None) for r in again]
        # A runtime that computes in float32 stores what it folded in the file's format as float32.
        folded = any(n is not None and torch.equal(n, stored) for n in natives)
        if folded or is_folded(native, value, size, ulps):
            return value.contiguous()
    return None


def _groups_of(shape: torch.Size) -> list[Hashable]:
    """Where folds of a shape stand, and where those are looked for that may be laid out in it (see ``arranged``)."""
    numel = shape.numel()
    if numel <= _FEW:
        return [_SMALL]
    filters = [tuple(shape[2:])] if len(shape) == 4 else []
    return [numel, *filters, *(["vector"] if shape[0] == numel else [])]
