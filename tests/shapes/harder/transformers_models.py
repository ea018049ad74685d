"""Transformers made from tiny configurations: caches as inputs, masks, two stacks, two towers, shifted windows."""

from __future__ import annotations

import torch
import transformers as hf

from shapes.harder.small import Case

_TINY = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24}  # fmt: skip
_IMAGE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
          "image_size": 16, "patch_size": 4}  # fmt: skip
_TOKENS = {"b": (1, 2, 3, 5), "s": (1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16)}


def ids(b: int, s: int) -> torch.Tensor:
    return torch.randint(3, 40, (b, s))


def ones(b: int, s: int) -> torch.Tensor:
    return torch.ones(b, s, dtype=torch.int64)


def left_padded(b: int, s: int) -> torch.Tensor:
    """What a tokenizer gives for rows of several lengths: some rows begin with zeros."""
    mask = ones(b, s)
    mask[1::2, : s // 3] = 0
    return mask


def right_padded(b: int, s: int) -> torch.Tensor:
    mask = ones(b, s)
    if s > 2:
        mask[1::2, s - s // 3 :] = 0
    return mask


def pixels(b: int, h: int, w: int) -> torch.Tensor:
    return torch.randn(b, 3, h, w)


def cache(layers: int, b: int, p: int, heads: int = 2, width: int = 8) -> hf.DynamicCache:
    made = hf.DynamicCache()
    for layer in range(layers):
        made.update(torch.randn(b, heads, p, width), torch.randn(b, heads, p, width), layer)
    return made


def bert() -> torch.nn.Module:
    return hf.BertModel(hf.BertConfig(**_TINY, max_position_embeddings=12)).eval()


def distilbert() -> torch.nn.Module:
    config = hf.DistilBertConfig(vocab_size=40, dim=16, n_layers=1, n_heads=2, hidden_dim=24,
                                 max_position_embeddings=32)  # fmt: skip
    return hf.DistilBertForSequenceClassification(config).eval()


def llama() -> torch.nn.Module:
    config = hf.LlamaConfig(**_TINY, num_key_value_heads=1, max_position_embeddings=64, head_dim=8)
    return hf.LlamaForCausalLM(config).eval()


def gpt2() -> torch.nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=64)).eval()


def t5() -> torch.nn.Module:
    config = hf.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                         decoder_start_token_id=0)  # fmt: skip
    return hf.T5ForConditionalGeneration(config).eval()


def bart() -> torch.nn.Module:
    config = hf.BartConfig(vocab_size=40, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                           decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
                           max_position_embeddings=32)  # fmt: skip
    return hf.BartModel(config).eval()


def vit() -> torch.nn.Module:
    return hf.ViTModel(hf.ViTConfig(**_IMAGE, num_channels=3)).eval()


def clip() -> torch.nn.Module:
    text = hf.CLIPTextConfig(**_TINY, max_position_embeddings=16, eos_token_id=39, bos_token_id=1, pad_token_id=0)
    vision = hf.CLIPVisionConfig(**_IMAGE)
    return hf.CLIPModel(hf.CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(),
                                      projection_dim=8)).eval()  # fmt: skip


def swin() -> torch.nn.Module:
    return hf.SwinModel(hf.SwinConfig(image_size=16, patch_size=2, num_channels=3, embed_dim=8, depths=[2, 1],
                                      num_heads=[2, 2], window_size=4)).eval()  # fmt: skip


def wav2vec2() -> torch.nn.Module:
    config = hf.Wav2Vec2Config(vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                               intermediate_size=24, conv_dim=(8, 8), conv_stride=(3, 2), conv_kernel=(6, 3),
                               num_feat_extract_layers=2, num_conv_pos_embeddings=4,
                               num_conv_pos_embedding_groups=2)  # fmt: skip
    return hf.Wav2Vec2Model(config).eval()


def resnet() -> torch.nn.Module:
    return hf.ResNetModel(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1])).eval()


def segformer() -> torch.nn.Module:
    config = hf.SegformerConfig(num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16],
                                patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2],
                                decoder_hidden_size=8)  # fmt: skip
    return hf.SegformerForSemanticSegmentation(config).eval()


