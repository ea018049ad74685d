"""``.pt2`` files: inspected before torch loads them, because torch itself would unpickle what it finds inside.

``torch.export.load`` falls back to full unpickling of weights, constants and sample inputs, loads compiled code, and
evaluates shape expressions as Python. So every pickle in the archive must be one that ``weights_only`` accepts, no
compiled code may be there, and expressions and operator names must look like what torch writes.
"""

from __future__ import annotations

import builtins
import io
import json
import keyword
import logging
import pickle
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import torch
from torch.export import ExportedProgram

from driftscope.errors import ProgramError

_OPERATOR = re.compile(
    r"torch\.ops\.(?!load_library|loaded_libraries)\w+\.\w+(\.\w+)?|_operator\.\w+|math\.\w+|torch\.sym_\w+"
    r"|torch\._sym_\w+|torch\.Tensor\.\w+|(torch\.)?_higher_order_ops\.[\w.]+|torch\._higher_order_ops\.[\w.]+"
)
_UNSAFE_OPERATORS = ("attrgetter", "methodcaller", "call", "setitem", "delitem")


def read_exported(path: FilePath) -> ExportedProgram:
    """Load an exported program without unpickling anything but tensors.

    Raises
    ------
    ProgramError
        If the file is missing, damaged, or holds what would have to be executed to be loaded.
    """
    if not path.is_file():
        raise ProgramError(f"{path}: no such file")
    if not zipfile.is_zipfile(path):
        raise ProgramError(f"{path} is not a .pt2 archive, or is truncated")
    try:
        with zipfile.ZipFile(path) as archive:
            _inspect(archive, path)
    except (zipfile.BadZipFile, json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise ProgramError(f"{path} is damaged: {error}") from error
    return _load(path)


def _load(path: FilePath) -> ExportedProgram:
    # torch logs a traceback before it raises; the sentence below is what the user needs.
    loggers = [
        logging.getLogger(name) for name in ("torch.export", "torch._export", "torch.export.pt2_archive._package")
    ]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        return torch.export.load(path)
    except Exception as error:
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProgramError(
            f"{path} cannot be loaded by torch {torch.__version__}: {words}"
            " (a program whose inputs or outputs are classes of a library, as in transformers, needs that library"
            " imported first)"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _inspect(archive: zipfile.ZipFile, path: FilePath) -> None:
    for name in archive.namelist():
        inner = name.partition("/")[2] or name
        if "aotinductor" in inner or inner.endswith((".so", ".dll", ".dylib", ".pyd")):
            raise ProgramError(f"{path} holds compiled code ({name}), which is not loaded; give the exported program")
        base = inner.rsplit("/", 1)[-1]
        if base.startswith(("custom_obj_", "opaque_obj_")):
            raise ProgramError(f"{path} holds a pickled Python object ({name}), which is not loaded")
        if inner.endswith(".pt") or base in _pickled(archive, name):
            _check_pickle(archive.read(name), path, name)
        if inner.endswith(".json") and "config" not in base:
            _check_graph(json.loads(archive.read(name)), path)


def _pickled(archive: zipfile.ZipFile, name: str) -> set[str]:
    """Names of the payloads beside ``name`` that its folder's configuration calls pickled."""
    folder = name.rpartition("/")[0]
    configs = [n for n in archive.namelist() if n.startswith(f"{folder}/") and n.endswith("_config.json")]
    found: set[str] = set()
    for config in configs:
        entries = json.loads(archive.read(config)).get("config", {})
        found |= {e.get("path_name", "") for e in entries.values() if e.get("use_pickle")}
    return found


def _check_pickle(data: bytes, path: FilePath, name: str) -> None:
    if not data:
        return
    try:
        torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ProgramError(
            f"{path} holds pickled Python objects in {name}, which are not loaded;"
            " export with tensors alone, or load it yourself and give the ExportedProgram"
        ) from error


def _check_graph(graph: Any, path: FilePath) -> None:
    for key, text in _texts(graph):
        if key == "expr_str" and not _plain_expression(text):
            raise ProgramError(
                f"{path} has a shape expression that is no arithmetic: {text[:80]!r}; it is not evaluated"
            )
        if key == "target" and not _plain_operator(text):
            raise ProgramError(f"{path} calls {text[:80]!r}, which is no operator of torch; it is not loaded")


def _texts(tree: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _texts(value, name)
    elif isinstance(tree, list):
        for value in tree:
            yield from _texts(value, key)
    elif isinstance(tree, str):
        yield key, tree


def _plain_expression(text: str) -> bool:
    if any(mark in text for mark in ("'", '"', "__", "[", "{", "@", "\\", ";", ":", "`")):
        return False
    if re.search(r"\.\s*[A-Za-z_]", text):  # attribute access
        return False
    words = re.findall(r"[A-Za-z_]\w*", text)
    return not any((keyword.iskeyword(w) and w not in ("True", "False")) or _is_function(w) for w in words)


def _is_function(word: str) -> bool:
    return callable(getattr(builtins, word, None)) and word not in ("abs", "min", "max", "pow", "round", "float", "int")


def _plain_operator(text: str) -> bool:
    # Targets of parameters and buffers ("target" of an input spec) are plain dotted names.
    if "." not in text or not text.startswith(("torch.", "_operator", "math.", "builtins", "operator")):
        return not text.startswith("builtins")
    return _OPERATOR.fullmatch(text) is not None and text.rsplit(".", 1)[-1] not in _UNSAFE_OPERATORS
