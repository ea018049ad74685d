"""Stored tensors of a ``.pt2`` file: bytes and a description that must fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._export.serde.schema import ScalarType

from driftscope.programs.loading.pt2.fields import FieldRefused

_STRIDED = 7  # Layout.Strided of torch's schema
_LARGEST = 2**48
# By the names of torch's schema; a torch that lacks a dtype lacks its number, too.
_DTYPES = {
    "BYTE": "uint8", "CHAR": "int8", "SHORT": "int16", "INT": "int32", "LONG": "int64", "BOOL": "bool",
    "HALF": "float16", "FLOAT": "float32", "DOUBLE": "float64", "BFLOAT16": "bfloat16",
    "COMPLEXHALF": "complex32", "COMPLEXFLOAT": "complex64", "COMPLEXDOUBLE": "complex128",
    "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    **{f"FLOAT8{kind.upper().replace('_', '')}": f"float8_{kind}" for kind in
       ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")},
}  # fmt: skip


def check_payload(name: str, entry: Mapping[str, Any], size: int) -> None:
    """Check one stored tensor against the bytes it is made of.

    Parameters
    ----------
    name : str
        The tensor's, for messages.
    entry : mapping
        A ``PayloadMeta`` of torch's schema, already checked field by field.
    size : int
        Bytes of the member that it names.

    Raises
    ------
    Refused
        If it is pickled, has no description, or reaches beyond its bytes.
    """
    if entry["use_pickle"]:
        raise FieldRefused(
            f"it holds pickled Python objects ({name!r}), which are not loaded; export with tensors alone"
        )
    meta = entry["tensor_meta"]
    if meta is None:
        raise FieldRefused(f"its tensor {name!r} has no shape")
    shape = [_whole(part, name) for part in meta["sizes"]]
    strides = [_whole(part, name) for part in meta["strides"]]
    offset = _whole(meta["storage_offset"], name)
    if len(shape) != len(strides) or len(shape) > 64:
        raise FieldRefused(f"its tensor {name!r} has {len(shape)} sizes and {len(strides)} strides")
    if meta["layout"] != _STRIDED:
        raise FieldRefused(f"its tensor {name!r} is sparse, which is not read from a file")
    width = _element_size(meta["dtype"], name)
    last = 0 if 0 in shape else offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    if last * width > size or size % width:
        raise FieldRefused(
            f"its tensor {name!r} of shape {tuple(shape)} needs {last * width:,} bytes, and {size:,} are there"
            + (" (were the weights exported from fake tensors?)" if not size else "")
        )


def _whole(part: Mapping[str, Any], name: str) -> int:
    value = part.get("as_int")
    if value is None or not 0 <= value < _LARGEST:
        raise FieldRefused(f"its tensor {name!r} has a size, stride or offset that is not a whole number")
    return int(value)


def _element_size(code: int, name: str) -> int:
    dtype = getattr(torch, _DTYPES.get(ScalarType(code).name, ""), None)
    if not isinstance(dtype, torch.dtype):
        raise FieldRefused(f"its tensor {name!r} is of an unknown dtype")
    return dtype.itemsize
