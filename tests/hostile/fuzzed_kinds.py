"""What is fuzzed: for each kind of thing that may be handed over, honest files, how they change, what reads them."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

from driftscope.errors import DriftscopeError, Exit, RuntimeRefused
from driftscope.records.files import stamp
from hostile import exported_files, large_files, mutations, running_kinds

Write = Callable[[int, Path], Path]


class Crash(Exception):
    """A command ended with a traceback, or blamed itself for what the user supplied."""


@dataclass(frozen=True)
class Kind:
    """A kind of thing that may be handed over.

    Parameters
    ----------
    write : callable
        Writes the case of a number.
    act : callable
        Reads it as driftscope does.
    quick : int
        Cases in the slow suite; 0 for what is tried by ``make fuzz`` alone.
    """

    write: Write
    act: Callable[[Path], Any]
    quick: int = 500


def _files(seeds: list[tuple[str, bytes]], change: Callable[[str, bytes, random.Random], bytes]) -> Write:
    def write(number: int, folder: Path) -> Path:
        rng = random.Random(number)
        name, data = rng.choice(seeds)
        path = folder / name
        path.write_bytes(data if number < 0 else change(name, data, rng))
        return path

    return write


def _by_suffix(name: str, data: bytes, rng: random.Random) -> bytes:
    if data[:2] == b"PK" and rng.random() < 0.7:
        return mutations.archive_of(data, rng)
    if name.endswith(".json"):
        return mutations.json_of(data, rng)
    return mutations.bytes_of(data, rng)


def _command(*arguments: object) -> None:
    """Run a command as the command line runs it; a traceback or exit code 3 is a crash."""
    from click.testing import CliRunner

    from driftscope.cli import main

    result = CliRunner().invoke(main, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code == Exit.FAILED or "\x1b[31mred" in result.output:
        raise Crash(result.output[-1500:])
    if result.exit_code == Exit.USAGE:
        raise DriftscopeError(result.output[-200:].replace("\n", " "))


# --- exported programs and ONNX models -------------------------------------------------------------------------------


def _exported() -> Kind:
    from driftscope.programs.loading.pt2 import read_exported

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in exported_files.honest_members().items():
            archive.writestr(name, data)

    def act(path: Path) -> None:
        exported = read_exported(path)
        # What comes after a file was read may fail in torch's words, and may not run code.
        with contextlib.suppress(Exception):
            module = exported.module()
            module(torch.ones(3, 4), {"k": torch.ones(4)})

    return Kind(_files([("a.pt2", stream.getvalue())], _by_suffix), act)


def _scripts() -> Kind:
    """TorchScript files, loaded, held against allowed operators and run as the worker does."""
    from driftscope.programs.runtimes.torchscript import worker

    stream = io.BytesIO()
    torch.jit.save(torch.jit.trace(exported_files.affine(), (torch.ones(3, 4), {"k": torch.ones(4)})), stream)
    calls = re.compile(rb"torch\.\w+|ops\.\w+\.\w+|annotate|_0")

    def change(name: str, data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.5:
            return _by_suffix(name, data, rng)
        # Another call in the code: most of these names exist, some reach files or Python.
        other = rng.choice(
            (b"torch.save", b"torch.from_file", b"ops.aten.from_file", b"ops.prim.PythonOp", b"__torch__.Affine",
             b"torch.mm", b"torch.add", b"torch.cos", b"ops.prim.RaiseException", b"ops.aten.manual_seed",
             b"ops.prim.unchecked_cast")
        )  # fmt: skip
        made = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as target:
            for member in archive.namelist():
                inside = archive.read(member)
                found = list(calls.finditer(inside)) if member.endswith(".py") else []
                if found:
                    at = rng.choice(found)
                    inside = inside[: at.start()] + other + inside[at.end() :]
                target.writestr(member, inside)
        return made.getvalue()

    def act(path: Path) -> None:
        file = worker.ScriptFile(str(path), stamp(path))
        worker.make(0, file)
        with contextlib.suppress(RuntimeRefused):  # TorchScript's own words are an answer
            worker.run(0, file, (torch.ones(3, 4), {"k": torch.ones(4)}), {}, 1)

    return Kind(_files([("a.pt", stream.getvalue())], change), act)


def _models() -> Kind:
    from driftscope.programs.inspection.listing import listing_of
    from driftscope.programs.loading.onnx_files import read_model

    honest = [large_files.nested_functions(3, 2), large_files.long_loop(5), large_files.external("data.bin")]

    def write(number: int, folder: Path) -> Path:
        rng = random.Random(number)
        (folder / "data.bin").write_bytes(bytes(4))
        proto = onnx.ModelProto()
        proto.CopyFrom(rng.choice(honest))
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            mutations.protobuf_of(proto, rng)
        data = proto.SerializeToString()
        path = folder / "a.onnx"
        path.write_bytes(data if rng.random() < 0.7 else mutations.bytes_of(data, rng))
        return path

    def act(path: Path) -> None:
        read_model(path)
        listing_of(path)

    return Kind(write, act)


# --- inputs ----------------------------------------------------------------------------------------------------------


def _inputs() -> Kind:
    import safetensors.torch

    from driftscope.programs.feeding.feeds import make_inputs

    x = {"x": torch.arange(12.0).reshape(3, 4), "n": torch.tensor([1, 2])}
    npz, npy = io.BytesIO(), io.BytesIO()
    np.savez_compressed(npz, **{k: v.numpy() for k, v in x.items()})
    np.save(npy, x["x"].numpy())
    seeds = [
        ("a.npz", npz.getvalue()), ("a.npy", npy.getvalue()),
        ("a.pt", large_files.saved({**x, "more": (1, [2.0, "a"])})),
        ("a.safetensors", safetensors.torch.save(x)), ("a.json", large_files._polygraphy(npy.getvalue())),
    ]  # fmt: skip
    return Kind(_files(seeds, _by_suffix), lambda path: make_inputs(str(path)), 1500)


def _specs() -> Kind:
    from driftscope.programs.feeding.feeds import make_inputs

    honest = ("4x64:float32", "2x3:int64:randint(0,9)", "():bool", "3:float32:uniform(-1,1)", "2x2:bfloat16:full(3)")

    def write(number: int, folder: Path) -> Path:
        rng = random.Random(number)
        text = rng.choice(honest)
        if rng.random() < 0.3:
            odd = rng.choice(mutations.TEXTS)
            text = rng.choice((text + odd, odd, f"{rng.choice(mutations.NUMBERS)}x{text}"))
        else:
            text = mutations.bytes_of(text.encode(), rng).decode("utf-8", "replace")
        path = folder / "spec.txt"
        path.write_text(text[:5000].replace("\ud800", "?"), encoding="utf-8")
        return path

    return Kind(write, lambda path: make_inputs({"x": path.read_text(encoding="utf-8")}), 1500)


# --- records, run stores, studies, commands --------------------------------------------------------------------------


def _records() -> Kind:
    from driftscope.report.pages import page
    from record_examples import ALL

    seeds = []
    for number, record in enumerate(make() for make in ALL.values()):
        seeds.append((f"r{number}.json", json.dumps(record.to_dict()).encode()))
        seeds.append((f"r{number}.html", page.render(record).encode()))

    def act(path: Path) -> None:
        _command("report", path)

    return Kind(_files(seeds, _by_page), act)


def _by_page(name: str, data: bytes, rng: random.Random) -> bytes:
    if name.endswith(".json"):
        return mutations.json_of(data, rng)
    opening = b'<script type="application/json"'
    at = data.find(b">", data.find(opening)) + 1
    end = data.find(b"</script>", at)
    if rng.random() < 0.8:
        return data[:at] + mutations.json_of(data[at:end], rng) + data[end:]
    return mutations.bytes_of(data, rng) if rng.random() < 0.7 else opening * 5000


def _stores(folder: Path) -> Kind:
    honest = folder / "honest"
    (folder / "cells.py").write_text("def cell(a, b):\n    return {'sum': a + b, 'name': str(a)}\n")
    (folder / "s.yaml").write_text("study: s\ncell: cells.py:cell\naxes: {a: [1, 2], b: [3, 4]}\n")
    _command("study", folder / "s.yaml", "--store", honest, "--workers", "0")
    files = sorted(path for path in honest.rglob("*") if path.is_file())
    assert files, "no run was stored"

    def write(number: int, place: Path) -> Path:
        rng = random.Random(number)
        store = place / "store"
        chosen = rng.choice(files)
        for path in files:
            target = store / path.relative_to(honest)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            target.write_bytes(_lines(data, rng) if path == chosen else data)
        return store

    def act(store: Path) -> None:
        before = {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}
        with contextlib.suppress(DriftscopeError):
            _command("runs", "list", "--store", store)
        with contextlib.suppress(DriftscopeError):
            _command("runs", "query", "select * from rows", "--store", store)
        if before != {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}:
            raise Crash("a reader changed what it read")
        _command("runs", "show", files[0].relative_to(honest).parts[0], "--store", store)

    return Kind(write, act, 100)


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    if len(lines) > 2 and rng.random() < 0.7:
        at = rng.randrange(len(lines))
        lines[at] = mutations.json_of(lines[at] or b"{}", rng)
        return b"\n".join(lines)
    return mutations.json_of(data, rng)


def _studies() -> Kind:
    from driftscope.studies.user_studies import load

    yaml = b"study: s\ncell: cells.py:cell\naxes:\n  a: [1, 2]\n  b: [x, 0.5, null]\nseed: 3\nseconds: 5\nkeys: [a]\n"
    toml = b"cell = 'cells.py:cell'\nseed = 3\n[axes]\na = [1, 2]\nb = ['x', 0.5]\n[fixed]\nc = 1\n"

    def write(number: int, folder: Path) -> Path:
        rng = random.Random(number)
        (folder / "cells.py").write_text("def cell(**coordinates):\n    return {}\n")
        name, data = rng.choice((("s.yaml", yaml), ("s.toml", toml)))
        words = data.split(b" ")
        if rng.random() < 0.5:
            words[rng.randrange(len(words))] = rng.choice(
                (b"!!python/name:os.system", b"&a [*a]", b"*a", b"cell: os:system\n",
                 *(t.encode("utf-8", "replace") for t in mutations.TEXTS))
            )  # fmt: skip
        (folder / name).write_bytes(b" ".join(words) if rng.random() < 0.6 else mutations.bytes_of(data, rng))
        return folder / name

    return Kind(write, load)


def _commands() -> Kind:
    """Options of ``compare``, ``shapes``, ``transforms``, ``reveal`` and ``study`` that end before anything is run."""
    honest = (
        ["compare", "a.onnx", "a.onnx", "--input", "x=4x8:float32", "--level", "all"],
        ["shapes", "model.pt2", "--input", "x=4x8:float32", "--target", "onnx"],
        ["transforms", "math:nothing", "--input", "4x8:float32"],
        ["reveal", "torch.nothing", "--n", "16"],
        ["report", "nothing.json"],
        ["rule", "N001"],
        ["rule", "--json"],
    )

    def write(number: int, folder: Path) -> Path:
        rng = random.Random(number)
        words = list(rng.choice(honest))
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(1, len(words))
            change = rng.choice((*mutations.TEXTS, *map(str, mutations.NUMBERS), "--json", "-o", "--seed", "--dynamic"))
            if change == "builtins:CANARY":  # what a user types as code is code
                continue
            words[at : at + rng.choice((0, 1))] = [change.replace("\0", "").replace("\ud800", "")[:5000]]
        path = folder / "words.json"
        path.write_text(json.dumps(words))
        return path

    def act(path: Path) -> None:
        words = json.loads(path.read_text())
        with contextlib.chdir(path.parent):
            _command(*words)

    return Kind(write, act)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "exported programs": lambda folder: _exported(),
    "TorchScript files": lambda folder: _scripts(),
    "ONNX models": lambda folder: _models(),
    "inputs": lambda folder: _inputs(),
    "specs": lambda folder: _specs(),
    "records and pages": lambda folder: _records(),
    "run stores": _stores,
    "study files": lambda folder: _studies(),
    "commands": lambda folder: _commands(),
    "ONNX models, compared": lambda folder: Kind(
        running_kinds.write_model, running_kinds.comparing(_command, folder), 25
    ),
    "inputs of transforms": lambda folder: Kind(
        running_kinds.write_inputs, running_kinds.on_inputs(_command, folder, "transforms", "double"), 25
    ),
    "inputs of shapes": lambda folder: Kind(
        running_kinds.write_inputs, running_kinds.on_inputs(_command, folder, "shapes", "halves", "--no-onnx"), 0
    ),
}
