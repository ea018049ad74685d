"""Models of the transformers library, small and with random weights, as their own code computes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


class Called(nn.Module):
    """A model with its inputs by position and one tensor as its result."""

    def __init__(self, model: nn.Module, call: Callable[..., Tensor]):
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.call(self.model, *inputs)


def _perturbed(model: nn.Module) -> nn.Module:
    """Make equal layers unequal: an exporter merges equal initialisers."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator) * 0.1)
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
    return model.eval()


def _ids(rows: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randint(0, 97, (rows, columns), generator=torch.Generator().manual_seed(seed))


def _floats(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


_SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def bert() -> Made:
    model = transformers.BertModel(transformers.BertConfig(**_SIZES, vocab_size=97, max_position_embeddings=32))
    mask = torch.tensor([[1] * 9, [1] * 7 + [0] * 2])
    call = lambda m, ids, mask: m(input_ids=ids, attention_mask=mask).last_hidden_state  # noqa: E731
    return Called(_perturbed(model), call), (_ids(2, 9), mask)


def llama_with_cache() -> Made:
    config = transformers.LlamaConfig(**_SIZES, num_key_value_heads=2, vocab_size=97, max_position_embeddings=64)

    def call(model: nn.Module, ids: Tensor, *past: Tensor) -> Tensor:
        cache = transformers.DynamicCache()
        for layer in range(2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        logits: Tensor = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        return logits

    past = [_floats(2, 2, 5, 8, seed=s) for s in range(4)]
    return Called(_perturbed(transformers.LlamaForCausalLM(config)), call), (_ids(2, 4), *past)


def vit() -> Made:
    model = transformers.ViTModel(transformers.ViTConfig(**_SIZES, image_size=16, patch_size=4))
    call = lambda m, x: m(pixel_values=x).last_hidden_state  # noqa: E731
    return Called(_perturbed(model), call), (_floats(2, 3, 16, 16),)


def resnet() -> Made:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24], depths=[1, 1, 1], layer_type="basic")
    call = lambda m, x: m(pixel_values=x).last_hidden_state  # noqa: E731
    return Called(_perturbed(transformers.ResNetModel(config)), call), (_floats(2, 3, 32, 32),)


def t5() -> Made:
    config = transformers.T5Config(
        d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=97, relative_attention_num_buckets=8,
        relative_attention_max_distance=16, attn_implementation="eager",
    )  # fmt: skip
    call = lambda m, ids, target: m(input_ids=ids, decoder_input_ids=target, use_cache=False).last_hidden_state  # noqa: E731
    return Called(_perturbed(transformers.T5Model(config)), call), (_ids(2, 9), _ids(2, 5, seed=4))


MODELS = {"bert": bert, "llama-with-cache": llama_with_cache, "vit": vit, "resnet": resnet, "t5": t5}


def made(name: str) -> Made:
    """Build a model with the same weights every time."""
    torch.manual_seed(0)
    return MODELS[name]()
