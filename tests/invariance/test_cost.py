"""What a check costs, counted in forwards and never in time."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import driftscope as ds


class _Encoder(nn.Module):
    """Tokens under a mask through nine layers, in plain operators."""

    def __init__(self, count):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embedding, self.count = nn.Embedding(99, 16), count
        self.encoder = nn.TransformerEncoder(layer, 9, enable_nested_tensor=False)

    def forward(self, ids, attention_mask):
        self.count()
        y = self.encoder(self.embedding(ids), src_key_padding_mask=attention_mask == 0)
        return (y * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)


class _Operators(TorchDispatchMode):
    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += not any(r.alias_info for r in func._schema.returns)
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_every_axis_of_an_encoder_of_160_operators_takes_sixty_forwards_at_most(monkeypatch):
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    calls = []
    try:
        model = _Encoder(lambda: calls.append(1)).eval()
        inputs = {"ids": torch.arange(48).reshape(4, 12), "attention_mask": torch.ones(4, 12)}
        with torch.no_grad(), _Operators() as operators:
            model(**inputs)
        assert operators.seen >= 160
        calls.clear()
        report = ds.check_invariance(model, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    assert len(report.outcomes) == 8
    assert report.outcomes["padding"] in ("same", "rounding")
    assert report.runs <= len(calls) <= 60
