"""Steps that one program has more, values that stand in each other's places, signs: named in both orders, and tried."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import driftscope as ds

X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(5))


class Gated(nn.Module):
    """Rotary attention and a gated layer; ``edit`` names one thing that is otherwise."""

    def __init__(self, edit: str = "") -> None:
        super().__init__()
        self.edit = edit
        self.norm = nn.LayerNorm(16)
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(16, 16)
        self.register_buffer("cosines", torch.randn(6, 4))
        self.register_buffer("sines", torch.randn(6, 4))

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        one, two = x.chunk(2, -1)
        if self.edit == "sign":
            return x * self.cosines + torch.cat((two, -one), -1) * self.sines
        if self.edit == "other words":
            return x * self.cosines - torch.cat((two, -one), -1) * self.sines
        return x * self.cosines + torch.cat((-two, one), -1) * self.sines

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (layer(h).view(2, 6, 4, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q = self.turned(q)
        k = k if self.edit == "no turn" else self.turned(k)
        scores = (q @ k.transpose(-1, -2) / 2).softmax(-1)
        y = self.out((scores @ v).transpose(1, 2).reshape(2, 6, 16))
        x = y if self.edit == "no residual" else x + y
        one, gate = self.up(x).chunk(2, -1)
        if self.edit == "gate":
            one, gate = gate, one
        z = self.down(one * gate if self.edit == "no activation" else one * functional.silu(gate))
        if self.edit == "doubled":
            z = z + z
        return (x + z).mean(1)


def made(edit: str = "") -> nn.Module:
    torch.manual_seed(2)
    return Gated(edit).eval()


# What is said where the edited program is B, and where it is A.
CASES = {
    "no residual": ("as it is, where A computes add", "A has no such step: without add"),
    "no turn": ("as it is, where A computes mul", "A has no such step: without"),
    "no activation": ("as it is, where A computes silu (aten.silu", "A has no such step: without silu (aten.silu)"),
    "doubled": ("A has no such step: without add", "as it is, where A computes add"),
    "gate": ("stand in each other's places", "stand in each other's places"),
    "sign": ("has the wrong sign", "has the wrong sign"),
}


@pytest.mark.parametrize("edited", ["B", "A"])
@pytest.mark.parametrize("edit", CASES)
@pytest.mark.sampled(3)
def test_an_edit_of_the_code_is_named_either_way_and_was_tried(edit, edited):
    pair = (made(), made(edit)) if edited == "B" else (made(edit), made())
    c = ds.compare(*pair, (X,), isolate=False)
    assert c.verdict == "DIFFERENT"
    assert CASES[edit][edited == "A"] in c.first.why, c.first.why
    assert c.first.verified is True
    # Queries and keys both turn the wrong way; of any other edit there is one place.
    assert len([f for f in c.findings if not f.note]) == 1


def test_a_residual_that_only_the_file_has_is_named_too(tmp_path):
    file = str(tmp_path / "whole.onnx")
    torch.onnx.export(made(), (X,), file, verbose=False)
    for pair, words in (((file, made("no residual")), "as it is, where A computes"),
                        ((made("no residual"), file), "A has no such step")):  # fmt: skip
        c = ds.compare(*pair, (X,))
        assert c.verdict == "DIFFERENT"
        assert words in c.first.why, c.first.why
        assert c.first.verified is True
        assert len([f for f in c.findings if not f.note]) == 1


def test_the_same_turn_in_other_words_is_the_same_function():
    for pair in ((made(), made("other words")), (made("other words"), made())):
        assert ds.compare(*pair, (X,), isolate=False).verdict in ("IDENTICAL", "ROUNDING")
