"""``.pt2`` files of a stranger: honest programs, and each way known to make one run code or write."""

from __future__ import annotations

import io
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

Members = dict[str, bytes]
MODEL = "base/models/model.json"
WEIGHTS = "base/data/weights/model_weights_config.json"
CONSTANTS = "base/data/constants/model_constants_config.json"
SAMPLES = "base/data/sample_inputs/model.pt"


class Affine(nn.Module):
    """A weight, a buffer, a dynamic size, a dict among the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.register_buffer("b", torch.arange(16, dtype=torch.uint8))

    def forward(self, x: torch.Tensor, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        spare = torch.ops.aten.zeros.default([16], dtype=torch.uint8)
        spare.copy_(self.b)
        return torch.relu(self.l(x) + parts["k"]) + spare.sum() * 0


def affine() -> Affine:
    """The same module every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Affine()


def honest_members() -> Members:
    """Return the members of an honest archive."""
    args = (torch.randn(3, 4), {"k": torch.ones(4)})
    sizes = ({0: torch.export.Dim("n", min=2, max=64)}, {"k": None})
    stream = io.BytesIO()
    torch.export.save(torch.export.export(affine(), args, dynamic_shapes=sizes), stream)
    with zipfile.ZipFile(stream) as archive:
        root = archive.namelist()[0].partition("/")[0]
        return {"base" + name.removeprefix(root): archive.read(name) for name in archive.namelist()}


def write(path: Path, members: list[tuple[str, bytes]]) -> Path:
    """Write members in order, doubled names included."""
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        warnings.simplefilter("ignore")
        for name, data in members:
            archive.writestr(name, data)
    return path


