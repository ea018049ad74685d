"""The names of DESIGN.md section 4 exist, are what they say, and no file may take one of them away."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import driftscope as ds

PACKAGE = Path(ds.__file__).parent

# What later issues add is added here with them.
VERBS = (
    "blame",
    "check_half",
    "compare",
    "compare_all",
    "compare_values",
    "program",
    "onnx",
    "torch",
    "recorded",
    "reveal",
    "inputs",
    "pretty",
    "max_diff",
    "vmap",
    "check_transforms",
    "check_shapes",
    "check_invariance",
    "cover",
)
RECORDS = (
    "Comparison",
    "Finding",
    "OutputRecord",
    "Side",
    "Tolerance",
    "TransformReport",
    "Verdict",
    "Verification",
    "FailOn",
    "Where",
    "Inputs",
    "Program",
    "ShapeReport",
    "InvarianceReport",
    "CoveredProgram",
)
ERRORS = ("DriftscopeError", "InputError", "ProgramError", "RecordError", "RuntimeRefused", "DependencyMissing")


@pytest.mark.parametrize("name", VERBS)
def test_verbs_are_functions_with_documented_parameters(name):
    verb = getattr(ds, name)
    assert inspect.isfunction(verb)
    assert "Parameters" in (inspect.getdoc(verb) or "")


@pytest.mark.parametrize("name", RECORDS + ERRORS)
def test_types_are_classes_with_a_docstring(name):
    kind = getattr(ds, name)
    assert inspect.isclass(kind)
    assert inspect.getdoc(kind)


def test_testing_is_a_module_with_its_assertions():
    assert ds.testing is importlib.import_module("driftscope.testing")
    assert callable(ds.testing.assert_close)
    assert callable(ds.testing.assert_same)


@pytest.mark.parametrize("name", importlib.import_module("driftscope.accumulation.exact.reductions").__all__)
def test_exact_is_a_module_of_documented_functions(name):
    assert inspect.isfunction(getattr(ds.exact, name))
    assert "Parameters" in (inspect.getdoc(getattr(ds.exact, name)) or "")


@pytest.mark.parametrize("name", importlib.import_module("driftscope.studies").__all__)
def test_studies_is_a_module_of_documented_names(name):
    found = getattr(ds.studies, name)
    assert "Parameters" in (inspect.getdoc(found) or "")


def test_reproducible_is_a_context():
    assert hasattr(ds.reproducible(), "__enter__")
    assert "Raises" in (inspect.getdoc(ds.reproducible) or "")


def test_verbs_stay_verbs_when_their_rooms_are_imported():
    """Importing a submodule rebinds its package's attribute of that name: nothing at the door bears a verb's name.

    Rooms inside rooms may (``lift/torch``): they rebind their own room's attribute, never the front door's.
    """
    reserved = {*VERBS, "exact", "reproducible", "assert_close", "assert_same"}
    assert reserved.isdisjoint({path.stem for path in PACKAGE.iterdir()})
    for room in ("lift.torch", "lift.onnx", "explain.blame", "accumulation.exact", "cli.commands.compare"):
        importlib.import_module(f"driftscope.{room}")
        verb = getattr(ds, room.rpartition(".")[2])
        assert inspect.isfunction(verb) or verb.__name__ == "driftscope.accumulation.exact.reductions"


def test_the_list_of_names_is_complete_and_nothing_else_opens():
    known = {*VERBS, *RECORDS, *ERRORS, "testing", "exact", "reproducible", "studies", "__version__"}
    # A star takes no name that its user has given to the libraries.
    assert set(ds.__all__) == known - {"torch", "onnx"}
    assert dir(ds) == sorted(known)
    with pytest.raises(AttributeError, match="no attribute 'comprae'"):
        ds.comprae  # noqa: B018


def test_type_checkers_see_the_same_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.asname or alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    # What is defined, being in no __all__, stands for what it was imported as.
    defined = {node.targets[0].id: node.value.id for node in block.body if isinstance(node, ast.Assign)}
    assert set(defined) == {"onnx", "torch"}
    assert seen - set(defined.values()) | set(defined) == set(dir(ds)) - {"__version__"}


def test_version_is_the_installed_one():
    assert ds.__version__.split(".")[0].isdigit()


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("compare", ["a", "b", "inputs", "explain"]),
        ("compare_all", ["programs", "inputs"]),
        ("onnx", ["model", "level", "disabled", "threads", "provider", "save_optimized"]),
        ("torch", ["module", "device", "dtype", "compile"]),
        ("reveal", ["kernel", "n", "dtype", "shape", "threads"]),
    ],
)
def test_signatures_are_the_settled_ones(name, parameters):
    given = list(inspect.signature(getattr(ds, name)).parameters)
    assert given[: len(parameters)] == parameters
