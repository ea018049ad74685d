"""The exporter's operator table is built once, and no export sees what another put in it."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from typing import Any

import onnx
import pytest
import torch

from driftscope.programs import operator_table
from driftscope.programs.operator_table import REGISTRY, one_table


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The exporter's class, with its own method: the tests themselves keep the table."""
    module, name, method = REGISTRY
    kind = getattr(importlib.import_module(module), name)
    own = operator_table._inside[0] if operator_table._inside else kind.__dict__[method]
    monkeypatch.setattr(kind, method, own)
    monkeypatch.setattr(operator_table, "_inside", [])
    monkeypatch.setattr(operator_table, "_tables", {})
    return kind


def exported(**options: Any) -> onnx.ModelProto:
    made = torch.onnx.export(torch.nn.GELU(), (torch.ones(3),), dynamo=True, verbose=False, **options)
    assert made is not None
    return made.model_proto


def kinds(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


@pytest.mark.slow
def test_the_file_is_the_same_and_the_table_is_built_once(bare: Any):
    plain = exported()
    with one_table() as kept:
        assert kept
        assert [exported(), exported()] == [plain, plain]
    assert len(operator_table._tables) == 1


@pytest.mark.slow
def test_what_one_export_registers_the_next_does_not_see(bare: Any):
    from onnxscript import opset18

    def doubled(self: Any, approximate: str = "none") -> Any:
        return opset18.Add(self, self)

    with one_table():
        plain = kinds(exported())
        custom = kinds(exported(custom_translation_table={torch.ops.aten.gelu.default: doubled}))
        again = kinds(exported())
    assert custom == ["Add"] != plain == again


def test_the_method_is_the_exporters_own_again_when_the_last_thread_has_left(bare: Any):
    method = REGISTRY[2]
    own = bare.__dict__[method]
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with one_table():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    entered.wait(60)
    with one_table():
        leave.set()
        thread.join(60)
        assert bare.__dict__[method] is not own
    assert bare.__dict__[method] is own


def test_where_the_name_has_moved_nothing_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(operator_table, "REGISTRY", (*REGISTRY[:2], "from_elsewhere"))
    with one_table() as kept:
        assert not kept
