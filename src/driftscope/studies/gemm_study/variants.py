"""The ways to compute ``A @ X + B`` that the gemm study sets side by side, and what each is expected to round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import onnx.helper as oh
import torch

from driftscope.errors import RuntimeRefused
from driftscope.numerics.error_model import ONNXRUNTIME, TORCH, Kernels
from driftscope.programs.arrays import array_of, tensor_of
from driftscope.programs.loading.load import onnx_program
from driftscope.studies.onnx_graphs import Changes, changes_between

_ITYPE = {
    "float64": onnx.TensorProto.DOUBLE, "float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
}  # fmt: skip
_NUMPY_LIMIT = 1 << 28  # products in float16, which numpy multiplies one by one, without BLAS: about five seconds

#: variant -> nodes of its ONNX graph, as (operator, inputs, output); ``Cast`` goes to float32 and back.
ONNX_VARIANTS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Gemm": (("Gemm", "A X B", "Y"),),
    "Gemm + Add": (("Gemm", "A X", "p"), ("Add", "p B", "Y")),
    "MatMul + Add": (("MatMul", "A X", "p"), ("Add", "p B", "Y")),
    "FusedMatMul + Add": (("FusedMatMul", "A X", "p"), ("Add", "p B", "Y")),
    "Cast(Gemm) + Add": (
        ("Cast", "A", "a"), ("Cast", "X", "x"), ("Cast", "B", "b"),
        ("Gemm", "a x", "p"), ("Add", "p b", "y"), ("Back", "y", "Y"),
    ),
    "Cast(Gemm)": (
        ("Cast", "A", "a"), ("Cast", "X", "x"), ("Cast", "B", "b"), ("Gemm", "a x b", "y"), ("Back", "y", "Y"),
    ),
}  # fmt: skip
VARIANTS = ("F.linear", *ONNX_VARIANTS, "a @ x + b", "torch.compile", "numpy", "exact")


@dataclass(frozen=True, slots=True)
class Computed:
    """What a variant gave.

    Parameters
    ----------
    y : torch.Tensor or None
        On the CPU; None where it is not available.
    gap : str
        Why it is not, in the runtime's words.
    changes : Changes or None
        What onnxruntime made of the graph it was given.
    """

    y: torch.Tensor | None
    gap: str = ""
    changes: Changes | None = None


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute it.

    Parameters
    ----------
    name : str
        With the optimisation level in brackets for onnxruntime, but for the first level.
    kind : str
        Key of :data:`ONNX_VARIANTS`, or one of the others.
    level : str
        Optimisation level; ``""`` outside onnxruntime.
    """

    name: str
    kind: str
    level: str = ""

    @property
    def kernels(self) -> Kernels:
        """How its kernels group their additions."""
        return ONNXRUNTIME if self.kind in ONNX_VARIANTS else TORCH

    @property
    def rounds_product(self) -> bool:
        """Whether the product is rounded to the storage format before the bias is added."""
        return self.kind in ("a @ x + b", "numpy")


def variants_of(names: tuple[str, ...], levels: tuple[str, ...]) -> list[Variant]:
    """Return the variants of some kinds, those of onnxruntime once for each level."""
    found = []
    for name in names:
        if name in ONNX_VARIANTS:
            found += [Variant(f"{name} [{level}]" if level != levels[0] else name, name, level) for level in levels]
        else:
            found.append(Variant(name, name))
    return found


def compute(variant: Variant, a: torch.Tensor, x: torch.Tensor, b: torch.Tensor, threads: int) -> Computed:
    """Compute ``a @ x + b`` the way of a variant; what a runtime lacks becomes a gap in its own words."""
    if variant.kind in ONNX_VARIANTS:
        return _in_onnxruntime(variant, a, x, b, threads)
    if variant.kind == "numpy":
        return _in_numpy(a, x, b)
    if variant.kind == "exact":
        return Computed((a.double() @ x.double() + b.double()).to(a.dtype).cpu())
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "F.linear": lambda: torch.nn.functional.linear(a, x.T, b),
        "a @ x + b": lambda: a @ x + b,
        "torch.compile": lambda: _compiled(a, x, b),
    }
    try:
        return Computed(ways[variant.kind]().cpu())
    except (RuntimeError, NotImplementedError) as error:  # no kernel, no compiler: torch says which
        return Computed(None, " ".join(f"torch: {error}".split())[:300])


def onnx_model(kind: str, dtype: str, shape: tuple[int, int, int]) -> onnx.ModelProto:
    """Make the model of a variant.

    Parameters
    ----------
    shape : (M, K, N)
    """
    itype = _ITYPE[dtype]
    m, k, n = shape
    nodes = [_node(operator, inputs.split(), output, itype) for operator, inputs, output in ONNX_VARIANTS[kind]]
    inputs = [oh.make_tensor_value_info(name, itype, dims) for name, dims in (("A", [m, k]), ("X", [k, n]), ("B", [n]))]
    graph = oh.make_graph(nodes, "gemm", inputs, [oh.make_tensor_value_info("Y", itype, [m, n])])
    opsets = [oh.make_opsetid("", 22), oh.make_opsetid("com.microsoft", 1)]
    return oh.make_model(graph, opset_imports=opsets, ir_version=10)


def _node(operator: str, inputs: list[str], output: str, itype: int) -> onnx.NodeProto:
    if operator == "Cast":
        return oh.make_node("Cast", inputs, [output], to=onnx.TensorProto.FLOAT)
    if operator == "Back":
        return oh.make_node("Cast", inputs, [output], to=itype)
    domain = "com.microsoft" if operator.startswith("Fused") else ""
    return oh.make_node(operator, inputs, [output], domain=domain)


def _in_onnxruntime(variant: Variant, a: torch.Tensor, x: torch.Tensor, b: torch.Tensor, threads: int) -> Computed:
    dtype = str(a.dtype).removeprefix("torch.")
    model = onnx_model(variant.kind, dtype, (a.shape[0], a.shape[1], x.shape[1]))
    program = onnx_program(
        model, level=variant.level, threads=threads, provider="cuda" if a.is_cuda else "cpu", name=variant.name
    )
    try:
        graph = program.examine().graph
        y = program({"A": a, "X": x, "B": b})["Y"]
    except RuntimeRefused as error:
        return Computed(None, " ".join(str(error).split())[:300])
    return Computed(y.cpu(), changes=None if graph is None else changes_between(model, graph))


def _in_numpy(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> Computed:
    if a.is_cuda:
        return Computed(None, "numpy computes on the CPU")
    products = a.shape[0] * a.shape[1] * x.shape[1]
    if a.dtype == torch.float16 and products > _NUMPY_LIMIT:
        return Computed(None, f"numpy has no BLAS for {a.dtype}: {products:.1e} products one by one take too long")
    y = array_of(a) @ array_of(x) + array_of(b)
    if y.dtype != array_of(b).dtype:
        return Computed(None, f"numpy has no product of {b.dtype}: it answers in {y.dtype}")
    return Computed(tensor_of(np.ascontiguousarray(y)))


def _compiled(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    # In a fresh cache: a recompilation for another dtype must not turn into a graph with dynamic shapes.
    torch.compiler.reset()
    compiled = torch.compile(_product_and_bias, dynamic=False)
    y: torch.Tensor = compiled(a, x, b)
    return y


def _product_and_bias(a: torch.Tensor, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ x + b
