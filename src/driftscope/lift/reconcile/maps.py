"""The effective map of an affine piece, which axis of it is which, and what folding it gives in a narrow format."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch.nn import functional as F

from driftscope.lift.constant_cache import Product
from driftscope.lift.steps import Kind, Observer, Step

# A weight and its bias as a program in the model's own format would hold them.
Replay = tuple[torch.Tensor, torch.Tensor]
# What folding does to them; the list of int is the scale's shape along the weight's axes.
Recipe = Callable[[torch.Tensor, torch.Tensor, list[int]], Replay]
# Elements of a layer of constants whose parts are looked at: a state, and no table.
_SMALL = 1 << 16
# Products of numbers that are made to join two convolutions: nobody joins large ones, which makes them larger.
_DEAR = 1 << 24


@dataclass(frozen=True, slots=True)
class Map:
    """``y = weight * x + bias``: dense, a convolution, or one factor per channel (float64).

    Parameters
    ----------
    root : str
        The value it is a map of.
    product : Product
        The weight, which has one axis for a map that is diagonal.
    bias : torch.Tensor
        One element per channel of the result.
    terms : Product
        The sum of the sizes of the terms that the weight was computed from; signs do not count. ``product`` itself
        where nothing was added up.
    magnitude : torch.Tensor
        The same of ``bias``.
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
    product: Product
    bias: torch.Tensor
    terms: Product
    magnitude: torch.Tensor
    out_axis: int | None
    in_axis: int | None
    channel: int | None
    steps: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    weight_rounds: bool = False
    bias_rounds: bool = False
    replays: tuple[Replay, ...] = ()

    @property
    def weight(self) -> torch.Tensor:
        """The weight."""
        return self.product.made()

    @property
    def size(self) -> torch.Tensor:
        """The sizes of its terms."""
        return self.terms.made()

    @property
    def ndim(self) -> int:
        """Axes of the weight."""
        return self.product.value.ndim

    def scaled(
        self, scale: torch.Tensor, shift: torch.Tensor, added: torch.Tensor, step: Step, recipes: Sequence[Recipe]
    ) -> Map:
        """The map followed by ``y * scale + shift`` per channel; ``added`` sums up the sizes of shift's terms."""
        shape = [1] * self.ndim
        if self.out_axis is not None:
            shape[self.out_axis] = -1
        along = scale.reshape(shape)
        product = self.product.times(along)
        rescaled = not bool((scale == 1.0).all())
        return replace(
            self,
            product=product,
            bias=self.bias * scale + shift,
            terms=product if self.terms is self.product else self.terms.times(along.abs()),
            magnitude=self.magnitude * scale.abs() + added,
            steps=(*self.steps, step.name),
            sources=(*self.sources, *step.input_names),
            weight_rounds=self.weight_rounds or rescaled,
            bias_rounds=self.bias_rounds or rescaled or bool(self.bias.any()),
            replays=tuple(recipe(w, b, shape) for w, b in self.replays for recipe in recipes),
        )


def alike(one: Map, two: Map) -> tuple[Replay, Replay] | None:
    """The weights of two maps, and the sizes of their terms, in one shape: of the larger of both.

    A factor per channel is the diagonal of a layer, and the middle of a filter; a small filter the middle of a large
    one. None where there is no such shape.
    """
    pairs = ((one.weight, two.weight), (one.size, two.size))
    if one.ndim == two.ndim == 2 and one.out_axis != two.out_axis:
        pairs = ((one.weight, two.weight.T), (one.size, two.size.T))
    if one.ndim == two.ndim:
        shape = torch.Size(max(sizes) for sizes in zip(one.weight.shape, two.weight.shape, strict=True))
    else:
        shape = max((one, two), key=lambda m: m.ndim).weight.shape
    axis = max((one, two), key=lambda m: m.ndim).out_axis
    (a, b), (c, d) = (tuple(_in_shape(x, shape, axis) for x in pair) for pair in pairs)
    return None if a is None or b is None or c is None or d is None else ((a, b), (c, d))


