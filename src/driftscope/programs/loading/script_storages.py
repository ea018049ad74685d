"""What the pickles of a TorchScript file say of its tensors, held against the bytes that are there.

torch's own reader believes them: a storage with fewer bytes than it declares, or a view beyond its storage, reads
memory of somebody else's, or ends the process. Here a pickle builds stand-ins alone; no class is looked up.
"""

from __future__ import annotations

import functools
import io
import math
import pickle
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch


class _StandIn:
    """Takes whatever a pickle does to an object."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...


class _Beyond(Exception):
    """A tensor is larger than the bytes that are there."""


class _StorageReader(pickle.Unpickler):
    def __init__(self, data: bytes, size_of: Callable[[str], int | None]):
        super().__init__(io.BytesIO(data))
        self._size_of = size_of

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch._utils" and name.startswith("_rebuild_"):
            return _checked_view
        return type(name, (_StandIn,), {}) if module == "torch" else _StandIn

    def persistent_load(self, pid: Any) -> int:
        """Return the elements of a storage."""
        _, kind, key, _, count = pid
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # typed storages are deprecated; files name them all the same
            dtype = getattr(getattr(torch, kind.__name__, None), "dtype", torch.uint8)
        held = self._size_of(str(key)) or 0
        if not 0 <= count * dtype.itemsize <= held:
            wanted = f"{count:,} elements of {dtype.itemsize} bytes"
            raise _Beyond(f"its storage {key!r} declares {wanted}, and holds {held:,} bytes")
        return int(count)


def _checked_view(storage: Any, offset: Any = 0, size: Any = (), stride: Any = (), *_: Any) -> Any:
    if isinstance(storage, int) and math.prod(size):
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if min((offset, *size, *stride)) < 0 or last >= storage:
            raise _Beyond(f"a tensor of shape {list(size)} reads beyond its storage of {storage:,} elements")
    return _StandIn()


def damage(pickles: Mapping[str, bytes], size_of: Callable[[str], int | None]) -> str | None:
    """Say what is wrong with the tensors of an archive; None where every one lies within its bytes.

    Parameters
    ----------
    pickles : mapping of str to bytes
        ``data.pkl`` and ``constants.pkl``, as far as they are there.
    size_of : callable
        Bytes of a member by its name; None where there is none.
    """
    for name, data in pickles.items():
        folder = name.removesuffix(".pkl")
        try:
            _StorageReader(data, functools.partial(_size_in, size_of, folder)).load()
        except _Beyond as error:
            return str(error)
        except Exception as error:  # a pickle makes its machine raise whatever it likes
            return f"its {name} is damaged ({type(error).__name__})"
    return None


def _size_in(size_of: Callable[[str], int | None], folder: str, key: str) -> int | None:
    return size_of(f"{folder}/{key}")
