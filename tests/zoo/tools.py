"""What people do to a model: each tool takes a model with its inputs and returns the program it made of it."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from driftscope import onnx as onnx_program

Inputs = tuple[torch.Tensor, ...]
Tool = Callable[[nn.Module, Inputs, Path], Any]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep exporters' words away."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def dynamo(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """torch.onnx through torch.export."""
    path = folder / "dynamo.onnx"
    if not path.exists():
        with quiet():
            torch.onnx.export(model, inputs, path, dynamo=True, verbose=False)
    return path


def torchscript(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """torch.onnx through TorchScript."""
    path = folder / "script.onnx"
    with quiet():
        torch.onnx.export(model, inputs, path, dynamo=False)
    return path


def exported(model: nn.Module, inputs: Inputs, folder: Path) -> Any:
    """torch.export."""
    with quiet():
        return torch.export.export(model, inputs)


def decomposed(model: nn.Module, inputs: Inputs, folder: Path) -> Any:
    """torch.export with torch's decompositions."""
    with quiet():
        return torch.export.export(model, inputs).run_decompositions()


def traced(model: nn.Module, inputs: Inputs, folder: Path) -> Any:
    """torch.jit.trace."""
    with quiet():
        return torch.jit.trace(model, inputs, check_trace=False, strict=False)


def saved(level: str) -> Tool:
    """onnxruntime's optimised file, run again without optimisation."""

    def tool(model: nn.Module, inputs: Inputs, folder: Path) -> Any:
        import onnxruntime

        path = folder / f"saved_{level}.onnx"
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level.upper()}")
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 4
        onnxruntime.InferenceSession(str(dynamo(model, inputs, folder)), options, providers=["CPUExecutionProvider"])
        return onnx_program(str(path), level="disable")

    return tool


