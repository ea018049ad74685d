"""Sums in the operands that a call really has: windows, axes, batches, and what a sum depends on."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import driftscope as ds
from accumulation.known_kernels import adding, folded, pairwise
from driftscope.accumulation.kernels.kernel import Meter
from driftscope.accumulation.kernels.torch_calls import torch_call
from driftscope.accumulation.revealing.reveal_kernel import accumulation_of
from driftscope.programs.arrays import array_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_convolution_is_a_dot_product_and_replays():
    shapes = [(2, 8, 9, 9), (4, 8, 3, 3)]
    options = {"stride": [1], "padding": [1, 1], "dilation": [1, 1], "transposed": False, "groups": 1}
    found = accumulation_of(torch_call("convolution", shapes, options, "float32", Meter()))
    assert (found.n, found.shape) == (72, (2, 8, 9, 9))
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(shapes[0], generator=generator), torch.randn(1, 8, 3, 3, generator=generator)
    native = torch.nn.functional.conv2d(x, w.expand(4, -1, -1, -1).contiguous(), padding=1)
    patches = torch.nn.functional.unfold(x, 3, padding=1)  # (2, 72, 81)
    inside = [9 * r + c for r in range(1, 8) for c in range(1, 8)]
    rows = patches[:, :, inside].transpose(1, 2).reshape(-1, 72).numpy()
    expected = native.reshape(2, 4, 81)[:, 0, inside].reshape(-1).numpy()
    agree = (found.replay(rows, w.reshape(-1).numpy()) == expected).mean()
    assert agree == 1.0
    # The twin: one chain over channels and window gives these bits only where that is the order that was found.
    sequential = adding(folded(range(72)))(rows * w.reshape(-1).numpy())
    is_found = found.pattern == "fold(72)" and found.fma is False
    assert (sequential != expected).any() != is_found


@pytest.mark.parametrize(
    ("shape", "axes"), [((6, 40, 5), [1]), ((4, 5, 12), [1, 2]), ((3, 50), [0, 1]), ((20, 7), [0])]
)
def test_any_axes_of_a_sum(shape, axes):
    found = accumulation_of(torch_call("sum", [shape], {"dim": axes}, "float32", Meter()))
    assert found.n == int(np.prod([shape[a] for a in axes]))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    kept = [a for a in range(len(shape)) if a not in axes]
    rows = x.permute(*kept, *axes).reshape(-1, found.n).numpy()
    native = array_of(x.sum(axes)).reshape(-1)
    assert (found.replay(np.ascontiguousarray(rows)) == native)[:1].all()


def node_file(tmp_path, op, shapes, kind=TensorProto.FLOAT, **attributes):
    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), f"c{k}") for k, s in enumerate(shapes[1:])
    ]
    node = helper.make_node(op, ["x", *(c.name for c in constants)], ["y"], **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, shapes[0])],
        [helper.make_tensor_value_info("y", kind, None)], constants,
    )  # fmt: skip
    path = tmp_path / "node.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_the_mean_of_an_onnx_layer_normalisation(tmp_path):
    path = node_file(tmp_path, "LayerNormalization", [(4, 96), (96,), (96,)], axis=-1)
    found = ds.reveal(f"{path}:y", 96, threads=1)
    assert found.arithmetic.mean != "none"
    # torch's is a running mean (Welford), and no tree of additions.
    with pytest.raises(ds.DriftscopeError):
        ds.reveal(lambda x: torch.native_layer_norm(x, (96,), None, None, 1e-5)[1], 96)


def test_a_convolution_in_a_file(tmp_path):
    path = node_file(tmp_path, "Conv", [(1, 4, 16), (8, 4, 3), (8,)], pads=[1, 1])
    assert ds.reveal(f"{path}:y", 12, threads=1).shape == (1, 4, 16)
    with pytest.raises(ds.InputError, match=r"has 12 terms \(4, 3\), not n=13"):
        ds.reveal(f"{path}:y", 13)
    with pytest.raises(ds.InputError, match="3 numbers"):
        ds.reveal(f"{path}:y", 12, shape=(1, 12))


def test_weights_that_lie_in_another_file_are_not_needed(tmp_path):
    path = node_file(tmp_path, "MatMul", [(None, 64), (64, 32)])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert ds.reveal(f"{path}:y", 64, threads=1).n == 64


def test_dependence_on_rows_is_said():
    def kernel(x: np.ndarray) -> np.ndarray:
        return adding(folded(range(64)) if len(x) < 8 else pairwise(0, 64))(x)

    found = ds.reveal(kernel, 64, shape=(32, 64)).dependence(threads=(1,))
    assert found.rows == {1: False, 2: False, 8: True, 32: True, 128: True}
    assert str(found) == "rows: the same with 8, 32, 128, another with 1, 2; threads: the same with 1"
    # The twin: a sum that does not look at how many rows there are.
    steady = ds.reveal(adding(pairwise(0, 64)), 64).dependence(threads=(1,))
    assert set(steady.rows.values()) == {True}


def test_kernels_that_flush_subnormals_are_recognised():
    tiny = np.finfo(np.float32).tiny

    def flushing(x: np.ndarray) -> np.ndarray:
        return np.sum(np.where(np.abs(x) < tiny, np.float32(0), x), axis=-1)

    def results(x: np.ndarray) -> np.ndarray:
        total = np.sum(x, axis=-1)
        alone = np.count_nonzero(x, axis=-1) == 1
        return np.where((np.abs(total) < tiny) & ~alone, np.float32(0), total)

    for n in (20, 200):
        assert ds.reveal(flushing, n).subnormals == "taken for zero"
        assert ds.reveal(results, n).subnormals == "set to zero in results"
        assert ds.reveal("numpy.sum", n).subnormals == "kept"
    assert "subnormals taken for zero" in str(ds.reveal(flushing, 20))
    assert "subnormals" not in str(ds.reveal("numpy.sum", 20))


def test_a_sketch_of_a_long_sum_shows_its_split():
    def kernel(x: np.ndarray) -> np.ndarray:
        k = x.shape[1] // 4
        return x[:, :k].cumsum(-1)[:, -1] + x[:, k:].cumsum(-1)[:, -1]

    found = ds.reveal(kernel, 4000, sketch=True)
    assert found.terms is not None
    assert len(found.terms) < 130
    assert "1000..3999" in found.family
    assert found.rows < 3000
    with pytest.raises(ds.InputError, match="cannot be replayed"):
        found.replay(np.zeros((1, 4000), np.float32))
    assert ds.reveal(kernel, 60, sketch=False).terms is None


def test_float16_means_of_many_terms():
    for n in (256, 1000):
        order = pairwise(0, n)
        add = adding(order)
        found = ds.reveal(lambda x, add=add, n=n: (add(x.astype(np.float32)) / np.float32(n)).astype(x.dtype), n,
                          dtype="float16")  # fmt: skip
        assert found.pattern == ds.reveal(add, n).pattern


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sums_and_products_on_a_cuda_device(dtype):
    for name in ("torch.sum", "torch.matmul"):
        found = ds.reveal(name, 512, dtype=dtype, device="cuda")
        assert "on" in found.library


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ds.InputError, match="device='cuda'"):
        ds.reveal("torch.sum", 64, device="cuda")
    assert ds.reveal("torch.sum", 64, device="cpu").library == f"torch {torch.__version__}"


@pytest.mark.parametrize("name", ["torch.matmul", "torch.linear"])
def test_a_product_of_few_rows_is_asked_through_its_columns(name):
    k = 300
    found = ds.reveal(name, k, shape=(1, k, 64))
    assert found.shape == (1, k, 64)
    assert found.calls < k  # one row per call would take more than k
    x, w = (torch.randn(s, generator=torch.Generator().manual_seed(2)) for s in ((1, k), (k, 64)))
    stored = w.T.contiguous()
    native = x @ w if name == "torch.matmul" else torch.nn.functional.linear(x, stored)
    rows = np.repeat(x.numpy(), 64, axis=0)
    replayed = [found.replay(rows[:1], np.ascontiguousarray(w[:, c].numpy()))[0] for c in range(64)]
    assert (np.asarray(replayed) == native[0].numpy())[:1].all()
    # The twin: the order of a batch is another question, asked in its own shape.
    assert ds.reveal(name, k, shape=(64, k, 64)).shape == (64, k, 64)
