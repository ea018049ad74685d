"""Files that a hostile or unlucky user may hand over: damaged, dangerous, or too new."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

FLOATS = (4, 8)


class Payload:
    """An object whose unpickling makes a file: if the marker exists, something was executed."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def value(name: str, dtype: int = TensorProto.FLOAT, shape: object = FLOATS) -> onnx.ValueInfoProto:
    """Return a declaration of an input or output."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    constants: list[onnx.TensorProto] | None = None,
    *,
    opset: int = 20,
    ir: int = 10,
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    """Return a model without checking it."""
    graph = helper.make_graph(
        nodes, "graph", [value("x")] if inputs is None else inputs, outputs or [value("y")], constants or []
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir)


def external(location: str, length: int = 4) -> onnx.ModelProto:
    """Return Relu(x * scale) whose scale lies in another file."""
    scale = numpy_helper.from_array(np.float32([0.5]), "scale")
    scale.ClearField("raw_data")
    scale.data_location = TensorProto.EXTERNAL
    for key, entry in (("location", location), ("offset", "0"), ("length", str(length))):
        scale.external_data.add(key=key, value=entry)
    return model([helper.make_node("Mul", ["x", "scale"], ["y"], name="mul")], constants=[scale])


def _mul(inputs: tuple[str, ...] = ("x", "x"), **attributes: object) -> list[onnx.NodeProto]:
    return [helper.make_node("Mul", list(inputs), ["y"], name="mul", **attributes)]


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "cyclic": lambda: model(
        [helper.make_node("Add", ["x", "b"], ["a"], name="first"),
         helper.make_node("Add", ["a", "x"], ["b"], name="second"),
         helper.make_node("Relu", ["b"], ["y"], name="last")]
    ),
    "unknown_operator": lambda: model([helper.make_node("Frobnicate", ["x"], ["y"], name="odd")]),
    "unknown_domain": lambda: model(
        [helper.make_node("Frob", ["x"], ["y"], domain="my.domain")], domains=("my.domain",)
    ),
    "opset_99": lambda: model(_mul(), opset=99),
    "ir_99": lambda: model(_mul(), ir=99),
    "no_opset": lambda: helper.make_model(helper.make_graph(_mul(), "g", [value("x")], [value("y")]), opset_imports=[]),
    "no_outputs": lambda: helper.make_model(helper.make_graph(_mul(), "g", [value("x")], [])),
    "unconnected": lambda: model(_mul(("x", "nowhere"))),
    "absolute": lambda: external("/etc/passwd"),
    "upwards": lambda: external("../secret.bin"),
    "windows": lambda: external("..\\secret.bin"),
    "drive": lambda: external("C:\\secret.bin"),
    "linked": lambda: external("link.bin"),
    "absent": lambda: external("absent.bin"),
    "too_long": lambda: external("short.bin", 4000),
    "negative": lambda: external("short.bin", -4),
    "duplicate_names": lambda: model([*_mul(), helper.make_node("Relu", ["x"], ["y"], name="mul")]),
    "shape_lies": lambda: model(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        constants=[numpy_helper.from_array(np.ones((3, 5), np.float32), "w")],
    ),
    "bad_attribute": lambda: model([helper.make_node("Relu", ["x"], ["y"], name="relu", frob=3)]),
    "bad_tensor": lambda: model(_mul(("x", "w")), constants=[_short_tensor()]),
    "odd_dtype": lambda: model(_mul(), [value("x", 77)]),
    "recursive": lambda: _recursive(),
    "deep": lambda: _deep(20),
}  # fmt: skip


def _sequence(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_sequence_value_info(name, TensorProto.FLOAT, None)


def _optional(name: str) -> onnx.ValueInfoProto:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, FLOATS)
    return helper.make_value_info(name, helper.make_optional_type_proto(tensor))


# Healthy models whose values are not plain float tensors.
ODD_MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "sequence": lambda: model([helper.make_node("SequenceConstruct", ["x", "x"], ["y"])], outputs=[_sequence("y")]),
    "optional": lambda: model([helper.make_node("Optional", ["x"], ["y"])], outputs=[_optional("y")]),
    "strings": lambda: model(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)], outputs=[value("y", TensorProto.STRING)]
    ),
    "booleans": lambda: model(
        [helper.make_node("Greater", ["x", "x"], ["y"])], outputs=[value("y", TensorProto.BOOL)]
    ),
    "two_inputs": lambda: model(_mul(("x", "other")), [value("x"), value("other")]),
    "handed_on": lambda: model([helper.make_node("Identity", ["x"], ["y"])], outputs=[value("x"), value("y")]),
    "markup": lambda: model(
        [helper.make_node("Relu", ["x"], ["<img src=x onerror=alert(1)>"], name="\x1b[31mred")],
        outputs=[value("<img src=x onerror=alert(1)>")],
    ),
    "bfloat16": lambda: model(
        [helper.make_node("Gemm", ["x", "x"], ["y"], name="gemm", transB=1)],
        [value("x", TensorProto.BFLOAT16)], [value("y", TensorProto.BFLOAT16, (4, 4))],
    ),
}  # fmt: skip


def _short_tensor() -> onnx.TensorProto:
    tensor = numpy_helper.from_array(np.ones(FLOATS, np.float32), "w")
    tensor.raw_data = tensor.raw_data[:10]
    return tensor


def _recursive() -> onnx.ModelProto:
    """A local function that calls itself."""
    proto = model([helper.make_node("Again", ["x"], ["y"], domain="me")], domains=("me",))
    body = [helper.make_node("Again", ["x"], ["y"], domain="me")]
    proto.functions.append(helper.make_function("me", "Again", ["x"], ["y"], body, [helper.make_opsetid("me", 1)]))
    return proto


def _deep(levels: int) -> onnx.ModelProto:
    """If inside If inside If."""
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["r0"])], "g", [], [value("r0")])
    for n in range(1, levels):
        node = helper.make_node("If", ["c"], [f"r{n}"], then_branch=graph, else_branch=graph if n == 1 else _leaf(n))
        graph = helper.make_graph([node], "g", [], [value(f"r{n}")])
    last = helper.make_node("If", ["c"], ["y"], then_branch=graph, else_branch=_leaf(levels))
    return model([last], [value("x"), value("c", TensorProto.BOOL, [])])


def _leaf(n: int) -> onnx.GraphProto:
    return helper.make_graph([helper.make_node("Neg", ["x"], [f"e{n}"])], "g", [], [value(f"e{n}")])


def write_models(folder: Path) -> None:
    """Write every model of the table, and what the external ones ask for."""
    for name, make in (MODELS | ODD_MODELS).items():
        (folder / f"{name}.onnx").write_bytes(make().SerializeToString())
    (folder.parent / "secret.bin").write_bytes(np.float32([0.5]).tobytes())
    (folder / "link.bin").symlink_to(folder.parent / "secret.bin")
    (folder / "short.bin").write_bytes(b"1234")
    good = model(_mul()).SerializeToString()
    (folder / "good.onnx").write_bytes(good)
    (folder / "cut.onnx").write_bytes(good[: len(good) // 2])
    (folder / "empty.onnx").write_bytes(b"")
    (folder / "text.onnx").write_text("this is not a model\n" * 20)
    (folder / "noise.onnx").write_bytes(np.random.default_rng(0).bytes(400))
    (folder / "folder.onnx").mkdir()
    (folder / "model.txt").write_bytes(good)


def write_archives(folder: Path, marker: Path) -> None:
    """Write pickles with a payload in every coat, damaged archives, and their harmless neighbours."""
    payload = Payload(marker)
    torch.save(payload, folder / "payload.pt")
    torch.save({"x": payload}, folder / "payload.pth")
    (folder / "raw_pickle.pt").write_bytes(pickle.dumps(payload))
    np.savez(folder / "objects.npz", x=np.array([payload, None], dtype=object))
    np.save(folder / "objects.npy", np.array([payload], dtype=object))
    (folder / "pickled.npy").write_bytes(pickle.dumps(payload))
    (folder / "pickled.npz").write_bytes(pickle.dumps(payload))
    (folder / "pickled.safetensors").write_bytes(pickle.dumps(payload))
    with zipfile.ZipFile(folder / "renamed.pt2", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(payload))
    with zipfile.ZipFile(folder / "saved.pt2", "w") as archive, zipfile.ZipFile(folder / "payload.pt") as source:
        for name in source.namelist():
            archive.writestr(name, source.read(name))
    (folder / "text.pt2").write_text("no archive")
    np.savez(folder / "good.npz", x=np.ones(FLOATS, np.float32))
    whole = (folder / "good.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.npz").write_bytes(b"")
    np.savez(folder / "nothing.npz")
    (folder / "bad.json").write_text('[{"x": {"polygraphy_class": "ndarray", "array": "!!"}}]')
    (folder / "cut.json").write_text('[{"x": ')
    (folder / "list.json").write_text("[7]")
    (folder / "cut.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}")
