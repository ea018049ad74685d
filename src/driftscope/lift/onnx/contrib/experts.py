"""Mixtures of experts: each token goes through the k feed-forward networks its router prefers.

Semantics: onnxruntime, ``docs/ContribOperators.md`` (MoE, QMoE) and ``contrib_ops/cpu/moe``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from driftscope.lift.formulas.activations import swish
from driftscope.lift.formulas.terms import EXACT, FUNCTION, ROUND, dot, matmul_squares, softened, summed
from driftscope.lift.onnx.contrib.activations import MICROSOFT, gelu
from driftscope.lift.onnx.contrib.quantised_products import stored_product, unpacked
from driftscope.lift.onnx.registry import Node, Result, operator


@dataclass(frozen=True, slots=True)
class Layer:
    """One linear layer of every expert: weight (E, out, in) and bias (E, out) or None."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, node: Node, name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        """Apply an expert's layer to tokens x (tokens, in)."""
        weight = self.weight[expert].transpose(0, 1)
        y = torch.matmul(x, weight)
        if self.bias is not None:
            y = y + self.bias[expert]
        length = x.shape[-1] + (self.bias is not None)
        return node.inner(f"{name} {expert}", y, dot(length, lambda: matmul_squares(x, weight)))


def _activated(node: Node, expert: int, x: torch.Tensor, linear: torch.Tensor | None) -> torch.Tensor:
    """The activation between the layers; ``linear`` is what a third layer gives SwiGLU, or SiLU's gate."""
    name = node.text("activation_type", "relu")
    if name == "identity":
        return x
    if name == "relu":
        y, rounding = torch.relu(x), EXACT
    elif name == "gelu":
        y, rounding = gelu(node, x, "tanh")
    elif name == "silu":
        y, rounding = swish(x), FUNCTION
    elif name == "swiglu":
        return _swiglu(node, expert, x, linear)
    else:
        raise node.refuse(f"its experts have the activation {name!r}, which is not covered")
    y = node.inner(f"Activation {expert}", y, rounding)
    return y if linear is None else node.inner(f"Gate {expert}", y * linear, ROUND)


def _swiglu(node: Node, expert: int, x: torch.Tensor, linear: torch.Tensor | None) -> torch.Tensor:
    fusion = node.integer("swiglu_fusion", 0)
    if fusion == 1:
        x, linear = x[..., 0::2], x[..., 1::2]
    elif fusion == 2:
        x, linear = x.chunk(2, -1)
    if linear is None:
        raise node.refuse("it has SwiGLU and no third layer")
    if node.has("swiglu_limit"):
        limit = node.setting("swiglu_limit")
        x, linear = x.clamp(max=limit), linear.clamp(-limit, limit)
    opened = node.inner(f"Activation {expert}", swish(x, node.number("activation_alpha", 1.0)), FUNCTION)
    gated = opened * (linear + node.number("activation_beta", 0.0))
    return node.inner(f"Gate {expert}", gated, ROUND)