CASES = (
    Case("bert", bert, lambda b, s: {"input_ids": ids(b, s), "attention_mask": ones(b, s)}, {"b": 2, "s": 5}, _TOKENS),
    Case("bert-right-padded", bert, lambda b, s: {"input_ids": ids(b, s), "attention_mask": right_padded(b, s)},
         {"b": 2, "s": 6}, _TOKENS),
    Case("distilbert", distilbert, lambda b, s: {"input_ids": ids(b, s), "attention_mask": ones(b, s)},
         {"b": 2, "s": 5}, _TOKENS),
    Case("llama-left-padded", llama, lambda b, s: {"input_ids": ids(b, s), "attention_mask": left_padded(b, s)},
         {"b": 2, "s": 6}, _TOKENS),
    Case("llama-with-cache", llama,
         lambda b, s, p: {"input_ids": ids(b, s), "attention_mask": ones(b, p + s),
                          "past_key_values": cache(2, b, p, 1)},
         {"b": 2, "s": 3, "p": 5}, {"b": (1, 2, 3), "s": (1, 2, 3, 5, 8), "p": (1, 2, 5, 9, 20)}),
    Case("gpt2-with-cache", gpt2,
         lambda b, s, p: {"input_ids": ids(b, s), "attention_mask": ones(b, p + s),
                          "past_key_values": cache(2, b, p)},
         {"b": 2, "s": 3, "p": 5}, {"b": (1, 2, 3), "s": (1, 2, 3, 5, 8), "p": (1, 2, 5, 9, 20)}),
    Case("t5", t5,
         lambda b, s, t: {"input_ids": ids(b, s), "attention_mask": ones(b, s), "decoder_input_ids": ids(b, t)},
         {"b": 2, "s": 5, "t": 4}, {"b": (1, 2, 3), "s": (1, 2, 5, 9, 17), "t": (1, 2, 4, 8)}),
    Case("bart", bart, lambda b, s, t: {"input_ids": ids(b, s), "decoder_input_ids": ids(b, t)},
         {"b": 2, "s": 5, "t": 4}, {"b": (1, 2, 3), "s": (1, 2, 5, 9, 17), "t": (1, 2, 4, 8)}),
    Case("vit-interpolated", vit, lambda b, h, w: {"pixel_values": pixels(b, h, w), "interpolate_pos_encoding": True},
         {"b": 2, "h": 24, "w": 20}, {"b": (1, 2, 3), "h": (8, 12, 16, 24, 28), "w": (8, 16, 20, 30)}),
    Case("clip", clip,
         lambda b, s, n: {"input_ids": ids(b, s), "pixel_values": pixels(n, 16, 16), "attention_mask": ones(b, s)},
         {"b": 3, "s": 5, "n": 2}, {"b": (1, 2, 3), "s": (1, 2, 5, 9, 16, 17), "n": (1, 2, 4)}),
    Case("swin", swin, lambda b, h, w: {"pixel_values": pixels(b, h, w)},
         {"b": 2, "h": 24, "w": 24}, {"b": (1, 2, 3), "h": (8, 16, 20, 24, 32), "w": (8, 16, 24, 40)}),
    Case("wav2vec2", wav2vec2, lambda b, s: {"input_values": torch.randn(b, s)}, {"b": 2, "s": 64},
         {"b": (1, 2, 3), "s": (4, 8, 12, 17, 24, 32, 48, 60, 64, 65, 80, 100, 128, 150)}),
    Case("resnet", resnet, lambda b, h, w: {"pixel_values": pixels(b, h, w)},
         {"b": 2, "h": 24, "w": 32}, {"b": (1, 2, 3), "h": (8, 15, 16, 24, 33), "w": (8, 16, 20, 32)}),
    Case("segformer", segformer, lambda b, h, w: {"pixel_values": pixels(b, h, w)},
         {"b": 2, "h": 16, "w": 24}, {"b": (1, 2, 3), "h": (8, 12, 16, 24, 30), "w": (8, 16, 20, 32)}),
)  # fmt: skip
