"""A study of one's own: five architectures, exported at two opsets, run at two optimisation levels, in two dtypes.

Small configurations with random weights, so nothing is downloaded. Run it with

    driftscope study examples/architectures.yaml

or in part, from Python:

    from examples.architectures import cell
    cell("bert", opset=18, level="all", dtype="float32", seed=0)
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import driftscope as ds


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    return transformers.BertModel(config, add_pooling_layer=False)


def gpt2() -> torch.nn.Module:
    return transformers.GPT2Model(
        transformers.GPT2Config(vocab_size=256, n_embd=64, n_layer=2, n_head=4, n_positions=64)
    )


def llama() -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaModel(config)


def qwen3() -> torch.nn.Module:
    config = transformers.Qwen3Config(
        vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=128, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.Qwen3Model(config)


def vit() -> torch.nn.Module:
    config = transformers.ViTConfig(
        image_size=32, patch_size=8, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128
    )
    return transformers.ViTModel(config, add_pooling_layer=False)


ARCHITECTURES: dict[str, Callable[[], torch.nn.Module]] = {
    "bert": bert, "gpt2": gpt2, "llama": llama, "qwen3": qwen3, "vit": vit,
}  # fmt: skip


class LastHiddenState(torch.nn.Module):
    """The one output that all five have, from the one input each needs."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state: torch.Tensor = self.model(x, return_dict=True).last_hidden_state
        return state


def cell(architecture: str, opset: int, level: str, dtype: str, seed: int) -> dict[str, Any]:
    """Export a model, run the file, and compare it with the model it was exported from."""
    torch.manual_seed(seed % 2**31)
    inner = ARCHITECTURES[architecture]()
    inner.config.use_cache = False  # keys and values of earlier tokens would be further outputs
    model = LastHiddenState(inner).to(getattr(torch, dtype)).eval()
    x = (
        torch.randn(1, 3, 32, 32, dtype=getattr(torch, dtype))
        if architecture == "vit"
        else torch.randint(0, 256, (1, 12))
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        torch.onnx.export(model, (x,), str(file), opset_version=opset, dynamo=True, verbose=False)
        matrix = ds.compare_all({"eager": model, "onnx": ds.onnx(file, level=level)}, x)
    comparison = matrix["eager", "onnx"]
    output = comparison.outputs[0]
    return {
        "verdict": str(comparison.verdict),
        "floors": output.floors,
        "lifted": output.lifted,
        "max_abs": output.max_abs,
        "closer": output.closer,
        "finding": comparison.first.code if comparison.first else "",
    }
