"""A program that does not repeat itself: where it draws its random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds


class Noisy(nn.Module):
    """Adds noise; its dropout is off and its attention drops nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x, 0.5, training=False)
        x = nn.functional.scaled_dot_product_attention(x, x, x)
        return x + torch.rand(x.shape[0], 1)


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.5)


def test_the_first_draw_is_named() -> None:
    c = ds.compare(nn.Identity(), Noisy().eval(), (torch.randn(4, 8),))
    assert c.verdict == "INCONCLUSIVE"
    assert c.first is not None
    assert (c.first.code, c.first.where.operator) == ("N014", "aten.rand")
    assert c.first.where.file is not None
    assert c.first.where.file.endswith("test_randomness.py")
    assert "It draws random numbers at rand (" in c.answer
    assert ".eval()" not in c.first.fix


@pytest.mark.parametrize("order", ["A", "B"])
def test_a_dropout_that_is_on_is_said_of_its_side(order: str) -> None:
    programs = (Dropping().eval(), nn.Identity())
    c = ds.compare(*(programs if order == "A" else programs[::-1]), (torch.randn(4, 8),))
    assert c.verdict == "INCONCLUSIVE"
    assert f"{order} (Dropping) drops values although it is in eval() mode" in c.answer


def test_a_module_that_is_trained_is_told_to_stop():
    class Dropping(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.p = p

        def forward(self, x):
            torch.manual_seed(5)
            return nn.functional.dropout(x, self.p, training=self.training)

    x = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))
    found = ds.compare(Dropping(0.3), Dropping(0.4), x)
    assert found.first.code == "O004"
    assert "in train() mode" in found.first.what
    assert found.first.fix.startswith("call eval() first")
    assert ds.compare(Dropping(0.3).eval(), Dropping(0.4).eval(), x).verdict is ds.Verdict.IDENTICAL
