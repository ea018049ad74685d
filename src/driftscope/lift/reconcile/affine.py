"""Affine pieces of a program: what a chain of linear layers, scales, shifts and normalisations does to its input.

Exporters and optimisers fold such chains: a batch norm into the convolution before it or, alone, into a depthwise
one; a norm's weight into the linear layer behind it; the scale of an attention into its query weights; the two small
factors of a fine-tuned layer into the large one. What they store is one weight and one bias. Here every chain of a
lifted graph gets its effective map in float64, as the chain grows, with the sizes of the terms that were added up on
the way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from driftscope.lift.reconcile.axes import moved_axes, result_axis
from driftscope.lift.reconcile.chains import ADD, SCALE, operator_of
from driftscope.lift.steps import Kind, Step

_PERMUTING = frozenset({"transpose", "permute", "t", "movedim"})
# Maps kept of one value: what is folded may begin at any layer of a chain, most often at the last or the one before.
_ALTERNATIVES = 4

# A weight and its bias as a program in the model's own format would hold them.
Replay = tuple[torch.Tensor, torch.Tensor]
# What folding does to them; the list of int is the scale's shape along the weight's axes.
Recipe = Callable[[torch.Tensor, torch.Tensor, list[int]], Replay]


@dataclass(frozen=True, slots=True)
class Map:
    """``y = weight * x + bias``: dense, a convolution, or one factor per channel (float64).

    Parameters
    ----------
    root : str
        The value it is a map of.
    weight, bias : torch.Tensor
        ``weight`` has one axis for a map that is diagonal; ``bias`` one element per channel of the result.
    size, magnitude : torch.Tensor
        Sums of the sizes of the terms that ``weight`` and ``bias`` were computed from; signs do not count. ``size``
        is ``weight`` itself where nothing was added up.
    out_axis, in_axis : int or None
        Of the weight; None where there is none.
    channel : int or None
        Axis of the result that the channels lie along; None after a view that loses it.
    steps, sources : tuple of str
        Names of the steps folded, and of the constants that they hold.
    weight_rounds, bias_rounds : bool
        Whether folding computes them at all: what was only moved is the stored tensor.
    replays : tuple of (weight, bias)
        In a narrow format: what folding gives in each way that exporters and optimisers write it.
    """

    root: str
    weight: torch.Tensor
    bias: torch.Tensor
    size: torch.Tensor
    magnitude: torch.Tensor
    out_axis: int | None
    in_axis: int | None
    channel: int | None
    steps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    weight_rounds: bool = False
    bias_rounds: bool = False
    replays: tuple[Replay, ...] = ()

    def scaled(
        self, scale: torch.Tensor, shift: torch.Tensor, added: torch.Tensor, step: Step, recipes: Sequence[Recipe]
    ) -> Map:
        """The map followed by ``y * scale + shift`` per channel; ``added`` sums up the sizes of shift's terms."""
        shape = [1] * self.weight.ndim
        if self.out_axis is not None:
            shape[self.out_axis] = -1
        along = scale.reshape(shape)
        weight = self.weight * along
        rescaled = not bool((scale == 1.0).all())
        return replace(
            self,
            weight=weight,
            bias=self.bias * scale + shift,
            size=weight if self.size is self.weight else self.size * along.abs(),
            magnitude=self.magnitude * scale.abs() + added,
            steps=(*self.steps, step.name),
            sources=(*self.sources, *step.input_names),
            weight_rounds=self.weight_rounds or rescaled,
            bias_rounds=self.bias_rounds or rescaled or bool(self.bias.any()),
            replays=tuple(recipe(w, b, shape) for w, b in self.replays for recipe in recipes),
        )


