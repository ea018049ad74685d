"""Same inputs, same seed, same environment: the same record, byte for byte, but for the times."""

import json

import torch
from torch import nn

import driftscope as ds


def record(seed: int) -> str:
    torch.manual_seed(0)
    a = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    b = nn.Sequential(a[0], nn.GELU("tanh"), a[2]).eval()
    data = ds.compare(a, b, {"input": "5x8:float32"}, seed=seed).to_dict()
    data.pop("times")
    return json.dumps(data)


def test_the_same_question_gives_the_same_record() -> None:
    first = record(7)
    assert record(7) == first
    assert record(8) != first  # other inputs, other noise