def half_by_onnxruntime(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxruntime's float16 conversion."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    path = folder / "half_ort.onnx"
    with quiet():
        onnx.save(convert_float_to_float16(onnx.load(dynamo(model, inputs, folder)), keep_io_types=True), path)
    return path


def half_by_converter(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxconverter_common's float16 conversion."""
    from onnxconverter_common import float16

    path = folder / "half_common.onnx"
    with quiet():
        onnx.save(float16.convert_float_to_float16(onnx.load(dynamo(model, inputs, folder)), keep_io_types=True), path)
    return path


def half_by_torch(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """module.half()."""
    return Cast(copy.deepcopy(model).half(), torch.float16)


def bfloat16_by_torch(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """module.bfloat16()."""
    return Cast(copy.deepcopy(model).bfloat16(), torch.bfloat16)


class Cast(nn.Module):
    """A model that takes and returns float32 and computes in another format."""

    def __init__(self, model: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.to(self.dtype) if x.is_floating_point() else x).float()


class Autocast(Cast):
    """A model whose products torch casts where they are made."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            made: torch.Tensor = self.model(x)
        return made.float()


def autocast(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """torch.autocast."""
    return Autocast(copy.deepcopy(model), torch.bfloat16)


def slimmed(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxslim."""
    import onnxslim

    path = folder / "slim.onnx"
    with quiet():
        onnxslim.slim(str(dynamo(model, inputs, folder)), str(path))
    return path


def simplified(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxsim."""
    import onnxsim

    path = folder / "sim.onnx"
    with quiet():
        onnx.save(onnxsim.simplify(onnx.load(dynamo(model, inputs, folder)))[0], path)
    return path


def optimised(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxoptimizer with its own fusions and eliminations."""
    import onnxoptimizer

    path = folder / "optimised.onnx"
    with quiet():
        passes = onnxoptimizer.get_fuse_and_elimination_passes()
        onnx.save(onnxoptimizer.optimize(onnx.load(dynamo(model, inputs, folder)), passes), path)
    return path


def compiled(model: nn.Module, inputs: Inputs, folder: Path) -> Any:
    """torch.compile by inductor."""
    torch._dynamo.reset()
    return torch.compile(copy.deepcopy(model))


def converted(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnx's version conversion."""
    path = folder / "converted.onnx"
    loaded = onnx.load(dynamo(model, inputs, folder))
    version = next(o.version for o in loaded.opset_import if not o.domain)
    with quiet():
        onnx.save(onnx.version_converter.convert_version(loaded, version + 2), path)
    return path


def fused_by_transformers(kind: str) -> Tool:
    """onnxruntime.transformers' fusions."""

    def tool(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
        from onnxruntime.transformers.optimizer import optimize_model

        path = folder / f"fused_{kind}.onnx"
        with quiet():
            optimize_model(
                str(dynamo(model, inputs, folder)), model_type=kind, num_heads=4, hidden_size=32, opt_level=0
            ).save_model_to_file(str(path))
        return path

    return tool


def quantised_dynamically(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxruntime's dynamic int8 quantisation, with the reduced range that every processor adds rightly."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = folder / "dynamic_int8.onnx"
    with quiet():
        quantize_dynamic(str(dynamo(model, inputs, folder)), str(path), weight_type=QuantType.QInt8, reduce_range=True)
    return path


def quantised_statically(layout: str) -> Tool:
    """onnxruntime's static int8 quantisation, calibrated on the very inputs; ``layout`` is QDQ or QOperator."""

    def tool(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Reader(CalibrationDataReader):
            def __init__(self) -> None:
                names = [i.name for i in onnx.load(dynamo(model, inputs, folder)).graph.input]
                self.left = [{n: x.numpy() for n, x in zip(names, inputs, strict=True)}]

            def get_next(self) -> Any:
                return self.left.pop() if self.left else None

        path = folder / f"static_{layout}.onnx"
        with quiet():
            quantize_static(
                str(dynamo(model, inputs, folder)), str(path), Reader(), quant_format=QuantFormat[layout],
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8, reduce_range=True,
            )  # fmt: skip
        return path

    return tool


def quantised_weights(model: nn.Module, inputs: Inputs, folder: Path) -> Path:
    """onnxruntime's weight-only int4: MatMulNBits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    path = folder / "weights_int4.onnx"
    with quiet():
        made = MatMulNBitsQuantizer(onnx.load(dynamo(model, inputs, folder)), block_size=16, is_symmetric=True)
        made.process()
        made.model.save_model_to_file(str(path))
    return path


def channels_last(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """module.to(memory_format=torch.channels_last)."""
    return copy.deepcopy(model).to(memory_format=torch.channels_last)


def fused_by_fx(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """torch.fx.experimental.optimization.fuse: batch norms into convolutions."""
    from torch.fx.experimental.optimization import fuse

    with quiet():
        return fuse(copy.deepcopy(getattr(model, "model", model)))


def frozen(model: nn.Module, inputs: Inputs, folder: Path) -> Any:
    """torch.jit.freeze, which folds batch norms."""
    return torch.jit.freeze(traced(model, inputs, folder).eval())


def with_weight_norm(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """Every weight as its direction times its length, which are multiplied in each run."""
    other = copy.deepcopy(model)
    for module in list(other.modules()):
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.utils.parametrizations.weight_norm(module)
    return other


def eager_attention(model: nn.Module, inputs: Inputs, folder: Path) -> nn.Module:
    """transformers' attention written out instead of the fused one."""
    other = copy.deepcopy(model)
    other.model.set_attn_implementation("eager")  # type: ignore[operator, union-attr]
    return other


TOOLS: dict[str, Tool] = {
    "dynamo": dynamo,
    "torchscript": torchscript,
    "export": exported,
    "decomposed": decomposed,
    "trace": traced,
    "saved-basic": saved("basic"),
    "saved-extended": saved("extended"),
    "saved-all": saved("all"),
    "half-onnxruntime": half_by_onnxruntime,
    "half-converter": half_by_converter,
    "half-torch": half_by_torch,
    "bfloat16-torch": bfloat16_by_torch,
    "bfloat16-autocast": autocast,
    "slim": slimmed,
    "simplified": simplified,
    "onnxoptimizer": optimised,
    "converted": converted,
    "fused-bert": fused_by_transformers("bert"),
    "fused-gpt2": fused_by_transformers("gpt2"),
    "fused-vit": fused_by_transformers("vit"),
    "int8-dynamic": quantised_dynamically,
    "int8-qdq": quantised_statically("QDQ"),
    "int8-qoperator": quantised_statically("QOperator"),
    "int4-weights": quantised_weights,
    "compile": compiled,
    "channels-last": channels_last,
    "fx-fused": fused_by_fx,
    "frozen": frozen,
    "weight-norm": with_weight_norm,
    "eager-attention": eager_attention,
}
