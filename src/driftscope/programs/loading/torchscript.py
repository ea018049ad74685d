"""TorchScript files: the archive packed again from what a program needs, its graph held against allowed operators.

TorchScript is code, with operators that read and write files. Two things keep a stranger's file from using them: no
method of it runs while it is loaded (``__setstate__`` and C++ classes are refused before), and the graph that would
run is checked, inlined and operator by operator, before it is called. Both happen in a worker process, see
:mod:`driftscope.programs.runtimes.torchscript.worker`.
"""

from __future__ import annotations

import functools
import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any

import torch

from driftscope.errors import ProgramError
from driftscope.programs.archives import Archive, opened
from driftscope.programs.loading.pt2.operators import NotAllowed, checked_operator
from driftscope.programs.loading.pt2.vocabulary import SCRIPT_FUNCTIONS, SCRIPT_NODES
from driftscope.programs.loading.script_storages import damage

# What torch.jit.load needs. Debugging tables, traced inputs, mobile bytecode and files of the user's stay behind.
_NEEDED = re.compile(
    r"data\.pkl|constants\.pkl|(\.data/)?version|byteorder|(data|constants)/\d+|code/[\w./]+\.py", re.ASCII
)
# Names that make loading run something: a method of the file's own, or one of a C++ class.
_RUN_AT_LOAD = {b"__setstate__": "a method that runs while it is loaded", b"torch.classes": "an object of a C++ class"}
# The interpreter's own operations; between the words of a name its parser takes spaces, line ends and comments.
_BETWEEN = rb"(?:\s|\\|#[^\n]*\n)*"
_OF_INTERPRETER = re.compile(rb"\bops%b\.%bprim%b\.%b(\w+)" % ((_BETWEEN,) * 4))


def packed_script(path: FilePath) -> io.BytesIO:
    """Return an archive with the members that loading needs.

    Raises
    ------
    ProgramError
        If the file is damaged, or loading it would run something in it.
    """
    made = io.BytesIO()
    with opened(path, str(path), ProgramError) as archive, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        members = {inner: name for name, inner in _members(archive, path)}
        pickles = {inner: archive.read(name) for inner, name in members.items() if inner.endswith(".pkl")}
        wrong = damage(pickles, lambda inner: archive.size(members[inner]) if inner in members else None)
        if wrong:
            raise ProgramError(f"{path} is a TorchScript program that is damaged: {wrong}")
        for inner, name in members.items():
            data = archive.read(name)
            reason = _danger(data) if inner.endswith((".py", ".pkl")) else None
            if reason:
                raise ProgramError(f"{path} is a TorchScript program with {reason}; {trusted(path)}")
            target.writestr(f"script/{inner}", data)
    made.seek(0)
    return made


def _danger(data: bytes) -> str | None:
    """Return what loading code or a pickle would run, or trip over."""
    for word, what in _RUN_AT_LOAD.items():
        if word in data:
            return what
    for operation in map(bytes.decode, _OF_INTERPRETER.findall(data)):
        if operation not in SCRIPT_NODES:  # compiling PythonOp reads an address that no file can fill
            return f"a call of prim::{operation}"
    return None


def trusted(path: FilePath) -> str:
    """Say how a TorchScript file is loaded that is not taken as data."""
    return f"if you trust it, give file.py:name for a function that returns torch.jit.load({path.name!r})"


def _members(archive: Archive, path: FilePath) -> Iterator[tuple[str, str]]:
    if len({name.partition("/")[0] for name in archive.names}) != 1:
        raise ProgramError(f"{path} has members in several folders; torch.jit.save writes one")
    for name in archive.names:
        inner = name.partition("/")[2]
        if _NEEDED.fullmatch(inner) and ".." not in inner:
            yield name, inner


def check_graph(method: Any, path: FilePath) -> None:
    """Refuse a method that would call anything but pure computations on tensors, numbers and containers.

    Parameters
    ----------
    method : torch.ScriptMethod
    path : path
        For the message.

    Raises
    ------
    ProgramError
        Naming the first such operator.
    """
    graph = method.graph.copy()
    torch._C._jit_pass_inline(graph)
    for node in _nodes(graph):
        reason = _complaint(node)
        if reason:
            raise ProgramError(f"{path} is a TorchScript program that is not run: {reason}; {trusted(path)}")


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _complaint(node: Any) -> str | None:
    space, _, name = node.kind().partition("::")
    if space == "prim":
        return None if name in SCRIPT_NODES else f"it calls {node.kind()!r}"
    if space == "aten" and name in SCRIPT_FUNCTIONS:
        return None
    if node.kind() not in _dispatched():
        return f"it calls {node.kind()!r}, which does more than compute on tensors"
    # "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor"
    operator = str(node.schema()).partition("(")[0].partition("::")[2]
    base, _, overload = operator.partition(".")
    try:
        checked_operator(f"torch.ops.{space}.{base}.{overload or 'default'}")
    except NotAllowed as error:
        return str(error)
    return None


@functools.cache
def _dispatched() -> frozenset[str]:
    return frozenset(name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names())
