"""Changes to honest files: of bytes, of JSON trees, of archives, of protobufs; the same for the same number."""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from typing import Any

CODE = "CANARY()"
# Texts that something somewhere may evaluate, format, follow or print.
TEXTS = (
    "", CODE, f"__import__('builtins').{CODE}", f"'+{CODE}+'", f'"+{CODE}+"', f"x\n{CODE}\n", f"[{CODE}]",
    f"lambda: {CODE}", f"{{{CODE}}}", f"${{{CODE}}}", f"{{{{{CODE}}}}}", f"x=({CODE})", "../../x", "/etc/passwd",
    "a\0b", "\x1b[31mred", "\u202e",
    "x" * 100_000, "é" * 300, "9" * 5000, "9**9**9**9", "factorial(9**9)", "nan", "inf", "-0", "1e999", "None", "true",
    "this:d", "builtins:CANARY", "CANARY", "Symbol('s0')", "torch.ops.aten.from_file.default", "torch.hub.load",
    "os:system", "\ud800", "<script>", "%s%n", "__class__", "a.b.c", "s0", "L['x']", "driftscope/comparison/1",
)  # fmt: skip
NUMBERS = (
    0,
    1,
    -1,
    2,
    7,
    255,
    2**31,
    -(2**31),
    2**53,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64,
    10**30,
    0.5,
    -0.0,
    1e308,
    1e-320,
)


def bytes_of(data: bytes, rng: random.Random) -> bytes:
    """Change bytes: flip, overwrite, cut, repeat, insert."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at = rng.randrange(len(out) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64))
        what = rng.randrange(6)
        if what == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            out[at : at + length] = rng.choice((b"\0", b"\xff", b"\x80", b"\x7f")) * length
        elif what == 2:
            del out[at : at + length]
        elif what == 3:
            out[at:at] = out[at : at + length] * rng.choice((1, 2, 50))
        elif what == 4:
            out[at:at] = rng.randbytes(length)
        elif rng.random() < 0.2:
            del out[at:]
    return bytes(out)


def tree_of(tree: Any, rng: random.Random) -> Any:
    """Change a few places of a JSON tree, which is changed and returned."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        places = _places(tree)
        if not places:
            return _value(rng)
        holder, key = rng.choice(places)
        what = rng.randrange(8)
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1 and isinstance(holder, dict):
            holder[rng.choice(TEXTS)] = holder.pop(key)
        elif what == 2 and isinstance(holder, list):
            holder.insert(key, holder[key])
        elif what == 3:
            other, at = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[at])) if key in _keys(holder) and at in _keys(other) else 0
        elif what == 4 and isinstance(holder[key], str):
            holder[key] = bytes_of(holder[key].encode("utf-8", "replace"), rng).decode("utf-8", "replace")
        elif what == 5 and isinstance(holder[key], (int, float)):
            holder[key] = rng.choice(NUMBERS)
        else:
            holder[key] = _value(rng)
    return tree


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _places(tree: Any) -> list[tuple[Any, Any]]:
    places, waiting = [], [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (dict, list)):
            for key in list(_keys(part)):
                places.append((part, key))
                waiting.append(part[key])
    return places


