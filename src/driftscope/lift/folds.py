"""Weights that an exporter or optimiser folded: a normalisation or an affine step multiplied into the layer before.

A program computes ``batch_norm(conv(x, w))``; its export stores one convolution with ``w' = w * s`` where
``s = gamma / sqrt(var + eps)``. The stored ``w'`` was computed in the model's dtype, so as a float64 function the
export is off by that rounding. Here each fold that the *other* program's graph allows is computed in float64 and
compared with what is stored: within two ulps of float32 it is that fold, and the exact fold takes its place. Two
ulps of a narrower format would also hide another epsilon: there the fold is computed again in that format, in each
way that exporters and optimisers write it, and has to give the very bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from driftscope.lift.matching import Repair, rearrangements, ulp
from driftscope.lift.onnx_ops.contrib_nchwc import blocked_filter
from driftscope.lift.steps import Constant, Kind, Lifted, Step

_ADD = frozenset({"add", "sub"})
_SCALE = frozenset({"mul", "div"})
_BLOCKS = (16, 8, 4)  # channels per block of onnxruntime's blocked convolutions, by processor


# A weight and its bias as a program in the model's own format would hold them.
Replay = tuple[torch.Tensor, torch.Tensor]
# What folding does to them; the list of int is the scale's shape along the weight's axes.
Recipe = Callable[[torch.Tensor, torch.Tensor, list[int]], Replay]


@dataclass(slots=True)
class _Layer:
    """A convolution or linear layer with what has been multiplied and added to it so far (float64).

    ``weight_rounds`` and ``bias_rounds`` say whether folding computes them at all: a weight that was only added
    to is the stored weight, and a stored weight that is two ulps off is another weight.
    """

    name: str
    weight: torch.Tensor
    bias: torch.Tensor
    out_axis: int
    channel_axis: int
    magnitude: torch.Tensor
    steps: list[str] = field(default_factory=list)
    weight_rounds: bool = False
    bias_rounds: bool = False
    replays: list[Replay] = field(default_factory=list)

    def scaled(
        self, scale: torch.Tensor, shift: torch.Tensor, added: torch.Tensor, step: str, recipes: Sequence[Recipe]
    ) -> _Layer:
        """The layer after ``y * scale + shift`` per output channel; ``added`` sums up the sizes of shift's terms."""
        shape = [1] * self.weight.ndim
        shape[self.out_axis] = -1
        rescaled = not bool((scale == 1.0).all())
        return _Layer(
            self.name, self.weight * scale.reshape(shape), self.bias * scale + shift, self.out_axis,
            self.channel_axis, self.magnitude * scale.abs() + added, [*self.steps, step],
            weight_rounds=self.weight_rounds or rescaled,
            bias_rounds=self.bias_rounds or rescaled or bool(self.bias.any()),
            replays=[recipe(w, b, shape) for w, b in self.replays for recipe in recipes],
        )  # fmt: skip