@dataclass(slots=True)
class AffinePieces:
    """An observer that collects the effective map of every affine chain of a lifted run.

    ``statistics`` is what batch norms make of their stored statistics: words, values and the constants' names.
    """

    maps: dict[str, list[Map]] = field(default_factory=dict)
    statistics: list[tuple[str, torch.Tensor, tuple[str, ...]]] = field(default_factory=list)
    folded: list[Map] = field(default_factory=list)

    def __call__(self, step: Step) -> None:
        """Follow one step."""
        if step.constant or not step.outputs or step.outputs[0] is None or not step.outputs[0].is_floating_point():
            return
        operator = operator_of(step)
        if step.rounding.kind is Kind.DOT:
            self._layer(step)
        elif "batch" in operator and "norm" in operator:
            self._batch_norm(step)
        elif step.rounding.kind is Kind.NORM:
            self._norm(step)
        elif operator in ADD | SCALE:
            self._elementwise(step, operator)
        elif step.rounding.kind is Kind.EXACT and step.input_names and step.input_names[0] in self.maps:
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
        if one is None or two is None or one.numel() != two.numel():
            return
        moved = moved_axes(one, two, permutes)
        if moved is not None:
            before = self.maps[step.input_names[0]]
            self.maps[step.output_names[0]] = [
                replace(m, channel=None if m.channel is None else moved[m.channel]) for m in before
            ]

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
        own = Map(
            step.input_names[values[0]], weight, bias, weight, bias.abs(), axes[0], ins[0] if ins else None,
            channel, (step.name,), names, replays=replays,
        )  # fmt: skip
        self._keep(step, own, folded=False)
        for before in self.maps.get(own.root, ()) if own.in_axis is not None else ():
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
        self.statistics += [(f"{words} of {step.name}", value, sources) for words, value in made.items()]
        beta = torch.zeros_like(mean) if beta is None else beta
        # The stored bias is rounded at the size of these two, which may be much larger than their difference.
        added = beta.abs() + (mean * scale).abs()
        recipes = _norm_recipes((gamma, beta, mean, variance), epsilon, step.formats[0])
        for before in (*self.maps.get(step.input_names[0], ()), _identity(step, 0, 1, mean.numel())):
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
            root = replace(_identity(step, 0, output.ndim - 1, channels), root=f"{step.name}/normalised")
            shift = vectors[1] if len(vectors) > 1 else torch.zeros_like(vectors[0])
            self._keep(step, root.scaled(vectors[0], shift, shift.abs(), step, ()), folded=False)

    def _elementwise(self, step: Step, operator: str) -> None:
        maps = [self.maps.get(name, []) for name in step.input_names[:2]]
        if len(maps) == 2 and maps[0] and maps[1]:
            for left, right in itertools.product(*maps) if operator == "add" else ():
                joined = _sum(left, right, step)
                if joined is not None:
                    self._keep(step, joined)
            return
        for position in (0, 1):
            if position >= len(step.input_names) or (operator in ("sub", "div") and position == 1):
                continue
            other = _factor(step, 1 - position)
            output = step.outputs[0]
            if other is None or _held(step, position) or output is None or output.ndim == 0:
                continue
            for before in maps[position] or _identities(step, position, other, output):
                vector = _per_channel(other, before, output)
                if vector is None:
                    continue
                one, zero = torch.ones_like(vector), torch.zeros_like(vector)
                scale = {"mul": vector, "div": 1.0 / vector}.get(operator, one)
                shift = {"add": vector, "sub": -vector}.get(operator, zero)
                recipes = [lambda w, b, shape, s=scale, t=shift: _affine_again(w, b, s.reshape(shape), s, t)]
                self._keep(step, before.scaled(scale, shift, shift.abs(), step, recipes))
            return


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


def _identity(step: Step, position: int, channel: int, channels: int) -> Map:
    one = torch.ones(channels, dtype=torch.float64)
    zero = torch.zeros(channels, dtype=torch.float64)
    return Map(step.input_names[position], one, zero, one, zero, 0, 0, channel)


def _identities(step: Step, position: int, other: torch.Tensor, output: torch.Tensor) -> list[Map]:
    """A value that nothing is known of, as a map of itself with the channels that a factor has."""
    channels = other.numel() if other.numel() > 1 else output.shape[-1]
    axes = [k for k in (1, output.ndim - 1) if k < output.ndim and output.shape[k] == channels]
    return [_identity(step, position, axes[-1] if other.ndim <= 1 else axes[0], channels)] if axes else []


def _pads(step: Step) -> bool:
    """Whether a convolution pads: then a shift before it is no bias behind it."""
    given = step.attributes.get("padding", step.attributes.get("pads", 0))
    numbers = given if isinstance(given, list | tuple) else [given]
    return any(bool(n) for n in numbers) or step.attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", "NOTSET")


