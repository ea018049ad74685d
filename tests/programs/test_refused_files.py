"""Files that a question cannot be asked of: one sentence that says what to give instead."""

from __future__ import annotations

import pytest
import torch

import driftscope as ds
from driftscope.programs.loading.references import find


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "scripted.pt", "net.xml", "w.safetensors"])
def test_a_saved_model_is_no_code_to_call(name):
    with pytest.raises(ds.ProgramError, match=r"exported or saved; give the module or function .* file\.py:name"):
        find(name)


def test_a_python_file_needs_a_name():
    with pytest.raises(ds.ProgramError, match=r"net\.py:name"):
        find("net.py")
    with pytest.raises(ds.ProgramError, match=r"is not package\.module:name"):
        find("net")


def test_a_listing_of_torchscript_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "scripted.pt"
    torch.jit.trace(torch.nn.Linear(3, 2), torch.ones(1, 3)).save(str(path))
    with pytest.raises(ds.ProgramError, match=r"is a TorchScript program, .* to \.pt2 or \.onnx"):
        ds.pretty(path)
