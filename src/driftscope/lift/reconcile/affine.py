"""Affine pieces of a program: what a chain of linear layers, scales, shifts and normalisations does to its input.

Exporters and optimisers fold such chains: a batch norm into the convolution before it or, alone, into a depthwise
one; a norm's weight into the linear layer behind it; the scale of an attention into its query weights; the two small
factors of a fine-tuned layer into the large one. What they store is one weight and one bias. Here every chain of a
lifted graph gets its effective map in float64, as the chain grows, with the sizes of the terms that were added up on
the way.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.lift.constant_cache import HELD_BYTES, Mark, Product, as_stored, marked, stay_up_cast
from driftscope.lift.kept import remember
from driftscope.lift.outline import ADD, SCALE
from driftscope.lift.readings import sum_is_finite
from driftscope.lift.reconcile.maps import (
    Map,
    Statistic,
    affine_again,
    alike,
    composed,
    moved_axes,
    narrow,
    norm_recipes,
    recurrent_statistics,
    result_axis,
)
from driftscope.lift.steps import Constant, Kind, Lifted, Step, plain_name

_PERMUTING = frozenset({"transpose", "permute", "t", "movedim"})
_PARTING = frozenset({"unbind", "select", "slice", "narrow", "split"})
_VIEWS = _PERMUTING | {"view", "unsafe_view", "reshape", "flatten", "squeeze", "unsqueeze", "contiguous", "clone"}
_RECURRENT = ("lstm", "gru", "rnn")
# Maps kept of one value: what is folded may begin at any layer of a chain, most often at the last or the one before.
_ALTERNATIVES = 4


@dataclass(slots=True)
class AffinePieces:
    """An observer that collects the effective map of every affine chain of a lifted run.

    ``statistics`` is what batch norms make of their stored statistics, and recurrent layers of their biases and states.
    """

    maps: dict[str, list[Map]] = field(default_factory=dict)
    statistics: list[Statistic] = field(default_factory=list)
    folded: list[Map] = field(default_factory=list)
    stored: Mapping[Mark, Sequence[torch.Tensor]] = field(default_factory=dict)  # need not be held in float64
    _seen_as: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, constants: Sequence[Constant]) -> AffinePieces:
        """Those of a program; what does not stay up-cast from run to run is not kept up-cast by them either."""
        floats = [c.value for c in constants if c.value.dtype.is_floating_point]
        return cls(stored={} if stay_up_cast(sum(v.numel() for v in floats)) else marked(floats))

    def __call__(self, step: Step) -> None:
        """Follow one step."""
        if step.constant or not step.outputs or step.outputs[0] is None or not step.outputs[0].is_floating_point():
            return
        operator = plain_name(step.operator)
        if step.rounding.kind is Kind.DOT:
            self._layer(step)
        elif "batch" in operator and "norm" in operator:
            self._batch_norm(step)
        elif step.rounding.kind is Kind.NORM:
            self._norm(step)
        elif operator in ADD | SCALE:
            self._elementwise(step, operator)
        elif any(kind in operator.lower() for kind in _RECURRENT):
            held = [(n, _constant(step, k)) for k, n in enumerate(step.input_names) if n and _held(step, k)]
            self.statistics += recurrent_statistics(held)
        elif step.rounding.kind is Kind.EXACT and step.input_names:
            if operator in _VIEWS:
                self._seen_as[step.output_names[0]] = self._root(step.input_names[0])
            if step.input_names[0] in self.maps:
                self._moved(step, operator in _PERMUTING)

    def _keep(self, step: Step, found: Map, folded: bool = True) -> None:
        """Keep one more map of a step's result, the shortest chain first."""
        maps = self.maps.setdefault(step.output_names[0], [])
        if len(maps) < _ALTERNATIVES:
            maps.append(found)
            self.folded += [found] if folded else []

    def _moved(self, step: Step, permutes: bool) -> None:
        """Follow what only moves the numbers; a relu or a negation is exact too, and changes them."""
        one, two = step.inputs[0], step.outputs[0]
        if one is None or two is None:
            return
        if one.numel() != two.numel():
            self._parted(step, one)
            return
        moved = moved_axes(one, two, permutes)
        if moved is not None:
            before = self.maps[step.input_names[0]]
            self.maps[step.output_names[0]] = [
                replace(m, channel=None if m.channel is None else moved[m.channel]) for m in before
            ]

    def _root(self, name: str) -> str:
        """What a value is a view of: two layers that read one value each have their own view of it."""
        return self._seen_as.get(name, name)

    def _parted(self, step: Step, whole: torch.Tensor) -> None:
        """Follow what takes parts along another axis than the channels': the steps of a sequence."""
        if plain_name(step.operator) not in _PARTING:
            return
        axis = step.attributes.get("dim", 0)
        for name, part in zip(step.output_names, step.outputs, strict=True):
            if part is None or not name or not isinstance(axis, int):
                continue
            axis %= whole.ndim
            for before in self.maps[step.input_names[0]]:
                if before.channel is not None and before.channel != axis:
                    channel = before.channel - (part.ndim < whole.ndim and axis < before.channel)
                    self.maps.setdefault(name, []).append(
                        replace(before, root=f"{before.root}/{name}", channel=channel)
                    )

    # -- layers -------------------------------------------------------------------------------------------------

    def _layer(self, step: Step) -> None:
        output = step.outputs[0]
        held = [k for k in range(len(step.input_names)) if _held(step, k)]
        weights = [k for k in held if _constant(step, k).ndim >= 2]
        values = [k for k in range(len(step.input_names)) if k not in held and step.input_names[k]]
        if len(weights) != 1 or len(values) != 1 or output is None:
            return
        weight, source = _constant(step, weights[0]), step.inputs[values[0]]
        convolution = weight.ndim >= 3
        channel = 1 if convolution else output.ndim - 1
        if source is None or source.ndim <= channel or weight.ndim > 5:
            return
        channels, given = output.shape[channel], source.shape[channel]
        order = (0, 1) if convolution and "transpose" not in step.operator.lower() else (weight.ndim - 1, 0)
        if convolution and "transpose" in step.operator.lower():
            order = (1, 0)
        axes = [k for k in order if weight.shape[k] == channels]
        if not axes and convolution and weight.shape[0] == given:  # transposed, in groups
            axes = []
        if not axes:
            return
        if not convolution and weight.shape[0] == weight.shape[1]:
            axes = [result_axis(step, weight, source)]
        ins = [k for k in order if k != axes[0] and weight.shape[k] == given]
        biases = [_constant(step, k) for k in held if _constant(step, k).shape == (channels,)]
        bias = biases[0] if biases else torch.zeros(channels, dtype=torch.float64, device=weight.device)
        names = (step.input_names[weights[0]], *(step.input_names[k] for k in held if k != weights[0]))
        native = step.formats[0]
        replays = ((weight.to(native), bias.to(native)),) if native is not None and narrow(native) else ()
        product = Product(as_stored(weight, self.stored))
        own = Map(
            self._root(step.input_names[values[0]]), product, bias, product, bias.abs(), axes[0],
            ins[0] if ins else None, channel, (step.name,), names, replays=replays,
        )  # fmt: skip
        self._keep(step, own, folded=False)
        for before in self.maps.get(step.input_names[values[0]], ()):
            joined = _after(own, before, _pads(step))
            if joined is not None:
                self._keep(step, joined)

    # -- scales and shifts --------------------------------------------------------------------------------------

    def _batch_norm(self, step: Step) -> None:
        vectors = [_constant(step, k) if k < len(step.input_names) and _held(step, k) else None for k in range(1, 5)]
        gamma, beta, mean, variance = vectors
        output = step.outputs[0]
        if mean is None or variance is None or output is None or output.ndim < 2:
            return
        epsilon = float(step.attributes.get("eps", step.attributes.get("epsilon", 1e-5)))  # type: ignore[arg-type]
        inverse = torch.rsqrt(variance + epsilon)
        scale = inverse if gamma is None else inverse * gamma
        made = {
            "variance + epsilon": variance + epsilon, "root": 1.0 / inverse, "1/root": inverse,
            "mean * scale": mean * scale, "mean / root": mean * inverse,
        }  # fmt: skip
        sources = tuple(step.input_names[1:])
        self.statistics += [
            Statistic(f"{words} of {step.name}", value, value, sources) for words, value in made.items()
        ]
        beta = torch.zeros_like(mean) if beta is None else beta
        # The stored bias is rounded at the size of these two, which may be much larger than their difference.
        added = beta.abs() + (mean * scale).abs()
        recipes = norm_recipes((gamma, beta, mean, variance), epsilon, step.formats[0])
        own = _identity(self._root(step.input_names[0]), 1, mean.numel())
        for before in (*self.maps.get(step.input_names[0], ()), own):
            if before.channel == 1 and before.bias.numel() == mean.numel():
                self._keep(step, before.scaled(scale, beta - mean * scale, added, step, recipes))

    def _norm(self, step: Step) -> None:
        """The weight and bias of a layer norm are a map of what it normalised."""
        output = step.outputs[0]
        if output is None or output.ndim < 1:
            return
        channels = output.shape[-1]
        vectors = [_constant(step, k) for k in range(1, len(step.input_names)) if _held(step, k)]
        vectors = [v for v in vectors if v.shape == (channels,)]
        if vectors:
            root = _identity(f"{step.name}/normalised", output.ndim - 1, channels)
            shift = vectors[1] if len(vectors) > 1 else torch.zeros_like(vectors[0])
            self._keep(step, root.scaled(vectors[0], shift, shift.abs(), step, ()), folded=False)

    def _elementwise(self, step: Step, operator: str) -> None:
        maps: Sequence[list[Map]] = [self.maps.get(name, []) for name in step.input_names[:2]]
        if len(maps) == 2 and operator in ADD:
            maps = [[*self._itself(step.input_names[k], maps[1 - k]), *maps[k]] for k in (0, 1)]
        if len(maps) == 2 and maps[0] and maps[1]:
            sign = {"add": 1.0, "sub": -1.0}.get(operator)
            joined = [] if sign is None else [_sum(one, two, step, sign) for one, two in itertools.product(*maps)]
            for found in joined if any(joined) else [_biases(maps[0][0], maps[1][0], step, operator)]:
                if found is not None:
                    self._keep(step, found)
            return
        for position in (0, 1):
            if position >= len(step.input_names) or (operator in ("sub", "div") and position == 1):
                continue
            other = _factor(step, 1 - position)
            output = step.outputs[0]
            if other is None or _held(step, position) or output is None or output.ndim == 0:
                continue
            for before in maps[position] or _identities(self._root(step.input_names[position]), other, output):
                vector = _per_channel(other, before, output)
                if vector is None:
                    continue
                one, zero = torch.ones_like(vector), torch.zeros_like(vector)
                scale = {"mul": vector, "div": 1.0 / vector}.get(operator, one)
                shift = {"add": vector, "sub": -vector}.get(operator, zero)
                recipes = [lambda w, b, shape, s=scale, t=shift: affine_again(w, b, s.reshape(shape), s, t)]
                self._keep(step, before.scaled(scale, shift, shift.abs(), step, recipes))
            return

    def _itself(self, name: str, others: Sequence[Map]) -> Sequence[Map]:
        """Where a value is added to a map of itself, as behind a block that is skipped, the value as its own map."""
        of_it = [m for m in others if m.root == self._root(name) and m.channel is not None]
        return [_identity(m.root, m.channel, m.bias.numel()) for m in of_it[:1] if m.channel is not None]


