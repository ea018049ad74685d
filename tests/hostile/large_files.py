"""Small files that stand for something enormous, each beside a neighbour of ordinary size."""

from __future__ import annotations

import io
import itertools
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper


def _value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, (4, 8))


def _model(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto] | None = None) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", [_value("x")], [_value("y")])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("me", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions or [])


def nested_functions(levels: int, calls: int) -> onnx.ModelProto:
    """A function that calls a function that calls ..., each ``calls`` times."""
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("me", 1)]
    functions = []
    for level in range(levels):
        operator, domain = ("Abs", "") if level == levels - 1 else (f"F{level + 1}", "me")
        names = ["x", *(f"t{i}" for i in range(calls - 1)), "y"]
        body = [helper.make_node(operator, [a], [b], domain=domain) for a, b in itertools.pairwise(names)]
        functions.append(helper.make_function("me", f"F{level}", ["x"], ["y"], body, opsets))
    return _model([helper.make_node("F0", ["x"], ["y"], domain="me")], functions)


def long_loop(steps: int) -> onnx.ModelProto:
    """A Loop that adds a little, ``steps`` times."""
    scalar = [helper.make_tensor_value_info(n, t, ()) for n, t in (("i", TensorProto.INT64), ("c", TensorProto.BOOL))]
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["going"]), helper.make_node("Mul", ["state", "rate"], ["next"])],
        "body", [*scalar, helper.make_tensor_value_info("state", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("next", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(0.999), "rate")],
    )  # fmt: skip
    proto = _model([helper.make_node("Loop", ["steps", "", "x"], ["y"], body=body, name="loop")])
    proto.graph.initializer.append(numpy_helper.from_array(np.int64(steps), "steps"))
    return proto


def long_name(length: int) -> onnx.ModelProto:
    """A node of an unknown operator with a very long name: the runtime repeats it in its message."""
    return _model([helper.make_node("Frobnicate", ["x"], ["y"], name="n" * length)])


def not_text() -> onnx.ModelProto:
    """A node whose output has a name of bytes."""
    data = _model([helper.make_node("Abs", ["x"], ["y"], name="ABCDEFGH")]).SerializeToString()
    return onnx.ModelProto.FromString(data.replace(b"ABCDEFGH", b"ABCD\xff\xfe\xfd\xfc"))


def metadata_is_not_text() -> onnx.ModelProto:
    """A node whose metadata has a value of bytes."""
    node = helper.make_node("Abs", ["x"], ["y"])
    node.metadata_props.add(key="scope", value="ABCDEFGH")
    return onnx.ModelProto.FromString(_model([node]).SerializeToString().replace(b"ABCDEFGH", b"ABCD\xff\xfe\xfd\xfc"))


def size_is_not_text() -> onnx.ModelProto:
    """An input with a size whose name is bytes."""
    model = _model([helper.make_node("Abs", ["x"], ["y"])])
    model.graph.input[0].type.tensor_type.shape.dim.add(dim_param="ABCDEFGH")
    return onnx.ModelProto.FromString(model.SerializeToString().replace(b"ABCDEFGH", b"ABCD\xff\xfe\xfd\xfc"))


