"""Operators that a file may call: pure computations on tensors and numbers, by namespace, name and argument."""

from __future__ import annotations

import functools
import re
from typing import Any

import torch

from driftscope.programs.loading.pt2.vocabulary import (
    BOOKKEEPING_OPERATORS,
    INTERNAL_OPERATORS,
    PLAIN_OPERATORS,
    STRUCTURAL_OPERATORS,
    WORD_ARGUMENTS,
)

_DISPATCHED = re.compile(r"torch\.ops\.(?P<space>\w+)\.(?P<name>\w+)\.(?P<overload>\w+)", re.ASCII)
_HIGHER_ORDER = re.compile(r"torch\.ops\.higher_order\.(?P<name>\w+)", re.ASCII)

_NAMESPACES = ("aten", "prims", "quantized", "quantized_decomposed", "torchvision")
_HANDLES = ("Storage", "Stream", "__torch__", "ScriptObject", "Future", "RRef", "Any", "PyObject")


class NotAllowed(ValueError):
    """A file calls an operator that is not called for a stranger; its message is one clause."""


@functools.lru_cache(maxsize=4096)
def checked_operator(target: str) -> str:
    """Return ``target`` if a file may call it.

    Raises
    ------
    NotAllowed
        If it is unknown to this torch, not in an allowed namespace, or takes files, storages or script objects.
    """
    if target in PLAIN_OPERATORS:
        return target
    structural = _HIGHER_ORDER.fullmatch(target)
    if structural is not None and structural["name"] in STRUCTURAL_OPERATORS:
        return target
    parts = _DISPATCHED.fullmatch(target)
    if parts is None or parts["space"] == "higher_order":
        raise NotAllowed(f"it calls {target[:80]!r}, which is not an operator of torch")
    if parts["space"] not in _NAMESPACES:
        raise NotAllowed(
            f"it calls {target[:80]!r}, a custom operator, which may do anything; if you trust the file, load it"
            " yourself with torch.export.load and give the ExportedProgram"
        )
    reason = _complaint(parts["space"], parts["name"], parts["overload"])
    if reason:
        raise NotAllowed(f"it calls {target[:80]!r}, {reason}")
    return target


def _complaint(space: str, name: str, overload: str) -> str | None:
    full = f"{space}::{name}" + ("" if overload == "default" else f".{overload}")
    if full not in _registered():
        return f"which torch {torch.__version__} does not know here"
    if name in BOOKKEEPING_OPERATORS or (name.startswith("_") and name not in INTERNAL_OPERATORS):
        return "which is internal to torch"
    for argument in _schema(space, name, overload).arguments:
        kind = str(argument.type)
        if any(handle in kind for handle in _HANDLES):
            return f"which takes a {kind[:40]}"
        if "str" in kind and argument.name not in WORD_ARGUMENTS:
            return f"whose argument {argument.name!r} may name a file"
    return None


@functools.cache
def _registered() -> frozenset[str]:
    # What the dispatcher knows; TorchScript's own operators, such as aten::save, are not in it.
    return frozenset(torch._C._dispatch_get_all_op_names())


def _schema(space: str, name: str, overload: str) -> Any:
    packet = getattr(getattr(torch.ops, space), name)
    return getattr(packet, overload)._schema
