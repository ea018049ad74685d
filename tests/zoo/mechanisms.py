"""Small models of mechanisms that chains of layers do not have: two inputs, heads, several parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import written

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Beside(nn.Module):
    """A model of two inputs of which one is fixed, so that tools that give one input can be asked."""

    def __init__(self, model: nn.Module, name: str, field: str, other: str, fixed: torch.Tensor, **more: Any):
        super().__init__()
        self.model, self.name, self.field, self.other, self.more = model, name, field, other, more
        self.register_buffer("fixed", fixed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Read from the input, so that no exporter computes the whole other side ahead of time.
        nothing = (x.flatten()[:1] * 0).long()
        result = self.model(**{self.name: x, self.other: self.fixed + nothing}, **self.more)
        return getattr(result, self.field)


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(3, 99, shape, generator=torch.Generator().manual_seed(1))


# --- of transformers -----------------------------------------------------------------------------------------


def _decoder(
    kind: str, model: str, sizes: dict[str, Any], x: Callable[[], torch.Tensor], name: str = "input_ids"
) -> Made:
    """An encoder and a decoder, the latter given fixed tokens."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=99, **sizes)
    made = getattr(transformers, model)(config)
    return Beside(made, name, "last_hidden_state", "decoder_input_ids", _ids(2, 5), use_cache=False), (x(),)


_BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 40,
}  # fmt: skip
_WHISPER = {**_BART, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 20, "pad_token_id": 0,
            "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}


def _single(
    kind: str, model: str, field: str, sizes: dict[str, Any], x: Callable[[], torch.Tensor], **more: Any
) -> Made:
    """A model of one input, of which one field is taken."""
    import transformers

    from .architectures import Picked

    made = getattr(transformers, model)(getattr(transformers, f"{kind}Config")(**sizes))
    return Picked(made, field, **more), (x(),)


_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_EXPERTS = {**_PLAIN, "vocab_size": 99, "num_key_value_heads": 2, "moe_intermediate_size": 16, "pad_token_id": 0}


def _clip() -> Made:
    import transformers

    config = transformers.CLIPConfig(
        text_config={**_PLAIN, "vocab_size": 99, "eos_token_id": 98, "pad_token_id": 1, "bos_token_id": 97},
        vision_config={**_PLAIN, "image_size": 32, "patch_size": 8}, projection_dim=16,
    )  # fmt: skip
    made = transformers.CLIPModel(config)
    return Beside(made, "pixel_values", "logits_per_image", "input_ids", _ids(3, 7)), (_random(2, 3, 32, 32),)


def _vilt() -> Made:
    import transformers

    made = transformers.ViltModel(transformers.ViltConfig(**_PLAIN, vocab_size=99, image_size=32, patch_size=8))
    # Given pixels it draws patches at random; given patches it draws nothing.
    mask = torch.ones(2, 1, 17, dtype=torch.long)
    beside = Beside(made, "image_embeds", "last_hidden_state", "input_ids", _ids(2, 7), pixel_mask=mask)
    return beside, (_random(2, 17, 32),)


def _detr() -> Made:
    """Detection with queries; the backbone is a small residual network."""
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic", out_features=["stage4"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone,
        **{k: v for k, v in _BART.items() if k != "max_position_embeddings"}, num_queries=5, num_labels=7,
    )  # fmt: skip
    from .architectures import Picked

    return Picked(transformers.DetrForObjectDetection(config), "pred_boxes"), (_random(2, 3, 64, 64),)


def _of_words(model: nn.Module, words: int, *shape: int) -> Made:
    return model, (torch.randint(0, words, shape, generator=torch.Generator().manual_seed(1)),)


def _written(kind: Callable[[], nn.Module], *shape: int) -> Made:
    return kind(), (_random(*shape),)


def _ranking() -> Made:
    return written.Ranking(), (torch.randint(0, 20, (6, 4), generator=torch.Generator().manual_seed(1)),)