def _value(rng: random.Random) -> Any:
    what = rng.randrange(7)
    if what < 3:
        return rng.choice(TEXTS)
    if what < 5:
        return rng.choice(NUMBERS)
    if what == 5:
        return rng.choice((None, True, False, [], {}, [[]], [None], {"": 0}, {"as_int": 3}, [1, 2, 3]))
    deep: Any = 0
    for _ in range(rng.choice((3, 90, 2000))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    try:
        json.dumps(deep)
    except RecursionError:
        return "[" * 50
    return deep


def json_of(data: bytes, rng: random.Random) -> bytes:
    """Change a text of JSON, as a tree or as bytes."""
    if rng.random() < 0.25:
        return bytes_of(data, rng)
    try:
        return json.dumps(tree_of(json.loads(data), rng)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return bytes_of(data, rng)


def archive_of(data: bytes, rng: random.Random) -> bytes:
    """Change an archive: a member by its kind, its name, its compression, or the bytes of the whole."""
    if rng.random() < 0.15:
        return bytes_of(data, rng)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as source:
            members = [(name, source.read(name)) for name in source.namelist()]
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, zlib.error):
        members = []
    if not members:
        return bytes_of(data, rng)
    for _ in range(rng.choice((1, 1, 2))):
        # Where there is a program among weights, it is the part worth changing.
        at = rng.choice([i for i, (n, _) in enumerate(members) if n.endswith(".json")] or range(len(members)))
        at = at if rng.random() < 0.7 else rng.randrange(len(members))
        name, content = members[at]
        what = rng.randrange(10)
        if what < 6:
            members[at] = (name, json_of(content, rng) if name.endswith(".json") else _inner(content, rng))
        elif what == 6:
            members[at] = (
                rng.choice((name.upper(), name + "x", "../" + name, name.rpartition("/")[2], *TEXTS[:12])),
                content,
            )
        elif what == 7:
            members.append((rng.choice((name, name.swapcase(), name + "/x")), bytes_of(content, rng)))
        elif what == 8:
            members.pop(at)
            if not members:
                members = [("x", b"")]
        else:
            members[at] = (name, rng.choice((b"", b"\0" * 100, content * 3, b"PK\x05\x06" + bytes(18))))
    made = io.BytesIO()
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    with zipfile.ZipFile(made, "w", method) as target:
        for name, content in members:
            target.writestr(name.replace("\ud800", "?") or "x", content)
    return made.getvalue()


def _inner(content: bytes, rng: random.Random) -> bytes:
    return archive_of(content, rng) if content[:2] == b"PK" else bytes_of(content, rng)


def protobuf_of(message: Any, rng: random.Random) -> None:
    """Change a few fields somewhere in a protobuf message, in place."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        part, name, kind = rng.choice(_fields(message))
        value = getattr(part, name)
        repeated = hasattr(value, "extend")
        if repeated and len(value) and rng.random() < 0.5:
            at = rng.randrange(len(value))
            if rng.random() < 0.5:
                del value[at]
            elif kind == "message":
                value.add().CopyFrom(value[at])
            else:
                value[at] = _scalar(kind, rng)
        elif repeated and kind != "message":
            value.append(_scalar(kind, rng))
        elif not repeated and kind == "message":
            part.ClearField(name)
        elif not repeated:
            setattr(part, name, _scalar(kind, rng))


_LIMITS = {"int32": 2**31, "int64": 2**63, "uint64": 2**64, "enum": 30}


def _scalar(kind: str, rng: random.Random) -> Any:
    if kind == "string":
        return rng.choice(TEXTS).encode("utf-8", "replace").decode()
    if kind == "bytes":
        return rng.choice((b"", b"\xff" * 7, rng.randbytes(32), CODE.encode()))
    if kind == "float":
        return rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    limit = _LIMITS[kind]
    return int(
        rng.choice([n for n in NUMBERS if isinstance(n, int) and (0 if kind[0] in "ue" else -limit) <= n < limit])
    )


def _fields(message: Any) -> list[tuple[Any, str, str]]:
    kinds = {
        1: "float",
        2: "float",
        3: "int64",
        4: "uint64",
        5: "int32",
        9: "string",
        11: "message",
        12: "bytes",
        14: "enum",
    }
    found, waiting = [], [message]
    while waiting:
        part = waiting.pop()
        for descriptor in part.DESCRIPTOR.fields:
            kind = kinds.get(descriptor.type)
            if kind is None:
                continue
            found.append((part, descriptor.name, kind))
            if kind == "message":
                value = getattr(part, descriptor.name)
                waiting.extend(value if hasattr(value, "extend") else [value] if part.HasField(descriptor.name) else [])
    return found