def _after(layer: Map, before: Map, pads: bool) -> Map | None:
    """The map of ``before`` followed by ``layer``."""
    if before.channel != layer.channel or layer.in_axis is None:
        return None
    steps, sources = (*before.steps, *layer.steps), (*before.sources, *layer.sources)
    if before.weight.ndim == 1:
        shape = [1] * layer.weight.ndim
        shape[layer.in_axis] = -1
        if before.weight.numel() != layer.weight.shape[layer.in_axis] or (pads and bool(before.bias.any())):
            return None
        rest = [k for k in range(layer.weight.ndim) if k != layer.out_axis]
        along, shift = before.weight.reshape(shape), before.bias.reshape(shape)
        moved = bool(before.bias.any())
        return replace(
            layer, root=before.root, weight=layer.weight * along, size=layer.size * before.size.reshape(shape),
            bias=layer.bias + (layer.weight * shift).sum(rest),
            magnitude=layer.magnitude + (layer.size.abs() * before.magnitude.reshape(shape)).sum(rest),
            steps=steps, sources=sources, bias_rounds=layer.bias_rounds or moved,
            weight_rounds=layer.weight_rounds or not bool((before.weight == 1.0).all()), replays=(),
        )  # fmt: skip
    if before.weight.ndim != 2 or layer.weight.ndim != 2:
        return None
    one = before.weight if before.out_axis == 1 else before.weight.T
    two = layer.weight if layer.out_axis == 1 else layer.weight.T
    sizes = [(m.size if m.out_axis == 1 else m.size.T).abs() for m in (before, layer)]
    if one.shape[1] != two.shape[0]:
        return None
    return Map(
        before.root, one @ two, before.bias @ two + layer.bias, sizes[0] @ sizes[1],
        before.magnitude @ sizes[1] + layer.magnitude, 1, 0, layer.channel, steps, sources, True, True,
    )  # fmt: skip


def _sum(one: Map, two: Map, step: Step) -> Map | None:
    """The sum of two maps of one value."""
    if one.root != two.root or one.weight.ndim != two.weight.ndim or one.channel != two.channel:
        return None
    other = two
    if one.weight.ndim == 2 and one.out_axis != two.out_axis:
        other = replace(two, weight=two.weight.T, size=two.size.T)
    if one.weight.shape != other.weight.shape or one.weight.ndim > 2:
        return None
    return replace(
        one, weight=one.weight + other.weight, bias=one.bias + other.bias,
        size=one.size.abs() + other.size.abs(),
        magnitude=one.magnitude + other.magnitude, steps=(*one.steps, *other.steps, step.name),
        sources=(*one.sources, *other.sources), weight_rounds=True, bias_rounds=True, replays=(),
    )  # fmt: skip


def _per_channel(value: torch.Tensor, before: Map, output: torch.Tensor) -> torch.Tensor | None:
    """The constant as one number per output channel; None when it varies along another axis."""
    channels = before.bias.numel()
    if value.numel() == 1:
        return value.reshape(1).expand(channels)
    if value.numel() != channels or before.channel is None:
        return None
    axis = before.channel - (output.ndim - value.ndim)
    return value.reshape(-1) if 0 <= axis < value.ndim and value.shape[axis] == channels else None


def narrow(fmt: torch.dtype) -> bool:
    """Whether an ulp is too coarse to tell one fold from another."""
    return torch.finfo(fmt).eps > torch.finfo(torch.float32).eps


def _affine_again(
    w: torch.Tensor, b: torch.Tensor, along: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> Replay:
    fmt = w.dtype
    return (w * along.to(fmt)).to(fmt), (b * scale.to(fmt) + shift.to(fmt)).to(fmt)


def _norm_recipes(vectors: Sequence[torch.Tensor | None], epsilon: float, fmt: torch.dtype | None) -> list[Recipe]:
    """The ways in which a batch norm is folded: exporters and onnxruntime divide by the root, torch multiplies.

    numpy rounds epsilon to the array's format before adding it, torch and onnxruntime do not; some compute in
    float32 and round once.
    """
    given, beta, mean, exact = vectors
    if mean is None or exact is None or beta is None or fmt is None or not narrow(fmt):
        return []
    gamma = torch.ones_like(mean) if given is None else given
    variance = exact.to(fmt)

    def recipe(multiply: bool, wide: bool, shifted: torch.Tensor) -> Recipe:
        def fold(w: torch.Tensor, b: torch.Tensor, shape: list[int]) -> Replay:
            kept = w.dtype
            up = torch.float32 if wide else kept
            g, t, m, v, bias = (x.to(up) for x in (gamma, beta, mean, shifted, b))
            if multiply:
                root = torch.rsqrt(v)
                scale, moved = g * root, (bias - m) * root * g + t
            else:
                scale = g / torch.sqrt(v)
                moved = (bias - m) * scale + t
            return (w.to(up) * scale.reshape(shape)).to(kept), moved.to(kept)

        return fold

    rounded = variance + torch.tensor(epsilon, dtype=variance.dtype)
    plain, wide = variance + epsilon, variance.to(torch.float32) + epsilon
    return [
        recipe(multiply, up, shifted)
        for multiply in (False, True)
        for up, shifted in ((False, rounded), (False, plain), (True, wide))
    ]