@contextlib.contextmanager
def watched_for_pieces(*graphs: Lifted | None) -> Iterator[Sequence[AffinePieces | None]]:
    """Give who watches the runs inside, one of each program, for affine pieces; these are remembered.

    Exporters and runtimes fold what stands beside convolutions: with one, no run is made for its pieces alone. They
    refer to the constants in float64, of which so many stay lifted from one run to the next whoever looks.
    """
    pieces: Sequence[AffinePieces | None] = [None for _ in graphs]
    if all(graph is not None and _may_be_folded(graph.constants()) for graph in graphs):
        pieces = [AffinePieces() for _ in graphs]
    yield pieces
    for graph, found in zip(graphs, pieces, strict=True):
        if graph is not None and found is not None and found.maps:
            found.maps.clear()
            remember(graph, found)


def _may_be_folded(constants: Sequence[Constant]) -> bool:
    floats = [c.value for c in constants if c.value.dtype.is_floating_point]
    return any(v.ndim >= 4 for v in floats) and 8 * sum(v.numel() for v in floats) <= HELD_BYTES


def _held(step: Step, position: int) -> bool:
    """Whether an input of a step is a constant."""
    value = step.inputs[position] if position < len(step.held) and step.held[position] else None
    return value is not None and value.is_floating_point()


