"""What a ``.pt2`` archive may contain to be loaded: data, and text that cannot become code.

``torch.export.load`` falls back to full unpickling, loads compiled libraries, evaluates shape expressions as Python,
and ``ExportedProgram.module()`` compiles guards and names from the file into a Python function. So the archive is
inspected first: every pickle must be one that ``weights_only`` accepts, no library may be inside, expressions and
guards must be arithmetic, and names must not be able to leave their place in generated code.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import torch

from driftscope.errors import ProgramError

# A member that every archive of torch.export.save has, of today's and of the first format.
_MARKS = ("archive_format", "serialized_exported_program.json")
_SAMPLE_INPUTS = "data/sample_inputs/"
_OPERATOR = re.compile(
    r"torch\.ops\.(?!load_library|loaded_libraries)\w+\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.(_)?sym_\w+"
    r"|torch\._higher_order_ops\.\w+(\.\w+)*"
)
_ODD_OPERATORS = ("attrgetter", "methodcaller", "call", "setitem", "delitem")
# Text that is kept but never becomes code.
_FREE_TEXT = ("stack_trace", "nn_module_stack", "torch_fn", "source_fn_stack", "in_spec", "out_spec", "custom")
_PLAIN_TEXT = re.compile(r"[^'\"\\\n\r(){};=#]*")
_SAFE_CALLS = ("abs", "min", "max", "pow", "round", "floor", "ceiling", "sqrt")
_SAFE_FIELDS = ("size", "stride", "storage_offset", "shape", "dim", "ndim", "isnan", "inf")
_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop),
    *(ast.boolop, ast.Call, ast.keyword, ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.Subscript, ast.Attribute),
)


def inspect_archive(path: FilePath) -> set[str]:
    """Check everything in the archive.

    Returns
    -------
    set of str
        Members that must not be loaded and need not be: sample inputs pickled as Python objects.

    Raises
    ------
    ProgramError
        If the file holds what would have to be executed to be loaded, or is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if not any(name.rpartition("/")[2] in _MARKS for name in names):
                raise ProgramError(f"{path} is an archive, but not one that torch.export.save wrote")
            return {name for name in names if not _loadable(archive, name, path)}
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, OSError, RecursionError) as error:
        raise ProgramError(f"{path} is damaged: {error}") from error


def _loadable(archive: zipfile.ZipFile, name: str, path: FilePath) -> bool:
    inner = name.partition("/")[2] or name
    base = inner.rsplit("/", 1)[-1]
    if "aotinductor" in inner or inner.endswith((".so", ".dll", ".dylib", ".pyd")):
        raise ProgramError(f"{path} holds compiled code ({name}), which is not loaded; give the exported program")
    if base.startswith(("custom_obj_", "opaque_obj_")):
        raise ProgramError(f"{path} holds a pickled Python object ({name}), which is not loaded")
    if (inner.endswith(".pt") or base in _pickled_payloads(archive, name)) and not _plain_pickle(archive.read(name)):
        if inner.startswith(_SAMPLE_INPUTS):
            return False
        raise ProgramError(
            f"{path} holds pickled Python objects in {name}, which are not loaded;"
            " export with tensors alone, or load it yourself and give the ExportedProgram"
        )
    if inner.endswith(".json"):
        _check_texts(json.loads(archive.read(name)), path)
    return True


def _pickled_payloads(archive: zipfile.ZipFile, name: str) -> set[str]:
    """Names of the payloads beside ``name`` that its folder's configuration calls pickled."""
    folder = name.rpartition("/")[0]
    found: set[str] = set()
    for config in archive.namelist():
        if config.startswith(f"{folder}/") and config.endswith("_config.json"):
            entries = json.loads(archive.read(config)).get("config", {})
            found |= {entry.get("path_name", "") for entry in entries.values() if entry.get("use_pickle")}
    return found


def _plain_pickle(data: bytes) -> bool:
    if not data:
        return True
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        return False
    return True


def _check_texts(tree: Any, path: FilePath) -> None:
    for key, text in _texts(tree, ""):
        if key in ("expr_str", "guards_code"):
            if not _is_arithmetic(text):
                raise ProgramError(
                    f"{path} has a shape expression that is no arithmetic, {text[:80]!r}; it is not evaluated"
                )
        elif key == "target" and text.startswith(("torch", "_operator", "math", "builtins", "#")):
            if _OPERATOR.fullmatch(text) is None or text.rsplit(".", 1)[-1] in _ODD_OPERATORS:
                raise ProgramError(f"{path} calls {text[:80]!r}, which is no operator of torch; it is not loaded")
        elif key not in _FREE_TEXT and _PLAIN_TEXT.fullmatch(text) is None:
            raise ProgramError(f"{path} has a name that could become code, {text[:80]!r}; it is not loaded")


def _texts(tree: Any, key: str) -> Iterator[tuple[str, str]]:
    """Every text of a JSON tree with the key it stands under; keys themselves are texts, too."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield "", name
            yield from _texts(value, key if key in _FREE_TEXT else name)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value, key)
    elif isinstance(tree, str):
        yield key, tree


def _is_arithmetic(text: str) -> bool:
    """Whether an expression is made of numbers, symbols, sizes and functions of sympy alone."""
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError):
        return False
    return all(isinstance(node, _ARITHMETIC) and _harmless(node) for node in ast.walk(tree))


def _harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, (ast.Name, ast.Attribute))
    if isinstance(node, ast.Attribute):
        return node.attr in _SAFE_FIELDS
    if isinstance(node, ast.Name):
        shadows = callable(getattr(builtins, node.id, None)) and node.id not in _SAFE_CALLS
        return "__" not in node.id and not shadows
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return re.fullmatch(r"[\w.]*", node.value) is not None and "__" not in node.value
    return not isinstance(node, ast.Constant) or isinstance(node.value, (bool, int, float))
