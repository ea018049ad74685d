"""Small models of torchvision and timm with random weights: the library's name and the arguments of a small one."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]

#: Name in torchvision.models, side of the image, further arguments.
TORCHVISION: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (32, {}),
    "mobilenet_v2": (64, {"width_mult": 0.25}),
    "mobilenet_v3_small": (64, {"width_mult": 0.25}),
    "mobilenet_v3_large": (64, {"width_mult": 0.25}),
    "efficientnet_b0": (64, {}),
    "densenet121": (64, {}),
    "shufflenet_v2_x0_5": (64, {}),
    "regnet_y_400mf": (64, {}),
    "squeezenet1_1": (64, {}),
    "mnasnet0_5": (64, {}),
    "googlenet": (64, {"aux_logits": False, "init_weights": False}),
}  # fmt: skip

#: Name in timm, side of the image, further arguments.
TIMM: dict[str, tuple[int, dict[str, Any]]] = {
    "vit_tiny_patch16_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "deit3_small_patch16_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "eva02_tiny_patch14_224": (28, {"img_size": 28, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "beitv2_base_patch16_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "cait_xxs24_224": (32, {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 4}),
    "mixer_s16_224": (64, {"img_size": 64}),
    "gmlp_s16_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "swinv2_tiny_window8_256": (64, {"img_size": 64, "embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4)}),
    "levit_128s": (64, {"img_size": 64}),
    "efficientformer_l1": (224, {}),
    "ghostnet_050": (64, {}),
    "convnextv2_atto": (64, {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "davit_tiny": (64, {"depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 4)}),
    "dpn68": (64, {}),
    "edgenext_xx_small": (64, {}),
    "fastvit_t8": (64, {}),
    "hardcorenas_a": (64, {}),
    "hrnet_w18_small": (64, {}),
    "lcnet_050": (64, {}),
    "mobileone_s0": (64, {}),
    "mobilevitv2_050": (64, {}),
    "nf_resnet26": (64, {}),
    "pit_ti_224": (64, {"img_size": 64}),
    "poolformerv2_s12": (64, {}),
    "regnetz_005": (64, {}),
    "repvgg_a0": (64, {}),
    "resnest14d": (64, {}),
    "rexnet_100": (64, {}),
    "sequencer2d_s": (64, {"layers": (1, 1, 1, 1), "embed_dims": (16, 32, 32, 32), "hidden_sizes": (4, 8, 8, 8)}),
    "skresnet18": (64, {}),
    "tf_efficientnet_lite0": (64, {}),
    "tf_mobilenetv3_small_minimal_100": (64, {}),
    "tinynet_e": (64, {}),
    "halonet26t": (256, {}),
    "lambda_resnet26t": (64, {"img_size": 64}),
    "botnet26t_256": (64, {"img_size": 64}),
    "gcresnext26ts": (64, {}),
    "visformer_tiny": (64, {"img_size": 64}),
    "starnet_s1": (64, {}),
    "mambaout_femto": (64, {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    "mobilenetv4_conv_small_050": (64, {}),
    "repvit_m0_9": (64, {}),
    "hgnetv2_b0": (64, {}),
    "inception_next_atto": (64, {}),
    "hiera_tiny_224": (64, {"img_size": (64, 64), "embed_dim": 16, "stages": (1, 1), "num_heads": 1, "q_pool": 1}),
    "naflexvit_base_patch16_gap": (32, {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}),
}  # fmt: skip


def _image(size: int) -> tuple[torch.Tensor, ...]:
    return (torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1)),)


def _define_operators() -> Any:
    """Name torchvision's own operators where its binary was built for another torch: no model here calls one."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    text = (Path(found.origin).parent / "_meta_registrations.py").read_text()
    library = torch.library.Library("torchvision", "DEF")
    for name in sorted(set(re.findall(r'register_meta\("(\w+)"|torchvision::(\w+)', text))):
        with_name = next(filter(None, name))
        library.define(f"{with_name}(Tensor x) -> Tensor")
    return library


@functools.cache
def load() -> Any:
    """Import torchvision, whatever torch its operators were built for; transformers imports it where it is there."""
    try:
        import torchvision
    except ModuleNotFoundError:
        return None
    except (RuntimeError, AttributeError):
        kept = _define_operators()
        import torchvision

        torchvision.zoo_operators = kept
    return torchvision


def _torchvision(name: str) -> Made:
    size, arguments = TORCHVISION[name]
    return getattr(load().models, name)(weights=None, num_classes=10, **arguments), _image(size)


def _timm(name: str) -> Made:
    load()
    import timm

    size, arguments = TIMM[name]
    return timm.create_model(name, pretrained=False, num_classes=10, **arguments), _image(size)


VISION: dict[str, Callable[[], Made]] = {
    **{f"tv-{name}": functools.partial(_torchvision, name) for name in TORCHVISION},
    **{f"timm-{name}": functools.partial(_timm, name) for name in TIMM},
}