def external(location: str) -> onnx.ModelProto:
    """A constant whose data lies elsewhere."""
    proto = _model([helper.make_node("Mul", ["x", "scale"], ["y"])])
    tensor = proto.graph.initializer.add(name="scale", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto


def npy(shape: tuple[int, ...], data: bytes = b"", kind: str = "<f4") -> bytes:
    """An array file that says it has ``shape`` numbers, of float32 unless another ``kind`` is given."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": kind, "fortran_order": False, "shape": shape})
    return stream.getvalue() + data


def bomb(path: Path, name: str) -> None:
    """A compressed archive whose one member says it has nearly 4 GiB; nobody gets as far as to see that it has less."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, bytes(1 << 20))
    raw = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = raw.index(signature) + offset
        raw[at : at + 4] = struct.pack("<I", 4_000_000_000)
    path.write_bytes(bytes(raw))


def encrypted(path: Path, name: str, data: bytes) -> None:
    """An archive that calls its member encrypted."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)
    raw = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        raw[raw.index(signature) + offset] |= 1
    path.write_bytes(bytes(raw))


def unusual(path: Path, name: str, data: bytes) -> None:
    """An archive compressed by a method that is rarely used."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr(name, data)


def outside(path: Path, name: str, data: bytes) -> None:
    """An archive whose directory stands 63 bytes before the place it names, and its first member before the file."""
    _npz(path, data, name)
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x05\x06") + 16
    raw[at : at + 4] = struct.pack("<I", struct.unpack_from("<I", raw, at)[0] + 63)
    path.write_bytes(bytes(raw))


def saved(tree: object) -> bytes:
    """What ``torch.save`` makes of a tree."""
    stream = io.BytesIO()
    torch.save(tree, stream)
    return stream.getvalue()


def doubled(levels: int) -> object:
    """A tree of ``2 ** levels`` leaves that takes ``levels`` tuples."""
    tree: object = 1
    for _ in range(levels):
        tree = (tree, tree)
    return tree


def lying_safetensors() -> bytes:
    """A header that promises more than the file has."""
    header = json.dumps({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(16)


def deep_json(levels: int) -> str:
    """Lists in lists."""
    return "[" * levels + "1" + "]" * levels


# name of a file of inputs -> (how it is written, words of the refusal)
INPUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "bomb.npz": (lambda p: bomb(p, "x.npy"), "would inflate to"),
    "bomb.pt": (lambda p: bomb(p, "archive/data.pkl"), "would inflate to"),
    "shape.npy": (lambda p: _bytes(p, npy((1 << 40,))), "but there are"),
    "nothing.npy": (lambda p: _bytes(p, npy((1 << 30,), kind="<U0")), "but there are"),
    "minus.npy": (lambda p: _bytes(p, npy((-4,), bytes(16))), "header|shape"),
    "shape.npz": (lambda p: _npz(p, npy((1 << 40,))), "but there are"),
    "encrypted.npz": (lambda p: encrypted(p, "x.npy", npy((4, 8), bytes(128))), "encrypted"),
    "unusual.npz": (lambda p: unusual(p, "x.npy", npy((4, 8), bytes(128))), "method 14"),
    "outside.npz": (lambda p: outside(p, "x.npy", npy((4, 8), bytes(128))), "outside of the file"),
    "outside.pt": (lambda p: outside(p, "archive/data.pkl", bytes(8)), "outside of the file"),
    "doubled.pt": (lambda p: _bytes(p, saved({"x": doubled(40)})), "more than 100,000 values"),
    "deep.pt": (lambda p: _bytes(p, saved(_deep(300))), "deep"),
    "lying.safetensors": (lambda p: _bytes(p, lying_safetensors()), "not a whole safetensors file"),
    "deep.json": (lambda p: _bytes(p, deep_json(100_000).encode()), "deep"),
    "digits.json": (lambda p: _bytes(p, b'[{"x": ' + b"9" * 100_000 + b"}]"), "JSON"),
    "array.json": (lambda p: _bytes(p, _polygraphy(npy((1 << 40,)))), "but there are"),
}  # fmt: skip


def _deep(levels: int) -> object:
    tree: object = 1
    for _ in range(levels):
        tree = [tree]
    return tree


def _bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _npz(path: Path, data: bytes, name: str = "x.npy") -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, data)


def _polygraphy(data: bytes) -> bytes:
    import base64

    array = {"polygraphy_class": "ndarray", "array": base64.b64encode(data).decode()}
    return json.dumps([{"x": array}]).encode()


# name of a model -> (the model, words of the refusal)
MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "doubling": (lambda: nested_functions(18, 2), "262,144 nodes|stands for"),
    "tripling": (lambda: nested_functions(300, 3), "stands for more than a million million"),
    "nested": (lambda: nested_functions(3000, 1), "3,000 deep"),
    "nul": (lambda: external("a\0b"), "cannot be named"),
    "location of many bytes": (lambda: external("é" * 300), "cannot be followed|outside|cannot be named"),
    "long location": (lambda: external("a" * 100_000), "cannot be named"),
    "name that is no text": (not_text, "'name' in it is not UTF-8 text"),
    "metadata that is no text": (metadata_is_not_text, "'value' in it is not UTF-8 text"),
    "size that is no text": (size_is_not_text, "'dim_param' in it is not UTF-8 text"),
    "long name": (lambda: long_name(100_000), "refused to load"),
}
