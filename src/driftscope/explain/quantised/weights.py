"""The quantised weights of an ONNX graph: integers, scales and zero points, and the numbers they stand for."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from driftscope.lift.reconcile.matching import same_name
from driftscope.lift.steps import Constant, Origin
from driftscope.numerics.formats import FORMATS
from driftscope.numerics.ulp import ulp_at

#: Steps by which a number may be off where the largest or smallest integer stands for it.
_SATURATED = 1.0
#: Slack on half a step: scales are stored in float32, and ties go either way.
_HALF = 0.5 * (1.0 + 1e-4)
#: What was quantised was stored in float32, a fold rounded twice: steps of an int32 bias may be nearly as small.
_STORED = 2.0**-22
#: Share of what two independent tensors are apart from which on two have nothing in common.
_STRANGE = 0.9
#: How far a whole number may be from its integer times a scale in float32, relative.
_WHOLE = 1e-6
#: What a mask holds where an infinity was meant.
LARGEST = torch.finfo(torch.float32).max
#: Operators that move integers, choose among them or interpolate: what they make has the scale of what they are given.
PASSING = frozenset({
    "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Gather", "GatherElements", "Slice",
    "Identity", "Split", "Expand", "Pad", "Resize",
})  # fmt: skip


def _is_bias(name: str, weight: str) -> bool:
    """Whether a name is that of the bias of a weight, stored or folded."""
    return bool(weight) and name in (f"{weight} (bias)", f"{weight.removesuffix('weight')}bias")


def _is_taken(constant: Constant, taken: Collection[str]) -> tuple[bool, bool]:
    return constant.origin is Origin.COMPUTED, constant.name in taken


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """One quantised weight, whichever program holds it.

    Parameters
    ----------
    name : str
        Of the value it stands for, or of the node that reads it.
    value : Tensor, float64
        ``(integers - zero point) * scale``, laid out as the graph multiplies with it.
    step : Tensor, float64, broadcastable to ``value``
        The scale.
    edge : Tensor of bool, the shape of ``value``
        Where the integer is the smallest or largest.
    """

    name: str
    value: torch.Tensor
    step: torch.Tensor
    edge: torch.Tensor

    @property
    def in_half(self) -> bool:
        """Whether these are no integers with a scale, but float16 numbers: each has a step of its own."""
        return torch.equal(self.step.expand_as(self.value), ulp_at(self.value, FORMATS["float16"]))

    def rounds(self, exact: torch.Tensor) -> bool:
        """Whether these integers are ``exact``, divided by the scale and rounded to nearest."""
        off = (self.value - exact).abs() / self.step
        size = exact.nan_to_num(0.0, 0.0, 0.0).abs()  # no integer stands for infinity
        if size.dim() == 1 and size.numel():
            size = size.amax()  # terms of a bias cancel, which one into which a norm was folded has several of
        stored = _STORED * size / self.step
        return bool((off <= torch.where(self.edge, _SATURATED, _HALF) + stored).all())

    def neutral(self) -> torch.Tensor | None:
        """One or zero everywhere, where these integers are all that number, rounded."""
        flat = self.value.reshape(-1)
        if flat.numel() == 0 or not bool((flat == flat[0]).all()):
            return None
        both = (torch.ones_like(self.value), torch.zeros_like(self.value))
        return next((number for number in both if self.rounds(number)), None)

    def whole(self) -> torch.Tensor | None:
        """The whole numbers that these integers are the rounding of, as a stored mask of zeros and ones has them."""
        exact = self.value.round()
        near = (self.value - exact).abs() <= _WHOLE * exact.abs()
        return exact if bool(near.all()) and self.rounds(exact) else None

    def is_like(self, exact: torch.Tensor) -> bool:
        """Whether these integers have more in common with a tensor than not."""
        return float((exact - self.value).square().sum()) <= float(exact.square().sum() + self.value.square().sum()) / 2

    def partner(
        self, constants: Sequence[Constant], taken: Collection[str] = (), beside: str = ""
    ) -> tuple[Constant, torch.Tensor] | None:
        """The other side's weight that this is nearest to, laid out alike; None where none has its size.

        Of several that these integers are the rounding of (gains of layer norms near one, and folds of them) it is the
        one of its name, else the bias of what the same layer multiplies with (``beside``), one that they are exactly, a
        stored one, and one that is not ``taken`` yet.
        """
        found: list[tuple[float, Constant, torch.Tensor]] = []
        # Integers are at most a step from what they round, whatever they round.
        reach = float((self.step.expand_as(self.value) ** 2).sum())
        # An exporter stores a mask of infinities as the largest number. An infinite scale stands for no number.
        end, reach = (LARGEST, reach) if math.isfinite(reach) else (math.inf, 0.0)
        for constant in (*constants, *self._joined(constants)):
            for laid in layouts(constant.value, self.value.shape):
                exact = laid.clamp(-end, end)
                gap = float((exact - self.value).square().sum())
                # In another shape it has to be more than one of as many numbers.
                apart = float(exact.square().sum() + self.value.square().sum())
                if constant.value.dim() != exact.dim() and gap > _STRANGE * apart:
                    continue
                if not found or gap <= reach or gap < found[0][0]:
                    found = [f for f in found if f[0] <= reach] + [(gap, constant, exact)]
        if not found:
            return None
        near = [f for f in found if self.rounds(f[2])] if len(found) > 1 else []
        if near:
            return min(
                near,
                key=lambda f: (
                    not self.is_named(f[1]), not _is_bias(f[1].name, beside), f[0] > 0, _is_taken(f[1], taken),
                ),
            )[1:]  # fmt: skip
        return min(found, key=lambda f: f[0])[1:]

    def is_named(self, constant: Constant) -> bool:
        """Whether these integers bear the name of a weight, as a quantiser gives it."""
        own = self.name.partition(" for ")[0].removesuffix("_DequantizeLinear_Output").removesuffix("_quantized")
        return same_name(constant.name, own)

    def _joined(self, constants: Sequence[Constant]) -> list[Constant]:
        """torch's weight of each direction of an LSTM, its gates in ONNX's order, as one tensor."""
        if self.value.dim() != 3 or self.value.shape[-1] % 4:
            return []
        single = [c for c in constants if c.value.shape == self.value.shape[:0:-1]]
        found: list[Constant] = []
        for own in self.value if single else ():
            laid = [dataclasses.replace(c, value=_onnx_gates(c.value)) for c in single]
            found.append(min(laid, key=lambda c, own=own: float((c.value - own).square().sum())))  # type: ignore[misc]
        return [dataclasses.replace(found[0], value=torch.stack([c.value for c in found]))] if found else []

    def instead(self, exact: torch.Tensor) -> str:
        """Say which one scale or shift would make these integers of ``exact``; empty where none would."""
        levels = self.value / self.step
        size = float((levels * levels).sum())
        ratio = float((levels * exact / self.step).sum()) / size if size else 0.0
        off = (levels * ratio - exact / self.step).abs()
        if ratio > 0 and float(off.median()) < 0.5 * ratio and abs(ratio - 1) > 1e-3:
            scale = float(self.step.reshape(-1)[0])
            return f"its scale is {scale:.6g}, and these integers are that weight with a scale of {scale * ratio:.6g}"
        shift = float((exact / self.step - levels).mean())
        if abs(shift) > 0.5 and float((exact / self.step - levels - shift).abs().median()) < 0.5:
            return f"its zero point is off by {-round(shift)}"
        return ""


@dataclass(frozen=True, slots=True)
class Quantised(IntegerGrid):
    """A quantised weight of an ONNX graph.

    Parameters
    ----------
    name, value, step, edge
        As of :class:`IntegerGrid`.
    node : onnx.NodeProto
        The node that reads the integers.
    mover : onnx.NodeProto or None
        The node that reads the stored integers, where they are moved or chosen from (an embedding) before ``node``
        dequantises them.
    """

    node: onnx.NodeProto
    mover: onnx.NodeProto | None = None


def _onnx_gates(weight: torch.Tensor) -> torch.Tensor:
    """torch's weight of an LSTM (gates i, f, c, o; by I) as ONNX's quantised operator holds it (I by i, o, f, c)."""
    i, f, c, o = weight.detach().cpu().to(torch.float64).chunk(4)
    return torch.cat((i, o, f, c)).T


def layouts(value: torch.Tensor, shape: torch.Size) -> Iterator[torch.Tensor]:
    """A tensor in float64, laid out as one of another shape, in every way that a quantiser lays weights out."""
    if value.numel() != shape.numel():
        pairs = zip(reversed(value.shape), reversed(shape), strict=False)
        if 0 < value.dim() <= len(shape) and all(n in (1, m) for n, m in pairs):
            # An exporter writes a token that is expanded over the batch as one constant.
            yield value.detach().cpu().to(torch.float64).expand(shape)
        return
    wide = value.detach().cpu().to(torch.float64)
    if wide.shape == shape:
        yield wide
    if wide.dim() in (2, 3) and wide.mT.shape == shape:
        yield wide.mT
    elif wide.dim() < 2 or wide.squeeze().shape == torch.Size(n for n in shape if n > 1):
        yield wide.reshape(shape)
    elif wide.dim() == 2 < len(shape) and wide.shape[1] == shape[-1]:
        yield wide.reshape(shape)  # a linear layer takes all axes but the last as one


class Graph:
    """An ONNX graph as the quantisation of it is read.

    Parameters
    ----------
    model : onnx.ModelProto
        With its weights inside.
    """

    def __init__(self, model: onnx.ModelProto):
        self.stored = {t.name: t for t in model.graph.initializer}
        self.made = {name: node for node in model.graph.node for name in node.output}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)

    def array(self, name: str) -> np.ndarray | None:
        """A stored tensor; None for what is computed."""
        return numpy_helper.to_array(self.stored[name]) if name in self.stored else None

    def weights(self, nodes: Sequence[onnx.NodeProto]) -> Iterator[Quantised]:
        """Every quantised weight whose integers are stored."""
        for node in nodes:
            if node.op_type == "DequantizeLinear":
                yield from self._dequantised(node)
            elif node.op_type in ("MatMulInteger", "ConvInteger") and node.input[1] in self.stored:
                found = self._integer(node)
                if found is not None:
                    yield found
            elif node.op_type == "MatMulNBits" and node.input[1] in self.stored:
                yield self._bits(node)

    def in_order(self, model: onnx.ModelProto) -> list[Quantised]:
        """Every quantised weight, in the order in which a program reads them: a quantiser writes them in another.

        A layer's bias comes after what it multiplies with.
        """
        places = {id(node): k for k, node in enumerate(model.graph.node)}

        def read(weight: Quantised) -> int:
            return min((places[id(r)] for r in self._read_by(weight)), default=places[id(weight.node)])

        return sorted(self.weights(model.graph.node), key=lambda weight: (read(weight), weight.value.dim() < 2))

    def reader_of(self, weight: Quantised) -> str:
        """What the layer makes that a weight is read by, or is a part of."""
        readers = self._read_by(weight)
        return readers[0].output[0] if readers else ""

    def _read_by(self, weight: Quantised) -> list[onnx.NodeProto]:
        stored = weight.node.op_type == "DequantizeLinear"
        return self.readers.get(weight.node.output[0], []) if stored else [weight.node]

    def _dequantised(self, node: onnx.NodeProto) -> Iterator[Quantised]:
        axis = _integer_of(node, "axis", 1)
        name, mover = self.behind(node.input[0])
        integers, scale = self.array(name), self.array(node.input[1])
        # A scale for every channel holds for the layout in which the operator sees them.
        if integers is None or scale is None or (mover is not None and scale.size > 1):
            return
        zero = self.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        block = _integer_of(node, "block_size", 0)
        weight = _quantised(node.output[0], node, integers, scale, zero, axis, block)
        yield dataclasses.replace(weight, mover=mover)

    def behind(self, name: str) -> tuple[str, onnx.NodeProto | None]:
        """What integers are before they are moved, and the node that moves them first; None where none does."""
        mover = None
        while name in self.made and self.made[name].op_type in PASSING:
            mover = self.made[name]
            name = mover.input[0]
        return name, mover

    def scaled(self, node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto, onnx.NodeProto, onnx.NodeProto]]:
        """The cast of an integer product, the multiplication that applies both scales, and what makes them one."""
        cast = next((r for r in self.readers.get(node.output[0], []) if r.op_type == "Cast"), None)
        if cast is None:
            return
        for mul in self.readers.get(cast.output[0], []):
            both = self.made.get(next((n for n in mul.input if n != cast.output[0]), ""))
            if both is not None and mul.op_type == "Mul":
                yield cast, mul, both

    def scale_of(self, node: onnx.NodeProto) -> tuple[str, onnx.NodeProto] | None:
        """The stored scale of an integer product, and the multiplication that applies both scales."""
        found = (([n for n in both.input if n in self.stored], mul) for _, mul, both in self.scaled(node))
        return next(((names[0], mul) for names, mul in found if len(names) == 1), None)

    def _integer(self, node: onnx.NodeProto) -> Quantised | None:
        scale = self.scale_of(node)
        if scale is None:
            return None
        zero = self.array(node.input[3]) if len(node.input) > 3 and node.input[3] else None
        axis = 1 if node.op_type == "MatMulInteger" else 0
        return _quantised(node.input[1], node, self.array(node.input[1]), self.array(scale[0]), zero, axis)  # type: ignore[arg-type]

    def _bits(self, node: onnx.NodeProto) -> Quantised:
        rows, width = _integer_of(node, "N", 0), _integer_of(node, "K", 0)
        bits, block = _integer_of(node, "bits", 4), _integer_of(node, "block_size", 32)
        blocks = -(-width // block)
        levels = unpacked(self.array(node.input[1]), bits).reshape(rows, blocks, -1)  # type: ignore[arg-type]
        scale = self.array(node.input[2]).astype(np.float64).reshape(rows, blocks, 1)  # type: ignore[union-attr]
        zero = np.full((rows, blocks, 1), float(1 << (bits - 1)))
        if len(node.input) > 3 and node.input[3]:
            given = self.array(node.input[3])
            packed = given.dtype == np.uint8  # type: ignore[union-attr]
            flat = unpacked(given.reshape(rows, -1), bits)[:, :blocks] if packed else given  # type: ignore[union-attr]
            zero = np.asarray(flat, np.float64).reshape(rows, blocks, 1)
        shape = (rows, blocks * levels.shape[-1])
        value = ((levels - zero) * scale).reshape(shape)[:, :width].T
        step = np.broadcast_to(np.abs(scale), levels.shape).reshape(shape)[:, :width].T
        edge = ((levels == 0) | (levels == (1 << bits) - 1)).reshape(shape)[:, :width].T
        wholes, spacing, ends = (torch.from_numpy(np.ascontiguousarray(x)) for x in (value, step, edge))
        return Quantised(node.name, wholes, spacing, ends, node)


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Integers of so many bits that share bytes along the last axis, as float64."""
    parts = [(packed >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1).astype(np.float64)


def _quantised(
    name: str,
    node: onnx.NodeProto,
    integers: np.ndarray,
    scale: np.ndarray,
    zero: np.ndarray | None,
    axis: int,
    block: int = 0,
) -> Quantised:
    wide, scales, zeros = integers.astype(np.float64), scale.astype(np.float64), np.zeros(1) if zero is None else zero
    along = [1] * wide.ndim
    if block:  # so many integers along the axis have one scale and one zero point
        one = np.repeat(np.arange(scale.shape[axis]), block)[: wide.shape[axis]]
        scales, zeros = scales.take(one, axis), zeros if zero is None else zeros.take(one, axis)
    elif scales.size > 1 and wide.ndim:
        along[axis % wide.ndim] = scales.size
    scales, offset = (_laid_out(x.astype(np.float64), along) for x in (scales, zeros))
    with np.errstate(invalid="ignore"):  # an infinite scale, which is told
        value = (wide - offset) * scales
    low, high = _ends(integers.dtype)
    edge = (wide <= low) | (wide >= high)
    step = np.broadcast_to(np.abs(scales), wide.shape)
    # One number alone (a stored scalar, quantised) is no array after arithmetic.
    wholes, spacing, ends = (torch.from_numpy(np.array(x)).reshape(wide.shape) for x in (value, step, edge))
    return Quantised(name, wholes, spacing, ends, node)


def _laid_out(given: np.ndarray, along: Sequence[int]) -> np.ndarray:
    """One number, numbers along one axis, or those of a recurrent layer (directions, channels), laid over all axes."""
    if given.ndim < 2:
        return given.reshape(along if given.size > 1 else [1] * len(along))
    return given[:, None] if given.ndim < len(along) else given


def _ends(kind: np.dtype[Any]) -> tuple[float, float]:
    """The smallest and the largest integer of a kind; numpy has no name for those of four bits."""
    if np.issubdtype(kind, np.integer):
        return float(np.iinfo(kind).min), float(np.iinfo(kind).max)
    return {"int4": (-8.0, 7.0), "uint4": (0.0, 15.0)}.get(kind.name, (-np.inf, np.inf))


def _integer_of(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)
