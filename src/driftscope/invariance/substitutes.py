"""Programs in which what lets rows meet is replaced: a statistic of the batch by one of each row, a measured range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from driftscope.explain.native.observation import observe
from driftscope.invariance.running import Runner
from driftscope.invariance.wrapping import called_by
from driftscope.programs.loading.load import load_program
from driftscope.programs.protocol import Program

#: Layers of torch that quantise their input with one scale for all of it.
_QUANTISED_LAYERS = ("quantized::linear_dynamic", "quantized::linear_relu_dynamic", "quantized::linear_dynamic_fp16")
_QUANTISED_RECURRENCES = ("aten::quantized_lstm", "aten::quantized_gru")
#: Reductions that may take all axes, and how to call each with axes named.
_REDUCTIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "aten::amax": torch.amax, "aten::amin": torch.amin, "aten::max": torch.amax, "aten::min": torch.amin,
    "aten::sum": torch.sum, "aten::mean": torch.mean, "aten::std": torch.std, "aten::var": torch.var,
    "aten::linalg_vector_norm": torch.linalg.vector_norm,
}  # fmt: skip


class _Replacing(TorchDispatchMode):
    """Asks ``instead`` what an operator returns; NotImplemented is what it returned anyway."""

    def __init__(self, instead: Callable[..., Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.instead = instead

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = self.instead(func, args, kwargs or {})
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


def _called_with(program: Program, instead: Callable[..., Any]) -> Program | None:
    def calling(function: Any, *args: Any, **kwargs: Any) -> Any:
        with _Replacing(instead):
            return function(*args, **kwargs)

    return called_by(program, calling)


# --- a scale for each row ---------------------------------------------------------------------------------------------


def rows_quantised_alone(program: Program) -> Program | None:
    """Call dynamically quantised layers of torch one row at a time, so that each row has a scale of its own."""
    return _called_with(program, _row_by_row)


def _row_by_row(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func._schema.name
    if name in _QUANTISED_LAYERS and args[0].dim() >= 2:
        return torch.cat([func(row, *args[1:], **kwargs) for row in args[0].split(1)])
    if name not in _QUANTISED_RECURRENCES or "input" not in func._schema.arguments[0].name:
        return NotImplemented
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False))
    axis, states = 0 if given["batch_first"] else 1, given["hx"]
    several = isinstance(states, list | tuple)
    found = []
    for k, part in enumerate(given["input"].split(1, axis)):
        own = [s[:, k : k + 1] for s in states] if several else states[:, k : k + 1]
        found.append(func(part, own, *args[2:], **kwargs))
    joined = zip(*found, strict=True)
    return tuple(torch.cat(parts, 1 if n else axis) for n, parts in enumerate(joined))


def statically_quantised(program: Program, runner: Runner) -> Program | None:
    """Replace each DynamicQuantizeLinear of a file by QuantizeLinear with the scale it has on the inputs as given."""
    from onnx import helper, numpy_helper

    model = getattr(program, "onnx_model", None)
    if model is None or model.external or all(n.op_type != "DynamicQuantizeLinear" for n in model.proto.graph.node):
        return None
    values = {name: x for part in observe(runner.bound).values() for name, x in part.items()}
    proto = type(model.proto).FromString(model.proto.SerializeToString())
    nodes = []
    for node in proto.graph.node:
        if node.op_type != "DynamicQuantizeLinear":
            nodes.append(node)
            continue
        scale, zero = (values.get(name) for name in node.output[1:])
        if scale is None or zero is None:
            return None
        for name, x in zip(node.output[1:], (scale, zero), strict=True):
            proto.graph.initializer.append(numpy_helper.from_array(x.numpy(), name))
        nodes.append(helper.make_node("QuantizeLinear", [node.input[0], *node.output[1:]], [node.output[0]], node.name))
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return load_program(proto, name=program.name, **program.settings)


# --- a statistic for each row -----------------------------------------------------------------------------------------


def rows_reduced_alone(program: Program, operator: str, axis: int) -> tuple[str, Program] | None:
    """Let one reduction leave out the batch axis.

    Parameters
    ----------
    program : Program
    operator : str
        ``"aten.amax"``.
    axis : int
        The batch.

    Returns
    -------
    tuple of (str, Program) or None
        What to write instead, and the program that does so; None where it is no reduction.
    """
    name = operator.replace(".", "::", 1)
    if name not in _REDUCTIONS or axis != 0:
        return None

    def instead(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if func._schema.name != name or not isinstance(args[0], torch.Tensor) or args[0].dim() < 2:
            return NotImplemented
        x, named = args[0], {a.name: v for a, v in zip(func._schema.arguments, args, strict=False)} | dict(kwargs)
        if named.get("dim") not in (None, []):
            return NotImplemented
        more = {"ord": named["ord"]} if "ord" in named else {}
        more |= {"correction": named["correction"]} if named.get("correction") is not None else {}
        return _REDUCTIONS[name](x, dim=tuple(range(1, x.dim())), keepdim=True, **more)

    changed = _called_with(program, instead)
    short = _REDUCTIONS[name].__name__.removeprefix("linalg_")
    words = f"take it of each row alone: {short}(dim=..., keepdim=True) over all axes but the batch"
    return None if changed is None else (words, changed)
