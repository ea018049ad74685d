"""Convolution and attention on arrays of balls: sums of products over windows and over keys."""

from __future__ import annotations

import math
from typing import Any

import flint
import numpy as np
import torch
import torch.nn.functional as F

from driftscope.lift.finer.given import Balls, Given, NoRule, each


def convolution(g: Given) -> Balls:
    """Cross-correlation with strides, padding, dilation and groups; a transposed one has no rule."""
    x, w = g.real(0), g.real(1)
    rank = w.ndim - 2
    if g.attribute("transposed") or g.attribute("auto_pad") not in (None, "NOTSET", b"NOTSET"):
        raise NoRule
    strides, dilations = (
        _spread(g.attribute("stride", "strides"), rank, 1),
        _spread(g.attribute("dilation", "dilations"), rank, 1),
    )
    groups = int(g.attribute("groups", "group") or 1)
    # Where each factor stands: zero is the padding, and the elements are counted from one.
    index = F.pad(torch.arange(1, x.size + 1).reshape(x.shape), _pads(g, rank))
    for axis, (length, stride, dilation) in enumerate(zip(w.shape[2:], strides, dilations, strict=True), start=2):
        index = index.unfold(axis, dilation * (length - 1) + 1, stride)[..., ::dilation]
    places = math.prod(index.shape[2 : 2 + rank])
    index = index.reshape(x.shape[0], groups, x.shape[1] // groups, places, -1).permute(0, 1, 3, 2, 4)
    zero = np.array([flint.arb(0)], dtype=object)
    patches = np.concatenate([zero, x.reshape(-1)])[index.reshape(x.shape[0], groups, places, -1).numpy()]
    filters = w.reshape(groups, w.shape[0] // groups, -1)
    found = (patches @ filters.transpose(0, 2, 1)).transpose(0, 1, 3, 2).reshape(g.shape)
    if len(g.inputs) > 2 and g.inputs[2] is not None:
        found = found + g.real(2).reshape(1, -1, *[1] * rank)
    return np.asarray(found, dtype=object)


def _spread(given: Any, rank: int, default: int) -> list[int]:
    if given is None:
        return [default] * rank
    listed = [int(v) for v in given] if isinstance(given, list | tuple) else [int(given)]
    return listed * rank if len(listed) == 1 else listed


def _pads(g: Given, rank: int) -> list[int]:
    """Padding in the order of ``torch.nn.functional.pad``: the last axis first."""
    both = g.attribute("pads")
    if both is not None:
        before, after = list(both)[:rank], list(both)[rank:]
    else:
        padding = g.attribute("padding")
        if isinstance(padding, str):
            raise NoRule
        before = after = _spread(padding, rank, 0)
    return [int(n) for pair in zip(reversed(before), reversed(after), strict=True) for n in pair]


def attention(g: Given) -> Balls:
    """Scaled dot product attention with a mask that is added or excludes, causal or not."""
    q, k, v = g.real(0), g.real(1), g.real(2)
    k, v = _repeated(k, q), _repeated(v, q)
    scale = g.attribute("scale")
    factor = 1 / flint.arb(q.shape[-1]).sqrt() if scale is None else flint.arb(float(scale))
    scores = (q @ np.swapaxes(k, -1, -2)) * factor
    unseen = np.zeros(scores.shape, dtype=bool)
    if g.attribute("is_causal"):
        unseen |= np.triu(np.ones(scores.shape[-2:], dtype=bool), 1)
    mask = g.step.inputs[3] if len(g.step.inputs) > 3 else None
    if mask is not None and mask.dtype is torch.bool:
        unseen |= ~mask.cpu().numpy()
    elif mask is not None:
        unseen |= torch.isinf(mask).cpu().numpy()
        scores = scores + g.real(3)
    if bool(unseen.all(-1).any()):
        raise NoRule
    rough = np.where(unseen, -np.inf, np.where(unseen, 0, scores).astype(float))
    powers = each(lambda e: e.exp())(np.where(unseen, flint.arb(0), scores - rough.max(-1, keepdims=True)))
    powers = np.where(unseen, flint.arb(0), powers)
    return np.asarray((powers @ v) / np.add.reduce(powers, axis=-1, keepdims=True), dtype=object)


def _repeated(k: Balls, q: Balls) -> Balls:
    """Heads that several heads of the queries share, as often as there are of those."""
    return k if k.ndim < 3 or k.shape[-3] == q.shape[-3] else np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
