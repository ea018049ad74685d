"""``ds.vmap`` over torch's own operator database: nothing pure is refused, and everything is its loop."""

from __future__ import annotations

import warnings

import pytest
import torch

import driftscope as ds
from driftscope.transforms.world.snapshot import same_bits

# Results that are only unique up to a sign or a basis, so that the batched algorithm may choose another; and
# as_strided, which reads the memory of the whole batch in the loop.
AMBIGUOUS = (
    "as_strided",
    "as_strided_scatter",
    "as_strided_copy",
    "linalg.eig",
    "linalg.eigh",
    "linalg.svd",
    "svd",
    "svd_lowrank",
    "pca_lowrank",
    "linalg.lstsq",
    "geqrf",
)


def samples(every):
    database = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    for op in database[::every]:
        # What was never written is the memory's own: it repeats itself by luck alone.
        unwritten = "empty" in op.name or "resize" in op.name
        if torch.float32 not in op.dtypes or op.name in AMBIGUOUS or unwritten:
            continue
        for sample in list(op.sample_inputs("cpu", torch.float32, requires_grad=False))[:2]:
            if isinstance(sample.input, torch.Tensor) and sample.input.layout == torch.strided:
                yield op, sample


def results(f, x):
    """Return what the loop gives, or None where it raises, does not repeat itself, or returns other things."""
    try:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        first = [f(row.clone()) for row in x]
        if not torch.equal(before, torch.get_rng_state()):
            return None
        torch.manual_seed(1)
        second = [f(row.clone()) for row in x]
    except Exception:
        return None
    tensors = all(isinstance(value, torch.Tensor) and value.layout == torch.strided for value in first)
    if not tensors or any(a.shape != first[0].shape for a in first):
        return None
    same = all(a.dtype == b.dtype and same_bits(a, b) for a, b in zip(first, second, strict=True))
    return torch.stack(first) if same and first[0].dtype != torch.complex32 else None


@pytest.mark.parametrize("every", [pytest.param(24, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.sweep)])
def test_every_operator_is_its_loop_and_none_is_refused(every):
    compared, wrong = 0, []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for op, sample in samples(every):

            def f(x, op=op, sample=sample):
                return op.op(x, *sample.args, **sample.kwargs)

            x = torch.stack([sample.input, sample.input.flip(0) if sample.input.dim() else sample.input, sample.input])
            expected = results(f, x)
            if expected is None:
                continue
            compared += 1
            got = ds.vmap(f, randomness="different")(x.clone())
            if got.dtype != expected.dtype or not torch.allclose(got, expected, 1e-3, 1e-4, equal_nan=True):
                wrong.append(op.name)
    assert compared > 600 // every
    assert not wrong, " ".join(wrong)
