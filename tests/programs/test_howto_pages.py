"""The code on the how-to pages about programs and inputs runs as it is printed."""

from __future__ import annotations

import re
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType

import pytest
import torch

import driftscope as ds
from driftscope.programs.loading import third_party

PAGES = Path(__file__).parents[2] / "docs" / "howto"


def code_of(page: str) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL))


def test_the_page_about_inputs_runs():
    exec(compile(code_of("give-inputs.md"), "give-inputs.md", "exec"), {})  # noqa: S102


def test_the_runtime_on_the_page_works(monkeypatch):
    module = ModuleType("table_runtime")
    exec(compile(code_of("add-a-runtime.md"), "add-a-runtime.md", "exec"), module.__dict__)  # noqa: S102
    monkeypatch.setitem(sys.modules, "table_runtime", module)
    entry = EntryPoint("table", "table_runtime:claim", third_party.GROUP)
    monkeypatch.setattr(third_party, "entry_points", lambda group: [entry])
    table = module.LookupTable([1.0, 2.0, 4.0])
    program = ds.program(table)
    assert program({"index": torch.tensor([2, 0])})["value"].tolist() == [4.0, 1.0]
    with pytest.raises(ds.RuntimeRefused, match="lookup tables refused to run"):
        program({"index": torch.tensor([9])})
    with pytest.raises(ds.InputError, match=r"'index'.* is int64, but float32 was given"):
        program(torch.ones(2))
    weights = torch.tensor([1.0, 2.0, 4.0])
    record = ds.compare(lambda index: weights[index], table, {"index": torch.tensor([2, 0])})
    assert record.verdict == ds.Verdict.IDENTICAL
