"""Where two lifted programs part: the first piece of B that takes A's values in and gives others out.

Both programs run once in float64 and every value leaves a sketch: its element count and a few sums that do not
depend on the order of the elements, so that a transposed or reshaped value is the same value. No names are compared,
so a torch module and a file of another exporter align as well as two files of one exporter.

A value of B is *sound* when A computes it too, or when something computed from it is: a graph that computes the
same function in other pieces passes through values A never has and comes back. Pieces that take only sound values
and whose results nothing brings back are where the programs part.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.lift.steps import Kind, Lifted, Step
from driftscope.records.finding import Where

# Relative agreement of two sketches. Equal functions agree to 1e-12 here, the smallest planted bug moves 1e-9.
_AGREE = 1e-10


@dataclass(frozen=True, slots=True)
class Sketch:
    """What is remembered of a value: element count and order-free sums, relative to its size."""

    count: int
    size: float
    sums: tuple[float, ...]

    def agrees(self, other: Sketch) -> bool:
        """Whether both can be sketches of the same elements in some order."""
        if self.count != other.count:
            return False
        scale = max(self.size, other.size)
        if abs(self.size - other.size) > _AGREE * scale:
            return False
        return all(abs(x - y) <= _AGREE for x, y in zip(self.sums, other.sums, strict=True))


def sketch(value: torch.Tensor) -> Sketch | None:
    """Sketch a float tensor; None for anything else, and for NaN, nothing or one number all over."""
    if not value.dtype.is_floating_point or value.numel() == 0:
        return None
    flat = value.reshape(-1)
    peak = float(torch.linalg.vector_norm(flat, float("inf")))
    if not peak < 1e30:  # also NaN: take the slow way only for tensors that hold masks or infinities
        usable = torch.isfinite(flat) & (flat.abs() < 1e30)
        flat = torch.where(usable, flat, torch.zeros((), dtype=flat.dtype, device=flat.device))
        peak = float(torch.linalg.vector_norm(flat, float("inf")))
    count = flat.numel()
    size = float(torch.linalg.vector_norm(flat)) / count**0.5
    if size == 0.0 or (count > 1 and bool(flat.amin() == flat.amax())):
        return None  # ones and zeros are in every program: they would align anything with anything
    ones = float(torch.linalg.vector_norm(flat, 1.0)) / (count * size)
    fourth = float(torch.linalg.vector_norm(flat.square())) / (count**0.5 * size * size)
    return Sketch(count, size, (float(flat.sum()) / (count * size), ones, fourth, peak / size))


@dataclass(slots=True)
class Visited:
    """One step of a lifted run as this search remembers it: everything but the values.

    ``sketches`` are those of its outputs, ``taken`` those of its inputs (None for constants and integers),
    ``rank`` the dimensions of its first output, ``stored`` the names of the constants it reads, directly or
    through views and other constant steps.
    """

    name: str
    operator: str
    where: Where
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    sketches: tuple[Sketch | None, ...]
    kind: Kind
    attributes: Mapping[str, object]
    taken: tuple[Sketch | None, ...] = ()
    rank: int = 0
    stored: tuple[str, ...] = ()

    @property
    def inside(self) -> bool:
        """Whether it is the inside of a fused operator: such a step names no inputs, the whole follows it."""
        return not any(self.inputs)


@dataclass(slots=True)
class Trail:
    """An observer that keeps the steps of a run that depend on the inputs, with sketches of their outputs.

    ``constants`` are the names of the graph's constants, ``inputs`` the inputs met, with their sketches.
    """

    constants: frozenset[str] = frozenset()
    tape: bool = True
    inputs: dict[str, Sketch | None] = field(default_factory=dict)
    steps: list[Visited] = field(default_factory=list)
    current: dict[str, Sketch | None] = field(default_factory=dict)
    behind: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __call__(self, step: Step) -> None:
        stored = self._stored(step)
        if step.constant:
            self.behind.update((name, (*stored, name)) for name in step.output_names)
            return
        taken = tuple(self._taken(name, v) for name, v in zip(step.input_names, step.inputs, strict=False))
        sketches = tuple(None if v is None else sketch(v) for v in step.outputs)
        first = next((v for v in step.outputs if v is not None), None)
        self.steps.append(
            Visited(
                step.name, step.operator, step.where, tuple(step.input_names), tuple(step.output_names), sketches,
                step.rounding.kind, dict(step.attributes), taken, 0 if first is None else first.ndim, stored,
            )
        )  # fmt: skip
        self.current.update(zip(step.output_names, sketches, strict=False))

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
        return self.inputs.setdefault(name, sketch(value))


@dataclass(frozen=True, slots=True)
class Parting:
    """A place where the programs part.

    Parameters
    ----------
    step : Visited
        The step of B.
    counterpart : Visited or None
        The step of A that takes the same values and whose result B never reaches.
    reads : tuple of str
        For each input of ``step`` the value of A that it is, "" for none.
    followers : tuple of Visited
        The steps of B that read its result: a fused piece of A may end with them.
    """

    step: Visited
    counterpart: Visited | None
    reads: tuple[str, ...] = ()
    followers: tuple[Visited, ...] = ()


def find_partings(a: Lifted, b: Lifted, replace_b: Mapping[str, torch.Tensor] | None = None) -> list[Parting]:
    """Find the pieces of B, in order, that take A's values and give others.

    Parameters
    ----------
    a, b : Lifted
    replace_b : mapping or None
        Repaired constants of B, so that rounded constants are not found again.

    Returns
    -------
    list of Parting
        Usually one. Empty when every value of B leads back to A.
    """
    trail_a, trail_b = (Trail(frozenset(c.name for c in graph.constants()), graph.kind == "torch") for graph in (a, b))
    a.run(observe=trail_a)
    b.run(observe=trail_b, replace=replace_b)
    in_a, in_b = _Index(trail_a), _Index(trail_b)
    sound_b = _sound(trail_b.steps, in_a)
    sound_a = _sound(trail_a.steps, in_b)
    partings = _frontier(trail_b.steps, sound_b)
    counterparts = _frontier(trail_a.steps, sound_a)
    found = []
    for k, step in enumerate(partings):
        reads = tuple(in_a.name_of(taken) for taken in step.taken)
        followers = tuple(s for s in trail_b.steps if set(step.outputs) & set(s.inputs))
        found.append(Parting(step, _counterpart(step, counterparts, k), reads, followers))
    return found


class _Index:
    """Sketches of one run, found by element count and size."""

    def __init__(self, trail: Trail):
        self._by_count: dict[int, list[tuple[Sketch, str]]] = {}
        computed = [pair for step in trail.steps for pair in zip(step.outputs, step.sketches, strict=False)]
        for name, found in (*trail.inputs.items(), *computed):
            if found is not None:
                self._by_count.setdefault(found.count, []).append((found, name))
        for found_list in self._by_count.values():
            found_list.sort(key=lambda entry: entry[0].size)

    def holds(self, wanted: Sketch) -> bool:
        """Whether some value of the run has this sketch."""
        return bool(self.name_of(wanted))

    def name_of(self, wanted: Sketch | None) -> str:
        """The first name of a value with this sketch; "" for none."""
        if wanted is None:
            return ""
        candidates = self._by_count.get(wanted.count, [])
        low = bisect.bisect_left(candidates, wanted.size * (1 - 2 * _AGREE), key=lambda entry: entry[0].size)
        for candidate, name in candidates[low:]:
            if candidate.size > wanted.size * (1 + 2 * _AGREE):
                return ""
            if candidate.agrees(wanted):
                return name
        return ""


def _sound(steps: Sequence[Visited], other: _Index) -> set[str]:
    """Names of the values that the other program has too, or from which such a value is computed."""
    sound: set[str] = set()
    for step in reversed(steps):
        pairs = zip(step.outputs, step.sketches, strict=False)
        # Integers and masks have no sketch; they are judged by what becomes of them.
        found = {name for name, s in pairs if name in sound or (s is not None and other.holds(s))}
        if found:
            sound.update(found)
            sound.update(n for n in step.inputs if n)
    return sound


def _frontier(steps: Sequence[Visited], sound: set[str]) -> list[Visited]:
    """Steps that take only sound values (or inputs and constants) and give an unsound float.

    Integers and masks have no sketch. One that is computed from sound values passes for sound here: what is wrong
    with it shows in the first float computed from it.
    """
    computed = {name for step in steps for name in step.outputs}
    read = {name for step in steps for name in step.inputs}
    passing = set(sound)
    found = []
    for step in steps:
        # What nobody reads is a by-product (a norm's mean), unless it is all there is: then it is an output.
        live = [k for k, name in enumerate(step.outputs) if name in read] or [0]
        wrong = [k for k in live if k < len(step.outputs) and step.outputs[k] not in sound]
        if step.inside or not wrong:
            continue
        if all(name in passing or name not in computed for name in step.inputs if name):
            if any(step.sketches[k] for k in wrong):
                found.append(step)
            else:
                passing.update(step.outputs)
    return found


_SAME_PIECE = {
    "linear": ("addmm", "mm", "bmm", "linear", "gemm", "matmul", "baddbmm", "fusedmatmul", "matmuladd"),
    "layernorm": ("native_layer_norm", "layer_norm", "layernormalization", "simplifiedlayernormalization", "rms_norm"),
    "gelu": ("gelu", "fastgelu", "biasgelu", "quickgelu"),
    "conv": ("convolution", "conv", "conv2d", "conv1d", "fusedconv"),
    "softmax": ("_softmax", "softmax", "biassoftmax"),
    "silu": ("silu", "sigmoid", "swish"),
    "groupnorm": ("native_group_norm", "group_norm", "groupnormalization", "instancenormalization"),
    "leakyrelu": ("leaky_relu", "leakyrelu"),
    "recurrent": ("gru", "lstm", "rnn", "mkldnn_rnn_layer"),
}  # fmt: skip


def family(operator: str) -> str:
    """The piece an operator computes, whatever a framework calls it."""
    name = operator.rsplit("::", 1)[-1].removeprefix("aten.").split(".")[0].lower()
    return next((family for family, members in _SAME_PIECE.items() if name in members), name)


def _counterpart(step: Visited, candidates: Sequence[Visited], position: int) -> Visited | None:
    """The step of A that does what ``step`` does: of its family if there is one, taking the most of its values."""
    same = [c for c in candidates if family(c.operator) == family(step.operator)]
    if same:
        return max(same, key=lambda c: common_values(step, c))
    return candidates[position] if position < len(candidates) else (candidates[0] if candidates else None)


def common_values(one: Visited, other: Visited) -> int:
    """Count the values that both steps take."""
    left = [t for t in other.taken if t is not None]
    count = 0
    for value in one.taken:
        hit = next((t for t in left if value is not None and value.agrees(t)), None)
        if hit is not None:
            left.remove(hit)
            count += 1
    return count
