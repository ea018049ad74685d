"""A tensor that a function keeps outside of itself is returned instead: the patch was tried, and works as it says."""

from __future__ import annotations

import importlib.util
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import driftscope as ds

X = torch.tensor([[0.5, -1.25, 2.0], [1.5, 0.25, -0.75], [-2.0, 1.0, -0.5]], dtype=torch.float64)

KEPT = {
    "a global": "def f(v):\n    global last\n    last = v.sin()\n    return (last * v).sum()\n",
    "two globals": "def f(v):\n    global other, last\n    last = v.sin()\n    return (last * v).sum()\n",
    "a list": "def f(v):\n    h = v.sin()\n    seen.append(h)\n    return (h * v).sum()\n",
    "a dictionary": "def f(v):\n    by['h'] = v.sin()\n    y = by['h'] * v\n    return y.sum()\n",
    "an attribute": "def f(v):\n    box.last = v.sin()\n    h = box.last * v\n    return h.sum()\n",
    "beside two results": "def f(v):\n    seen.append(v.sin())\n    return v.sum(), (v * v).sum()\n",
    "a name of ours": "def f(v):\n    kept = v.sin()\n    seen.append(kept)\n    return (kept * v).sum()\n",
}
NOT_OFFERED = {
    "in a loop": "def f(v):\n    for _ in range(2):\n        seen.append(v.sin())\n    return v.sum()\n",
    "read again": "def f(v):\n    seen.append(v.sin())\n    return (seen[-1] * v).sum()\n",
    "of the call before": "def f(v):\n    old = by.get('h', 1.0)\n    by['h'] = v.sin()\n    return (v * old).sum()\n",
    "returned on two ways": (
        "def f(v):\n    seen.append(v.sin())\n    if v.ndim > 1:\n        return v\n    return v.sum()\n"
    ),
}


HEAD = """import types
import torch
seen, by, other = [], {}, 0
box = types.SimpleNamespace(last=None)


"""


def check(folder: Path, source: str, transform: str):
    path = folder / "mine.py"
    path.write_text(HEAD + source)
    spec = importlib.util.spec_from_file_location("mine", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = ds.check_transforms(module.f, X, transforms=(transform,))
    return path, next(f for f in report.findings if f.code == "T001")


@pytest.mark.parametrize("transform", ["vmap", "grad"])
@pytest.mark.parametrize("name", KEPT)
def test_the_patch_gives_the_tensor_as_a_second_result(tmp_path, monkeypatch, name, transform):
    if shutil.which("git") is None:
        pytest.skip("git is needed to apply a patch")
    monkeypatch.chdir(tmp_path)
    path, finding = check(tmp_path, KEPT[name], transform)
    assert finding.verified
    assert "has_aux=True" in finding.fix
    done = subprocess.run(["git", "apply", "-"], input=finding.patch, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0
    names = runpy.run_path(str(path))
    f, one = names["f"], X[0]
    value, kept = f(one)
    assert torch.equal(kept, one.sin())
    assert not names["seen"]
    assert not names["by"]
    if name == "beside two results":
        return
    gradient, aux = torch.func.grad(f, has_aux=True)(one)
    assert torch.equal(aux, one.sin())
    torch.testing.assert_close(gradient, one.cos() * one + one.sin())
    values, all_kept = torch.vmap(f)(X)
    assert torch.equal(all_kept, X.sin())
    assert torch.equal(values[0], value)


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_where_another_result_would_come_out_nothing_is_offered(tmp_path, name):
    _, finding = check(tmp_path, NOT_OFFERED[name], "grad")
    assert not finding.patch
    assert finding.fix.startswith("return the tensor instead")
