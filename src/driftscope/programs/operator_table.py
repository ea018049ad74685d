"""The operator table of torch's ONNX exporter, built once.

``torch.onnx.export`` reads the source of all its ATen operators again at every call: most of the time of exporting a
small model. The private names below were read in torch 2.13; where they have moved the export works all the same,
only slower.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import threading
from collections.abc import Iterator
from typing import Any

#: Where the table is built: module, class, class method.
REGISTRY = ("torch.onnx._internal.exporter._registration", "ONNXRegistry", "from_torchlib")

_tables: dict[Any, Any] = {}
_lock = threading.Lock()
# How many are inside, and what the class method was before the first of them.
_inside: list[Any] = []


@contextlib.contextmanager
def one_table() -> Iterator[bool]:
    """Keep the exporter's operator table between exports; yields whether it could be kept.

    Each export receives a copy, because it may register operators of its own in it. The exports of other threads
    get the same table meanwhile; the last one that leaves puts the exporter's own method back.
    """
    module, name, method = REGISTRY
    try:
        kind = getattr(importlib.import_module(module), name)
        getattr(kind, method)
    except (ImportError, AttributeError):
        yield False
        return
    with _lock:
        _inside.append(_inside[0] if _inside else kind.__dict__[method])
        if len(_inside) == 1:
            setattr(kind, method, classmethod(_copied(_inside[0])))
    try:
        yield True
    finally:
        with _lock:
            first = _inside.pop()
            if not _inside:
                setattr(kind, method, first)


def kept() -> bool:
    """Whether somebody keeps the table now."""
    return bool(_inside)


def _copied(original: Any) -> Any:
    def table(cls: Any, *args: Any, **kwargs: Any) -> Any:
        key = (cls, args, tuple(sorted(kwargs.items())))
        if key not in _tables:
            _tables[key] = original.__func__(cls, *args, **kwargs)
        found = copy.copy(_tables[key])
        found.functions = {operator: list(ways) for operator, ways in found.functions.items()}
        return found

    return table
