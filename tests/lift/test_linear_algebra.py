"""Linear algebra far from well conditioned: kernels err as rounded operands would, and that is their rounding."""

import pytest
import torch

import driftscope as ds

GENERATOR = torch.Generator().manual_seed(3)
M = torch.randn(5, 5, generator=GENERATOR) + 30.0
V = torch.randn(5, 3, generator=GENERATOR)
PAIRS = {
    "inverse": (lambda m: torch.linalg.inv(m) @ V, lambda m: torch.linalg.solve(m, V)),
    "determinant": (lambda m: torch.linalg.det(m), lambda m: -torch.linalg.det(m[[1, 0, 2, 3, 4]])),
    "logarithm": (lambda m: torch.logdet(m @ m.T), lambda m: 2.0 * torch.linalg.slogdet(m)[1]),
    "least squares": (
        lambda m: torch.linalg.lstsq(m[:, :3], V).solution, lambda m: torch.linalg.pinv(m[:, :3]) @ V,
    ),
    "cross": (
        lambda m: (m[:3, 0] * torch.linalg.cross(m[:3, 1], m[:3, 2])).sum(),
        lambda m: torch.linalg.det(m[:3, :3]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("order", [1, -1])
def test_two_ways_to_one_number_are_rounding(name, order):
    c = ds.compare(*PAIRS[name][::order], (M,), isolate=False)
    assert c.verdict in ("IDENTICAL", "ROUNDING"), c.reason


@pytest.mark.parametrize("name", PAIRS)
def test_one_part_in_a_million_more_is_found(name):
    a, b = PAIRS[name]
    assert ds.compare(a, lambda m: b(m) * (1.0 + 1e-6), (M,), isolate=False).verdict == "DIFFERENT"


def test_a_parameter_made_and_filled_in_the_call_is_lifted():
    def filled(x):
        layer = torch.nn.Linear(5, 3, bias=False)
        layer.weight.data.copy_(V.T)
        return layer(x)

    c = ds.compare(filled, lambda x: x @ V, (M,), isolate=False)
    assert c.verdict in ("IDENTICAL", "ROUNDING")
    assert not any(f.code == "R004" for f in c.findings)
    assert ds.compare(filled, lambda x: x @ (V * 1.0001), (M,), isolate=False).verdict == "DIFFERENT"
