"""Embeddings of words, positions and segments, summed and normalised (BERT's first layer), plain and quantised.

Semantics: onnxruntime, ``docs/ContribOperators.md`` (EmbedLayerNormalization, QEmbedLayerNormalization).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from driftscope.lift.formulas.normalisations import affine, normalised
from driftscope.lift.onnx.contrib.activations import MICROSOFT
from driftscope.lift.onnx.contrib.norms import SKIP_EPSILON
from driftscope.lift.onnx.contrib.quantised import real_of
from driftscope.lift.onnx.element_types import Format
from driftscope.lift.onnx.registry import Node, Result, operator
from driftscope.lift.steps import Kind, Rounding


@dataclass(frozen=True, slots=True)
class Tables:
    """Embedding tables (entries, H), and scale and shift (H,) of the normalisation.

    ``segment`` is None where words carry no segment; ``format`` is the native format of all of them.
    """

    word: torch.Tensor
    position: torch.Tensor
    segment: torch.Tensor | None
    gamma: torch.Tensor
    beta: torch.Tensor
    format: Format


@dataclass(frozen=True, slots=True)
class Lookups:
    """Where to look: words, segments and positions (B or 1, S) of int, and a mask (B, S) that is 1 at words."""

    words: torch.Tensor
    segments: torch.Tensor | None
    positions: torch.Tensor | None
    mask: torch.Tensor | None


def _embedded(node: Node, tables: Tables, places: Lookups) -> Result:
    """The normalised sum (B, S, H), the number of words of each row (B,), and the sum."""
    words = places.words
    at = tables.position[: words.shape[1]] if places.positions is None else tables.position[places.positions]
    total = tables.word[words] + at
    if tables.segment is not None and places.segments is not None:
        total = total + tables.segment[places.segments]
    total = node.inner("Add", total, Rounding(Kind.ROUND), format=tables.format)
    done = normalised(total, [-1], node.number("epsilon", SKIP_EPSILON))
    value = affine(done.value, tables.gamma, tables.beta).to(total.dtype)
    counts = torch.zeros(words.shape[0], dtype=torch.int32, device=words.device)
    if places.mask is not None:
        counts = (places.mask == 1).sum(-1).to(torch.int32)
    formats = (tables.format, torch.int32, tables.format)
    return Result((value, counts, total), Rounding(Kind.NORM, total.shape[-1]), formats)


@operator("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(node: Node, *tensors: torch.Tensor | None) -> Result:
    """Layer normalisation of a sum of embeddings.

    Inputs are input_ids and segment_ids (B, S), the tables of words, positions and segments (entries, H),
    gamma and beta (H,), mask (B, S), position_ids (B or 1, S).
    """
    words, segments, word, position, segment, gamma, beta, mask, positions = (*tensors, *[None] * 9)[:9]
    if words is None or word is None or position is None or gamma is None or beta is None:
        raise node.refuse("a table, or its ids, gamma or beta, is left out")
    tables = Tables(word, position, segment, gamma, beta, node.format(2))
    return _embedded(node, tables, Lookups(words, segments, positions, mask))


@operator("QEmbedLayerNormalization", domain=MICROSOFT)
def quantised_embed_layer_normalization(node: Node, *tensors: torch.Tensor | None) -> Result:
    """EmbedLayerNormalization of 8-bit tables.

    Inputs are ids and tables as there, gamma, beta, mask; then the scales, then the zero points, of the tables
    of words, positions and segments, of gamma and of beta.
    """
    given = (*tensors, *[None] * (18 - len(tensors)))
    real: list[torch.Tensor | None] = []
    for table, scale, zero in zip(given[2:7], given[8:13], given[13:18], strict=True):
        if table is None or scale is None:
            real.append(None)
            continue
        values = real_of(table, scale, zero)
        real.append(values if node.lifted else values.to(torch.float32))
    words, (word, position, segment, gamma, beta) = given[0], real
    if words is None or word is None or position is None or gamma is None or beta is None:
        raise node.refuse("a table, or its ids, gamma or beta, is left out")
    tables = Tables(word, position, segment, gamma, beta, node.format(8))
    return _embedded(node, tables, Lookups(words, given[1], None, given[7]))
