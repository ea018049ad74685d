"""Whether a dependence matters: flips, margins, and the number of choices until one is another."""

from __future__ import annotations

import math

import pytest
import torch

import driftscope as ds
from driftscope.invariance.choices import changed_choices
from driftscope.report.kinds import text_of


def scores(count, classes=10, seed=0):
    return torch.randn(count, classes, generator=torch.Generator().manual_seed(seed))


def noise(x, size, seed=1):
    return size * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def test_flips_and_sets_are_counted():
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]] * 3)
    y = x.clone()
    y[1, 5:] = torch.tensor([7.0, 6.0])  # another largest, the same five
    y[2, 1], y[2, 2] = 3.0, 2.0  # the same largest, another set of five
    told = changed_choices(x, y, [0.5])
    assert (told.choices, told.flips, told.top) == (3, 1, 1)
    assert told.margin_floors == pytest.approx(1.0 / (math.sqrt(2.0) * 0.5))
    assert told.smallest_margin == 1.0


def test_equal_scores_never_part():
    x = scores(50)
    told = changed_choices(x, x.clone())
    assert (told.flips, told.top, told.smallest_margin, told.expected_steps) == (0, 0, math.inf, math.inf)


@pytest.mark.parametrize("size", [1e-1, 1e-2, 1e-3])
def test_the_steps_predicted_from_few_margins_are_those_of_many(size):
    many = scores(400_000, seed=3)
    measured = (many.argmax(-1) != (many + noise(many, size)).argmax(-1)).double().mean()
    few = scores(2_000, seed=4)
    predicted = changed_choices(few, few + noise(few, size, seed=5)).expected_steps
    assert 0.5 < predicted * float(measured) < 2.0


def test_a_state_that_is_handed_on_is_no_choice():
    def model(x):
        y = (x @ x.T.new_ones(x.shape[1], 40)).cumsum(-1)
        return {"logits": y, "past_key_values": y * 2}

    report = ds.check_invariance(model, torch.randn(4, 300), axes="batch", explain=False)
    for told in report.choices.values():  # on some processors nothing changes
        assert told["choices"] <= 4 * 40


def test_the_terminal_says_after_how_many_steps():
    from driftscope.records.kinds.invariance_report import InvarianceReport

    told = {"choices": 7, "flips": 0, "top": 1, "smallest_margin": 3.0, "margin_floors": 2.5}
    report = InvarianceReport("m", {"batch": "rounding"}, choices={"batch": {**told, "expected_steps": 1234.5}})
    assert "about 1200" in text_of(report, width=100, color=False)
    report = InvarianceReport("m", {"batch": "rounding"}, choices={"batch": {**told, "expected_steps": math.inf}})
    assert "never" in text_of(report, width=100, color=False)


def test_scores_of_a_narrow_format_that_tie_and_do_not_change_are_the_same_choices():
    x = scores(20_000).bfloat16()
    y = (x.double() + noise(x, 2.0**-8)).bfloat16()
    told = changed_choices(x, y)
    assert 0.5 < told.expected_steps * told.flips / told.choices < 2.0
    x[:5_000, 1] = x[:5_000, 0] = 5.0  # two largest scores that tie
    assert changed_choices(x, x.clone()).expected_steps == math.inf


@pytest.mark.parametrize(("stored", "there"), [(torch.float16, True), (torch.float32, False)])
def test_a_cache_that_keeps_less_says_after_how_many_choices_one_is_another(stored, there):
    def decoder(x, cache=None):
        every = x if cache is None else torch.cat([cache.float(), x], 1)
        return every.cumsum(1)[:, -x.shape[1] :], every.to(stored)

    x = torch.randn(4, 60, 30, generator=torch.Generator().manual_seed(0))
    report = ds.check_invariance(decoder, x, axes="chunking", explain=False)
    assert (report.choices.get("chunking", {}).get("expected_steps", math.inf) < math.inf) is there
