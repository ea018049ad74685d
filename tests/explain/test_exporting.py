"""Whether the exporter's optimisation moved the result."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.explain.blame.blaming import standalone_target
from driftscope.explain.blame.exporting import blame_export, torch_exporter
from planted.architectures import ARCHITECTURES


@pytest.fixture(scope="module")
def case():
    """A module with batch normalisations, bound to its example, and its exports with and without optimisation."""
    architecture = ARCHITECTURES["convnet"]
    program = ds.program(architecture.module(torch.float32))
    bound = program.bind(ds.inputs(list(architecture.example(torch.float32))))
    export = torch_exporter(bound, opset=20)
    return bound, {optimize: export(optimize) for optimize in (True, False)}


def blamed(case, edit=lambda proto, optimize: None):
    bound, exports = case

    def export(optimize):
        proto = type(exports[optimize]).FromString(exports[optimize].SerializeToString())
        edit(proto, optimize)
        return proto

    return blame_export(bound, standalone_target(bound, bound, "the module", 0), export)


def _steeper(proto):
    for node in proto.graph.node:
        if node.op_type == "LeakyRelu":
            node.attribute[0].f = 0.11


@pytest.mark.slow
def test_honest_folding_is_not_blamed_and_its_effect_on_the_graph_is_told(case):
    found = blamed(case)
    assert not found.wrong
    assert found.guilty == ()
    assert found.suspects[0].operators["BatchNormalization"] == -2
    assert found.paste == ""


def test_an_optimisation_that_changes_the_function_is_blamed(case):
    found = blamed(case, lambda proto, optimize: _steeper(proto) if optimize else None)
    assert found.guilty == ("optimize=True",)
    assert "optimize=False" in found.paste
    assert found.lifted > 1e-3 > 1e-11 > found.lifted_without
    assert found.verified


def test_a_fault_that_both_exports_have_is_not_the_optimisations(case):
    found = blamed(case, lambda proto, optimize: _steeper(proto))
    assert found.wrong
    assert found.guilty == ()
    assert "not to blame" in found.answer
