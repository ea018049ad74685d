"""A sample of the zoo: what tools make of real architectures is the same function, and planted bugs are not."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import driftscope as ds
from driftscope.records.verdict import Verdict

from .architectures import build
from .bugs import BUGS
from .tools import TOOLS, quiet

TRIED = ("dynamo", "decomposed", "saved-extended", "saved-all", "half-onnxruntime", "channels-last")
#: Tools that store the weights in a narrower format: the same function, cheaper.
CHEAPER = ("half-onnxruntime",)
#: torch's own decomposition of this model cannot be run: its attention returns another layout.
REFUSED = {("gpt2", "decomposed")}
IN_CI, LEFT = ("perceptron", "recurrent", "bert"), ("resnet", "gpt2", "wav2vec2")
MADE = [pytest.param(name, marks=pytest.mark.slow) for name in IN_CI]
MADE += [pytest.param(name, marks=pytest.mark.sweep) for name in LEFT]


@pytest.mark.parametrize("architecture", MADE)
def test_what_tools_make_is_the_same_function_and_a_bug_is_not(architecture: str, tmp_path: Path):
    model, inputs = build(architecture)
    for tool in TRIED:
        if (architecture, tool) in REFUSED:
            continue
        with quiet():
            found = ds.compare(model, TOOLS[tool](model, inputs, tmp_path), inputs, explain=False)
        expected = (Verdict.PRECISION,) if tool in CHEAPER else (Verdict.IDENTICAL, Verdict.ROUNDING)
        assert found.verdict in expected, f"{tool}: {found.reason}"
    exported = TOOLS["dynamo"](model, inputs, tmp_path)
    for bug, plant in BUGS.items():
        broken = copy.deepcopy(model)
        with torch.no_grad():
            plant(broken)
        for a, b in ((broken, exported), (exported, broken)):
            assert ds.compare(a, b, inputs, explain=False).verdict is Verdict.DIFFERENT, bug


@pytest.mark.slow
def test_a_deep_quantised_model_is_judged_in_the_float64_rounding_of_its_depth(tmp_path: Path):
    """Fifty convolutions round in float64 by more than the usual limit; without the quantisation it is one function."""
    model, inputs = build("mobilenet")
    with quiet(), torch.no_grad():
        made = TOOLS["int8-dynamic"](model, inputs, tmp_path)
    found = ds.compare(model, made, inputs)
    assert found.verdict is Verdict.PRECISION, found.reason
