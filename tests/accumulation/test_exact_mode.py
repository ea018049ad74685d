"""Inside ds.reproducible(), bits do not depend on batch, threads or layout; what cannot be fixed is refused."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import driftscope as ds
from accumulation.exact_truth import DTYPES, LAWS, bits
from accumulation.exact_ways import need_compiled, only_integers
from driftscope.accumulation.exact.softmax import exponential, softmax


class Block(nn.Module):
    """One transformer layer, written plainly."""

    def __init__(self, width: int = 48):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.head = nn.Linear(width, width), nn.Linear(width, 5, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        attended = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1) @ v
        return self.head(torch.relu(self.out(attended) + x)).mean(dim=1)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Block().eval()


@pytest.fixture
def x():
    return torch.randn(8, 24, 48, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_batch_and_threads_do_not_change_a_bit(model, x, dtype):
    need_compiled()  # minutes without it
    model, x = model.to(dtype), x.to(dtype)
    before = torch.get_num_threads()
    try:
        with torch.no_grad(), ds.reproducible():
            torch.set_num_threads(1)
            whole = model(x)
            torch.set_num_threads(2)
            assert bits(model(x)) == bits(whole)
            assert bits(model(x[3:4])) == bits(whole[3:4])
            assert bits(model(x.transpose(0, 1).contiguous().transpose(0, 1))) == bits(whole)
    finally:
        torch.set_num_threads(before)
    with torch.no_grad():
        assert torch.allclose(model(x).double(), whole.double(), atol=0.05, rtol=0.05)


PERSONALITIES = {
    "as it is": {},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "baseline": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
}
# Weights come from numpy's generator: torch draws other last bits with other instructions.
TRAINED = """
import hashlib, numpy, torch, driftscope
drawn = numpy.random.default_rng(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0, batch_first=True)
net = torch.nn.Sequential(torch.nn.Conv1d(32, 32, 3, padding=1), torch.nn.GELU())
state = {name: torch.tensor(drawn.standard_normal(tuple(p.shape)) * 0.2, dtype=torch.float32)
         for name, p in [*layer.named_parameters(), *net.named_parameters()]}
layer.load_state_dict(state, strict=False), net.load_state_dict(state, strict=False)
x = torch.tensor(drawn.standard_normal((4, 17, 32)), dtype=torch.float32, requires_grad=True)
with driftscope.reproducible():
    y = net(layer(x).transpose(1, 2)).logsumexp(-1)
    y.sum().backward()
