"""Linear algebra far from well conditioned: kernels err as rounded operands would, and that is their rounding."""

import pytest
import torch

import driftscope as ds
from driftscope.lift.formulas.linear_algebra import MovedOperands

pytestmark = pytest.mark.usefixtures("one_thread")


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


SPECTRAL = torch.randn(96, 96, generator=torch.Generator().manual_seed(5))


def _reconstructed(a):
    u, s, v = torch.linalg.svd(a)
    return (u * s) @ v


def _by_vectors(a):
    w, v = torch.linalg.eigh(a @ a.T)
    return v @ (w[:, None] * v.T)


def _largest(a):
    u, s, v = torch.linalg.svd(a)
    return (u[:, :4] * s[:4]) @ v[:4]


def _projected(a):
    v = torch.linalg.eigh(a.T @ a)[1][:, -4:]
    return a @ v @ v.T


LARGE = {
    "inverse": (torch.linalg.inv, lambda a: torch.linalg.inv(a.T).T),
    "exponential": (lambda a: torch.matrix_exp(a / 20), lambda a: torch.matrix_exp(a.T / 20).T),
    "eigenvalues": (
        lambda a: torch.linalg.eigvals(a).abs().sort()[0], lambda a: torch.linalg.eigvals(a.T).abs().sort()[0],
    ),
    "singular values": (torch.linalg.svdvals, lambda a: torch.linalg.svdvals(a.T)),
    "reconstructed": (_reconstructed, lambda a: a * 1.0),
    "by vectors": (_by_vectors, lambda a: a @ a.T),
    "of low rank": (_largest, _projected),
    "least squares": (
        lambda a: torch.linalg.lstsq(a[:, :6], a[:, 6:9]).solution, lambda a: torch.linalg.pinv(a[:, :6]) @ a[:, 6:9],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.sampled(4)
def test_kernels_err_by_what_moved_operands_give_at_a_hundred_rows(name, order):
    c = ds.compare(*LARGE[name][::order], (SPECTRAL,), isolate=False)
    assert c.verdict in ("IDENTICAL", "ROUNDING"), c.reason


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.sampled(3)
def test_operands_of_half_precision_are_no_rounding_there(name):
    a, b = LARGE[name]
    c = ds.compare(a, lambda x: b(x.to(torch.bfloat16).to(x.dtype)), (SPECTRAL,), isolate=False)
    assert c.verdict in ("PRECISION", "DIFFERENT"), c.reason


def test_a_kernel_that_is_wrong_by_more_than_its_size_is_not_excused_by_itself():
    def wrong(operands):
        found = torch.linalg.inv(operands[0])
        return [found * 1.01 if found.dtype is torch.float32 else found]

    right = MovedOperands(lambda operands: [torch.linalg.inv(operands[0])], [SPECTRAL[:24, :24].double()])
    assert right.growth() < 10.0
    assert MovedOperands(wrong, [SPECTRAL[:24, :24].double()]).growth() == 24.0


def test_singular_operands_are_left_alone():
    moved = MovedOperands(lambda operands: [torch.linalg.inv(operands[0])], [torch.zeros(4, 4).double()])
    assert moved.growth() == 1.0
    assert moved.run(1e-7, torch.Generator()) is None