MECHANISMS: dict[str, Callable[[], Made]] = {
    "whisper": lambda: _decoder("Whisper", "WhisperModel", _WHISPER, lambda: _random(2, 8, 40), "input_features"),
    "bart": lambda: _decoder("Bart", "BartModel", _BART, lambda: _ids(2, 9)),
    "marian": lambda: _decoder("Marian", "MarianModel", {**_BART, "pad_token_id": 0}, lambda: _ids(2, 9)),
    "t5-whole": lambda: _decoder("T5", "T5Model", {**_T5, "feed_forward_proj": "gated-gelu"}, lambda: _ids(2, 9)),
    "clip": _clip,
    "vilt": _vilt,
    "detr": _detr,
    "yolos": lambda: _single(
        "Yolos", "YolosForObjectDetection", "pred_boxes",
        {**_PLAIN, "image_size": [32, 32], "patch_size": 8, "num_detection_tokens": 5}, lambda: _random(2, 3, 32, 32),
    ),
    "hubert": lambda: _single(
        "Hubert", "HubertModel", "last_hidden_state",
        {**_PLAIN, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 16,
         "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 2, "apply_spec_augment": False,
         "feat_extract_norm": "layer", "do_stable_layer_norm": True}, lambda: _random(2, 400),
    ),
    "ast": lambda: _single(
        "AST", "ASTModel", "last_hidden_state",
        {**_PLAIN, "patch_size": 4, "frequency_stride": 4, "time_stride": 4, "max_length": 16, "num_mel_bins": 8},
        lambda: _random(2, 16, 8),
    ),
    "patchtst": lambda: _single(
        "PatchTST", "PatchTSTForPrediction", "prediction_outputs",
        {"num_input_channels": 3, "context_length": 32, "prediction_length": 4, "patch_length": 8, "patch_stride": 8,
         "d_model": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "ffn_dim": 64}, lambda: _random(2, 32, 3),
    ),
    "dpt": lambda: _single(
        "DPT", "DPTForDepthEstimation", "predicted_depth",
        {**_PLAIN, "image_size": 32, "patch_size": 8, "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 8,
         "num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3],
         "reassemble_factors": [4, 2, 1, 0.5], "is_hybrid": False},
        lambda: _random(2, 3, 32, 32),
    ),
    "swin2sr": lambda: _single(
        "Swin2SR", "Swin2SRForImageSuperResolution", "reconstruction",
        {"image_size": 16, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "num_channels": 3},
        lambda: _random(2, 3, 16, 16),
    ),
    "perceiver": lambda: _single(
        "Perceiver", "PerceiverModel", "last_hidden_state",
        {"num_latents": 6, "d_latents": 32, "d_model": 16, "num_blocks": 1, "num_self_attends_per_block": 2,
         "num_self_attention_heads": 4, "num_cross_attention_heads": 4}, lambda: _random(2, 9, 16),
    ),
    "olmoe": lambda: _single(
        "Olmoe", "OlmoeModel", "last_hidden_state", {**_EXPERTS, "num_experts": 4, "num_experts_per_tok": 2},
        lambda: _ids(2, 9), use_cache=False,
    ),
    "funnel": lambda: _single(
        "Funnel", "FunnelBaseModel", "last_hidden_state",
        {"vocab_size": 99, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
        lambda: _ids(2, 8),
    ),
    "lfm2": lambda: _single(
        "Lfm2", "Lfm2Model", "last_hidden_state",
        {**_PLAIN, "vocab_size": 99, "num_key_value_heads": 2, "layer_types": ["conv", "full_attention"],
         "pad_token_id": 0}, lambda: _ids(2, 9), use_cache=False,
    ),
    "denoiser": lambda: _written(written.Denoiser, 2, 3, 16, 16),
    "autoencoder": lambda: _written(written.AutoEncoder, 2, 3, 16, 16),
    "graph": lambda: _written(written.GraphNetwork, 12, 16),
    "wavenet": lambda: _written(written.Dilated, 2, 1, 24),
    "selective": lambda: _written(written.Selective, 2, 6, 16),
    "experts": lambda: _written(written.Experts, 2, 7, 16),
    "ranking": _ranking,
    "flow": lambda: _written(written.Flow, 5, 8),
    "decoder": lambda: _of_words(written.Decoder(), 40, 2, 9),
    "field": lambda: _written(written.Field, 6, 5, 3),
    "pyramid": lambda: _written(written.Pyramid, 2, 3, 32, 32),
    "spectral": lambda: _written(written.Spectral, 2, 16, 8),
    "cells": lambda: _written(written.Cells, 2, 3, 3, 10, 10),
}  # fmt: skip