print(*(hashlib.sha256(t.detach().numpy().tobytes()).hexdigest() for t in (y, x.grad, layer.linear1.weight.grad)))
"""


@pytest.mark.slow
def test_other_instructions_change_no_bit_forward_or_backward():
    need_compiled()
    paths = os.pathsep.join(path for path in sys.path if path)
    told = {}
    for name, switches in PERSONALITIES.items():
        environment = {**os.environ, "PYTHONPATH": paths, **switches}
        told[name] = subprocess.check_output(
            [sys.executable, "-W", "ignore", "-c", TRAINED], env=environment, text=True
        )
    assert len(set(told.values())) == 1, told


def test_without_a_compiler_the_model_has_the_same_bits(model, x, monkeypatch):
    with torch.no_grad(), ds.reproducible():
        compiled = model(x[:2])
        with only_integers(monkeypatch):
            assert bits(model(x[:2])) == bits(compiled)


def test_a_permuted_sum_changes_outside_and_not_inside():
    r = np.random.default_rng(0)
    x = LAWS["wide"](r, 4096, torch.float32)
    shuffled = x[torch.from_numpy(r.permutation(4096))]
    assert bits(x.sum()) != bits(shuffled.sum())
    with ds.reproducible():
        assert bits(x.sum()) == bits(shuffled.sum()) == bits(ds.exact.sum(x))
        assert bits(x.var()) == bits(shuffled.var())
    assert bits(x.sum()) != bits(shuffled.sum())


def test_operators_arrive_however_they_are_written(x):
    a, b, bias = x[0], x[1].t(), torch.randn(24)
    with ds.reproducible():
        product = ds.exact.matmul(a, b)
        for written in (a @ b, torch.mm(a, b), torch.einsum("ik,jk->ij", a, x[1]), F.linear(a, x[1])):
            assert bits(written) == bits(product)
        assert bits(F.linear(a, x[1], bias)) == bits(torch.addmm(bias, a, b)) == bits(product + bias)
        assert bits(torch.addmm(bias, a, b, beta=0.5, alpha=2)) == bits(product * 2 + bias * 0.5)
        assert bits(torch.bmm(x, x.transpose(1, 2))[1]) == bits(ds.exact.matmul(x[1], x[1].t()))
        assert bits(x.mean((0, 2))) == bits(ds.exact.mean(x, (0, 2)))
        assert bits(F.layer_norm(x, (48,))) == bits(ds.exact.layer_norm(x, 48))
    assert torch.allclose(product, a @ b, atol=1e-4)


def test_plain_attention_is_accepted_and_masked_rows_are_zero(x):
    q = x[None]
    mask = torch.ones(24, 24, dtype=torch.bool).tril(-1)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        with ds.reproducible():
            inside = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
        outside = F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert torch.allclose(inside, outside, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda x: x.norm(3), "norm of order 3"),
        (lambda x: x.prod(), "prod"),
        (lambda x: F.interpolate(x[None], size=4, mode="bilinear", antialias=True), "upsample_bilinear2d_aa"),
        (lambda x: torch.cdist(x, x, p=3.0), "distances of order 3"),
        (lambda x: torch.fft.rfft(x), "_fft"),
        (lambda x: torch.linalg.inv(x[0, :4, :4]), "linalg"),
        (lambda x: torch.complex(x, x).sum(), "sum"),
        (lambda x: torch._foreach_norm([x]), "foreach_norm"),
        (lambda x: x[0].scatter(0, torch.zeros(2, 48, dtype=torch.int64), x[1], reduce="add"), "scatter"),
        (lambda x: x.to(torch.float8_e4m3fn).sum(), "sum"),
    ],
)
def test_what_has_no_fixed_order_is_refused(call, words, x):
    with torch.no_grad(), ds.reproducible(), pytest.raises(ds.InputError, match=words):
        call(x)


def test_what_adds_nothing_passes(x):
    with ds.reproducible():
        assert torch.cat([x, x]).max().item() == x.max().item()
        assert torch.arange(5).sum().item() == 10
        assert torch.arange(6).view(2, 3).cumsum(0).tolist() == [[0, 1, 2], [3, 5, 7]]
        assert torch.arange(5).sum(dtype=torch.float32).item() == 10
        assert x[0].index_put((torch.tensor([0]),), torch.ones(1, 48))[0].tolist() == [1.0] * 48
        assert x[0].scatter(0, torch.zeros(1, 48, dtype=torch.int64), 5.0)[0].tolist() == [5.0] * 48
        assert x.sort(-1).values[..., -1].equal(x.amax(-1))
        assert F.gelu(x).shape == x.shape
        assert F.dropout(x, 0.5).shape == x.shape
        x.clone()[0].fill_(3.0).add_(x[1])


def test_gradients_can_be_taken_outside(model, x):
    with ds.reproducible():
        loss = model(x).sum()
    loss.backward()
    inside = model.head.weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    assert torch.allclose(inside, model.head.weight.grad, atol=1e-3)


def test_the_exponential_is_one_to_an_ulp():
    x = -torch.from_numpy(np.random.default_rng(0).exponential(30.0, 20_000)).clamp(max=700)
    assert ((exponential(x) - torch.exp(x)).abs() <= 3e-16 * torch.exp(x)).all()
    special = exponential(torch.tensor([0.0, -0.0, -math.inf, math.nan, -709.0], dtype=torch.float64))
    assert bits(special) == bits(torch.tensor([1.0, 1.0, 0.0, math.nan, 0.0], dtype=torch.float64))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_softmax_is_close_to_torch_and_independent_of_order(dtype):
    r = np.random.default_rng(4)
    x = LAWS["normal"](r, 600, dtype).reshape(3, 200) * 5
    order = torch.from_numpy(r.permutation(200))
    found = softmax(x, 1)
    assert bits(softmax(x[:, order], 1)) == bits(found[:, order])
    assert torch.allclose(found.double(), torch.softmax(x.double(), 1), rtol=2 * torch.finfo(dtype).eps, atol=1e-7)
    assert bits(softmax(x.t(), 0).t().contiguous()) == bits(found)
    special = torch.tensor([[-math.inf, -math.inf], [math.inf, 0.0], [math.nan, 0.0], [0.0, -math.inf]], dtype=dtype)
    assert bits(softmax(special, 1)) == bits(torch.softmax(special, 1))
    assert bits(softmax(torch.tensor(3.0, dtype=dtype), 0)) == bits(torch.tensor(1.0, dtype=dtype))


def test_the_how_to_page_runs():
    page = Path(__file__).parents[2] / "docs" / "howto" / "make-a-model-order-independent.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    exec(compile(code, page.name, "exec"), {})  # noqa: S102
