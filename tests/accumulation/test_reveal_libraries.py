"""The sums and products of installed libraries: whatever their order is on this machine, it replays."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from driftscope.numerics.formats import numpy_dtype
from driftscope.numerics.trees.tree import SumTree
from driftscope.programs.arrays import array_of, tensor_of


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def drawn(rows: int, n: int, dtype: str, seed: int = 3) -> np.ndarray:
    """Rows whose large parts cancel, so that a wrong order shows."""
    rng = np.random.default_rng(seed)
    half = rng.standard_normal((rows, (n + 1) // 2)) * 2.0 ** rng.integers(-4, 5, (rows, (n + 1) // 2))
    both = np.concatenate([half, -half], axis=1)[:, :n]
    return rng.permuted(both, axis=1).astype(numpy_dtype(dtype))


SUMS = [
    *((name, n, "float32") for name in ("torch.sum", "numpy.sum", "torch.mean") for n in (5, 64, 100, 1000, 1024)),
    *((name, n, "float64") for name in ("torch.sum", "numpy.sum") for n in (64, 1000)),
    *(("torch.sum", n, dtype) for n in (100, 1024) for dtype in ("float16", "bfloat16")),
    ("numpy.sum", 1024, "float16"),
    ("torch.mean", 1000, "bfloat16"),
    ("torch.mean", 100, "float16"),
    ("torch.sum", 4096, "float32"),
    ("torch.sum", 4096, "bfloat16"),
    ("numpy.sum", 4096, "float16"),
]


@pytest.mark.parametrize(("name", "n", "dtype"), SUMS)
def test_sums_replay(name, n, dtype):
    found = ds.reveal(name, n, dtype=dtype)
    x = drawn(40, n, dtype)
    functions = {"torch.sum": torch.sum, "torch.mean": torch.mean, "numpy.sum": np.sum}
    native = (
        np.sum(x, axis=-1) if name == "numpy.sum" else array_of(functions[name](tensor_of(x), dim=-1))  # type: ignore[operator]
    )
    assert found.output == dtype
    assert found.accumulator == ("float64" if dtype == "float64" else "float32")
    assert (found.replay(x) == native).all()
    # The twin: in another order these rows give other results.
    swapped = found.replay(np.ascontiguousarray(x[:, ::-1]))
    assert n <= 64 or dtype in ("float16", "bfloat16") or (swapped != native).any()
    assert found.rows <= 2.5 * n * (2 if dtype in ("float16", "bfloat16") else 1) + 1500


PRODUCTS = [
    ("torch.linear", (32, 1024, 32), "float32"),
    ("torch.matmul", (16, 300, 8), "float32"),
    ("torch.matmul", (16, 300, 8), "float64"),
    ("torch.matmul", (1, 128, 32), "float32"),
    ("torch.linear", (1, 200, 32), "float32"),
    ("torch.bmm", (32, 100, 32), "float32"),
    ("torch.linear", (32, 1024, 32), "bfloat16"),
    ("torch.linear", (32, 600, 32), "float16"),
    ("numpy.matmul", (32, 500, 32), "float32"),
    ("numpy.matmul", (8, 64, 8), "float16"),
]


@pytest.mark.parametrize(("name", "shape", "dtype"), PRODUCTS)
def test_products_replay_with_random_weights(name, shape, dtype):
    found = ds.reveal(name, shape[1], dtype=dtype, shape=shape)
    a = drawn(shape[0], shape[1], dtype)
    b = np.random.default_rng(1).standard_normal((shape[1], shape[2])).astype(numpy_dtype(dtype))
    if name == "numpy.matmul":
        native = a @ b
    elif name == "torch.linear":
        native = array_of(torch.nn.functional.linear(tensor_of(a), tensor_of(np.ascontiguousarray(b.T))))
    elif name == "torch.bmm":
        native = array_of(torch.bmm(tensor_of(a)[None], tensor_of(b)[None])[0])
    else:
        native = array_of(tensor_of(a) @ tensor_of(b))
    assert (found.replay(a, b) == native).all()  # each element in its own order: a result may have several
    if dtype in ("float16", "bfloat16"):
        assert found.fma is None  # their products are exact in float32
    else:
        assert found.fma is not None


def model(tmp_path, n: int = 96, opset: int = 18, kind: int = TensorProto.FLOAT):
    """Write a model with one of each node that can be asked."""
    w = np.random.default_rng(0).standard_normal((n, 24)).astype(helper.tensor_dtype_to_np_dtype(kind))
    axes = [numpy_helper.from_array(np.asarray([1]), "last"), numpy_helper.from_array(np.asarray([0]), "first")]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Gemm", ["x", "wt", "c"], ["gemm"], transB=1),
        helper.make_node("Gemm", ["x", "w"], ["scaled"], alpha=0.5),
        helper.make_node("ReduceSum", ["x", "last"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["x", "first"], ["columns"], keepdims=0),
        helper.make_node("ReduceMean", ["x", "last"], ["mean"]),
        helper.make_node("Relu", ["x"], ["relu"]),
    ]
    outputs = ("product", "gemm", "scaled", "total", "columns", "mean", "relu")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["rows", n])],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.ascontiguousarray(w.T), "wt"),
         numpy_helper.from_array(w[0], "c"), *axes],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path, w


def test_nodes_of_onnx_models_replay(tmp_path):
    path, w = model(tmp_path)
    x = drawn(32, 96, "float32")
    native = ds.program(str(path), threads=1)({"x": torch.from_numpy(x)})
    for output in ("total", "mean"):
        found = ds.reveal(f"{path}:{output}", 96, threads=1)
        assert (found.replay(x) == native[output].numpy().ravel()).all()
    # The Gemm of the model adds a bias at the end, which the sum alone does not have.
    found = ds.reveal(f"{path}:product", 96, shape=(32, 96, 24), threads=1)
    assert (found.replay(x, np.ascontiguousarray(w[:, 5])) == native["product"].numpy()[:, 5]).all()
    assert ds.reveal(f"{path}:gemm", 96, threads=1).shape == (32, 96, 24)


@pytest.mark.parametrize(
    ("output", "options", "message"),
    [
        ("nothing", {}, "computes no 'nothing'; sums and products in it: product, gemm"),
        ("relu", {}, "computed by Relu"),
        ("columns", {}, r"reduces axes \[0\]"),
        ("scaled", {}, "alpha"),
        ("product", {"shape": (32, 96, 7)}, r"is \(96, 24\)"),
        ("total", {"dtype": "float64"}, "computed in ONNX type float"),
        ("total", {"dtype": "bfloat16"}, "not bfloat16"),
    ],
)
def test_nodes_that_cannot_be_asked(tmp_path, output, options, message):
    path, _ = model(tmp_path)
    with pytest.raises(ds.InputError, match=message):
        ds.reveal(f"{path}:{output}", 96, **options)


def test_float16_nodes(tmp_path):
    path, _ = model(tmp_path, kind=TensorProto.FLOAT16)
    found = ds.reveal(f"{path}:product", 96, dtype="float16", threads=1)
    assert found.output == "float16"


def test_running_means_of_torch_are_refused():
    def layer_norm_mean(x: torch.Tensor) -> torch.Tensor:
        return torch.native_layer_norm(x, (x.shape[-1],), None, None, 1e-5)[1][..., 0]

    with pytest.raises(ds.DriftscopeError, match="no tree of additions"):
        ds.reveal(layer_norm_mean, 256)


def test_threads_are_set_and_set_back():
    seen = []

    def kernel(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        return x.sum(-1)

    before = torch.get_num_threads()
    assert ds.reveal(kernel, 20, threads=2).threads == 2
    assert set(seen) == {2}
    assert torch.get_num_threads() == before
    with pytest.raises(ds.DriftscopeError):
        ds.reveal(torch.max, 20, threads=2)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("function", [torch.sum, torch.mean, np.sum, np.mean])
def test_a_librarys_own_function_reduces_the_last_axis(function):
    assert ds.reveal(function, 24).tree.n == 24


def test_cumulative_sums_of_torch_are_sequential():
    assert ds.reveal(lambda x: torch.cumsum(x, -1)[..., -1], 300).tree == SumTree.sequential(300)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["torch.sum", "numpy.sum", "torch.linear", "torch.mean"])
def test_long_sums_are_verified(name, dtype):
    if (name == "numpy.sum" and dtype == "bfloat16") or (name == "torch.mean" and dtype == "float16"):
        pytest.skip("numpy has no bfloat16; float16 has no room for the errors of a mean that long")
    found = ds.reveal(name, 16384, dtype=dtype)
    assert found.verified.rows >= 180
    assert found.verified.miss < 1e-4