def _in_shape(weight: torch.Tensor, shape: torch.Size, out_axis: int | None) -> torch.Tensor | None:
    """A weight in the middle of a larger one of zeros, a factor per channel along its diagonal."""
    if weight.shape == shape:
        return weight
    if weight.ndim == 1:
        if len(shape) < 2 or out_axis not in (0, 1) or shape[out_axis] != len(weight):
            return None
        made = torch.zeros(shape[:2], dtype=weight.dtype, device=weight.device)
        channels = torch.arange(len(weight), device=weight.device)
        # A filter in groups reads the channels of its own alone.
        inner = channels % shape[1 - out_axis]
        made[(channels, inner) if out_axis == 0 else (inner, channels)] = weight
        weight = made.reshape(*shape[:2], *[1 for _ in shape[2:]])
    if weight.shape[:2] != shape[:2] or weight.ndim != len(shape):
        return None
    missing = [large - small for large, small in zip(shape[2:], weight.shape[2:], strict=True)]
    if any(n < 0 or n % 2 for n in missing):
        return None
    return F.pad(weight, [n // 2 for n in reversed(missing) for _ in range(2)])


def composed(layer: Map, before: Map, bias: torch.Tensor, pads: bool) -> Map | None:
    """One convolution behind another as a convolution: dense, or each channel by itself."""
    first, second = before.weight, layer.weight
    each = first.shape[1] == second.shape[1] == 1 and len(first) == len(second)
    dense = before.in_axis is not None and layer.in_axis is not None and first.shape[0] == second.shape[1]
    if (pads and bool(before.bias.any())) or not (each or dense):
        return None
    if second.numel() * first[0].numel() * math.prod(second.shape[2:]) > _DEAR:
        return None

    def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        reach, turned = [n - 1 for n in y.shape[2:]], y.flip(list(range(2, y.ndim)))
        if each:
            return convolve(x.transpose(0, 1), turned, padding=reach, groups=len(x)).transpose(0, 1)
        return convolve(x.transpose(0, 1), turned, padding=reach).transpose(0, 1)

    return replace(
        layer, root=before.root, product=Product(joined(first, second)), bias=bias,
        terms=Product(joined(before.size.abs(), layer.size.abs())), in_axis=before.in_axis,
        magnitude=layer.magnitude + before.magnitude.max() * layer.size.abs().sum(),
        steps=(*before.steps, *layer.steps), sources=(*before.sources, *layer.sources),
        weight_rounds=True, bias_rounds=layer.bias_rounds or bool(before.bias.any()), replays=(),
    )  # fmt: skip


def narrow(fmt: torch.dtype) -> bool:
    """Whether an ulp is too coarse to tell one fold from another."""
    return torch.finfo(fmt).eps > torch.finfo(torch.float32).eps


def affine_again(
    w: torch.Tensor, b: torch.Tensor, along: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> Replay:
    """Fold a factor and a shift per channel, in the format of the weight."""
    fmt = w.dtype
    return (w * along.to(fmt)).to(fmt), (b * scale.to(fmt) + shift.to(fmt)).to(fmt)


def norm_recipes(vectors: Sequence[torch.Tensor | None], epsilon: float, fmt: torch.dtype | None) -> list[Recipe]:
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


# --- what layers make of their constants ---


@dataclass(frozen=True)
class Statistic:
    """A tensor that a program may compute ahead of time of the constants of one layer, and the sizes of its terms."""

    words: str
    value: torch.Tensor
    size: torch.Tensor
    sources: tuple[str, ...]


def recurrent_statistics(held: Sequence[tuple[str, torch.Tensor]]) -> list[Statistic]:
    """What can be computed ahead of time of the constants of a recurrent layer: its biases, and its first product.

    Parameters
    ----------
    held : sequence of (str, Tensor)
        Names and values: weights ``(gates * H, H)`` and biases ``(gates * H,)`` each by itself, as torch has them, or
        in one tensor for all directions, as ONNX has them; initial states ``(..., batch, H)``.
    """
    pairs = _biases_of(held)
    found = []
    for names, a, b in pairs:
        gates, both = 2 * a.shape[-1] // 3, a + b
        words = " + ".join(names) if len(names) > 1 else f"the two biases of {names[0]} added"
        some, none = torch.cat([both[..., :gates], a[..., gates:]], -1), torch.zeros_like(a)
        values = [both, both[..., :gates], some]
        if a.ndim > 1:
            rest = torch.cat([none[..., :gates], b[..., gates:]], -1)
            values = [torch.cat(two, 1) for two in ((both, none), (none, both), (some, rest))]
        found += [Statistic(words, value, value, names) for value in values]
    return found + _first_products(held, pairs)


def _biases_of(held: Sequence[tuple[str, torch.Tensor]]) -> list[tuple[tuple[str, ...], torch.Tensor, torch.Tensor]]:
    """A recurrent layer adds two biases; only a GRU's last gate keeps them apart."""
    vectors = [((name,), v) for name, v in held if v.ndim == 1]
    pairs = [((*one, *two), a, b) for (one, a), (two, b) in itertools.pairwise(vectors) if a.shape == b.shape]
    # ONNX keeps both in one row for each direction, next to weights with two more axes.
    rows = next((v.shape[1] for _, v in held if v.ndim == 3), 0)
    joined = [((name,), v) for name, v in held if rows and v.ndim == 2 and v.shape[1] == 2 * rows]
    # A port that keeps that layout puts zeros where nothing is left to add.
    return pairs + [(name, a, b) for name, v in joined for a, b in (*(row.chunk(2) for row in v), v.chunk(2, 1))]


def _first_products(
    held: Sequence[tuple[str, torch.Tensor]], pairs: Sequence[tuple[tuple[str, ...], torch.Tensor, torch.Tensor]]
) -> list[Statistic]:
    """Of an initial state that is a constant, the product with the recurrent weights."""
    parts = [(name, part) for name, v in held if v.ndim in (2, 3) for part in (v if v.ndim == 3 else (v,))]
    weights = [(n, w) for n, w in parts if w.shape[0] in (w.shape[1], 3 * w.shape[1], 4 * w.shape[1])]
    biases = [v for _, a, b in pairs for v in (a, b, a + b)]
    found = []
    for (name, state), (other, weight) in itertools.product(parts, weights):
        if state.shape[1] == weight.shape[1] and state is not weight and bool(state.any()):
            found += _of_product((name, state), (other, weight.T), biases)
    return found


@dataclass(slots=True)
class LayersOfConstants:
    """An observer of constant subgraphs: of each layer the product without its bias, and gates, which others may store.

    Parameters
    ----------
    noise : Observer or None
        What moves the values of each step.
    found : dict of str to Tensor
        Filled during the run.
    formats : dict of str to dtype
        Filled during the run: what the values of all steps natively are, or half precision that holds them.
    """

    noise: Observer | None = None
    found: dict[str, torch.Tensor] = field(default_factory=dict)
    formats: dict[str, torch.dtype | None] = field(default_factory=dict)

    def __call__(self, step: Step) -> Sequence[torch.Tensor | None] | None:
        """See one step."""
        named = zip(step.output_names, step.formats, strict=False)
        self.formats.update((name, self._digits(step, fmt)) for name, fmt in named)
        seen = None if self.noise is None else self.noise(step)
        made = step.outputs[:1] if seen is None else seen[:1]
        if step.rounding.kind is Kind.DOT and made and made[0] is not None and made[0].numel() <= _SMALL:
            self._layer(step, made[0])
        return seen

    def _digits(self, step: Step, fmt: torch.dtype | None) -> torch.dtype | None:
        """The format of a result's digits: half precision that is cast, or moved, has no more than before."""
        if step.rounding.kind is not Kind.EXACT or fmt is None or not fmt.is_floating_point:
            return fmt
        pairs = zip(step.input_names, step.inputs, strict=False)
        given = {self.formats.get(name) or fmt for name, x in pairs if x is not None and x.is_floating_point()}
        return given.pop() if given in ({torch.float16}, {torch.bfloat16}) else fmt

    def _layer(self, step: Step, made: torch.Tensor) -> None:
        biases = [x for x in step.inputs if x is not None and x.ndim == 1 and x.shape == made.shape[-1:]]
        if made.ndim < 2 or len(biases) != 1 or step.attributes.get("beta", 1) != 1:
            return
        for name, value in ((step.name, made), (f"{step.name} without its bias", made - biases[0])):
            self.found |= {name: value, **{f"{name}, {said}": part for said, part in _gates(value)}}


def _gates(rows: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The gates of a recurrent layer, and those that stand next to each other."""
    for gates in (3, 4):
        size = rows.shape[-1] // gates
        for first, last in itertools.combinations(range(gates + 1), 2) if size * gates == rows.shape[-1] else ():
            if last - first < gates:
                said = f"part {last}" if last == first + 1 else f"parts {first + 1} to {last}"
                yield f"{said} of {gates}", rows[..., first * size : last * size]


def _of_product(
    given: tuple[str, torch.Tensor], weight: tuple[str, torch.Tensor], biases: Sequence[torch.Tensor]
) -> list[Statistic]:
    """A product of constants: alone, with a bias added, and of each the gates."""
    rows, names = given[1], (given[0], weight[0])
    # Most often an initial state is one row, which all examples have.
    rows = rows[:1] if torch.equal(rows, rows[:1].expand_as(rows)) else rows
    value, size = rows @ weight[1], rows.abs() @ weight[1].abs()
    fitting = [b for b in biases if b.shape == value.shape[1:]]
    words = f"{names[0]} times {names[1]}"
    made = [(words, value, size), *((f"{words} and a bias", value + b, size + b.abs()) for b in fitting)]
    gates = [n for n in (1, 3, 4) if value.shape[1] % n == 0]
    return [
        Statistic(said, part, terms, names)
        for said, v, s in made
        for n in gates
        for part, terms in zip(v.chunk(n, 1), s.chunk(n, 1), strict=True)
    ]


# --- axes: read off the numbers of a step, not off names ---


# Rows of a layer's input that tell a square weight from its transpose.
_ROWS = 16
# Columns that are looked at first, and how much better one way has to fit them.
_COLUMNS, _CLEARLY = 32, 1e-6


def result_axis(step: Step, weight: torch.Tensor, source: torch.Tensor) -> int:
    """Which axis of a square weight is the result's: the one with which the step's own numbers come out.

    Whatever is added is the same in every row, so differences of rows are compared; where they say nothing (one row,
    equal rows), the operator does.
    """
    rows, result = source.reshape(-1, source.shape[-1])[:_ROWS].to(torch.float64), step.outputs[0]
    stored = step.operator.lower().endswith("linear") or bool(step.attributes.get("transB"))
    if result is None or rows.shape[-1] != weight.shape[0]:
        return 0 if stored else 1
    wanted = result.reshape(-1, result.shape[-1])[:_ROWS].to(torch.float64)
    if wanted.shape != rows.shape:
        return 0 if stored else 1
    for few in (_COLUMNS, None):  # nearly always a few tell it, and a weight is large
        ways = (rows @ w[:, :few] - wanted[:, :few] for w in (weight, weight.T))
        straight, turned = (float(way.diff(dim=0).square().sum()) for way in ways)
        if few is not None and min(straight, turned) < _CLEARLY * max(straight, turned):
            break
    return int(straight < turned) if straight != turned else 0 if stored else 1


def moved_axes(one: torch.Tensor, two: torch.Tensor, permutes: bool) -> dict[int, int | None] | None:
    """Where each axis of a value lies in the value it was moved to; None where that holds other numbers."""
    if permutes:
        for order in itertools.permutations(range(one.ndim)):
            if [one.shape[k] for k in order] == list(two.shape) and torch.equal(one.permute(order), two):
                return {axis: order.index(axis) for axis in order}
        return None
    if not torch.equal(one.reshape(-1), two.reshape(-1)):
        return None
    at = {(size, math.prod(two.shape[k + 1 :])): k for k, size in enumerate(two.shape)}
    return {k: at.get((size, math.prod(one.shape[k + 1 :]))) for k, size in enumerate(one.shape)}
