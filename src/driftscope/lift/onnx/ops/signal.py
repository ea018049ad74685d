"""Signal processing: Fourier transforms, short-time transforms, windows, mel weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT
from driftscope.lift.onnx.registry import Node, Result, axis_of, operator
from driftscope.lift.steps import Kind, Rounding


def _as_complex(x: Tensor) -> Tensor:
    """The last axis holds the real part, or the real and imaginary parts."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    if x.shape[-1] == 1:
        return torch.complex(wide[..., 0], torch.zeros_like(wide[..., 0]))
    return torch.view_as_complex(wide.contiguous())


def _transform(node: Node, x: Tensor, axis: int, length: int | None) -> Result:
    inverse, one_sided = node.integer("inverse", 0) == 1, node.integer("onesided", 0) == 1
    axis = axis_of(axis, x.dim())
    values = _as_complex(x)
    n = length or x.shape[axis]
    if inverse and one_sided:
        y = torch.fft.irfft(values, n=length or 2 * (x.shape[axis] - 1), dim=axis).unsqueeze(-1)
        return Result(y.to(x.dtype), dot(n), [node.format(0)])
    spectrum = torch.fft.ifft(values, n=n, dim=axis) if inverse else torch.fft.fft(values, n=n, dim=axis)
    if one_sided:
        spectrum = spectrum.narrow(axis, 0, n // 2 + 1)
    return Result(torch.view_as_real(spectrum).to(x.dtype), dot(n), [node.format(0)])


@operator("DFT", since=17, host=(1,))
def fourier_by_attribute(node: Node, x: Tensor, length: Tensor | None = None) -> Result:
    """Discrete Fourier transform (axis as an attribute, up to opset 19)."""
    return _transform(node, x, node.integer("axis", 1), None if length is None else int(length))


@operator("DFT", since=20, host=(1, 2))
def fourier(node: Node, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Result:
    """Discrete Fourier transform."""
    return _transform(node, x, -2 if axis is None else int(axis), None if length is None else int(length))


@operator("STFT", since=17, host=(1, 3))
def short_time_fourier(
    node: Node, signal: Tensor, step: Tensor, window: Tensor | None = None, length: Tensor | None = None
) -> Result:
    """Fourier transforms of overlapping windows, (batch, frames, bins, 2)."""
    size = window.shape[0] if window is not None else int(length if length is not None else 0)
    values = _as_complex(signal) if signal.dim() == 3 else _as_complex(signal.unsqueeze(-1))
    frames = values.unfold(1, size, int(step))
    if window is not None:
        frames = frames * window
    spectrum = torch.fft.fft(frames, dim=-1)
    if node.integer("onesided", 1):
        spectrum = spectrum[..., : size // 2 + 1]
    return Result(torch.view_as_real(spectrum).to(signal.dtype), dot(size), [node.format(0)])


_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@operator(*_WINDOWS, since=17, host=(0,), kind=Kind.FUNCTION)
def window(node: Node, size: Tensor) -> Result:
    """Cosine-sum windows, periodic or symmetric."""
    a, b, c = _WINDOWS[node.op_type]
    count = int(size)
    period = count if node.integer("periodic", 1) else count - 1
    angle = 2 * math.pi * torch.arange(count, dtype=torch.float64, device=node.device) / max(period, 1)
    values = a - b * torch.cos(angle) + c * torch.cos(2 * angle)
    # At its ends a window is what the cosines leave of the constant: next to nothing, and their rounding.
    kind = Rounding(Kind.FUNCTION, parts=lambda: torch.full_like(values, a))
    return Result(values, kind, [FORMAT_OF_ELEMENT[node.integer("output_datatype", 1)]])


@operator("MelWeightMatrix", since=17, host=(0, 1, 2, 3, 4), kind=Kind.FUNCTION)
def mel_weights(node: Node, bins: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor) -> Result:
    """Triangular filters on the mel scale, (spectrogram bins, mel bins)."""
    count, spectrum = int(bins), int(length) // 2 + 1
    mel = torch.tensor([float(low), float(high)], dtype=torch.float64)
    mel = 2595 * torch.log10(1 + mel / 700)
    places = mel[0] + torch.arange(count + 2, dtype=torch.float64) * ((mel[1] - mel[0]) / (count + 2))
    edges = torch.floor((int(length) + 1) * (700 * (10 ** (places / 2595) - 1)) / int(rate)).long()
    weights = torch.zeros(spectrum, count, dtype=torch.float64)
    for i in range(count):
        start, centre, end = (int(edges[i + j]) for j in range(3))
        if centre == start:
            weights[centre, i] = 1
        else:
            weights[start : centre + 1, i] = (torch.arange(start, centre + 1) - start) / (centre - start)
        if end > centre:
            weights[centre:end, i] = (end - torch.arange(centre, end)) / (end - centre)
    native = FORMAT_OF_ELEMENT[node.integer("output_datatype", 1)]
    return Result(weights.to(node.device), Rounding(Kind.FUNCTION), [native])
