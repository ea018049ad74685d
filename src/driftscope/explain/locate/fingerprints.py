"""What is remembered of a lifted run: every step that depends on the inputs, with a sketch of each value.

A sketch is an element count and a few sums. The order-free ones are the same for every transposition or reshape of
the same elements, so a value is recognised in a graph that lays it out differently; one sum depends on the order, so
that a transposition that should not be there is seen where the layouts are known to be the same.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from driftscope.lift.steps import Constant, Kind, Step
from driftscope.programs.state.by_tensor import ByTensor
from driftscope.records.finding import Where

# Relative agreement of two sketches. Equal functions agree to 1e-12 here, the smallest planted bug moves 1e-9.
AGREE = 1e-10
# Larger magnitudes are masks (-inf, finfo.min), whatever number a program writes for them. Smaller ones from the second
# number on are, where all that is not as large as the largest is smaller by the third: beside -1e9 nothing else counts.
_HUGE, _LIMIT, _BESIDE = 1e30, 1e6, 1e-4
# Elements that share one row of pseudo-random weights; prime, so that no shape's rows coincide with it.
_ROW = 65521


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is remembered of a value.

    Parameters
    ----------
    count : int
        Elements.
    size : float
        Root mean square of the elements below 1e30.
    sums : tuple of float
        Order-free sums relative to ``size``: first, absolute and fourth moment, and the peak.
    order : float
        A sum that depends on the order of the elements, in row-major order.
    holes : tuple of (int, float)
        How many elements are infinite, NaN or huge, and a sum that depends on where and on their signs.
    plain : bool
        True for integers, masks and tensors of one number: they are in every program, so they are only compared
        where two steps are known to correspond.
    """

    count: int
    size: float
    sums: tuple[float, ...]
    order: float = 0.0
    holes: tuple[int, float] = (0, 0.0)
    plain: bool = False

    def agrees(self, other: Sketch, within: float = AGREE) -> bool:
        """Whether both can be sketches of the same elements in some order."""
        if self.count != other.count or self.holes[0] != other.holes[0]:
            return False
        scale = max(self.size, other.size)
        if not abs(self.size - other.size) <= within * scale:
            return False
        return all(abs(x - y) <= within for x, y in zip(self.sums, other.sums, strict=True))

    def same(self, other: Sketch, within: float = AGREE) -> bool:
        """Whether both can be sketches of the same elements in the same row-major order."""
        # The order-dependent sum adds as many rounding errors as there are elements, with weights up to four.
        ordered = abs(self.order - other.order) <= 4.0 * within
        return self.agrees(other, within) and ordered and abs(self.holes[1] - other.holes[1]) <= 1e-6


@functools.cache
def _weights() -> torch.Tensor:
    return torch.randn(_ROW, dtype=torch.float64, generator=torch.Generator().manual_seed(0x5EED))


class _RowSums(NamedTuple):
    """What one look at all elements gives: sums of powers, the largest magnitude, and a sum that depends on order."""

    first: float = 0.0
    size: float = 0.0
    second: float = 0.0
    fourth: float = 0.0
    peak: float = 0.0
    ordered: float = 0.0


def _sums_of(flat: torch.Tensor) -> _RowSums:
    """Add up a value row by row: each stays in the processor's cache for as long as it is looked at.

    The terms of the ordered sum are weighted by pseudo-random numbers of their positions. Of masks, infinities and NaN
    the peak alone is told.
    """
    weights, count = _weights(), flat.numel()
    weights = weights if flat.is_cpu else weights.to(flat.device)
    room = torch.empty(min(count, _ROW), dtype=torch.float64, device=flat.device)
    first = size = second = fourth = peak = ordered = 0.0
    for number, row in enumerate(flat.split(_ROW) if count > _ROW else (flat,)):
        whole = count > _ROW == row.numel()
        own, along = (room, weights) if whole else (room[: row.numel()], weights[: row.numel()])
        torch.square(row, out=own)
        second += float(torch.dot(row, row))
        fourth += float(torch.dot(own, own))
        torch.abs(row, out=own)
        highest = float(own.amax())
        if not highest < _HUGE:
            return _RowSums(peak=highest)
        first, size, peak = first + float(row.sum()), size + float(own.sum()), max(peak, highest)
        # Another stretch of the same weights tells the rows apart.
        ordered += float(torch.dot(row, along)) * (float(weights[number + 1]) if whole else 1.0)
    return _RowSums(first, size, second, fourth, peak, ordered)


