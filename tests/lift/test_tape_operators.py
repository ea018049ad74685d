"""The breadth of operators: each is itself in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from float64_truth import assert_truth, lift

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.lift.torch.entries import facts_of
from driftscope.lift.torch.ops import rules
from driftscope.lift.torch.ops.kinds import EXACT_NAMES, FUNCTION_NAMES, ROUND_NAMES, SUM_NAMES

torch.manual_seed(0)
X = torch.randn(4, 6)
IMAGE = torch.randn(2, 4, 9, 9)
W, B = torch.randn(8, 2, 3, 3), torch.randn(8)
S = torch.randn(4, 4) @ torch.randn(4, 4) + 8 * torch.eye(4)
INDEX = torch.tensor([[0, 2], [1, 3]])
LABELS = torch.tensor([1, 2, 3, 4])

ACTIVATIONS = [F.gelu, F.silu, F.elu, F.selu, F.celu, F.softplus, F.mish, F.hardswish, F.hardsigmoid, F.relu6,
    F.leaky_relu, F.softsign, F.logsigmoid, F.hardtanh, F.tanhshrink, F.hardshrink, F.softshrink, F.glu, torch.erf,
    torch.exp, torch.log1p, torch.sin, torch.rsqrt, torch.atan, torch.expm1, torch.special.i0, torch.lgamma,
    torch.digamma, torch.cosh, torch.sigmoid, torch.tanh, torch.square, torch.reciprocal, torch.logit]  # fmt: skip
CASES = {
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), X),
    "powers": (lambda x: (x**3, torch.pow(2.0, x), x.abs().pow(0.5), torch.float_power(x.abs(), 1.5)), X),
    "two arguments": (
        lambda x: (torch.atan2(x, x + 1), torch.hypot(x, x), torch.logaddexp(x, x), torch.copysign(x, x + 1),
                   torch.xlogy(x, x.abs()), torch.maximum(x, -x), F.prelu(x, x[0, :1])), X),
    "with scalars": (
        lambda x: (torch.lerp(x, x + 1, 0.3), torch.addcmul(x, x, x, value=0.5), torch.clamp(x, min=0.1),
                   torch.addcdiv(x, x, x.abs() + 1, value=0.5), torch.rsub(x, 0.3, alpha=2), x.sub(x * 2, alpha=0.3),
                   F.elu(x, 0.7), F.softplus(x, 0.5, 3.0)), X),
    "integers meet floats": (lambda x: (x * torch.arange(6), (x > 0) * 0.3 + x, (x > 0).sum() / 3), X),
    "reductions": (
        lambda x: (x.cumsum(1), x.prod(1), x.var(), x.std(1), x.norm(), x.norm(dim=1, p=1), torch.linalg.norm(x),
                   x.logsumexp(1), x.sum((0, 1)), torch.var_mean(x, 1), x.cumprod(1), torch.logcumsumexp(x, 1),
                   x.nansum(), x.diff(), x.trace(), torch.cdist(x, x), torch.dist(x, x + 1), x.aminmax(), x.amax(1)),
        X),
    "moves": (
        lambda x: (x.roll(1, 0), x.flip(0), x.tril(), x.expand(2, 4, 6).reshape(-1), torch.stack([x, x]).unbind(0),
                   x.unfold(1, 3, 2), torch.block_diag(x, x), x.repeat(2, 1), x.diag_embed(), x[:, None].squeeze(1),
                   torch.cat([x, x[:2]]), x.repeat_interleave(2, 0), x.fill_diagonal_(3.0)), X),
    "indices": (
        lambda x: (x[INDEX], x.gather(0, INDEX), x.scatter(0, INDEX, x[:2, :2]), x.scatter_add(0, INDEX, x[:2, :2]),
                   x.index_add(0, torch.tensor([1, 1]), x[:2]), x.take(INDEX), x.masked_select(x > 0), x.nonzero(),
                   torch.bucketize(x, torch.tensor([0.0, 0.5])), x.scatter_reduce(0, INDEX, x[:2, :2], "amax"),
                   torch.where(x > 0), x.index_copy(0, torch.tensor([0]), x[1:2]), x.put(INDEX, x[:2, :2])), X),
    "embedding": (
        lambda e: (F.embedding(INDEX, e), F.embedding_bag(INDEX, e), F.embedding_bag(INDEX, e, mode="max")), X),
    "pools and pads": (
        lambda i: (F.max_pool2d(i, 2), F.max_pool2d(i, 2, return_indices=True), F.adaptive_avg_pool2d(i, 3),
                   F.avg_pool2d(i, 3, 2, 1, count_include_pad=False), F.adaptive_max_pool2d(i, 3), F.unfold(i, 3),
                   F.pad(i, (1, 1, 1, 1), "reflect"), F.pad(i, (1, 2), value=0.3), F.fold(F.unfold(i, 3), (9, 9), 3),
                   F.pixel_shuffle(i, 2), F.lp_pool2d(i, 2, 2), F.local_response_norm(i, 2), F.normalize(i),
                   F.max_unpool2d(*F.max_pool2d(i, 3, return_indices=True), 3)), IMAGE),
    "resizes": (
        lambda i: (F.interpolate(i, scale_factor=2.0, mode="bilinear"), F.interpolate(i, size=(5, 12), mode="bicubic"),
                   F.interpolate(i, size=4, mode="area"), F.interpolate(i, size=5, mode="bilinear", antialias=True),
                   F.interpolate(i, size=(13, 4), mode="nearest-exact")), IMAGE),
    "grids": (
        lambda i: (F.grid_sample(i, torch.tanh(i[:, :2].permute(0, 2, 3, 1)), align_corners=False),
                   F.affine_grid(i[:, :2, :3].mean(-1).reshape(2, 2, 3), (2, 1, 4, 4), align_corners=False)), IMAGE),
    "batch statistics": (
        lambda i: F.batch_norm(i, torch.zeros(4, dtype=i.dtype), torch.ones(4, dtype=i.dtype), training=True), IMAGE),
    "complex": (
        lambda x: (torch.fft.rfft(x), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fft2(x).abs(),
                   torch.view_as_real(torch.view_as_complex(x.reshape(4, 3, 2)) * 2j), torch.polar(x.abs(), x)), X),
    "linear algebra": (
        lambda a: (torch.linalg.inv(a), torch.linalg.solve(a, a[0]), torch.linalg.det(a), torch.linalg.slogdet(a),
                   torch.linalg.cholesky(a @ a.T), torch.linalg.eigvalsh(a @ a.T), torch.linalg.svdvals(a),
                   torch.linalg.matrix_exp(a * 0.1), torch.kron(a, a), torch.outer(a[0], a[1]),
                   torch.einsum("ij,jk,kl->il", a, a, a), torch.tensordot(a, a, 1), torch.mv(a, a[0]),
                   torch.baddbmm(a[None], a[None], a[None], alpha=0.5, beta=0.3), torch.dot(a[0], a[1]),
                   torch.addmv(a[0], a, a[1], alpha=0.2), torch.addr(a, a[0], a[1])), S),
    "losses": (
        lambda x: (F.cross_entropy(x, LABELS), F.mse_loss(x, x + 1), F.l1_loss(x, -x), F.smooth_l1_loss(x, -x),
                   F.binary_cross_entropy_with_logits(x, x.sigmoid()), F.kl_div(x.log_softmax(1), x.softmax(1)),
                   F.nll_loss(x, LABELS), F.cosine_similarity(x, x + 1), F.huber_loss(x, -x)), X),
    "foreach": (lambda x: torch._foreach_add(torch._foreach_mul([x, x + 1], 0.3), [x, x]), X),
    "vmap": (lambda x: torch.vmap(lambda r: (r @ r, r.softmax(0)))(x), X),
    "derivatives": (
        lambda x: (torch.func.grad(lambda z: (z**3).sum())(x), torch.func.jacrev(torch.sin)(x[0]),
                   torch.func.hessian(lambda z: (z**3).sum())(x[0]), torch.func.jvp(torch.sin, (x,), (x,))), X),
    "empty": (lambda x: (x[:0].sum(), x[:0] @ x.T, x[:, :0].sum(1)), X),
}  # fmt: skip


@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda f: f.__name__)
def test_elementwise(function):
    assert_truth(function, torch.rand(4, 6) * 0.9 + 0.05)


@pytest.mark.parametrize("function", ACTIVATIONS[:17], ids=lambda f: f.__name__)
def test_elementwise_of_negative_numbers(function):
    assert_truth(function, X * 3)


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    function, x = CASES[name]
    assert_truth(function, x, tolerance=1e-12)


def test_convolutions():
    def run(i, w, b):
        return (
            F.conv2d(i, w, b, 2, 1, 1, 2),
            F.conv2d(i, w, padding="same", groups=2),
            F.conv_transpose2d(i, w[:4], stride=2, output_padding=1),
            F.conv1d(i[:, :, 0], w[:, :, 0].repeat(1, 2, 1)),
            F.conv3d(i[:, :2, None], w[:, :, None]),
            F.conv2d(i[0], w, b, groups=2),
        )

    assert_truth(run, IMAGE, W, B)


def test_backward_inside_a_program():
    def run(x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            loss = torch.tanh(z @ z.T).sum() + F.layer_norm(z, (6,)).pow(2).sum() + F.gelu(z).sum()
            (gradient,) = torch.autograd.grad(loss + z.softmax(1).log().sum(), z)
        return gradient

    assert_truth(run, X)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_python_numbers_meet_half_precision_exactly(dtype):
    x = torch.tensor([1.0, 3.0], dtype=dtype)
    value = lift(lambda x: x * 0.1 + 0.7, x).run()[0].value
    assert torch.equal(value, x.double() * 0.1 + 0.7)


def test_every_core_operator_has_a_rule_or_a_kind():
    known = EXACT_NAMES | ROUND_NAMES | SUM_NAMES | FUNCTION_NAMES | set(rules.RULES)
    # These have no tensor result that depends on a tensor's value.
    known |= {
        "_local_scalar_dense",
        "arange",
        "empty",
        "empty_strided",
        "full",
        "full_like",
        "rand",
        "randn",
        "randperm",
        "scalar_tensor",
    }
    # This is refused: what it leaves in the memory it adds is nobody's value.
    known |= {"resize_"}
    missing = set()
    # Not `dir(torch.ops.aten)`: that lists what somebody has asked for so far.
    registered = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    for name in sorted(each.removeprefix("aten::") for each in registered if each.startswith("aten::")):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads():
            operator = getattr(packet, overload)
            facts = facts_of(operator)
            core = torch.Tag.core in operator.tags and not name.startswith("sym_")
            if core and not facts.view and not facts.pointwise and name not in known:
                missing.add(name)
    assert not missing


def test_numpy_in_the_middle_is_refused():
    with pytest.raises(CannotLift, match="out of torch's sight"):
        lift(lambda x: torch.from_numpy(x.numpy() * 2), X)
    assert "numpy" not in vars(torch.Tensor)
    assert X.numpy().shape == (4, 6)


def test_lists_of_floats_are_refused_and_of_sizes_are_not():
    with pytest.raises(CannotLift, match="tolist"):
        lift(lambda x: x * torch.tensor(x.tolist()), X)
    assert_truth(lambda x: x * sum((x > 0).sum(1).tolist()), X)


def _outside_torch(x):
    """Compute as a library outside torch's dispatcher does: on the bytes of the storage."""
    return torch.frombuffer(bytearray(x.untyped_storage().tolist()), dtype=torch.float32).reshape(x.shape)