class FoldFinder:
    """An observer that collects every fold a lifted graph allows."""

    def __init__(self, constants: Mapping[str, torch.Tensor]):
        self._constants = constants
        self._layers: dict[str, _Layer] = {}
        self.folded: list[_Layer] = []

    def __call__(self, step: Step) -> None:
        if step.constant or not step.outputs or step.outputs[0] is None:
            return
        operator = step.operator.rsplit("::", 1)[-1].removeprefix("aten.").split(".")[0].lower().lstrip("_")
        if step.rounding.kind is Kind.DOT:
            self._start(step, operator)
        elif "batch" in operator and "norm" in operator:
            self._norm(step)
        elif operator in _ADD | _SCALE:
            self._affine(step, operator)
        elif step.rounding.kind is Kind.EXACT and len(step.inputs) >= 1 and step.input_names:
            # A view between the layer and its fold keeps the channels where they are often enough to try.
            layer = self._layers.get(step.input_names[0])
            if layer is not None and _same_channels(step, layer):
                self._layers[step.output_names[0]] = layer

    def _constant(self, step: Step, position: int) -> torch.Tensor | None:
        if position >= len(step.input_names):
            return None
        if step.input_names[position] in self._constants:
            return self._constants[step.input_names[position]].to(torch.float64)
        return None

    def _start(self, step: Step, operator: str) -> None:
        positions = [k for k, n in enumerate(step.input_names) if n in self._constants]
        output = step.outputs[0]
        weights = [(k, w) for k in positions if (w := self._constant(step, k)) is not None and w.ndim >= 2]
        if not weights or output is None:
            return
        _, weight = weights[0]
        convolution = weight.ndim >= 3
        channel_axis = 1 if convolution else output.ndim - 1
        channels = output.shape[channel_axis]
        axes = [k for k in ((0, 1) if convolution else (weight.ndim - 1, 0)) if weight.shape[k] == channels]
        if not axes:
            return
        biases = [w for k in positions if (w := self._constant(step, k)) is not None and w.shape == (channels,)]
        bias = biases[0] if biases else torch.zeros(channels, dtype=torch.float64, device=weight.device)
        layer = _Layer(step.name, weight, bias, axes[0], channel_axis, bias.abs())
        native = self._constants[step.input_names[weights[0][0]]]
        if _narrow(native.dtype):
            layer.replays.append((native, bias.to(native.dtype)))
        self._layers[step.output_names[0]] = layer

    def _norm(self, step: Step) -> None:
        layer = self._layers.get(step.input_names[0])
        if layer is None:
            return
        vectors = [self._constant(step, k) for k in range(1, 5)]
        gamma, beta, mean, variance = vectors
        if mean is None or variance is None:
            return
        epsilon = step.attributes.get("eps", step.attributes.get("epsilon", 1e-5))
        scale = torch.rsqrt(variance + float(epsilon))  # type: ignore[arg-type]
        scale = scale if gamma is None else scale * gamma
        beta = torch.zeros_like(mean) if beta is None else beta
        # The stored bias is rounded at the size of these two, which may be much larger than their difference.
        added = beta.abs() + (mean * scale).abs()
        natives = [None if v is None else self._constants[step.input_names[k]] for k, v in enumerate(vectors, 1)]
        recipes = _norm_recipes(natives, float(epsilon))  # type: ignore[arg-type]
        self._keep(step, layer.scaled(scale, beta - mean * scale, added, step.name, recipes))

    def _affine(self, step: Step, operator: str) -> None:
        for position in (0, 1):
            layer = self._layers.get(step.input_names[position]) if position < len(step.input_names) else None
            other = self._constant(step, 1 - position)
            if layer is None or other is None or (operator in ("sub", "div") and position == 1):
                continue
            vector = _per_channel(other, layer, step)
            if vector is None:
                continue
            one, zero = torch.ones_like(vector), torch.zeros_like(vector)
            scale = {"mul": vector, "div": 1.0 / vector}.get(operator, one)
            shift = {"add": vector, "sub": -vector}.get(operator, zero)
            recipes = [lambda w, b, shape, s=scale, t=shift: _affine_again(w, b, s.reshape(shape), s, t)]
            self._keep(step, layer.scaled(scale, shift, shift.abs(), step.name, recipes))
            return

    def _keep(self, step: Step, layer: _Layer) -> None:
        self._layers[step.output_names[0]] = layer
        self.folded.append(layer)


def _same_channels(step: Step, layer: _Layer) -> bool:
    before, after = step.inputs[0], step.outputs[0]
    return (
        before is not None and after is not None and before.ndim == after.ndim
        and before.shape[layer.channel_axis] == after.shape[layer.channel_axis] and after.numel() == before.numel()
    )  # fmt: skip


def _per_channel(value: torch.Tensor, layer: _Layer, step: Step) -> torch.Tensor | None:
    """The constant as one number per output channel; None when it varies along another axis."""
    output = step.outputs[0]
    if output is None:
        return None
    channels = layer.bias.numel()
    if value.numel() == 1:
        return value.reshape(1).expand(channels)
    if value.numel() != channels:
        return None
    axis = layer.channel_axis - (output.ndim - value.ndim)
    return value.reshape(-1) if 0 <= axis < value.ndim and value.shape[axis] == channels else None


def match_folds(left: Sequence[Constant], other: Lifted, others: Sequence[Constant], ulps: float) -> list[Repair]:
    """Match stored tensors that nothing else explains with the folds the other program's graph allows.

    Parameters
    ----------
    left : sequence of Constant
        Constants of one program without a partner.
    other : Lifted
        The other program; it is run once to read its graph.
    others : sequence of Constant
        Its constants.
    ulps : float
        Largest distance in ulps of the stored format. Biases are measured at the size of what was added up.
    """
    finder = FoldFinder({c.name: c.value for c in others if c.value.dtype.is_floating_point})
    other.run(observe=finder)
    repairs = []
    for constant in left:
        for layer in finder.folded:
            repair = _match(constant, layer, ulps)
            if repair is not None:
                repairs.append(repair)
                break
    return repairs


