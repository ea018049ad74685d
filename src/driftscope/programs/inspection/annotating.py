"""A copy of an ONNX file in which every node carries what was measured there: Netron and its like show metadata."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from driftscope.errors import InputError
from driftscope.programs.loading.onnx_files import read_model
from driftscope.records.kinds.comparison import NodeRecord

PREFIX = "driftscope."


def annotate(source: Path, target: Path, nodes: Sequence[NodeRecord], about: Mapping[str, str]) -> int:
    """Write a copy of ``source`` with the measurements of ``nodes`` as metadata of its nodes.

    Parameters
    ----------
    source, target : Path
        Weights in other files stay where they are, so such a copy belongs into the same folder.
    nodes : sequence of NodeRecord
        Of a comparison whose B was this file; found by the name of the node's value.
    about : mapping of str to str
        Written as metadata of the model.

    Returns
    -------
    int
        Nodes that were annotated.

    Raises
    ------
    InputError
        If none of the nodes is in the file, or the copy would replace the file or leave its weights behind.
    """
    model = read_model(source)
    if target.resolve() == source.resolve():
        raise InputError(f"{target} is the model itself: name another file for the copy")
    if model.external and target.resolve().parent != source.resolve().parent:
        raise InputError(f"{source} keeps its weights in other files: put the copy into the same folder")
    by_value = {node.value: node for node in nodes}
    copy = onnx.ModelProto()
    copy.CopyFrom(model.proto)
    found = 0
    for proto in copy.graph.node:
        record = next((by_value[name] for name in proto.output if name in by_value), None)
        if record is not None:
            found += 1
            _write(proto.metadata_props, _told(record))
    if not found:
        raise InputError(f"none of the record's nodes is in {source}: was this file its B?")
    _write(copy.metadata_props, about)
    target.write_bytes(copy.SerializeToString())
    return found


def _told(record: NodeRecord) -> dict[str, str]:
    measured = {
        "counterpart": record.counterpart,
        "drift_in_float64": record.lifted,
        "error_a_floors": record.error_a,
        "error_b_floors": record.error_b,
    }
    return {name: str(value) for name, value in measured.items() if value not in (None, "")}


def _write(metadata: Sequence[onnx.StringStringEntryProto], told: Mapping[str, str]) -> None:
    known = {entry.key: entry for entry in metadata}
    for name, value in told.items():
        key = PREFIX + name
        if key in known:
            known[key].value = value
        else:
            metadata.add(key=key, value=value)  # type: ignore[attr-defined]
