"""The members of a ``.pt2`` archive: an exact list of names, each read and checked for what it is, and packed again."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import torch

from driftscope.errors import ProgramError
from driftscope.programs.archives import Archive
from driftscope.programs.loading.pt2.fields import FieldRefused
from driftscope.programs.loading.pt2.schema import checked_payloads, checked_program
from driftscope.programs.loading.pt2.tensors import check_payload
from driftscope.programs.pickled_tensors import load_tensors
from driftscope.records.json_text import parse_json

_MODEL = "models/model.json"
_SAMPLES = "data/sample_inputs/model.pt"
# Folder, configuration and prefix of the members of the two kinds of stored tensors.
_STORES = (("data/weights/", "model_weights_config.json", "weight_"),
           ("data/constants/", "model_constants_config.json", "tensor_"))  # fmt: skip
_SMALL = ("archive_format", "archive_version", "byteorder", ".data/version", "version", ".data/serialization_id")
_LIBRARIES = (".so", ".dll", ".dylib", ".pyd", ".cubin", ".hsaco")
_PICKLED_STORE = "model.pt"  # what torch 2.8 writes in both folders: one pickle of all tensors
# The format of torch 2.7 and older.
_OLD_MODEL = "serialized_exported_program.json"
_OLD_PICKLES = ("serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt")
_DEEPEST = 120


def packed_again(archive: Archive, what: str) -> io.BytesIO:
    """Return an archive that holds what was checked, and nothing else.

    Raises
    ------
    ProgramError
        If a member is not one that ``torch.export.save`` writes, or not what it must be.
    """
    members = _by_inner_name(archive, what)
    if _OLD_MODEL in members:
        return _zipped(_old(archive, members, what), "")
    if _MODEL not in members or "archive_format" not in members:
        raise ProgramError(f"{what} is an archive, but not one that torch.export.save wrote")
    return _zipped(_current(archive, members, what), "driftscope/")


def _by_inner_name(archive: Archive, what: str) -> dict[str, str]:
    """Names without the folder that holds everything, each mapped to its name in the archive."""
    old = _OLD_MODEL in archive.names
    members = {(name if old else name.partition("/")[2]): name for name in archive.names}
    for inner, name in members.items():
        if "aotinductor" in inner.lower() or inner.lower().endswith(_LIBRARIES):
            raise ProgramError(
                f"{what} holds compiled code ({name[:80]!r}), which is not loaded; give the exported program"
            )
        if inner.rpartition("/")[2].lower().startswith(("custom_obj_", "opaque_obj_")):
            raise ProgramError(f"{what} holds a pickled Python object ({name[:80]!r}), which is not loaded")
    if not old and len({name.partition("/")[0] for name in archive.names}) > 1:
        raise ProgramError(f"{what} has members in several folders; torch.export.save writes one")
    return members


def _current(archive: Archive, members: Mapping[str, str], what: str) -> dict[str, bytes]:
    made = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little", ".data/version": b"6\n"}
    _check_small(archive, members, what)
    left = set(members) - set(_SMALL) - {_MODEL, _SAMPLES}
    made[_MODEL] = _dumped(_json(archive, members, _MODEL, what, checked_program))
    for store in _STORES:
        stored = _stored(archive, members, store, what)
        made |= stored
        left -= set(stored)
    made[_SAMPLES] = _samples(archive, members, what)
    # Files that a user added travel beside the program and are not read here.
    odd = sorted(name for name in left if not name.startswith("extra/"))
    if odd:
        raise _foreign(what, odd[0])
    return made


def _stored(archive: Archive, members: Mapping[str, str], store: tuple[str, str, str], what: str) -> dict[str, bytes]:
    """Weights or constants: their configuration and their bytes."""
    folder, config, prefix = store
    pickled = folder + _PICKLED_STORE
    if pickled in members:
        tensors = load_tensors(archive.read(members[pickled]), f"{what} ({pickled})", ProgramError)
        return {pickled: _saved(tensors)}
    if folder + config not in members:
        raise ProgramError(f"{what} is damaged: it has no {folder}{config}")
    entries = _json(archive, members, folder + config, what, checked_payloads)
    made = {folder + config: _dumped(entries)}
    for path in _payloads(archive, members, entries["config"], (folder, prefix), what):
        made[path] = archive.read(members[path])
    return made


def _foreign(what: str, name: str) -> ProgramError:
    if name.lower().endswith((".pt", ".pkl", ".pth")):
        return ProgramError(f"{what} holds pickled Python objects in {name[:80]!r}, which are not loaded")
    return ProgramError(f"{what} has a member that torch.export.save does not write, {name[:80]!r}; it is not read")


def _check_small(archive: Archive, members: Mapping[str, str], what: str) -> None:
    wanted = {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
    for name, value in wanted.items():
        found = archive.read(members[name])[:80] if name in members and archive.size(members[name]) < 80 else None
        if found != value:
            raise ProgramError(f"{what} is damaged, or newer than torch {torch.__version__}: its {name} is {found!r}")


def _json(
    archive: Archive, members: Mapping[str, str], name: str, what: str, check: Callable[[Any], dict[str, Any]]
) -> dict[str, Any]:
    try:
        return check(parse_json(archive.read(members[name]), deepest=_DEEPEST))
    except FieldRefused as reason:
        raise ProgramError(f"{what} is not loaded: {reason}") from reason
    except ValueError as reason:
        raise ProgramError(f"{what} is damaged: {name}: {reason}") from reason


def _payloads(
    archive: Archive,
    members: Mapping[str, str],
    entries: Mapping[str, Mapping[str, Any]],
    place: tuple[str, str],
    what: str,
) -> set[str]:
    """Return the members that stored tensors are made of, each tensor checked against its bytes."""
    folder, prefix = place
    paths: dict[str, int] = {}
    for name, entry in entries.items():
        path = folder + entry["path_name"]
        if path not in members or not entry["path_name"].startswith(prefix):
            raise ProgramError(f"{what} is damaged: its tensor {name[:80]!r} lies in {path[:80]!r}, which is not there")
        try:
            check_payload(name, entry, archive.size(members[path]))
        except FieldRefused as reason:
            raise ProgramError(f"{what} is not loaded: {reason}") from reason
        # torch makes one flat tensor of a member, of the dtype of the first that names it.
        if paths.setdefault(path, entry["tensor_meta"]["dtype"]) != entry["tensor_meta"]["dtype"]:
            raise ProgramError(f"{what} is damaged: the tensors in {path[:80]!r} are of several dtypes")
    return set(paths)


def _samples(archive: Archive, members: Mapping[str, str], what: str) -> bytes:
    """Sample inputs are a pickle: kept where it holds plain tensors, else left out, because nothing needs them."""
    if _SAMPLES not in members:
        return b""
    try:
        return _saved(load_tensors(archive.read(members[_SAMPLES]), what, _NotPlain))
    except _NotPlain:
        return b""


class _NotPlain(ProgramError):
    """Sample inputs hold more than tensors, numbers and containers."""


def _old(archive: Archive, members: Mapping[str, str], what: str) -> dict[str, bytes]:
    made = {"version": archive.read(members["version"])[:20] if "version" in members else b""}
    made[_OLD_MODEL] = _dumped(_json(archive, members, _OLD_MODEL, what, checked_program))
    for name in _OLD_PICKLES:
        data = archive.read(members[name]) if name in members else b""
        made[name] = _saved(load_tensors(data, f"{what} ({name})", ProgramError)) if data else b""
    odd = sorted(set(members) - set(made) - {n for n in members if n.startswith("extra_files/")})
    if odd:
        raise _foreign(what, odd[0])
    return made


def _saved(tree: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(tree, stream)
    return stream.getvalue()


def _dumped(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, allow_nan=False).encode()


def _zipped(members: Mapping[str, bytes], folder: str) -> io.BytesIO:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as target:
        for name, data in members.items():
            target.writestr(folder + name, data)
    made.seek(0)
    return made