def _match(constant: Constant, layer: _Layer, ulps: float) -> Repair | None:
    stored, fmt = constant.value.to(torch.float64), constant.value.dtype
    parts = (
        (layer.weight, layer.weight.abs(), layer.weight_rounds, [w for w, _ in layer.replays]),
        (layer.bias, layer.magnitude, layer.bias_rounds, [b for _, b in layer.replays]),
    )
    for exact, size, rounds, replays in parts:
        if not rounds:
            continue
        natives = zip(*(_arranged(r.to(torch.float64), stored.shape) for r in replays), strict=True) if replays else ()
        again = iter(natives)
        arranged = zip(_arranged(exact, stored.shape), _arranged(size, stored.shape), strict=True)
        for value, scale in arranged:
            # A runtime that computes in float32 stores what it folded in the file's format as float32.
            folded = any(torch.equal(native, stored) for native in next(again, ()))
            if not folded and _narrow(fmt):
                folded = torch.equal(value.to(fmt).to(torch.float64), stored)
            elif not folded:
                # One rounding each for the square root, the division, the product and the sum.
                folded = bool(((stored - value).abs() <= 2.0 * ulps * ulp(scale, fmt)).all())
            if folded:
                words = f"{layer.name} folded with {', '.join(layer.steps)}"
                return Repair(constant.name, value.contiguous(), "fold", words, constant)
    return None


def _narrow(fmt: torch.dtype) -> bool:
    """Whether an ulp is too coarse to tell one fold from another."""
    return torch.finfo(fmt).eps > torch.finfo(torch.float32).eps


def _affine_again(
    w: torch.Tensor, b: torch.Tensor, along: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> Replay:
    fmt = w.dtype
    return (w * along.to(fmt)).to(fmt), (b * scale.to(fmt) + shift.to(fmt)).to(fmt)


def _norm_recipes(vectors: Sequence[torch.Tensor | None], epsilon: float) -> list[Recipe]:
    """The ways in which a batch norm is folded: exporters and onnxruntime divide by the root, torch multiplies.

    numpy rounds epsilon to the array's format before adding it, torch and onnxruntime do not; some compute in
    float32 and round once.
    """
    _, _, mean, variance = vectors
    if mean is None or variance is None:
        return []
    gamma = torch.ones_like(mean) if vectors[0] is None else vectors[0]
    beta = torch.zeros_like(mean) if vectors[1] is None else vectors[1]

    def recipe(multiply: bool, wide: bool, shifted: torch.Tensor) -> Recipe:
        def fold(w: torch.Tensor, b: torch.Tensor, shape: list[int]) -> Replay:
            fmt = w.dtype
            up = torch.float32 if wide else fmt
            g, t, m, v, bias = (x.to(up) for x in (gamma, beta, mean, shifted, b))
            if multiply:
                root = torch.rsqrt(v)
                scale, moved = g * root, (bias - m) * root * g + t
            else:
                scale = g / torch.sqrt(v)
                moved = (bias - m) * scale + t
            return (w.to(up) * scale.reshape(shape)).to(fmt), moved.to(fmt)

        return fold

    rounded = variance + torch.tensor(epsilon, dtype=variance.dtype)
    plain, wide = variance + epsilon, variance.to(torch.float32) + epsilon
    return [
        recipe(multiply, up, shifted)
        for multiply in (False, True)
        for up, shifted in ((False, rounded), (False, plain), (True, wide))
    ]


def _arranged(source: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    """Yield ``source`` in every arrangement that fits ``shape``, onnxruntime's blocked filters among them.

    A blocked convolution pads its channels with zeros to a multiple of the block.
    """
    if source.numel() == math.prod(shape):
        yield from rearrangements(source, shape)
    elif source.ndim == len(shape) == 1 and shape[0] > source.numel():
        yield F.pad(source, (0, shape[0] - source.numel()))
    if source.ndim != 4 or len(shape) != 4 or source.shape[2:] != shape[2:]:
        return
    missing = [wanted - have for wanted, have in zip(shape[:2], source.shape[:2], strict=True)]
    if min(missing) < 0:
        return
    padded = F.pad(source, (0, 0, 0, 0, 0, missing[1], 0, missing[0]))
    for block in _BLOCKS:
        if shape[0] % block == 0:
            yield blocked_filter(padded, block, False)
            if shape[1] % block == 0:
                yield blocked_filter(padded, block, True)
