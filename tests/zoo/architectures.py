"""Small models of real architectures, from their configurations, with random weights; equal layers are perturbed."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import families
from .mechanisms import MECHANISMS
from .vision import VISION, load

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]


class Picked(nn.Module):
    """A model that takes one tensor and returns one, as exporters like it best."""

    def __init__(self, model: nn.Module, field: str, **arguments: Any):
        super().__init__()
        self.model, self.field, self.arguments = model, field, arguments

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.model(x, **self.arguments)
        return getattr(result, self.field) if self.field else result


def _small(kind: str, **more: Any) -> Any:
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    config = getattr(transformers, f"{kind}Config")
    # Some take their width from other numbers, and would have two.
    return config(**{name: value for name, value in {**sizes, **more}.items() if value is not None})


def _text(kind: str, model: str | None = None, **more: Any) -> Made:
    import transformers

    config = _small(kind, vocab_size=99, **more)
    made = getattr(transformers, model or f"{kind}Model")(config)
    ids = torch.randint(3, 99, (2, 11), generator=torch.Generator().manual_seed(1))
    # What a cache holds would be returned beside the states.
    cached = "use_cache" in inspect.signature(made.forward).parameters
    return Picked(made, "last_hidden_state", **({"use_cache": False} if cached else {})), (ids,)


def _image(kind: str, model: str | None = None, size: int = 32, **more: Any) -> Made:
    import transformers

    made = getattr(transformers, model or f"{kind}Model")(_small(kind, image_size=size, **more))
    image = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    return Picked(made, "last_hidden_state"), (image,)


def _t5() -> Made:
    import transformers

    config = transformers.T5Config(vocab_size=99, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    ids = torch.randint(3, 99, (2, 11), generator=torch.Generator().manual_seed(1))
    return Picked(transformers.T5EncoderModel(config), "last_hidden_state"), (ids,)


def _wav2vec2() -> Made:
    config = _small(
        "Wav2Vec2", conv_dim=(16, 16), conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=4, num_feat_extract_layers=2, apply_spec_augment=False,
    )  # fmt: skip
    import transformers

    sound = torch.randn(2, 400, generator=torch.Generator().manual_seed(1))
    return Picked(transformers.Wav2Vec2Model(config), "last_hidden_state"), (sound,)


def _small_resnet() -> Made:
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic"
    )
    image = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    return Picked(transformers.ResNetModel(config), "last_hidden_state"), (image,)


def _parakeet() -> Made:
    import transformers

    config = _small("ParakeetEncoder", num_mel_bins=16, subsampling_conv_channels=8, conv_kernel_size=5)
    sound = torch.randn(2, 32, 16, generator=torch.Generator().manual_seed(1))
    return Picked(transformers.ParakeetEncoder(config), "last_hidden_state"), (sound,)


def _mobilenet() -> Made:
    import transformers

    config = transformers.MobileNetV2Config(depth_multiplier=0.25, image_size=64)
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    return Picked(transformers.MobileNetV2Model(config), "pooler_output"), (image,)


class Perceptron(nn.Module):
    """Linear and BatchNorm1d, as tabular models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(16, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 24), nn.BatchNorm1d(24), nn.GELU()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Recurrent(nn.Module):
    """A bidirectional LSTM under a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(x)[0])[0]


def _plain(module: nn.Module, *shape: int) -> Made:
    return module, (torch.randn(*shape, generator=torch.Generator().manual_seed(1)),)


ARCHITECTURES: dict[str, Callable[[], Made]] = {
    "bert": lambda: _text("Bert"),
    "roberta": lambda: _text("Roberta", max_position_embeddings=40),
    "deberta": lambda: _text("DebertaV2", relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8),
    "gpt2": lambda: _text("GPT2", n_embd=32, n_layer=2, n_head=4),
    "llama": lambda: _text("Llama", num_key_value_heads=2),
    "gemma": lambda: _text("Gemma", num_key_value_heads=2, head_dim=8),
    "t5": _t5,
    "vit": lambda: _image("ViT", patch_size=8),
    "dinov2": lambda: _image("Dinov2", patch_size=8, size=40),
    "swin": lambda: _image(
        "Swin",
        num_hidden_layers=None,
        num_attention_heads=None,
        patch_size=2,
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
    ),
    "convnext": lambda: _image(
        "ConvNext", hidden_size=None, num_hidden_layers=None, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]
    ),
    "bit": lambda: _image(
        "Bit",
        size=64,
        num_attention_heads=None,
        intermediate_size=None,
        num_hidden_layers=None,
        hidden_size=None,
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1, 1, 1, 1],
        num_groups=4,
    ),
    "wav2vec2": _wav2vec2,
    "parakeet": _parakeet,
    "resnet": _small_resnet,
    "mobilenet": _mobilenet,
    **{name.lower(): functools.partial(_text, name, **more) for name, more in families.TEXT.items()},
    **{name.lower(): functools.partial(_image, name, **more) for name, more in families.IMAGE.items()},
    **VISION,
    **MECHANISMS,
    "perceptron": lambda: _plain(Perceptron(), 8, 16),
    "recurrent": lambda: _plain(Recurrent(), 2, 7, 16),
}


def build(name: str) -> Made:
    """Make an architecture in evaluation mode; the same seed gives the same weights on one machine."""
    load()
    torch.manual_seed(0)
    model, inputs = ARCHITECTURES[name]()
    return perturbed(model), inputs


def perturbed(model: nn.Module) -> nn.Module:
    """Give a model weights among which no two are alike, and put it in evaluation mode."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases of zero and gains of one would hide what is done to them; a wide layer must not explode.
            width = min(0.1, parameter[0].numel() ** -0.5) if parameter.ndim > 1 else 0.1
            parameter.add_(width * torch.randn(parameter.shape, generator=generator))
        for key, buffer in model.named_buffers():
            if key.endswith("running_var"):
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
            elif key.endswith("running_mean"):
                buffer.copy_(0.3 * torch.randn(buffer.shape, generator=generator))
    return model.eval()
