"""A choice that a narrower format turns is no place of another function, alone or beside one."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds


def _kept(dtype, above=torch.ge, after=torch.tanh):
    """Keeps the three largest probabilities; the third is equal to itself in float64, whatever casts it passed."""

    def program(x):
        e = torch.exp(x * 0.02)
        v = torch.softmax(x * 0.02, -1) if dtype is torch.float32 else (e / e.sum(-1, keepdim=True)).to(dtype)
        third = torch.topk(v.float(), 3, -1)[0][..., -1:].to(dtype)
        return after(v * above(v, third).to(dtype)).float()

    return program


def _split(dtype, at=0.3, after=torch.tanh):
    """Splits at a number that is stored rounded: one value lies between what is meant and what is stored."""

    def program(x):
        v = torch.sigmoid(x).to(dtype)
        return after(torch.where(v > torch.tensor(at, dtype=dtype), v, 0.5 * v)).float()

    return program


def _beside(at):
    """Probabilities of which no one is near ``at`` but for one row, just above it."""
    low, high = torch.linspace(0.29, 0.295, 100), torch.linspace(0.305, 0.308, 100)
    return torch.logit(torch.cat([low, torch.full((10,), at), high]).reshape(-1, 10))


CASES = {
    "kept": (_kept, torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), {"above": torch.gt}, "gt ge"),
    "split": (_split, _beside(0.30002), {"at": 0.31}, "gt"),
}
TURNED = pytest.mark.parametrize("turned", [False, True], ids=["B", "A"])
NARROW = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
NAMES = pytest.mark.parametrize("name", list(CASES))


def _compared(name, dtype, turned, **edit):
    make, x, *_ = CASES[name]
    pair = make(torch.float32), make(dtype, **edit)
    return ds.compare(*(pair[::-1] if turned else pair), (x,), isolate=False)


@TURNED
@NARROW
@NAMES
def test_what_a_rounded_value_or_number_turns_is_precision(name, dtype, turned):
    found = _compared(name, dtype, turned)
    assert found.verdict == "PRECISION", found.reason
    assert [f.code for f in found.findings if not f.note] == ["N011"]


@TURNED
@NARROW
@NAMES
def test_another_choice_is_another_function_at_its_own_place(name, dtype, turned):
    *_, edit, operators = CASES[name]
    found = _compared(name, dtype, turned, **edit)
    assert found.verdict == "DIFFERENT", found.reason
    told = [f.where.operator for f in found.findings if not f.note]
    assert len(told) == 1
    assert told[0].removeprefix("aten.") in operators.split()


@TURNED
@NARROW
@NAMES
def test_another_function_behind_a_turned_choice_is_told_at_its_place_alone(name, dtype, turned):
    found = _compared(name, dtype, turned, after=torch.atan)
    assert found.verdict == "DIFFERENT", found.reason
    assert [f.where.operator for f in found.findings if not f.note] == [f"aten.{'tanh' if turned else 'atan'}"]
    # That is worth a word where the choice moves more than the other function does.
    moved = found.first.evidence.get("left", 1.0) < 0.5 * found.outputs[0].lifted_size
    assert ("with every choice made in float64" in str(found)) == moved