def test_a_kernel_outside_the_dispatcher_is_noticed():
    with pytest.raises(CannotLift, match="does not go through torch's dispatcher"):
        lift(lambda x: x + _outside_torch(x) * 2, X)


def test_a_constant_made_outside_the_dispatcher_is_a_constant():
    table = torch.arange(24.0).reshape(4, 6)
    assert torch.equal(lift(lambda x: x + _outside_torch(table), X).run()[0].value, X.double() + table.double())


def test_numpy_of_constants_is_fine():
    table = torch.arange(6.0)
    assert lift(lambda x: x * torch.from_numpy(table.numpy() * 2), X).run()[0].value is not None


def test_memory_that_is_resized_is_refused_and_the_same_elements_seen_otherwise_are_not():
    with pytest.raises(CannotLift, match="resize_ changes the memory"):
        lift(lambda x: x.clone().resize_(2, 2), X).run()
    assert_truth(lambda x: x.clone().flatten()[:4].view(2, 2), X)


@pytest.mark.parametrize(("factor", "expected"), [(1.0, ds.Verdict.ROUNDING), (1.001, ds.Verdict.DIFFERENT)])
def test_a_program_that_takes_second_derivatives_is_compared(factor, expected):
    """Forward derivatives make tensors that have a shape and no values."""

    def curvature(x, scale, split):
        h = x[:, :3] @ S[:3] + x[:, 3:] @ S[3:] if split else x @ S
        return torch.func.hessian(lambda t: (t.sin() * t.roll(1)).sum())((h * scale)[0]).sum(0)

    x = torch.randn(3, S.shape[0])
    found = ds.compare(lambda x: curvature(x, 1.0, False), lambda x: curvature(x, factor, True), (x,))
    assert found.verdict in (expected, ds.Verdict.IDENTICAL if expected is ds.Verdict.ROUNDING else expected)
