"""Inputs on disk, none of them unpickled: .npz, .npy, .pt, .safetensors and Polygraphy's JSON."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch

from driftscope.errors import InputError


def is_input_file(source: str | FilePath) -> bool:
    """Whether ``source`` names a file of inputs (by its suffix)."""
    return FilePath(source).suffix.lower() in SUFFIXES


def read_inputs(path: FilePath) -> tuple[Any, str]:
    """Read a file of inputs.

    Returns
    -------
    tree : dict or other tree of arrays and tensors
    digest : str
        SHA-256 of the file.

    Raises
    ------
    InputError
        If the file is missing, damaged, or would have to be unpickled.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        tree = SUFFIXES[path.suffix.lower()](path)
    except InputError:
        raise
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise InputError(f"{path} cannot be read: {_first_sentence(error)}") from error
    return tree, file_digest(path)


def file_digest(path: FilePath) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _first_sentence(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _read_npz(path: FilePath) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an .npz archive, or is truncated")
    with np.load(path, allow_pickle=False) as archive:
        return {name: _numbers(path, archive, name) for name in archive.files}


def _numbers(path: FilePath, archive: Mapping[str, Any], name: str) -> Any:
    try:
        return archive[name]
    except ValueError as error:
        raise _unpickled(path, name, error) from error


def _unpickled(path: FilePath, name: str, error: ValueError) -> InputError:
    if "pickle" in str(error).lower():
        return InputError(
            f"{path}: array {name!r} holds Python objects, which would have to be unpickled; save numbers only"
        )
    return InputError(f"{path}: array {name!r} cannot be read: {_first_sentence(error)}")


def _read_npy(path: FilePath) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except ValueError as error:
        raise _unpickled(path, path.stem, error) from error


def _read_pt(path: FilePath) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds pickled Python objects, which are not loaded; save plain tensors in tuples, lists or dicts"
        ) from error


def _read_safetensors(path: FilePath) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Any] = load_file(str(path))
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {_first_sentence(error)}") from error
    return tensors


def _read_polygraphy(path: FilePath) -> dict[str, Any]:
    """Read what ``polygraphy run --save-inputs`` writes: a list with one dict of arrays per iteration."""
    data = read_polygraphy_json(path)
    if isinstance(data, list) and len(data) > 1:
        raise InputError(f"{path} holds {len(data)} iterations; save one, with polygraphy run --iterations 1")
    feeds = data[0] if isinstance(data, list) and data else data
    if not isinstance(feeds, dict) or not feeds:
        raise InputError(f"{path} is not a file of Polygraphy inputs: it holds no list of named arrays")
    wrong = next((name for name, value in feeds.items() if isinstance(value, (dict, list, str))), None)
    if wrong is not None:
        raise InputError(f"{path} is not a file of Polygraphy inputs: {wrong!r} is not an array")
    return feeds


def read_polygraphy_json(path: FilePath) -> Any:
    """Read Polygraphy's JSON, with its encoded arrays and tensors decoded and everything else left as it is."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_hook=_decode)
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not JSON, or is truncated: {_first_sentence(error)}") from error


def _decode(item: dict[str, Any]) -> Any:
    kind = item.get("polygraphy_class")
    try:
        if kind == "ndarray":
            return np.load(io.BytesIO(base64.b64decode(item["array"], validate=True)), allow_pickle=False)
        if kind == "Tensor":
            return torch.load(io.BytesIO(base64.b64decode(item["tensor"], validate=True)), weights_only=True)
    except (binascii.Error, ValueError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise InputError(f"an array in the JSON cannot be decoded: {_first_sentence(error)}") from error
    if kind in ("LazyArray", "LazyNumpyArray"):
        return item["values"]
    if kind == "FormattedArray":
        return item["array"]
    return item


SUFFIXES: dict[str, Callable[[FilePath], Any]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".safetensors": _read_safetensors,
    ".json": _read_polygraphy,
}
