"""Honest changes of the run: levels, threads, batches, layouts, captures. The graph's meaning is untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import onnxruntime
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import driftscope as ds

from .architectures import ARCHITECTURES
from .manual import ManualNorm, ManualRecurrent
from .stage import Honest, Pair, Stage

LEVELS = ("disable", "basic", "extended", "all")
EVERY = tuple(ARCHITECTURES)
ALL_FORMATS = ("float32", "float16", "bfloat16")


def _level(level: str, **options: Any) -> Callable[[Stage], Pair]:
    return lambda stage: (stage.module(), ds.onnx(stage.model(), level=level, **options))


def _files(level_a: str, level_b: str) -> Callable[[Stage], Pair]:
    return lambda stage: (ds.onnx(stage.model(), level=level_a), ds.onnx(stage.model(), level=level_b))


def _saved(level: str) -> Callable[[Stage], Pair]:
    """The optimised graph that onnxruntime wrote, run as a file of its own."""

    def make(stage: Stage) -> Pair:
        target = stage.folder / "optimised.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}")
        options.optimized_model_filepath = str(target)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(stage.model().SerializeToString(), options, providers=["CPUExecutionProvider"])
        return stage.module(), onnx.load(target)

    return make


def _torch(change: Callable[[nn.Module, Stage], Any]) -> Callable[[Stage], Pair]:
    return lambda stage: (stage.module(), change(stage.module(), stage))


def _split_batch(module: nn.Module, stage: Stage) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([module(row) for row in x.split(1)])


def _wider(module: nn.Module, stage: Stage) -> Callable[[Tensor], Tensor]:
    """The same stored weights, every intermediate value in float32, one rounding at the end."""
    wide = module.float()
    return lambda x: wide(x.float()).to(stage.native)


def _manual_attention(module: nn.Module, stage: Stage) -> nn.Module:
    for part in module.modules():
        if hasattr(part, "fused"):
            part.fused = not part.fused
    return module


def _manual_norms(module: nn.Module, stage: Stage) -> nn.Module:
    for path, part in list(module.named_modules()):
        if isinstance(part, nn.LayerNorm):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, ManualNorm(part))
    return module


def _fused_batchnorm(module: nn.Module, stage: Stage) -> nn.Module:
    module.conv1, module.bn1 = fuse_conv_bn_eval(module.conv1, module.bn1), nn.Identity()
    module.conv2, module.bn2 = fuse_conv_bn_eval(module.conv2, module.bn2), nn.Identity()
    return module


def _channels_last(module: nn.Module, stage: Stage) -> Callable[[Tensor], Tensor]:
    last = module.to(memory_format=torch.channels_last)
    return lambda x: last(x.contiguous(memory_format=torch.channels_last))


def _captured(module: nn.Module, stage: Stage) -> torch.export.ExportedProgram:
    return torch.export.export(module, stage.example())


def _decomposed(module: nn.Module, stage: Stage) -> torch.export.ExportedProgram:
    return _captured(module, stage).run_decompositions()


def _saved_capture(module: nn.Module, stage: Stage) -> str:
    target = stage.folder / "saved.pt2"
    torch.export.save(_captured(module, stage), target)
    return str(target)


RUNS = (
    *(Honest(f"export-{name}", name, _level("all")) for name in EVERY),
    *(
        Honest(f"level-{level}-{name}", name, _level(level), slow=name not in ("encoder", "convnet"))
        for level in LEVELS[:3]
        for name in EVERY
    ),
    *(
        Honest(f"two-levels-{name}", name, _files("disable", "all"), slow=name not in ("decoder", "groupnet"))
        for name in EVERY
    ),
    Honest("two-threads", "encoder", _level("all", threads=2)),
    *(
        Honest(f"saved-{level}-{name}", name, _saved(level), slow=name not in ("encoder", "padded"))
        for level in ("basic", "extended")
        for name in EVERY
    ),
    *(
        Honest(f"batch-split-{name}", name, _torch(_split_batch), ALL_FORMATS, slow=name == "relative")
        for name in EVERY
        if name != "encoder-manual"
    ),
    *(
        Honest(f"wider-arithmetic-{name}", name, _torch(_wider), ("float16", "bfloat16"))
        for name in ("encoder", "mlp", "convnet", "groupnet")
    ),
    Honest("manual-attention", "encoder", _torch(_manual_attention), ALL_FORMATS),
    Honest("fused-attention", "padded", _torch(_manual_attention), ALL_FORMATS),
    Honest("manual-norms", "encoder", _torch(_manual_norms), ALL_FORMATS),
    Honest("manual-recurrence", "recurrent", _torch(lambda module, stage: ManualRecurrent(module)), ALL_FORMATS),
    Honest("fused-batchnorm", "convnet", _torch(_fused_batchnorm), ALL_FORMATS),
    Honest("channels-last", "convnet", _torch(_channels_last), ALL_FORMATS),
    *(
        Honest(
            f"captured-{name}",
            name,
            _torch(_captured),
            ALL_FORMATS,
            slow=name not in ("encoder", "decoder", "recurrent"),
        )
        for name in EVERY
    ),
    *(
        Honest(f"decomposed-{name}", name, _torch(_decomposed), ALL_FORMATS, slow=name not in ("encoder", "convnet"))
        for name in EVERY
    ),
    Honest("saved-capture", "mlp", _torch(_saved_capture), ALL_FORMATS),
    *(
        Honest(f"compiled-{name}", name, _torch(lambda module, stage: torch.compile(module)), slow=True)
        for name in ("encoder", "mlp", "decoder")
    ),
)
