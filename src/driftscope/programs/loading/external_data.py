"""External data of ONNX models: found, and confined to the model's folder before any runtime sees the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path as FilePath

import onnx
from onnx import GraphProto, ModelProto, TensorProto

from driftscope.errors import ProgramError

_LONGEST = 2_000  # characters of a path


def tensors_of(model: ModelProto) -> Iterator[TensorProto]:
    """Every stored tensor of a model: initializers and attributes, in subgraphs and functions too."""
    yield from _of_graph(model.graph)
    for function in model.functions:
        for default in function.attribute_proto:
            yield from _of_attribute(default)
        yield from _of_nodes(function.node)


def _of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _of_attribute(attribute)


def _of_attribute(attribute: onnx.AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    if attribute.HasField("sparse_tensor"):
        yield attribute.sparse_tensor.values
        yield attribute.sparse_tensor.indices
    if attribute.HasField("g"):
        yield from _of_graph(attribute.g)
    for graph in attribute.graphs:
        yield from _of_graph(graph)


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data lies in another file."""
    return tensor.data_location == TensorProto.EXTERNAL


def location_of(tensor: TensorProto) -> str:
    """Return the file that a tensor's data lies in, as the model names it; "" where the model holds it."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def take_in(tensor: TensorProto, directory: FilePath) -> None:
    """Read a tensor's data from its file in a folder that was checked, into the model."""
    onnx.external_data_helper.load_external_data_for_tensor(tensor, str(directory))
    tensor.ClearField("data_location")
    del tensor.external_data[:]


def confine(model: ModelProto, directory: FilePath | None, name: str) -> bool:
    """Refuse external data outside the model's folder; return whether there is any external data.

    Parameters
    ----------
    model : ModelProto
    directory : pathlib.Path or None
        The model's folder; None when it has none.
    name : str
        The model's name, for the messages.

    Raises
    ------
    ProgramError
        If data is asked for by absolute path, outside the folder (also through a symbolic link), or is missing or
        too short.
    """
    external = [tensor for tensor in tensors_of(model) if is_external(tensor)]
    if external and directory is None:
        raise ProgramError(
            f"{name} keeps tensor {external[0].name!r} in another file, but was given without its folder;"
            " give the path of the .onnx file"
        )
    files: dict[str, FilePath] = {}
    for tensor in external:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        complaint = f"{name}: tensor {tensor.name[:80]!r} wants its data from {location[:200]!r}"
        if location not in files:
            files[location] = _confined(tensor, location, FilePath(directory or "."), complaint, name)
        _check_length(entries, files[location], complaint)
    return bool(external)


def _confined(tensor: TensorProto, location: str, directory: FilePath, complaint: str, name: str) -> FilePath:
    if not location:
        raise ProgramError(f"{name}: tensor {tensor.name!r} is external but names no file")
    if "\0" in location or len(location) > _LONGEST:
        raise ProgramError(f"{name}: tensor {tensor.name[:80]!r} wants its data from a file that cannot be named")
    if FilePath(location).is_absolute() or location.startswith(("/", "\\")) or location[1:2] == ":":
        raise ProgramError(f"{complaint}, an absolute path; external data must lie in the model's folder")
    folder = directory.resolve()
    try:
        target = (folder / location.replace("\\", "/")).resolve()
        exists = target.is_file()
    except (OSError, RuntimeError) as error:  # a loop of links, a name longer than the system takes
        raise ProgramError(f"{complaint}, which cannot be followed") from error
    if not target.is_relative_to(folder):
        raise ProgramError(f"{complaint}, which is outside the model's folder; it is not read")
    if not exists:
        raise ProgramError(f"{complaint}, and {target} is not a file; put it beside the model")
    return target


def _check_length(entries: Mapping[str, str], target: FilePath, complaint: str) -> None:
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", 0))
    except ValueError as error:
        raise ProgramError(f"{complaint}, with an offset or length that is not a number") from error
    size = target.stat().st_size
    if offset < 0 or length < 0 or offset + length > size:
        raise ProgramError(
            f"{complaint}, bytes {offset} to {offset + length}, but {target.name} has {size};"
            " the file is truncated or belongs to another model"
        )
