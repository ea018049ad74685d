"""Tables that a fused operator computes inside and others store: weights of an interpolation, a Fourier transform.

They depend on sizes alone, so they are constant subgraphs as any other: each is evaluated in float64 and, where an
observer adds noise, with the roundings that computing it in float32 takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from driftscope.lift.steps import Kind, Observer, Rounding, Step
from driftscope.lift.torch.entries import AtenCall, Ref, Tape

#: Rounds one step of a table: its number in the table, and its value.
Rounds = Callable[[int, torch.Tensor], torch.Tensor]
#: Makes a table of a call; None where the call has none.
Make = Callable[[Tape, AtenCall, Rounds], torch.Tensor | None]

# Elements of a matrix beyond which nobody applies one.
_MOST = 1 << 22


def hidden_tables(tape: Tape, observe: Observer | None) -> Mapping[str, torch.Tensor]:
    """The tables inside the calls of a tape, float64, by ``"call.table"``."""
    found = {}
    for entry in tape.entries:
        for name, make in _TABLES.get(entry.facts.name, {}).items():
            label = f"{entry.name}.{name}"
            made = make(tape, entry, _rounding(entry, label, observe)) if entry.function.namespace == "aten" else None
            if made is not None:
                found[label] = made
    return found


def _rounding(entry: AtenCall, label: str, observe: Observer | None) -> Rounds:
    def rounded(number: int, value: torch.Tensor) -> torch.Tensor:
        if observe is None:
            return value
        step = Step(
            number, f"{label}.{number}", f"aten.{entry.facts.name}", entry.where, (), (f"{label}.{number}",), (),
            [value], [torch.float32], Rounding(Kind.ROUND), {},
        )  # fmt: skip
        seen = observe(step)
        return value if seen is None or seen[0] is None else seen[0]

    return rounded


def _argument(entry: AtenCall, name: str) -> object:
    return entry.facts.pick(name, entry.args, entry.kwargs)


def _weights(tape: Tape, entry: AtenCall, rounded: Rounds) -> torch.Tensor:
    """Between which neighbours, and how far, each element of a linear interpolation lies."""
    made, sizes = entry.outputs[0], _input_size(tape, entry)
    size = sizes[-1] if sizes else 0
    count = tape.values[made].shape[-1] if made is not None else 0
    ends, scales = bool(_argument(entry, "align_corners")), _argument(entry, "scales")
    if scales is None and (several := _argument(entry, "scale_factors")):
        scales = several[0]  # type: ignore[index]
    step = (size - 1) / max(count - 1, 1) if ends else 1.0 / scales if isinstance(scales, float) else size / count
    at = torch.arange(count, dtype=torch.float64) + (0.0 if ends else 0.5)
    place = rounded(1, rounded(0, torch.tensor(step, dtype=torch.float64)) * at)
    place = place if ends else rounded(2, place - 0.5)
    native = at.float() * torch.tensor(step, dtype=torch.float32) - (0.0 if ends else 0.5)
    # Which two are neighbours is chosen natively, as every choice is.
    return (place - native.clamp(min=0).floor().double()).clamp(0, 1)


def _positions(tape: Tape, entry: AtenCall, rounded: Rounds) -> torch.Tensor:
    """The homogeneous positions (height times width, 3) that an affine map is applied to."""
    size, ends = _argument(entry, "size"), bool(_argument(entry, "align_corners"))
    height, width = (int(n) for n in size[-2:])  # type: ignore[index]
    axes = []
    for k, count in enumerate((width, height)):
        step = rounded(4 * k, torch.tensor(2.0 / max(count - 1, 1), dtype=torch.float64))
        line = rounded(4 * k + 1, rounded(4 * k + 2, step * torch.arange(count, dtype=torch.float64)) - 1.0)
        axes.append(line if ends else rounded(4 * k + 3, line * ((count - 1) / count)))
    x, y = (axes[0].expand(height, width), axes[1][:, None].expand(height, width))
    return torch.stack([x, y, torch.ones_like(x)], -1).reshape(-1, 3)


def _input_size(tape: Tape, entry: AtenCall) -> Sequence[int]:
    given = _argument(entry, "self") or _argument(entry, "input")
    return tape.values[given.value].shape if isinstance(given, Ref) else ()


def _interpolating(axis: int) -> Make:
    """The matrix (sizes of the output and the input along an axis, from the last) that an interpolation applies."""

    def make(tape: Tape, entry: AtenCall, rounded: Rounds) -> torch.Tensor | None:
        made, sizes, name = entry.outputs[0], _input_size(tape, entry), entry.facts.name
        if made is None or len(sizes) < 2 - axis:
            return None
        size, count = sizes[axis], tape.values[made].shape[axis]
        scale = _argument(entry, {-1: "scales_w", -2: "scales_h"}[axis]) or _argument(entry, "scales")
        several = _argument(entry, "scale_factors")
        scale = several[axis] if isinstance(several, list | tuple) else scale
        function = getattr(torch.ops.aten, name.replace("linear1d", "bilinear2d")).default
        eye = torch.eye(size, dtype=torch.float64)[None, :, :, None]
        if size * count > _MOST:
            return None
        found = function(eye, [count, 1], bool(_argument(entry, "align_corners")), scale, None)
        return rounded(0, found[0, :, :, 0].T)

    return make


def _transforming(part: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    """The matrix (frequencies, elements) of the cosines or sines of a Fourier transform along one axis."""

    def make(tape: Tape, entry: AtenCall, rounded: Rounds) -> torch.Tensor | None:
        axes, sizes = _argument(entry, "dim"), _input_size(tape, entry)
        if not isinstance(axes, list | tuple) or len(axes) != 1 or not sizes or sizes[axes[0]] ** 2 > _MOST:
            return None
        size = sizes[axes[0]]
        count = size // 2 + 1 if _argument(entry, "onesided") else size
        turns = torch.outer(torch.arange(count), torch.arange(size)) % size
        return rounded(0, part(turns.to(torch.float64) * (2.0 * math.pi / size)))

    return make


_FOURIER = {
    "cosines": _transforming(torch.cos), "sines": _transforming(torch.sin),
    "negative sines": _transforming(lambda angle: -torch.sin(angle)),
    # Both parts of each frequency from one product: one part after the other, or in turn.
    "cosines and negative sines": _transforming(lambda angle: torch.cat([torch.cos(angle), -torch.sin(angle)])),
    "cosines and sines": _transforming(lambda angle: torch.cat([torch.cos(angle), torch.sin(angle)])),
    "cosines and negative sines in turn": _transforming(
        lambda angle: torch.stack([torch.cos(angle), -torch.sin(angle)], 1).flatten(0, 1)
    ),
}  # fmt: skip
_ALONG = {"columns": _interpolating(-1), "rows": _interpolating(-2)}
_TABLES: Mapping[str, Mapping[str, Make]] = {
    "upsample_linear1d": {"weights": _weights, "columns": _interpolating(-1)},
    "upsample_bilinear2d": _ALONG,
    "upsample_bicubic2d": _ALONG,
    "_upsample_bilinear2d_aa": _ALONG,
    "_upsample_bicubic2d_aa": _ALONG,
    "affine_grid_generator": {"positions": _positions},
    "_fft_r2c": _FOURIER,
    "_fft_c2c": _FOURIER,
}
