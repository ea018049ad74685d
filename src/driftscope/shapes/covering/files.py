"""A cover on disk: a folder with one file per program and a manifest that says when each is right.

The manifest is plain JSON and nothing in the folder is unpickled, so a cover loads without the model's source. Programs
are stored with flat inputs and outputs; the containers around them are described in the manifest.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature

from driftscope.errors import InputError, RecordError
from driftscope.programs import pytrees as pytree
from driftscope.programs.loading.onnx_files import read_model
from driftscope.programs.loading.pt2 import read_exported
from driftscope.programs.value_trees import Spec, flatten, unflatten
from driftscope.records.files import bounded_text
from driftscope.records.json_text import parse_json
from driftscope.shapes.conditions.predicates import from_json, to_json
from driftscope.shapes.covering.dispatching import CoverMember, Form
from driftscope.shapes.covering.serving_members import OnnxMember
from driftscope.shapes.private_torch import unguarded
from driftscope.shapes.probe.runners import from_pairs

SCHEMA = "driftscope/cover/1"
MANIFEST = "manifest.json"
_QUOTING = re.compile(r"['\"\\\n\r(){};=#]+")


def save_cover(
    folder: str | Path, form: Form, members: Sequence[CoverMember], tree: Any, about: Mapping[str, Any]
) -> Path:
    """Write a cover.

    Parameters
    ----------
    folder : path
        Made if it is not there; must be empty otherwise, or hold a cover, which is replaced.
    form : Form
    members : sequence of CoverMember
        Their payloads are an ``ExportedProgram`` or an :class:`OnnxMember`.
    tree : object
        The outputs' containers, as :func:`outline_of` describes them.
    about : mapping of str to JSON values
        What was probed.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    InputError
        If the folder cannot be written, or holds something else.
    """
    target = _writable(Path(folder))
    entries = []
    for number, member in enumerate(members):
        name = f"program_{number}{'.onnx' if isinstance(member.payload, OnnxMember) else '.pt2'}"
        _write_program(target / name, member.payload)
        entry = {"file": name, "origin": member.origin, "points": member.points}
        entry["conditions"] = [to_json(term) for term in member.conditions]
        if isinstance(member.payload, OnnxMember):
            entry["inputs"] = list(member.payload.inputs)
        entries.append(entry)
    data = {
        "schema": SCHEMA,
        "torch": torch.__version__,
        "parameters": list(form.names),
        "leaves": [list(leaf) for leaf in form.leaves],
        "constants": dict(form.constants),
        "outputs": tree,
        "programs": entries,
        **about,
    }
    # Last, and whole: a folder without a manifest is no cover.
    draft = target / f".{MANIFEST}.part"
    draft.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    draft.replace(target / MANIFEST)
    return target


def check_folder(folder: Path) -> None:
    """Refuse a folder that no cover can be written to; asked before the work as well, which takes minutes.

    Raises
    ------
    InputError
        If it is a file, is not writable, or holds other files than those of a cover.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"cannot write a cover to {str(folder)!r}: it is a file; name a folder")
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write a cover to {str(folder)!r}: the folder is not writable")
    if _present(folder) and not (folder / MANIFEST).is_file():
        raise InputError(f"cannot write a cover to {str(folder)!r}: it holds other files; name an empty folder")