def _limit_of(flat: torch.Tensor, peak: float) -> float:
    """The magnitude from which on elements are a mask: half the largest, where all others are far smaller."""
    if not peak < _HUGE:
        return _HUGE
    rest = flat.abs()
    rest = rest[rest < peak / 2.0]
    return peak / 2.0 if rest.numel() and 0.0 < float(rest.amax()) < _BESIDE * peak else _HUGE


def sketch(value: torch.Tensor) -> Sketch | None:
    """Sketch a tensor, a complex one as its two parts; None for sparse, quantised, empty or all-NaN ones."""
    if value.is_nested or value.is_quantized or value.layout is not torch.strided:
        return None
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value  # as ONNX stores it
    if value.numel() == 0 or value.numel() > _ROW * (_ROW - 1):
        return None
    flat = value.reshape(-1).to(torch.float64)
    count, sums, holes = flat.numel(), _sums_of(flat), (0, 0.0)
    huge = _HUGE if sums.peak < _LIMIT else _limit_of(flat, sums.peak)
    if not sums.peak < huge:  # also NaN
        usable = torch.isfinite(flat) & (flat.abs() < huge)
        missing = (~usable).to(torch.float64)
        gone = int(missing.sum())
        if gone == count:
            return None
        missing = torch.where(flat < 0.0, -missing, missing)  # what hides on one side shows on the other
        holes = (gone, _sums_of(missing).ordered / gone)
        flat = torch.where(usable, flat, torch.zeros((), dtype=flat.dtype, device=flat.device))
        sums = _sums_of(flat)
    size = math.sqrt(sums.second) / count**0.5
    if size == 0.0:
        return Sketch(count, 0.0, (0.0, 0.0, 0.0, 0.0), 0.0, holes, plain=True)
    fourth = math.sqrt(sums.fourth) / (count**0.5 * size * size)
    # All elements can be one number only where none is larger than the mean.
    uniform = count > 1 and sums.peak * count <= sums.size * (1.0 + AGREE) and bool((flat == flat[0]).all())
    plain = uniform or not value.dtype.is_floating_point
    relative = (sums.first / (count * size), sums.size / (count * size), fourth, sums.peak / size)
    return Sketch(count, size, relative, sums.ordered / (count**0.5 * size), holes, plain)


