"""Random operators: seeded by their attribute or their name, so that a lifted run repeats itself."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from driftscope.lift.onnx.element_types import FORMAT_OF_ELEMENT, Format
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding


def _generator(node: Node) -> torch.Generator:
    seed = int(node.setting("seed")) if node.has("seed") else zlib.crc32(node.name.encode())
    return torch.Generator().manual_seed(seed)


def _format(node: Node) -> Format:
    if node.has("dtype"):
        return FORMAT_OF_ELEMENT[node.integer("dtype")]
    return node.float_format() or torch.float32


def _drawn(node: Node, shape: Sequence[int]) -> Result:
    generator = _generator(node)
    if node.op_type.startswith("RandomNormal"):
        x = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
        x = node.setting("mean", 0.0) + node.setting("scale", 1.0) * x
    else:
        low, high = node.setting("low", 0.0), node.setting("high", 1.0)
        x = low + (high - low) * torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    return Result(x.to(node.device), Rounding(Kind.EXACT), [_format(node)])


@operator("RandomNormal", "RandomUniform", constant=False)
def random_tensor(node: Node) -> Result:
    """Random numbers in a shape given as an attribute."""
    return _drawn(node, node.integers("shape"))


@operator("RandomNormalLike", "RandomUniformLike", constant=False)
def random_like(node: Node, x: Tensor) -> Result:
    """Random numbers in the shape of another tensor."""
    return _drawn(node, x.shape)


@operator("Bernoulli", constant=False)
def bernoulli(node: Node, probability: Tensor) -> Result:
    """One with the given probability, else zero."""
    draws = torch.rand(probability.shape, generator=_generator(node), dtype=torch.float64)
    native = FORMAT_OF_ELEMENT[node.integer("dtype")] if node.has("dtype") else node.format(0)
    hit = draws.to(probability.device) < node.rounded(probability)
    return Result(hit.to(torch.float64) if native is None or native.is_floating_point else hit, formats=[native])


@operator("Multinomial", constant=False)
def multinomial(node: Node, logits: Tensor) -> Result:
    """Classes drawn from unnormalised log probabilities."""
    weights = torch.softmax(logits.to(torch.float64), -1).cpu()
    drawn = torch.multinomial(weights, node.integer("sample_size", 1), replacement=True, generator=_generator(node))
    return Result(drawn.to(logits.device), formats=[FORMAT_OF_ELEMENT[node.integer("dtype", 6)]])
