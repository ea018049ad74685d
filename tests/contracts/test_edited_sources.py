"""What is quoted of a source file is what the file says now."""

from __future__ import annotations

import importlib
import sys

import torch

import driftscope as ds

EDITED = """
import torch

def right(x):
    return {0}(x).sum(-1)

def wrong(x):
    return {0}(x * 1.5).sum(-1)

def rows(x):
    if x.{1}() > 0:
        return x.sum()
    return x.mean()
"""


def test_lines_are_those_of_a_module_that_was_edited_and_loaded_anew(tmp_path, monkeypatch):
    """As a notebook does it; Python's own tracebacks look whether a file has changed, and so does every public call."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, x = tmp_path / "edited_model.py", torch.randn(3, 4)
    for above, function, question in (("", "torch.exp", "min"), ("# a line more\n# and another", "torch.tanh", "amax")):
        path.write_text(above + EDITED.format(function, question))
        sys.modules.pop("edited_model", None)
        importlib.invalidate_caches()
        module = importlib.import_module("edited_model")
        found = ds.compare(module.right, module.wrong, (x,)).first
        assert found.where.expression == f"return {function}(x * 1.5).sum(-1)"
        report = ds.check_transforms(module.rows, (x,))
        assert {f.where.expression for f in report.findings if f.where and f.where.expression} == {f"x.{question}"}