def _routed(node: Node, router: torch.Tensor, mixing: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Experts chosen for each token (tokens, k) and their weights; native values choose."""
    if node.integer("use_sparse_mixer", 0):
        raise node.refuse("it routes by a sparse mixer")
    weights = node.inner("Router", torch.softmax(router, -1), softened(router.shape[-1]))
    order = torch.sort(node.rounded(router, 1), dim=-1, descending=True, stable=True).indices
    chosen = order[:, : node.integer("k", 1)]
    weights = torch.gather(weights if mixing is None else mixing, 1, chosen)
    if node.integer("normalize_routing_weights", 0):
        weights = node.inner("Normalise", weights / weights.sum(-1, keepdim=True), ROUND)
    return chosen, weights


def _mixed(
    node: Node,
    x: torch.Tensor,
    routes: tuple[torch.Tensor, torch.Tensor],
    layers: Sequence[Layer | None],
) -> Result:
    """Sum over the experts of a token of weight times output."""
    first, second, third = layers
    if first is None or second is None:
        raise node.refuse("a layer of its experts is left out")
    tokens = x.reshape(-1, x.shape[-1])
    chosen, weights = routes
    total = torch.zeros_like(tokens)
    shares: list[tuple[torch.Tensor, torch.Tensor]] = []
    for expert in range(first.weight.shape[0]):
        token, place = torch.nonzero(chosen == expert, as_tuple=True)
        if not len(token):
            continue
        taken = tokens[token]
        hidden = first(node, "FC1", expert, taken)
        linear = None if third is None else third(node, "FC3", expert, taken)
        output = second(node, "FC2", expert, _activated(node, expert, hidden, linear))
        share = weights[token, place, None].to(output.dtype) * output
        total = total.index_add(0, token, share)
        shares.append((token, share))

    def squares() -> torch.Tensor:
        result = torch.zeros_like(tokens)
        for token, share in shares:
            result = result.index_add(0, token, share.square())
        return result.reshape(x.shape)

    return Result(total.reshape(x.shape), summed(chosen.shape[-1], squares), [node.format(0)])


@operator("MoE", domain=MICROSOFT)
def mixture_of_experts(node: Node, x: torch.Tensor, router: torch.Tensor, *tensors: torch.Tensor | None) -> Result:
    """A mixture of experts.

    Parameters
    ----------
    node : Node
    x : torch.Tensor, (..., D)
    router : torch.Tensor, (tokens, E)
        Logits.
    *tensors : torch.Tensor or None
        Weight (E, out, in) and bias (E, out) of the first, second and third layer.
    """
    given = (*tensors, *[None] * (6 - len(tensors)))
    layers = [None if w is None else Layer(w, b) for w, b in zip(given[0::2], given[1::2], strict=True)]
    return _mixed(node, x, _routed(node, router, None), layers)


@operator("QMoE", domain=MICROSOFT)
def quantised_mixture_of_experts(
    node: Node, x: torch.Tensor, router: torch.Tensor, *tensors: torch.Tensor | None
) -> Result:
    """A mixture of experts with integer weights.

    ``tensors`` is packed weight (E, out, in * bits / 8), scale (E, out) or (E, out, blocks) and bias (E, out) of
    the first, second and third layer, then their packed zero points, then the weights that mix the outputs.
    """
    given = (*tensors, *[None] * (13 - len(tensors)))
    if node.text("quant_type", "int") != "int" or node.integer("weights_prepacked", -1) == 1:
        raise node.refuse("its weights are 4-bit or 8-bit floats, or packed for another provider")
    layers: list[Layer | None] = []
    for index in range(3):
        weight, scale, bias = given[3 * index : 3 * index + 3]
        if weight is None or scale is None:
            layers.append(None)
            continue
        bits = node.integer(f"fc{index + 1}_expert_weight_bits", node.integer("expert_weight_bits", 4))
        weights = _dequantised(node, (weight, scale, given[9 + index]), bits, 3 * index + 3)
        layers.append(Layer(weights.to(x.dtype), bias))
    return _mixed(node, x, _routed(node, router, given[12]), layers)


def _dequantised(
    node: Node, packed: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None], bits: int, index: int
) -> torch.Tensor:
    """(E, out, in) from packed levels, their scales (input ``index``) and packed zero points."""
    weight, scale, zero = packed
    width = weight.shape[-1] * 8 // bits
    levels = unpacked(weight, bits, width).to(scale.dtype)
    scale = scale if scale.dim() == 3 else scale.unsqueeze(-1)
    repeat = width // scale.shape[-1]
    if zero is None:
        return stored_product(node, levels - (1 << (bits - 1)), scale.repeat_interleave(repeat, -1), index)
    packed_rows = zero.dim() == 2
    middle = unpacked(zero, bits, scale.shape[1] if packed_rows else scale.shape[-1]).to(scale.dtype)
    middle = middle.unsqueeze(-1) if packed_rows else middle
    levels = levels - middle.repeat_interleave(repeat, -1)
    return stored_product(node, levels, scale.repeat_interleave(repeat, -1), index)
