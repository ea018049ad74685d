"""Values of a ``.pt2``: numbers without end, and values nothing makes, are refused before torch builds the rest."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import driftscope as ds
from hostile import exported_files as files


def _whole(value: int | str) -> dict[str, Any]:
    return {"as_sym_int": {"as_name": value} if isinstance(value, str) else {"as_int": value}}


def _node(target: str, name: str, *arguments: dict[str, Any]) -> dict[str, Any]:
    inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
    outputs = [_whole(name)]
    return {"target": target, "inputs": inputs, "outputs": outputs, "metadata": {}, "name": name}


def _squares(count: int) -> list[dict[str, Any]]:
    made = [_node("_operator.mul", "e0", _whole(2), _whole(3))]
    return made + [
        _node("_operator.mul", f"e{n}", _whole(f"e{n - 1}"), _whole(f"e{n - 1}")) for n in range(1, count + 1)
    ]


def _relayed(count: int) -> list[dict[str, Any]]:
    """Squares, each handed on through a list, which has no bits of its own."""
    made = []
    for n, node in enumerate(_squares(count)):
        relay = {"as_sym_ints": [{"as_name": f"e{n}"}]}
        made += [node, _node("_operator.getitem", f"r{n}", relay, {"as_int": 0})]
        for part in node["inputs"]:
            held = part["arg"]["as_sym_int"]
            if "as_name" in held:
                held["as_name"] = held["as_name"].replace("e", "r")
    return made


def _written(members: files.Members, path: Path, nodes: list[dict[str, Any]], *, described: bool = True) -> Path:
    """Write an archive whose graph begins with these nodes; a tensor is multiplied by the last number."""
    tree = json.loads(members[files.MODEL])
    graph = tree["graph_module"]["graph"]
    tensor = {"as_tensor": {"name": "x"}}
    used = _node("torch.ops.aten.mul.Scalar", "", tensor, nodes[-1]["outputs"][0])
    used["inputs"][0]["name"], used["inputs"][1]["name"] = "self", "other"
    used["outputs"], used["name"] = [{"as_tensor": {"name": "used"}}], "used"
    graph["nodes"][:0] = [*nodes, used]
    graph["tensor_values"]["used"] = copy.deepcopy(graph["tensor_values"]["x"])
    if described:
        graph["sym_int_values"] |= {node["name"]: {"as_int": 6} for node in nodes}
    return files.write(path, [*(members | {files.MODEL: json.dumps(tree).encode()}).items()])


_GROWING = {
    "a power": ([_node("_operator.pow", "e0", _whole(2**62), _whole(2**33))], "not a small number"),
    "a power of a size": ([*_squares(0), _node("_operator.pow", "e1", _whole(3), _whole("e0"))], "not a small number"),
    "a shift": ([_node("_operator.lshift", "e0", _whole(1), _whole(2**36))], "not a small number"),
    "squares": (_squares(34), "bits"),
    "squares through lists": (_relayed(34), "bits"),
    "a repeated text": (
        [_node("_operator.mul", "e0", {"as_string": "x" * 9000}, {"as_int": 2**22})], "a text or a list"),
    "a repeated list": ([_node("_operator.mul", "e0", {"as_ints": [1] * 9000}, {"as_int": 2**18})], "a text or a list"),
    "a padded text": ([_node("_operator.mod", "e0", {"as_string": "%1999999999d"}, {"as_int": 1})], "a text or a list"),
}  # fmt: skip


@pytest.mark.parametrize("name", _GROWING)
def test_numbers_that_would_fill_the_memory_are_refused(members: files.Members, tmp_path: Path, name: str) -> None:
    nodes, words = _GROWING[name]
    with pytest.raises(ds.ProgramError, match=words) as refused:
        ds.program(_written(members, tmp_path / "grows.pt2", nodes))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("nodes", [_squares(3), [_node("_operator.pow", "e0", _whole(3), _whole(4))]])
def test_numbers_of_ordinary_size_are_computed(
    members: files.Members, tmp_path: Path, nodes: list[dict[str, Any]]
) -> None:
    path = _written(members, tmp_path / "small.pt2", nodes)
    args = (torch.randn(5, 4), {"k": torch.ones(4)})
    assert torch.equal(ds.program(path)(args), files.affine()(*args))


def test_numbers_grow_through_the_graphs_that_an_operator_takes(members: files.Members, tmp_path: Path) -> None:
    inner = {"inputs": [_whole("e0")], "outputs": [_whole("e5")], "nodes": _squares(5)[1:], "tensor_values": {},
             "sym_int_values": {f"e{n}": {"as_int": 6} for n in range(6)}, "sym_bool_values": {}}  # fmt: skip
    graph = {"as_graph": {"name": "g", "graph": inner}}
    outer = [*_squares(0)]
    for n in range(1, 3):
        outer.append(_node("torch.ops.higher_order.wrap", f"e{n}", graph, _whole(f"e{n - 1}")))
    with pytest.raises(ds.ProgramError, match="bits"):
        ds.program(_written(members, tmp_path / "nested.pt2", outer))


@pytest.mark.parametrize(
    ("nodes", "described", "words"),
    [
        (_squares(1), False, "'e0' is not described"),
        ([*_squares(0), *_squares(0)], True, "'e0' is made twice"),
        (_squares(1)[1:], True, "'e0' is used and nothing before makes it"),
        (_squares(1)[::-1], True, "'e0' is used and nothing before makes it"),
    ],
)
def test_values_that_nothing_makes_are_refused_before_torch_builds_the_rest(
    members: files.Members, tmp_path: Path, nodes: list[dict[str, Any]], described: bool, words: str
) -> None:
    path = _written(members, tmp_path / "torn.pt2", nodes, described=described)
    with pytest.raises(ds.ProgramError, match=words):
        ds.program(path)


def test_the_export_of_a_module_that_computes_with_its_sizes_loads(tmp_path: Path) -> None:
    """Products, powers, shifts and branches on sizes, as exports have them."""

    class Sizes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            n, m = x.shape
            n2 = (n * m) ** 2
            picked = torch.cond(x.sum() > 0, lambda t: t * 2, lambda t: t - n, (x,))
            return picked * (n2 // (n * 3) + n % 2) + n / m

    export = torch.export.export(Sizes(), (torch.ones(3, 4),), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    torch.export.save(export, tmp_path / "sizes.pt2")
    x = torch.randn(6, 4)
    assert torch.equal(ds.program(tmp_path / "sizes.pt2")((x,)), Sizes()(x))
