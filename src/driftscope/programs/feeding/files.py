"""Inputs on disk, none of them unpickled: .npz, .npy, .pt, .safetensors and Polygraphy's JSON."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import math
import tokenize
import zipfile
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import IO, Any

import numpy as np

from driftscope.errors import InputError
from driftscope.programs.archives import opened
from driftscope.programs.pickled_tensors import load_tensors
from driftscope.records.files import bounded_text
from driftscope.records.json_text import parse_json

_MOST_DIMENSIONS = 64
_OBJECTS = "holds Python objects, which would have to be unpickled; save numbers only"
_NPY_HEADERS: dict[tuple[int, int], Callable[[IO[bytes]], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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
    except (OSError, ValueError, TypeError, KeyError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile) as error:
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
    with opened(path, str(path), InputError) as archive:
        for name in archive.names:
            if not name.endswith(".npy"):
                raise InputError(f"{path} is not an .npz archive: it has a member {name[:80]!r}, which is not an array")
            with archive.stream(name) as stream:
                _check_header(f"{path}: array {name[:-4][:80]!r}", stream, archive.size(name))
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _read_npy(path: FilePath) -> Any:
    with path.open("rb") as stream:
        return _array(str(path), stream, path.stat().st_size)


def _array(what: str, stream: IO[bytes], size: int) -> Any:
    """Read one array of ``size`` bytes, header included."""
    _check_header(what, stream, size)
    stream.seek(0)
    return np.load(stream, allow_pickle=False)


def _check_header(what: str, stream: IO[bytes], size: int) -> None:
    """Hold what an array says of itself against the bytes it has: numpy makes room for whatever it says."""
    try:
        version = np.lib.format.read_magic(stream)
        reading = _NPY_HEADERS.get(version)
        if reading is None:
            raise InputError(f"{what} is of format {version[0]}.{version[1]}, which is not read; save it again")
        shape, _, dtype = reading(stream)
    except (ValueError, SyntaxError, TypeError, EOFError, RecursionError, MemoryError, tokenize.TokenError) as error:
        if "magic" in str(error) and "x80" in str(error):  # how a pickle begins
            raise InputError(f"{what} {_OBJECTS}") from error
        raise InputError(f"{what} has no readable header: {_first_sentence(error)}") from error
    if dtype.hasobject:
        raise InputError(f"{what} {_OBJECTS}")
    needed = math.prod(shape) * max(dtype.itemsize, 1)  # as objects, texts of no length take room too
    if len(shape) > _MOST_DIMENSIONS or any(isinstance(n, bool) or n < 0 for n in shape) or needed > size:
        raise InputError(f"{what} says it has shape {shape!r:.80} and {needed} bytes, but there are {size}")


def _read_pt(path: FilePath) -> Any:
    return load_tensors(path, str(path), InputError)


def _read_safetensors(path: FilePath) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        # Copied out of the mapped file: whoever cuts it while they are held would end this process.
        return {name: tensor.clone() for name, tensor in load_file(str(path)).items()}
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {_first_sentence(error)}") from error


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
        return parse_json(bounded_text(path), hook=_decode)
    except (ValueError, OSError) as error:
        raise InputError(f"{path} is not JSON, or is truncated: {_first_sentence(error)}") from error


def _decode(item: dict[str, Any]) -> Any:
    kind = item.get("polygraphy_class")
    field = {"ndarray": "array", "Tensor": "tensor", "LazyArray": "values", "LazyNumpyArray": "values"}.get(str(kind))
    if kind == "FormattedArray":
        field = "array"
    if field is None:
        return item
    if field not in item:
        raise InputError(f"a {kind} in the JSON has no {field!r}")
    if kind not in ("ndarray", "Tensor"):
        return item[field]
    try:
        data = base64.b64decode(item[field], validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise InputError(f"an array in the JSON cannot be decoded: {_first_sentence(error)}") from error
    if kind == "Tensor":
        return load_tensors(data, "a tensor in the JSON", InputError)
    try:
        return _array("an array in the JSON", io.BytesIO(data), len(data))
    except (ValueError, EOFError) as error:
        raise InputError(f"an array in the JSON cannot be decoded: {_first_sentence(error)}") from error


SUFFIXES: dict[str, Callable[[FilePath], Any]] = {
    ".npz": _read_npz,
    ".npy": _read_npy,
    ".pt": _read_pt,
    ".pth": _read_pt,
    ".safetensors": _read_safetensors,
    ".json": _read_polygraphy,
}