def _is_viewed(source: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether a value is its source in another shape: the same memory, read in the same order."""
    if source.layout is not torch.strided or value.layout is not torch.strided or source.dtype != value.dtype:
        return False
    if source.numel() != value.numel() or source.data_ptr() != value.data_ptr():
        return False
    one, two = source.squeeze(), value.squeeze()
    alike = one.shape == two.shape and one.stride() == two.stride()
    return alike or (one.is_contiguous() and two.is_contiguous())


@dataclass(slots=True)
class Visited:
    """One step of a lifted run as it is remembered: everything but the values.

    ``sketches`` are those of its outputs, ``taken`` those of its inputs (None for constants), ``shapes`` those of
    its outputs, ``stored`` the names of the constants it reads, directly or through views and other constant steps,
    ``traced`` name and target of the exporter's node it was made of.
    """

    index: int
    name: str
    operator: str
    where: Where
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sketches: tuple[Sketch | None, ...]
    kind: Kind
    attributes: Mapping[str, object]
    taken: tuple[Sketch | None, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    stored: tuple[str, ...] = ()
    traced: tuple[str, str] = ("", "")

    @property
    def inside(self) -> bool:
        """Whether it is the inside of a fused operator: such a step names no inputs, the whole follows it."""
        return not any(self.inputs)

    def reads(self, constant: Constant) -> bool:
        """Whether it reads a constant, as far as its graph or the constant says it."""
        return constant.name in self.stored or self.name in (constant.where.node, *constant.readers)

    @property
    def rank(self) -> int:
        """Dimensions of its first output."""
        return len(self.shapes[0]) if self.shapes else 0


def steps_to(
    end: Visited, makers: Mapping[str, Visited], known: Callable[[Sketch], bool], most: int
) -> dict[int, Visited]:
    """The steps that lead to ``end`` from known values, by index; of more than ``most`` those found first."""
    members, left = {end.index: end}, list(end.inputs)
    while left and len(members) <= most:
        maker = makers.get(left.pop())
        if maker is None or maker.index in members or any(s is not None and known(s) for s in maker.sketches):
            continue
        members[maker.index] = maker
        left.extend(maker.inputs)
    return members


def common_values(one: Visited, other: Visited) -> int:
    """Count the values that both steps take."""
    left = [t for t in other.taken if t is not None and not t.plain]
    count = 0
    for value in one.taken:
        hit = next((t for t in left if value is not None and value.agrees(t)), None)
        if hit is not None:
            left.remove(hit)
            count += 1
    return count


def boundary(piece: Sequence[Visited]) -> dict[str, Visited]:
    """The values that a piece reads from outside, each with its first reader in the piece."""
    made = {name for step in piece for name in step.outputs}
    readers: dict[str, Visited] = {}
    for step in piece:
        for name, taken in zip(step.inputs, step.taken, strict=False):
            if name and name not in made and taken is not None:
                readers.setdefault(name, step)
    return readers


def reached_from(steps: Sequence[Visited], names: Iterable[str]) -> set[str]:
    """Some values of a run and all that is computed from them."""
    reached = set(names)
    for step in steps:
        if not reached.isdisjoint(step.inputs):
            reached.update(step.outputs)
    return reached


@dataclass(slots=True)
class Trail:
    """An observer that keeps the steps of a run that depend on the inputs, with sketches of their outputs.

    Parameters
    ----------
    constants : frozenset of str
        Names of the graph's constants.
    tape : bool
        Whether the graph is a torch tape.
    force : mapping of str to Tensor
        Values, by their names, to put in the place of what the run computes: teacher forcing.
    known : ByTensor of (int, Sketch), or None
        Versions and sketches of tensors that are seen in several runs.
    """

    constants: frozenset[str] = frozenset()
    tape: bool = True
    force: Mapping[str, torch.Tensor] = field(default_factory=dict)
    known: ByTensor[tuple[int, Sketch | None]] | None = None
    inputs: dict[str, Sketch | None] = field(default_factory=dict)
    steps: list[Visited] = field(default_factory=list)
    current: dict[str, Sketch | None] = field(default_factory=dict)
    behind: dict[str, tuple[str, ...]] = field(default_factory=dict)
    replaced: dict[str, torch.Tensor] = field(default_factory=dict)  # what was computed where values were forced

    def __call__(self, step: Step) -> list[torch.Tensor | None] | None:
        stored = self._stored(step)
        if step.constant:
            self.behind.update((name, (*stored, name)) for name in step.output_names)
            return None
        outputs = forced(step, self.force, self.tape)
        shown = step.outputs if outputs is None else outputs
        if outputs is not None:
            own = zip(step.output_names, step.outputs, strict=False)
            self.replaced.update((name, value) for name, value in own if name in self.force and value is not None)
        # An operator inside a fused kernel reads what others there made, which has no name.
        taken = tuple(
            self._seen(v) if step.held and not name and v is not None else self._taken(name, v)
            for name, v in zip(step.input_names, step.inputs, strict=False)
        )
        sketches = tuple(None if v is None else self._sketch(v, step.inputs) for v in shown)
        self.steps.append(
            Visited(
                len(self.steps), step.name, step.operator, step.where, tuple(step.input_names),
                tuple(step.output_names), sketches, step.rounding.kind, dict(step.attributes), taken,
                tuple(() if v is None else tuple(v.shape) for v in shown), stored, step.traced,
            )
        )  # fmt: skip
        self.current.update(zip(step.output_names, sketches, strict=False))
        return outputs

    def _sketch(self, value: torch.Tensor, inputs: Sequence[torch.Tensor | None] = ()) -> Sketch | None:
        """Sketch a value; what only views the first input of its step is known already."""
        if self.known is None:
            return sketch(value)
        version, found = self.known.get(value) or (-1, None)
        if version != value._version:  # a program may write into a value that was seen
            source = inputs[0] if len(inputs) else None
            old = self.known.get(source) if source is not None and _is_viewed(source, value) else None
            found = old[1] if old is not None and source is not None and old[0] == source._version else sketch(value)
            self.known[value] = value._version, found
        return found

    def _seen(self, value: torch.Tensor) -> Sketch | None:
        """The sketch of a tensor that a step made, as long as nobody has written into it."""
        version, found = (-1, None) if self.known is None else self.known.get(value) or (-1, None)
        return found if version == value._version else None

    def _stored(self, step: Step) -> tuple[str, ...]:
        names = [source for name in step.input_names for source in self.behind.get(name, (name,))]
        return tuple(dict.fromkeys(name for name in names if name in self.constants or name in self.behind))

    def _taken(self, name: str, value: torch.Tensor | None) -> Sketch | None:
        if name in self.current:
            return self.current[name]
        # A tape reads weights through views that it does not show; its inputs are called in[...].
        constant = not name or name in self.constants or name in self.behind
        if constant or value is None or (self.tape and not name.startswith("in[")):
            return None
        return self.inputs.setdefault(name, self._sketch(value))


def forced(step: Step, force: Mapping[str, torch.Tensor], tape: bool) -> list[torch.Tensor | None] | None:
    """The outputs of a step with the forced values in their places; None when none of them is forced."""
    if not any(name in force for name in step.output_names):
        return None
    pairs = zip(step.output_names, step.outputs, strict=False)
    return [_like(force[n], v, tape) if n in force and v is not None else v for n, v in pairs]


def _like(value: torch.Tensor, computed: torch.Tensor, tape: bool) -> torch.Tensor:
    """The forced value in the computed one's dtype and shape; a graph takes another order of axes, a tape does not."""
    if computed.is_complex() and not value.is_complex() and value.numel() == 2 * computed.numel():
        value = torch.view_as_complex(value.reshape(*computed.shape, 2).contiguous())
    value = value.to(computed)
    if not tape and value.ndim == computed.ndim and sorted(value.shape) == sorted(computed.shape):
        return value
    return value.reshape(computed.shape) if value.numel() == computed.numel() else computed


class ValueIndex:
    """Sketches of one run, found by element count and size."""

    def __init__(self, trail: Trail, within: float = AGREE):
        self._within = within
        self._by_count: dict[int, list[tuple[Sketch, str]]] = {}
        computed = [pair for step in trail.steps for pair in zip(step.outputs, step.sketches, strict=False)]
        for name, found in (*trail.inputs.items(), *computed):
            if found is not None and not found.plain:
                self._by_count.setdefault(found.count, []).append((found, name))
        for found_list in self._by_count.values():
            found_list.sort(key=lambda entry: entry[0].size)

    def names_of(self, wanted: Sketch | None) -> list[str]:
        """Names of the values with the same elements; those in the same order first."""
        if wanted is None or wanted.plain:
            return []
        ordered: list[str] = []
        moved: list[str] = []
        for candidate, name in self._near(wanted):
            if candidate.agrees(wanted, self._within):
                (ordered if candidate.same(wanted, self._within) else moved).append(name)
        return ordered + moved

    def _near(self, wanted: Sketch) -> Iterator[tuple[Sketch, str]]:
        candidates = self._by_count.get(wanted.count, [])
        slack = 2 * self._within
        low = bisect.bisect_left(candidates, wanted.size * (1 - slack), key=lambda entry: entry[0].size)
        high = wanted.size * (1 + slack)
        while low < len(candidates) and candidates[low][0].size <= high:
            yield candidates[low]
            low += 1

    def holds(self, wanted: Sketch | None) -> bool:
        """Whether some value of the run has the same elements."""
        return bool(self.names_of(wanted))

    def holds_in_order(self, wanted: Sketch | None) -> bool:
        """Whether some value of the run has the same elements in the same order."""
        return wanted is not None and any(s.same(wanted, self._within) for s, _ in self._near(wanted))

    def name_of(self, wanted: Sketch | None) -> str:
        """The first name of a value with the same elements; "" for none."""
        return next(iter(self.names_of(wanted)), "")
