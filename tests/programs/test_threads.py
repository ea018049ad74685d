"""How many threads compute: a program's own for what it computes, one for what is computed about small ones."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.lift.formulas import activations
from driftscope.programs.state.threads import own_threads, suit, thread_count, threads_to_suit

SMALL, LARGE = 100, 2**18 + 1


ran: set[int] = set()  # what a module keeps of a run is put back after it


class Watched(nn.Module):
    """Notes on how many threads it runs, each time it is called."""

    def __init__(self, width: int, approximate: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.approximate = nn.Linear(width, 3), approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ran.add(torch.get_num_threads())
        return nn.functional.gelu(self.inner(x), approximate=self.approximate)


@pytest.fixture
def three():
    with thread_count(3):
        yield


@pytest.fixture
def evaluated(monkeypatch):
    """On how many threads float64 is computed."""
    seen: set[int] = set()
    formula = activations.gelu

    def watched(*args, **kwargs):
        seen.add(torch.get_num_threads())
        return formula(*args, **kwargs)

    monkeypatch.setattr(activations, "gelu", watched)
    for place in ("driftscope.lift.torch.ops.activations.gelu", "driftscope.lift.onnx.ops.activations.gelu"):
        monkeypatch.setattr(place, watched, raising=False)
    return seen


@pytest.mark.parametrize(("width", "threads"), [(50, 1), (2**17, 3)])
def test_one_thread_computes_about_small_programs_and_all_run_programs(three, evaluated, width, threads):
    ran.clear()
    found = ds.compare(Watched(width, "none"), Watched(width, "tanh"), (torch.linspace(-3.0, 3.0, width),))
    assert found.verdict == "DIFFERENT"
    assert ran == {3}
    assert evaluated == {threads}
    assert torch.get_num_threads() == 3


def test_they_are_as_before_after_an_error(three):
    with contextlib.suppress(KeyError), threads_to_suit():
        suit(SMALL)
        assert torch.get_num_threads() == 1
        raise KeyError
    assert torch.get_num_threads() == 3


def test_one_large_program_is_enough_for_all_threads(three):
    with threads_to_suit():
        suit(SMALL)
        suit(LARGE)
        assert torch.get_num_threads() == 3
        suit(SMALL)
        assert torch.get_num_threads() == 3


def test_nothing_is_changed_where_nobody_asked(three):
    suit(SMALL)
    assert torch.get_num_threads() == 3


def test_a_program_runs_on_its_own_threads_and_on_those_it_is_given(three):
    with threads_to_suit():
        suit(SMALL)
        with own_threads():
            assert torch.get_num_threads() == 3
            with own_threads(), threads_to_suit():
                assert torch.get_num_threads() == 3
        assert torch.get_num_threads() == 1
        with thread_count(2), own_threads():
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 1
