"""Where an ONNX node comes from: the module path and source line that torch's exporters wrote down."""

from __future__ import annotations

import ast
import functools
import os
import re

from onnx import NodeProto

from driftscope.records.finding import Where
from driftscope.records.user_code import innermost

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n[ \t]+(?P<expression>(?!File ")[^\n]+))?')
_KEYS = tuple(f"pkg.torch.onnx.{key}" for key in ("stack_trace", "name_scopes", "class_hierarchy"))
_PLAIN_LIST = re.compile(r"\['[^'\\]*'(?:, '[^'\\]*')*\]")
_LIBRARY = re.compile(r"[\\/](?:site-packages|dist-packages)[\\/]torch[\\/]")


def place_of(proto: NodeProto, name: str) -> tuple[Where, tuple[str, str]]:
    """Read a node's place from its metadata, and name and target of the exporter's graph node that it was made of.

    Parameters
    ----------
    proto : onnx.NodeProto
        ``pkg.torch.onnx.stack_trace``, ``name_scopes`` and ``class_hierarchy`` are read; files of the older exporter,
        which has none, say the module in the node's name.
    name : str
        The unique name the node goes by.

    Returns
    -------
    Where
    tuple of (str, str)
        Empty strings when unknown.
    """
    metadata = {key: entry.value for entry in proto.metadata_props if (key := entry.key) in _KEYS}  # texts of pages
    trace, *lists = (metadata.get(key, "") for key in _KEYS)
    file, line, expression = _source(trace, os.getcwd())
    scopes, classes = map(_listed, lists)
    # The last scope is the traced call itself, the one before it the innermost module.
    module = (scopes[-2] or None) if len(scopes) > 1 else None
    if module is None and not proto.metadata_props and proto.name.startswith("/"):
        module = ".".join(part for part in proto.name.split("/")[1:-1] if part) or None
    where = Where(node=name, operator=proto.op_type, module=module, file=file, line=line, expression=expression)
    return where, (scopes[-1], classes[-1]) if scopes and classes else ("", "")


@functools.lru_cache(maxsize=1024)  # the graph that a runtime made of a file has the file's traces
def _source(trace: str, root: str) -> tuple[str | None, int | None, str | None]:
    frames = list(_FRAME.finditer(trace))
    if not frames:
        return None, None, None
    own = innermost([frame["file"] for frame in frames], root)
    # A model that a library holds: torch's module internals say nothing the module path does not.
    others = [frame for frame in frames if not _LIBRARY.search(frame["file"])]
    if own is None and not others:
        return None, None, None
    frame = frames[own] if own is not None else others[-1]
    expression = frame["expression"]
    return frame["file"], int(frame["line"]), expression.strip() if expression else None


def _listed(text: str) -> list[str]:
    """Read a printed list of strings; [] for anything else."""
    if _PLAIN_LIST.fullmatch(text):  # every node has two of them, and Python's own reader is thirty times slower
        return text[2:-2].split("', '")
    try:
        parts = ast.literal_eval(text) if text else []
    except (ValueError, SyntaxError):
        return []
    return [str(part) for part in parts] if isinstance(parts, list) else []