def _constant(step: Step, position: int) -> torch.Tensor:
    value = step.inputs[position]
    if value is None:
        raise ValueError("an input that is held has a value")
    return value.to(torch.float64)


def _factor(step: Step, position: int) -> torch.Tensor | None:
    """The other operand of an elementwise step: a constant, or a number of the call."""
    if position < len(step.input_names):
        return _constant(step, position) if _held(step, position) else None
    number = step.attributes.get("other")
    return torch.tensor(float(number), dtype=torch.float64) if isinstance(number, int | float) else None


def _identity(root: str, channel: int, channels: int) -> Map:
    one = Product(torch.ones(channels, dtype=torch.float64))
    zero = torch.zeros(channels, dtype=torch.float64)
    return Map(root, one, zero, one, zero, 0, 0, channel)


def _identities(root: str, other: torch.Tensor, output: torch.Tensor) -> list[Map]:
    """A value that nothing is known of, as a map of itself with the channels that a factor has."""
    channels = other.numel() if other.numel() > 1 else output.shape[-1]
    axes = [k for k in (1, output.ndim - 1) if k < output.ndim and output.shape[k] == channels]
    return [_identity(root, axes[-1] if other.ndim <= 1 else axes[0], channels)] if axes else []


def _pads(step: Step) -> bool:
    """Whether a convolution pads: then a shift before it is no bias behind it."""
    given = step.attributes.get("padding", step.attributes.get("pads", 0))
    numbers = given if isinstance(given, list | tuple) else [given]
    return any(bool(n) for n in numbers) or step.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET")