def _present(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def _writable(folder: Path) -> Path:
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write a cover to {str(folder)!r}: {error.strerror or error}") from error
    for path in _present(folder):
        if path.name == MANIFEST or path.stem.startswith("program_"):
            path.unlink()
    return folder


def _write_program(path: Path, payload: Any) -> None:
    if isinstance(payload, OnnxMember):
        payload.copy_to(path)
        return
    with torch.no_grad():
        torch.export.save(flattened(payload), path)


def load_cover(folder: str | Path) -> tuple[Form, list[CoverMember], dict[str, Any]]:
    """Read a cover.

    Returns
    -------
    form : Form
    members : list of CoverMember
        Called like the original; outputs in fresh containers.
    about : dict
        The manifest.

    Raises
    ------
    RecordError
        If the folder holds no cover, or a damaged one.
    """
    source = Path(folder)
    data = _manifest(source)
    try:
        leaves = tuple((str(path), rank, str(kind)) for path, rank, kind in data["leaves"])
        form = Form(tuple(data["parameters"]), leaves, dict(data["constants"]))
        _check_outline(data["outputs"])
        members = [_member(source, form, data["outputs"], entry) for entry in data["programs"]]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RecordError(f"the manifest of {str(source)!r} is damaged: {error}") from error
    return form, members, data


def _manifest(source: Path) -> dict[str, Any]:
    path = source / MANIFEST
    if not path.is_file():
        raise RecordError(f"{str(source)!r} holds no cover: there is no {MANIFEST} in it")
    try:
        data = parse_json(bounded_text(path))
    except (OSError, ValueError) as error:
        raise RecordError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise RecordError(f"{str(path)!r} is not a manifest of schema {SCHEMA!r}; was it written by driftscope?")
    return data


def _member(source: Path, form: Form, tree: Any, entry: Mapping[str, Any]) -> CoverMember:
    name = str(entry["file"])
    if Path(name).name != name:
        raise RecordError(f"the manifest names the program {name!r}, which is not in its folder")
    conditions = tuple(from_json(term) for term in entry["conditions"])
    rebuild = builder_of(tree)
    if name.endswith(".onnx"):
        read_model(source / name)  # its bounds and where its data lies, before a runtime opens it
        served = OnnxMember(source / name, tuple(entry["inputs"]))
        run: Callable[..., Sequence[Any]] = served.run
        payload: Any = served
    else:
        payload = read_exported(source / name)
        run = unguarded(payload)

    def call(*args: Any, **kwargs: Any) -> Any:
        return rebuild(list(run(*form.flat(args, kwargs))))

    return CoverMember(call, conditions, str(entry["origin"]), int(entry["points"]), payload)


def flattened(exported: ExportedProgram) -> ExportedProgram:
    """The same program taking its leaves one by one and returning a tuple of leaves.

    Classes among the containers (caches, dataclasses) would otherwise be needed to load it.
    """
    signature = exported.module_call_graph[0].signature
    if signature is None:
        raise InputError("an exported program without a record of its structure cannot be stored flat")
    ins = pytree.tree_structure((tuple(range(signature.in_spec.num_leaves)), {}))
    outs = pytree.tree_structure(tuple(range(signature.out_spec.num_leaves)))
    flat = ModuleCallSignature(
        inputs=signature.inputs, outputs=signature.outputs, in_spec=ins, out_spec=outs, forward_arg_names=None
    )
    return ExportedProgram(
        root=exported.graph_module,
        graph=_plain_graph(exported),
        graph_signature=exported.graph_signature,
        state_dict=exported.state_dict,
        range_constraints=exported.range_constraints,
        module_call_graph=[ModuleCallEntry("", flat)],
        example_inputs=None,
        constants=exported.constants,
        verifiers=exported.verifiers,
    )


def _plain_graph(exported: ExportedProgram) -> torch.fx.Graph:
    """The graph without texts that a careful reader refuses: the passes a node came through, quoted messages."""
    graph: torch.fx.Graph = copy.deepcopy(exported.graph)
    for node in graph.nodes:
        node.meta.pop("from_node", None)
        node.args = tuple(_QUOTING.sub(" ", arg) if isinstance(arg, str) else arg for arg in node.args)
    return graph


def outline_of(tree: Any) -> Any:
    """Describe a result in JSON: a leaf by what it is (null for a real tensor), a container by kind, keys, children."""
    leaves, spec = flatten(tree)
    kinds = iter([_kind(leaf) for _, leaf in leaves])
    return _outline(spec, kinds)


def _kind(leaf: Any) -> str | None:
    if isinstance(leaf, torch.Tensor):
        return "complex" if leaf.is_complex() else None
    return type(leaf).__name__


def _outline(spec: Spec, kinds: Iterator[str | None]) -> Any:
    if spec.rebuild is None:
        kind = next(kinds)
        return None if kind is None else {"leaf": kind}
    keys = [key if isinstance(key, (str, int)) else str(key) for key in spec.keys]
    return {"kind": spec.kind, "keys": keys, "children": [_outline(child, kinds) for child in spec.children]}


def _check_outline(part: Any) -> None:
    """Hold the description of the outputs against what :func:`outline_of` writes."""
    if part is None or part.get("leaf") in _LEAVES:
        return
    if not isinstance(part["children"], list) or not isinstance(part["keys"], list):
        raise TypeError("its outputs are not described")
    if part["kind"] not in ("tuple", "Size", "list") and len(part["keys"]) != len(part["children"]):
        raise ValueError("its outputs have other keys than values")
    for child in part["children"]:
        _check_outline(child)


def builder_of(outline: Any) -> Callable[[list[Any]], Any]:
    """Return a function that puts leaves into containers.

    Tuples, lists and dicts come back as such; a container of any other class comes back as a dict of its parts,
    because its class is not known to the folder.
    """

    def build(part: Any, leaves: list[Any]) -> Any:
        if part is None or "leaf" in part:
            return as_kind(part and part["leaf"], leaves)
        children = [build(child, leaves) for child in part["children"]]
        if part["kind"] in ("tuple", "Size"):
            return tuple(children)
        if part["kind"] == "list":
            return children
        return dict(zip(part["keys"], children, strict=True))

    return lambda leaves: build(outline, list(leaves))


def like(tree: Any) -> Callable[[list[Any]], Any]:
    """Return a function that puts leaves into the containers of a result, whatever their class."""
    leaves, spec = flatten(tree)
    kinds = [_kind(leaf) for _, leaf in leaves]

    def build(found: list[Any]) -> Any:
        rest = list(found)
        return unflatten([as_kind(kind, rest) for kind in kinds], spec)

    return build


def as_kind(kind: str | None, leaves: list[Any]) -> Any:
    """Take the next leaf as what the model returns there: runtimes know tensors of real numbers alone."""
    if kind == "NoneType":
        return None
    value = leaves.pop(0)
    if kind is not None and kind in _NUMBERS and isinstance(value, torch.Tensor) and value.numel() == 1:
        return _NUMBERS[kind](value.item())
    return from_pairs(value, kind == "complex")


#: What a leaf may be that is no real tensor.
_LEAVES = ("complex", "int", "float", "bool", "str", "NoneType")
_NUMBERS: Mapping[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool}
