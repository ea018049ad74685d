"""Custom operators written in Python are followed; what computes where torch does not see it stays unlifted."""

from __future__ import annotations

import copy
import ctypes

import pytest
import torch
from float64_truth import lift
from torch import nn

import driftscope as ds
from driftscope.errors import CannotLift
from driftscope.records.verdict import Verdict


@torch.library.custom_op("driftscope_tests::segments", mutates_args=())
def segments(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows in groups times one matrix per group, as mixtures of experts compute where no kernel does it."""
    out, start = x.new_zeros(x.shape[0], weight.shape[-1]), 0
    for group, end in enumerate(ends.tolist()):
        torch.mm(x[start:end], weight[group], out=out[start:end])
        start = end
    return out


@segments.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weight.shape[-1])


@torch.library.custom_op("driftscope_tests::copied", mutates_args=())
def copied(x: torch.Tensor) -> torch.Tensor:
    """Write the result behind torch's back, as a compiled kernel does."""
    out = torch.empty_like(x)
    ctypes.memmove(out.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return out


class Experts(nn.Module):
    """Tokens sorted by the expert that the router chooses, multiplied in groups, sorted back."""

    def __init__(self, custom: bool):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.weight = nn.Parameter(torch.randn(4, 16, 16) / 4)
        self.custom = custom

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        ends = torch.bincount(chosen, minlength=4).cumsum(0)
        if self.custom:
            out = torch.ops.driftscope_tests.segments(x[order], self.weight, ends)
        else:
            out = (x[order].unsqueeze(1) @ self.weight[chosen[order]]).squeeze(1)
        return torch.zeros_like(out).index_copy(0, order, out) * scores.unsqueeze(-1)


@pytest.fixture(name="experts")
def _experts() -> tuple[Experts, Experts, torch.Tensor]:
    torch.manual_seed(0)
    grouped = Experts(custom=True)
    single = Experts(custom=False)
    single.load_state_dict(grouped.state_dict())
    return grouped, single, torch.randn(24, 16)


def test_the_calls_a_custom_operator_makes_are_lifted(experts: tuple[Experts, Experts, torch.Tensor]):
    grouped, _, x = experts
    tape = lift(grouped, x)
    found = tape.run()[0].value
    double = copy.deepcopy(grouped).double()
    double.custom = False
    assert torch.allclose(found, double(x.double()), rtol=1e-13, atol=1e-15)
    assert any(entry.facts.name.startswith("mm") for entry in tape.tape.entries)


def test_the_same_products_another_way_are_rounding(experts: tuple[Experts, Experts, torch.Tensor]):
    grouped, single, x = experts
    for a, b in ((grouped, single), (single, torch.export.export(grouped, (x,)))):
        assert ds.compare(a, b, (x,)).verdict in (Verdict.ROUNDING, Verdict.IDENTICAL)


@pytest.mark.parametrize("exported", [False, True], ids=["called", "exported"])
def test_a_matrix_of_another_expert_is_named(experts: tuple[Experts, Experts, torch.Tensor], exported: bool):
    grouped, single, x = experts
    with torch.no_grad():
        grouped.weight[[1, 2]] = grouped.weight[[2, 1]]
    found = ds.compare(single, torch.export.export(grouped, (x,)) if exported else grouped, (x,))
    assert found.verdict is Verdict.DIFFERENT
    assert found.first is not None
    assert found.first.evidence["weight"] == "weight"
    assert found.first.verified is True


def test_what_torch_does_not_see_computed_is_not_lifted():
    x = torch.randn(6)
    with pytest.raises(CannotLift, match=r"copied is opaque"):
        lift(lambda v: torch.ops.driftscope_tests.copied(v) * 2, x)
    plain = torch.randn(6)
    # Of a constant it is known what it gave.
    found = lift(lambda v: v * torch.ops.driftscope_tests.copied(plain), x).run()[0].value
    assert torch.allclose(found, x.double() * plain.double())


@pytest.mark.slow
def test_groups_follow_where_a_weight_before_the_routing_is_mended():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen3MoeConfig(
        vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
        num_key_value_heads=1, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, pad_token_id=0,
    )  # fmt: skip
    model = transformers.Qwen3MoeModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    broken = copy.deepcopy(model)
    with torch.no_grad():
        weight = broken.layers[0].self_attn.o_proj.weight
        weight.copy_(weight.T.clone())
    x = (torch.randint(1, 31, (2, 9)),)
    assert ds.compare(_States(model), torch.export.export(_States(model), x), x).verdict is Verdict.IDENTICAL
    pair = (_States(model), torch.export.export(_States(broken), x))
    for a, b in (pair, (_States(broken), torch.export.export(_States(model), x))):
        (finding,) = [f for f in ds.compare(a, b, x).findings if not f.note]
        assert finding.evidence["weight"] == "model.layers.0.self_attn.o_proj.weight"


class _States(nn.Module):
    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x, use_cache=False).last_hidden_state