def _after(layer: Map, before: Map, pads: bool) -> Map | None:
    """The map of ``before`` followed by ``layer``."""
    if before.channel != layer.channel:
        return None
    if before.ndim == layer.ndim > 2 and before.out_axis == layer.out_axis == 0:
        return composed(layer, before, layer.bias + _added(layer.product, before.bias, layer), pads)
    if layer.in_axis is None:
        return None
    steps, sources = (*before.steps, *layer.steps), (*before.sources, *layer.sources)
    if before.ndim == 1:
        shape = [1] * layer.ndim
        shape[layer.in_axis] = -1
        moved = bool(before.bias.any())
        if before.weight.numel() != layer.product.value.shape[layer.in_axis] or (pads and moved):
            return None
        along = before.weight.reshape(shape)
        product, alike = layer.product.times(along), before.terms is before.product and layer.terms is layer.product
        return replace(
            layer, root=before.root, product=product,
            terms=product if alike else layer.terms.times(before.size.reshape(shape)),
            bias=layer.bias + _added(layer.product, before.bias, layer),
            magnitude=layer.magnitude + _added(layer.terms, before.magnitude, layer, sizes=True),
            steps=steps, sources=sources, bias_rounds=layer.bias_rounds or moved,
            weight_rounds=layer.weight_rounds or not bool((before.weight == 1.0).all()), replays=(),
        )  # fmt: skip
    if before.ndim != 2 or layer.ndim != 2:
        return None
    one = before.weight if before.out_axis == 1 else before.weight.T
    two = layer.weight if layer.out_axis == 1 else layer.weight.T
    sizes = [(m.size if m.out_axis == 1 else m.size.T).abs() for m in (before, layer)]
    if one.shape[1] != two.shape[0]:
        return None
    return Map(
        before.root, Product(one @ two), before.bias @ two + layer.bias, Product(sizes[0] @ sizes[1]),
        before.magnitude @ sizes[1] + layer.magnitude, 1, 0, layer.channel, steps, sources, True, True,
    )  # fmt: skip


