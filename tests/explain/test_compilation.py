"""Which stage, setting or kernel of torch.compile moved a result."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import driftscope as ds
from driftscope.explain.blame.inductor_kernels import FusedKernel, compile_listening, kernels_of
from driftscope.programs.runtimes.torch_compiled import in_a_frame


def function(x):
    return torch.softmax(x * 3, -1) + torch.tanh(x)


def shifted(graph, _example):
    """A backend that is wrong: it adds a hundredth."""

    def run(*inputs):
        return tuple(output + 0.01 for output in graph(*inputs))

    return run


def honest(graph, _example):
    return graph.forward


X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def test_a_wrong_backend_is_blamed_and_the_stage_before_it_mends_the_result():
    found = ds.blame(ds.torch(function, compile={"backend": shifted}), [X])
    assert found.guilty == ("shifted",)
    assert found.floors > 100
    assert found.floors_without <= 2.5
    assert "aot_eager" in found.paste
    assert found.verified


@pytest.mark.parametrize("backend", [honest, "aot_eager", "eager"])
def test_an_honest_backend_is_not_blamed(backend):
    found = ds.blame(ds.torch(function, compile={"backend": backend}), [X])
    assert not found.wrong
    assert found.guilty == ()
    assert found.paste == ""


def test_compare_names_the_backend_unasked():
    c = ds.compare(function, ds.torch(function, compile={"backend": shifted}), [X])
    assert c.first.code == "O013"
    assert "shifted" in c.first.what


def test_a_frame_of_its_own_is_compiled_anew_and_gives_the_same():
    one, two = in_a_frame(function), in_a_frame(function)
    assert one.__code__ is not two.__code__
    assert torch.equal(one(X), function(X))


GENERATED = """
# Topologically Sorted Source Nodes: [mul, softmax], Original ATen: [aten.mul, aten._softmax]
# Source node to ATen node mapping:
cpp_fused__softmax_mul_0 = async_compile.cpp_pybinding(['const float*'], r'''
''')
# Topologically Sorted Source Nodes: [tanh], Original ATen: [aten.tanh]
cpp_fused_tanh_1 = async_compile.cpp_pybinding(['const float*'], r'''
''')
"""


def test_kernels_are_read_from_generated_code_with_their_operators():
    assert kernels_of(GENERATED) == [
        FusedKernel("cpp_fused__softmax_mul_0", ("mul", "_softmax")),
        FusedKernel("cpp_fused_tanh_1", ("tanh",)),
    ]


@pytest.mark.slow
def test_inductor_is_taken_apart_and_its_kernels_are_listed():
    compiled = torch.compile(in_a_frame(function))
    result, kernels = compile_listening(lambda: compiled(X))
    assert torch.allclose(result, function(X), atol=1e-6)
    assert any(kernel.holds("tanh") for kernel in kernels)
    assert not any(kernel.holds("gelu") for kernel in kernels)
    found = ds.blame(ds.torch(function, compile=True), [X])
    assert not found.wrong
    assert {"eager", "aot_eager", "aot_eager_decomp_partition"} <= {s.name for s in found.suspects}
    assert "emulate_precision_casts=True" in {s.name for s in found.suspects}


def overflowing(x):
    """Infinite on the way, unless a compiler adds the constants first, as unsafe mathematics allows."""
    y = ((x + 2e38) + 2e38) - 2e38 - 2e38
    return torch.tanh(x) * y


@pytest.mark.slow
def test_unsafe_mathematics_is_blamed_by_its_setting_and_leaving_it_out_mends_the_result():
    unsafe = {"cpp.enable_unsafe_math_opt_flag": True}
    found = ds.blame(ds.torch(overflowing, compile={"options": unsafe}), [X])
    if not found.wrong:
        pytest.skip("this compiler does not reorder sums even when it may")
    assert found.guilty == ("cpp.enable_unsafe_math_opt_flag",)
    assert found.paste == "torch.compile(model)"
    assert found.program_line == "ds.torch(model, compile=True)"
    assert found.verified
    honest = ds.blame(ds.torch(overflowing, compile=True), [X])
    assert not honest.wrong
    assert honest.guilty == ()


def backwards(terms: int) -> Callable[..., Callable[..., list[torch.Tensor]]]:
    """A backend that adds so many products of the last axis, from the last to the first, in one chain."""

    def compiler(_module: torch.fx.GraphModule, _examples: list[torch.Tensor]) -> Callable[..., list[torch.Tensor]]:
        def run(x: torch.Tensor) -> list[torch.Tensor]:
            products = (x * x.roll(1, -1)).detach().numpy()[..., :terms]
            return [torch.from_numpy(np.add.accumulate(products[..., ::-1], -1)[..., -1].copy())]

        return run

    return compiler


def products(x: torch.Tensor) -> torch.Tensor:
    return (x * x.roll(1, -1)).sum(-1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("terms", "verdict"), [(8000, ds.Verdict.ROUNDING), (7999, ds.Verdict.DIFFERENT)])
def test_sums_of_a_compiler_may_be_added_in_any_order(terms: int, verdict: ds.Verdict) -> None:
    x = torch.rand(4, 6, 8000, generator=torch.Generator().manual_seed(0))
    compiled = ds.torch(products, compile={"backend": backwards(terms)})
    for pair in ((products, compiled), (compiled, products)):
        c = ds.compare(*pair, [x])
        assert c.verdict is verdict, c
        assert ("in one chain" in c.reason) is (verdict is ds.Verdict.ROUNDING), c