class Payload:
    """Unpickling it makes a file."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


def evil_pt(marker: Path) -> bytes:
    """A payload in a file of ``torch.save``."""
    stream = io.BytesIO()
    torch.save({"a": Payload(marker)}, stream)
    return stream.getvalue()


def sympified(code: str) -> str:
    """An expression of letters alone from which ``sympify`` builds ``code``, brackets and quotes out of ``srepr``."""
    text = "srepr(Symbol('x'))"
    glyphs = {
        "(": f"{text}[6]",
        "'": f"{text}[7]",
        ")": f"{text}[10]",
        "_": "'_'",
        "/": "sstr(Symbol('x')/Symbol('y'))[1]",
    }
    parts = re.findall(r"[A-Za-z0-9]+|.", code)
    return "sympify(" + "+".join(glyphs.get(part, f"'{part}'") for part in parts) + ")"


Attack = Callable[[Members, Path], list[tuple[str, bytes]]]


def _edited(name: str, change: Callable[[Any, Path], None]) -> Attack:
    def attack(members: Members, marker: Path) -> list[tuple[str, bytes]]:
        tree = json.loads(members[name])
        change(tree, marker)
        return [(n, json.dumps(tree).encode() if n == name else data) for n, data in members.items()]

    return attack


def _added(name: str, make: Callable[[Path], bytes]) -> Attack:
    return lambda members, marker: [*members.items(), (name, make(marker))]


def _pickled_weight(path_name: str, member: str) -> Attack:
    def change(tree: Any, marker: Path) -> None:
        tree["config"]["l.bias"].update(use_pickle=True, path_name=path_name)

    edit = _edited(WEIGHTS, change)
    return lambda members, marker: [*edit(members, marker), (member, evil_pt(marker))]


def _constant(path_name: str, member: str) -> Attack:
    entry = {"path_name": path_name, "is_param": False, "use_pickle": True, "tensor_meta": None}
    edit = _edited(CONSTANTS, lambda tree, marker: tree["config"].update(k=entry))
    return lambda members, marker: [*edit(members, marker), (member, pickle.dumps(Payload(marker)))]


def _size(expression: str | Callable[[Path], str]) -> Attack:
    def change(tree: Any, marker: Path) -> None:
        text = expression if isinstance(expression, str) else expression(marker)
        tree["graph_module"]["graph"]["tensor_values"]["x"]["sizes"][0]["as_expr"]["expr_str"] = text

    return _edited(MODEL, change)


def _call(target: str, inputs: Callable[[Path], list[Any]]) -> Attack:
    def change(tree: Any, marker: Path) -> None:
        node = next(n for n in tree["graph_module"]["graph"]["nodes"] if "zeros" in n["target"])
        node["target"] = target
        node["inputs"] = [*inputs(marker), *(i for i in node["inputs"] if i["name"] == "dtype")]

    return _edited(MODEL, change)


def _argument(name: str, kind: str, value: Any) -> dict[str, Any]:
    return {"name": name, "arg": {kind: value}, "kind": 1}


def _containers(change: Callable[[Any], None]) -> Attack:
    def edit(tree: Any, marker: Path) -> None:
        signature = tree["graph_module"]["module_call_graph"][0]["signature"]
        protocol, spec = json.loads(signature["in_spec"])
        change(spec)
        signature["in_spec"] = json.dumps([protocol, spec])

    return _edited(MODEL, edit)


def _guards(*guards: str) -> Attack:
    return _edited(MODEL, lambda tree, marker: tree.update(guards_code=list(guards)))


def _deep(tree: Any, marker: Path) -> None:
    nest: Any = 0
    for _ in range(300):
        nest = {"deep": nest}
    tree["deep"] = nest


def _defaultdict(spec: Any) -> None:
    spec["children_spec"][1].update(
        type="collections.defaultdict",
        context={"default_factory_module": "this", "default_factory_name": "d", "dict_context": []},
    )


def _enum(spec: Any) -> None:
    spec["context"] = json.dumps({"__enum__": True, "fqn": "this:d", "name": "A"})


def _code_in_key(spec: Any) -> None:
    spec["children_spec"][0]["children_spec"][1]["context"] = json.dumps(["k'] or __import__('this') or L['"])


_CONSTANTS = "base/data/constants/"
# name -> (the attack, words of the refusal)
ATTACKS: dict[str, tuple[Attack, str]] = {
    "doubled, evil first": (
        lambda members, marker: [(SAMPLES, evil_pt(marker)), *members.items()], "two members called"),
    "doubled, evil last": (_added(SAMPLES, evil_pt), "two members called"),
    "name in capitals": (_added("base/data/sample_inputs/model.PT", evil_pt), "two members called|pickled"),
    "weight in a folder": (_pickled_weight("sub/w", "base/data/weights/sub/w"), "could become code"),
    "weight in capitals": (_pickled_weight("weight_X", "base/data/weights/WEIGHT_x"), "which is not there|use_pickle"),
    "pickled weight": (_pickled_weight("weight_9", "base/data/weights/weight_9"), "pickled Python objects"),
    "opaque object": (_constant("opaque_obj_0", _CONSTANTS + "opaque_obj_0"), "pickled Python object"),
    "opaque object in capitals": (_constant("opaque_obj_0", _CONSTANTS + "OPAQUE_obj_0"), "pickled Python object"),
    "opaque object in a folder": (_constant("opaque_obj_x/y", _CONSTANTS + "opaque_obj_x/y"), "could become code"),
    "script object": (_constant("custom_obj_0", "base/data/constants/custom_obj_0"), "pickled Python object"),
    "weights of the old format": (_added("base/data/weights/model.pt", evil_pt), "pickled Python objects"),
    "compiled library": (_added("base/data/aotinductor/model/m.so", lambda marker: b"ELF"), "compiled code"),
    "symbol that is code": (_size(lambda m: sympified(f"__import__('pathlib').Path('{m}').touch()")), "not arithmetic"),
    "symbol with attributes": (_size("().__class__"), "not arithmetic"),
    "symbol that is a tower": (_size("9**9**9**9"), "not arithmetic"),
    "symbol that is a factorial": (_size("factorial(99999999)"), "not arithmetic"),
    "symbol that explodes": (_size(f"Pow(Add({','.join(f's{n}' for n in range(40))}), Integer(12))"), "not arithmetic"),
    "symbol with a shift": (_size("LShift(Integer(1), Integer(99999999999))"), "not arithmetic"),
    "symbol named as a function": (_size("test"), "not arithmetic"),
    "enum of any module": (_containers(_enum), "names and numbers"),
    "factory of any module": (_containers(_defaultdict), "other than a builtin"),
    "key that is code": (_containers(_code_in_key), "could become code"),
    "class that is not known": (_containers(lambda spec: spec.update(type="os.path")), "not registered here"),
    "writes a file": (
        _call("torch.ops.aten.from_file.default", lambda marker: [
            _argument("filename", "as_string", str(marker)), _argument("shared", "as_bool", True),
            _argument("size", "as_int", 16)]), "may name a file"),
    "saves a file": (
        _call("torch.ops.aten.save.default", lambda marker: [_argument("filename", "as_string", str(marker))]),
        "does not know"),
    "loads a library": (_call("torch.ops.load_library", lambda marker: []), "not an operator of torch"),
    "loads from the net": (_call("torch.hub.load", lambda marker: []), "not an operator of torch"),
    "custom operator": (_call("torch.ops.mine.secret.default", lambda marker: []), "custom operator"),
    "prints": (_call("torch.ops.higher_order.print", lambda marker: []), "not an operator of torch"),
    "python's attrgetter": (_call("_operator.attrgetter", lambda marker: []), "not an operator of torch"),
    "guard that is code": (_guards("[print('RAN')]"), "guard that is not arithmetic"),
    "guard that is a tower": (_guards("L['x'].size()[0] < 9**9**9**9"), "guard that is not arithmetic"),
    "guard with an attribute": (_guards("L['x'].__class__ == 1"), "guard that is not arithmetic"),
    "deep JSON": (_edited(MODEL, _deep), "deep"),
    "wrong type": (_edited(MODEL, lambda tree, m: tree.update(range_constraints=[])), "where a dict belongs"),
    "unknown member": (_added("base/code/run.py", lambda marker: b"print()"), "does not write"),
}  # fmt: skip


def _renamed_node(tree: Any, marker: Path) -> None:
    for node in tree["graph_module"]["graph"]["nodes"]:
        node["name"] = f"x=open('{marker}','w')"


ATTACKS["name that is code"] = (_edited(MODEL, _renamed_node), "could become code")
