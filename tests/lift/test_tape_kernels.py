"""Kernels that only a GPU runs: their calls are made here by stand-in CPU kernels that compute with public modules."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from float64_truth import assert_truth, distance, lift, truth
from torch import nn

import driftscope as ds

_aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def kernels():
    """Register CPU kernels for the test's duration."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        yield lambda name, function: library.impl(name, function, "CPU")


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_cudnn_recurrent_layers(kernels, kind, batch_first):
    module = kind(6, 4, 2, bidirectional=True, batch_first=batch_first).eval()
    weights = [w for layer in module.all_weights for w in layer]
    mode = {nn.LSTM: 2, nn.GRU: 3, nn.RNN: 1}[kind]

    def kernel(x, weight, stride, buffer, hx, cx, mode, *rest):
        states = (hx, cx) if cx is not None else hx
        out, last = module(x, states)
        h, c = last if isinstance(last, tuple) else (last, torch.zeros(0))
        return out.clone(), h.clone(), c.clone(), torch.zeros(3), torch.zeros(0)

    kernels("_cudnn_rnn", kernel)
    hx, x = torch.zeros(4, 3, 4), torch.randn(3, 5, 6) if batch_first else torch.randn(5, 3, 6)

    def run(x):
        cx = torch.zeros(4, 3, 4) if mode == 2 else None
        sizes = (mode, 4, 0, 2, batch_first, 0.0, False, True, [], None)
        return _aten._cudnn_rnn(x, weights, 4, None, hx, cx, *sizes)[:2]

    out, last = truth(module, x)[:2]
    assert distance(lift(run, x).run(), [out, last]) <= 1e-14


def test_fused_lstm_cell(kernels):
    cell = nn.LSTMCell(6, 4)

    def kernel(gates, hidden, cx, bias=None, other=None):
        i, f, g, o = (gates + hidden).chunk(4, 1)
        c = f.sigmoid() * cx + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c, gates.clone()

    kernels("_thnn_fused_lstm_cell", kernel)
    x, h, c = torch.randn(3, 6), torch.randn(3, 4), torch.randn(3, 4)

    def run(x, h, c):
        gates = F.linear(x, cell.weight_ih, cell.bias_ih), F.linear(h, cell.weight_hh, cell.bias_hh)
        return _aten._thnn_fused_lstm_cell(*gates, c)[:2]

    lifted = lift(run, x, h, c).run()
    with torch.no_grad():
        exact = cell.double()(x.double(), (h.double(), c.double()))
    assert distance(lifted, list(exact)) <= 1e-14


def test_fused_gru_cell(kernels):
    cell = nn.GRUCell(6, 4)
    kernels("_thnn_fused_gru_cell", lambda a, b, h, *bias: (h.clone(), a.clone()))
    x, h = torch.randn(3, 6), torch.randn(3, 4)

    def run(x, h):
        gates = F.linear(x, cell.weight_ih), F.linear(h, cell.weight_hh)
        return _aten._thnn_fused_gru_cell(*gates, h, cell.bias_ih, cell.bias_hh)[0]

    lifted = lift(run, x, h).run()
    with torch.no_grad():
        exact = cell.double()(x.double(), h.double())
    assert distance(lifted, [exact]) <= 1e-14


def test_efficient_attention(kernels):
    def kernel(q, k, v, bias, logsumexp, dropout_p=0.0, is_causal=False, scale=None):
        out = torch.softmax(q @ k.mT * (scale or q.shape[-1] ** -0.5) + bias, -1) @ v
        return out.transpose(1, 2).contiguous().transpose(1, 2), torch.zeros(2, 2, 8), torch.tensor(0), torch.tensor(0)

    kernels("_scaled_dot_product_efficient_attention", kernel)
    q, bias = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 5)

    def run(q, bias):
        out = _aten._scaled_dot_product_efficient_attention(q, q, q, bias, False)[0]
        return out.transpose(1, 2).view(2, 5, 8)

    exact = F.scaled_dot_product_attention(q.double(), q.double(), q.double(), bias.double())
    assert distance(lift(run, q, bias).run(), [exact.transpose(1, 2).reshape(2, 5, 8)]) <= 1e-14


@pytest.mark.parametrize("training", [False, True])
def test_cudnn_batch_norm(kernels, training):
    module = nn.BatchNorm2d(4)

    def kernel(x, w, b, mean, var, training, momentum, eps):
        # A copy of the statistics, so that the kernel's own writes are not seen twice.
        y = F.batch_norm(x, mean.clone(), var.clone(), w, b, training, momentum, eps)
        return y, torch.zeros(4 * training), torch.zeros(4 * training), torch.zeros(0, dtype=torch.uint8)

    kernels("cudnn_batch_norm", kernel)
    x = torch.randn(2, 4, 5, 5)

    def run(x):
        statistics = module.running_mean, module.running_var
        return _aten.cudnn_batch_norm(x, module.weight, module.bias, *statistics, training, 0.1, 1e-5)[0]

    lifted = lift(run, x).run()
    with torch.no_grad():
        exact = module.train(training).double()(x.double())
    assert distance(lifted, [exact]) <= 1e-13


def test_fused_root_mean_square_norm():
    weight = torch.randn(8)
    assert_truth(lambda x, w: _aten._fused_rms_norm(x, [8], w, 1e-6)[0], torch.randn(3, 8), weight)


def test_weights_in_one_flat_buffer_keep_their_names():
    """cuDNN lays all of a layer's weights into one buffer; each is still a parameter of its own."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    flat = torch.randn(40)
    offset = 0
    for parameter in module.parameters():
        parameter.data = flat[offset : offset + parameter.numel()].view(parameter.shape)
        offset += parameter.numel()
    tape = assert_truth(module, torch.randn(3, 4))
    assert {c.name for c in tape.constants()} == {"0.weight", "0.bias", "1.weight", "1.bias"}


@pytest.mark.parametrize("offset", [0.0, 300.0])
def test_distances_by_products_round_and_another_norm_is_another_function(offset):
    x, y = (torch.randn(n, 20, generator=torch.Generator().manual_seed(n)) + offset for n in (8, 9))

    def fast(x, y):
        return torch.cdist(x, y, compute_mode="use_mm_for_euclid_dist")

    def plain(x, y):
        return (x[:, None] - y).square().sum(-1).sqrt()

    for a, b in ((fast, plain), (plain, fast)):
        assert ds.compare(a, b, [x, y], explain=False).verdict is ds.Verdict.ROUNDING
    other = ds.compare(lambda x, y: (x[:, None] - y).abs().sum(-1), fast, [x, y], explain=False)
    assert other.verdict is ds.Verdict.DIFFERENT