def _added(product: Product, shift: torch.Tensor, layer: Map, sizes: bool = False) -> torch.Tensor:
    """What a layer makes of a shift of its input; of none nothing, but where an infinity makes it NaN."""
    shape = [1] * layer.ndim
    shape[layer.in_axis or 0] = -1
    if not bool(shift.any()) and not product.factors and sum_is_finite(product.value):
        return torch.zeros_like(layer.bias)
    weight = product.made()
    rest = [k for k in range(layer.ndim) if k != layer.out_axis]
    return ((weight.abs() if sizes else weight) * shift.reshape(shape)).sum(rest)


def _sum(one: Map, two: Map, step: Step, sign: float = 1.0) -> Map | None:
    """The sum of two maps of one value, or their difference."""
    if one.root != two.root or one.channel != two.channel or one.bias.shape != two.bias.shape:
        return None
    pairs = alike(one, two)
    if pairs is None:
        return None
    larger = one if one.ndim >= two.ndim else two
    (weight, other), (size, sizes) = pairs
    return replace(
        larger, root=one.root, product=Product(weight + sign * other), bias=one.bias + sign * two.bias,
        terms=Product(size.abs() + sizes.abs()), magnitude=one.magnitude + two.magnitude,
        steps=(*one.steps, *two.steps, step.name), sources=(*one.sources, *two.sources),
        weight_rounds=True, bias_rounds=True, replays=(),
    )  # fmt: skip


def _biases(one: Map, two: Map, step: Step, operator: str) -> Map | None:
    """The sum of maps of two values, as a shift of what they are without their biases."""
    channels = one.bias.numel()
    if one.channel != two.channel or two.bias.numel() != channels or one.channel is None or operator not in ADD:
        return None
    whole = Product(torch.ones(channels, dtype=torch.float64))
    return Map(
        f"{step.name}/unbiased", whole, one.bias + two.bias if operator == "add" else one.bias - two.bias, whole,
        one.magnitude + two.magnitude, 0, 0, one.channel, (*one.steps, *two.steps, step.name),
        (*one.sources, *two.sources), bias_rounds=bool(one.bias.any()) and bool(two.bias.any()),
    )  # fmt: skip


def _per_channel(value: torch.Tensor, before: Map, output: torch.Tensor) -> torch.Tensor | None:
    """The constant as one number per output channel; None when it varies along another axis."""
    channels = before.bias.numel()
    if value.numel() == 1:
        return value.reshape(1).expand(channels)
    axis = -1 if before.channel is None else before.channel - (output.ndim - value.ndim)
    if not 0 <= axis < value.ndim or value.shape[axis] != channels:
        return None
    rows = value.movedim(axis, -1).reshape(-1, channels)
    # A state of which all examples have one row, as a recurrent layer begins with.
    return rows[0] if torch.equal(rows[:1].expand_as(rows), rows) else None
