"""Imports go one way, files stay small, and opening the front door opens nothing else."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import driftscope

PACKAGE = Path(driftscope.__file__).parent
ROOT = PACKAGE.parents[1]
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = (
    "torch",
    "numpy",
    "onnx",
    "onnxruntime",
    "onnx_ir",
    "onnxscript",
    "pandas",
    "transformers",
    "jax",
    "rich",
    "jinja2",
)


@functools.cache
def read(path: Path) -> list[ast.AST]:
    """Everything that a file of the package consists of, the whole of it first; read once for all of these tests."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def loaded_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter has after running ``code``."""
    script = f"{code}\nimport sys; print(' '.join(sorted({{m.split('.')[0] for m in sys.modules}})))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_importing_driftscope_imports_nothing_heavy():
    assert loaded_after("import driftscope").isdisjoint(HEAVY)


def test_records_and_errors_come_without_a_tensor_library():
    loaded = loaded_after("from driftscope import Verdict, Finding, Comparison, InputError, RuntimeRefused")
    assert loaded.isdisjoint(HEAVY)


def test_looking_at_the_names_imports_nothing_heavy():
    assert loaded_after("import driftscope; dir(driftscope); driftscope.__version__").isdisjoint(HEAVY)


def test_the_first_call_of_a_study_imports_what_it_needs_and_no_more():
    study = "import driftscope; driftscope.studies.reduction(sizes=8, permutations=4)"
    ours = loaded_after(study) - loaded_after("import numpy, numpy.random")
    # What reads files, stores rows, makes tables and corrects misspelled names comes with them.
    assert ours.isdisjoint({*HEAVY, "pathlib", "json", "csv", "difflib", "sysconfig", "shutil", "subprocess"})
    assert "threadpoolctl" in ours


def test_a_heavy_name_does_import_its_room():
    assert "torch" in loaded_after("from driftscope import inputs")


def test_import_linter_keeps_the_walls():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_house_rules_a_reviewer_can_check(path):
    text = path.read_text(encoding="utf-8")
    assert path.stem not in {"utils", "helpers", "common", "core", "misc", "base"}
    assert len(text.splitlines()) <= 400, "split this file"
    nodes = read(path)
    if len(nodes[0].body) > 1:
        assert "from __future__ import annotations" in text
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert length <= 60, f"{path.name}: {node.name} has {length} lines"


def test_no_import_leads_back_whenever_it_is_made():
    """Imports inside of functions and for types alone are counted: a room is understood from below."""
    files = {".".join(("driftscope", *p.relative_to(PACKAGE).with_suffix("").parts)): p for p in FILES}
    files = {name.removesuffix(".__init__"): path for name, path in files.items()}
    graph = {}
    for name, path in files.items():
        wanted = set()
        for node in read(path):
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        # A facade is not a step of its own: what is imported through it is named by the longer path.
        facades = {one for one in wanted if any(other.startswith(f"{one}.") and other in files for other in wanted)}
        graph[name] = {one for one in wanted & set(files) if one != name and one not in facades}
    graphlib.TopologicalSorter(graph).prepare()


def test_folders_are_rooms_and_not_halls():
    many = {}
    for path in FILES:
        many[path.parent.relative_to(PACKAGE).as_posix()] = many.get(path.parent.relative_to(PACKAGE).as_posix(), 0) + 1
    families = {"lift/onnx/ops"}  # one file for each family of operators
    assert {room: count for room, count in many.items() if count > 16 and room not in families} == {}


def test_a_class_has_a_name_of_its_own():
    places = {}
    for path in FILES:
        for node in read(path):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert not {name: where for name, where in places.items() if len(where) > 1}


#: The files that name what is private in torch: one of each room, and one for its trees.
DOORS = ("programs/pytrees.py", "programs/value_trees.py", "shapes/private_torch.py", "transforms/torch_internals.py")
#: Where torch documents something under a private name.
DOCUMENTED = ("torch.utils._python_dispatch", "torch._inductor.aoti_")


def dotted(node: ast.AST) -> str:
    """``a.b().c`` of an attribute of a name, or of what it gives; empty of anything else."""
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return base and f"{base}.{node.attr}"
    if isinstance(node, ast.Call | ast.Subscript):
        base = dotted(node.func if isinstance(node, ast.Call) else node.value)
        return base and f"{base}()"
    return node.id if isinstance(node, ast.Name) else ""


def private_names(nodes: list[ast.AST]) -> list[str]:
    """Return what a file names of torch, by attribute or import, below a part that begins with one underscore."""
    named = [dotted(node) for node in nodes if isinstance(node, ast.Attribute)]
    named += [f"{n.module}.{one.name}" for n in nodes if isinstance(n, ast.ImportFrom) for one in n.names]
    named += [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    private = [name for name in named if name.startswith("torch.") and re.search(r"\._(?!_)", name)]
    return [name for name in private if not any(name.startswith(one) or one.startswith(name) for one in DOCUMENTED)]


def test_private_names_of_torch_are_told_from_public_ones():
    code = "import torch._dynamo\nfrom torch.utils import _pytree\ntorch.func.grad(torch.__version__, x._version)"
    assert private_names(list(ast.walk(ast.parse(code)))) == ["torch.utils._pytree", "torch._dynamo"]


def test_what_is_private_in_torch_has_one_door_for_each_room():
    for path in FILES:
        name = path.relative_to(PACKAGE).as_posix()
        found = private_names(read(path))
        if name not in DOORS:
            assert not [one for one in found if "_pytree" in one], f"{name}: by programs/pytrees.py"
            assert not (found and name.startswith(("shapes/", "transforms/"))), f"{name}: {found}, by its room's door"
