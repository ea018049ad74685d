"""The same program in fresh processes: what differs with the hash seed, and what cannot be asked."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds

MODELS = """
import os

import torch
from torch import nn

NAMES = {"alpha", "beta", "gamma", "delta", "epsilon"}


class OfASet(nn.Module):
    def forward(self, x):
        return x[:, [sorted(NAMES).index(name) for name in NAMES]]


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)
        nn.init.constant_(self.head.weight, float(hash("head") % 1000))

    def forward(self, x):
        return self.head(x)


def of_a_set():
    return OfASet(), {"x": "4x5:float32"}


def drawn():
    return Drawn(), {"x": "4x5:float32"}


def unseeded():
    return nn.Linear(5, 3), {"input": "4x5:float32"}


def dies():
    if os.environ.get("PYTHONHASHSEED") == "2":
        os.abort()
    return nn.Linear(5, 3), {"input": "4x5:float32"}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


@pytest.mark.parametrize(
    ("name", "outcome", "words"),
    [
        pytest.param("of_a_set", "different", "", marks=pytest.mark.sweep),
        pytest.param("drawn", "different", "head.weight", marks=pytest.mark.slow),
        pytest.param("unseeded", "same", None, marks=pytest.mark.sweep),
        pytest.param("dies", "refused", None, marks=pytest.mark.sweep),
    ],
)
def test_two_fresh_processes(models, name, outcome, words):
    report = ds.check_invariance(f"{models}:{name}", axes="processes")
    assert report.outcomes["processes"] == outcome
    if words is not None:
        assert words in report.first.why
        assert "the order of a set" in report.first.fix
    if name == "drawn":
        assert report.first.where.module == "head"


def test_an_object_in_memory_cannot_be_made_again_elsewhere():
    report = ds.check_invariance(nn.Linear(3, 2), torch.ones(2, 3), axes="processes", explain=False)
    assert report.outcomes["processes"] == "not-applicable"
    assert "file.py:name" in report.reasons["processes"]


def test_fresh_processes_are_asked_only_by_name():
    report = ds.check_invariance(torch.relu, torch.ones(2, 3), explain=False)
    assert "processes" not in report.outcomes
    assert "processes" in ds.check_invariance(torch.relu, torch.ones(2, 3), axes="all", explain=False).outcomes
