"""Which programs are compared with which: a CSV file with a line for each pair, or the files of a folder by name."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from driftscope.errors import InputError
from driftscope.programs.loading.references import of_python_itself
from driftscope.records.files import bounded_text, stamp

_COLUMNS = ("name", "a", "b", "inputs")
#: Files that are programs, the reference of a name first.
_SUFFIXES = (".pt2", ".onnx")
_LARGEST = 64 << 20


@dataclass(frozen=True, slots=True)
class Pair:
    """Two programs to compare.

    Parameters
    ----------
    a, b : str
        As ``driftscope compare`` takes them; files relative to the list's folder are made absolute.
    inputs : tuple of str
        Specifications or files; empty for the programs' own.
    """

    a: str
    b: str
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PairList:
    """Pairs by name, in order, with a digest of what they say and of which files are there."""

    pairs: Mapping[str, Pair]
    digest: str


def listing_of(source: str) -> PairList:
    """Read a list of pairs, or find the pairs in a folder.

    Parameters
    ----------
    source : str
        A .csv file with the columns ``a`` and ``b`` and, where wanted, ``name`` and ``inputs`` (several separated by
        ``;``). Or a folder: there ``NAME.pt2`` is the reference of ``NAME.onnx``, and the first of them that of every
        ``NAME.SOMETHING.onnx``.

    Raises
    ------
    InputError
        If there is no pair in it, or a line does not name two programs.
    """
    path = Path(source).resolve()
    if not path.exists():
        raise InputError(f"there is no list or folder {source!r}")
    pairs = _in_folder(path) if path.is_dir() else _in_list(path)
    if not pairs:
        hint = "NAME.pt2 beside NAME.onnx, or NAME.onnx beside NAME.SOMETHING.onnx" if path.is_dir() else "a line each"
        raise InputError(f"{source!r} holds no pair of programs: they are found as {hint}")
    # A file that was written anew makes other rows; its inode is another's where another machine looks.
    words = sorted({word for pair in pairs.values() for word in (pair.a, pair.b, *pair.inputs)})
    files = [file for word in words if (file := _file_of(word)) is not None]
    said = repr((sorted(pairs.items()), [stamp(file)[1:] for file in files]))
    return PairList(pairs, hashlib.blake2b(said.encode(), digest_size=8).hexdigest())


def _file_of(word: str) -> Path | None:
    """The file that a program or an input is read from, if it is one."""
    home, _, _ = word.rpartition(":")
    return next((path for path in map(Path, (word, home)) if path.is_file()), None)


@functools.lru_cache(maxsize=8)
def known_listing(source: str, _digest: str) -> PairList:
    """Read a list once in each process."""
    return listing_of(source)


def _in_list(path: Path) -> dict[str, Pair]:
    try:
        with io.StringIO(bounded_text(path, _LARGEST).removeprefix("\ufeff"), newline="") as file:
            lines = csv.DictReader(file)
            columns = lines.fieldnames or ()
            unknown = [name for name in columns if name not in _COLUMNS]
            if unknown or not {"a", "b"} <= set(columns) or len(set(columns)) < len(columns):
                raise InputError(
                    f"{str(path)!r} has the columns {', '.join(map(str, columns)) or 'none'}; a list of pairs has a and"
                    " b, and may have name and inputs, each once"
                )
            pairs: dict[str, Pair] = {}
            for line in lines:
                number = lines.line_num  # of the file: empty lines are skipped, and counted by an editor
                a, b = (str(line.get(side) or "").strip() for side in "ab")
                name = str(line.get("name") or "").strip() or f"{a} | {b}"
                own = next((side for side in (a, b) if of_python_itself(side)), None)
                if own is not None:
                    raise InputError(f"line {number} of {str(path)!r}: {own[:80]!r} belongs to Python itself")
                if not a or not b or None in line or name in pairs:
                    wrong = f"repeats the name {name!r}" if name in pairs else "does not name two programs"
                    raise InputError(f"line {number} of {str(path)!r} {wrong}")
                given = [word.strip() for word in str(line.get("inputs") or "").split(";")]
                inputs = tuple(_beside(path.parent, word) for word in given if word)
                pairs[name] = Pair(_beside(path.parent, a), _beside(path.parent, b), inputs)
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(f"cannot read the list {str(path)!r}: {error}") from error
    return pairs


def _beside(folder: Path, word: str) -> str:
    """Make a file that lies beside the list absolute: the comparison may run elsewhere."""
    home, colon, name = word.rpartition(":")
    if colon and home.endswith(".py") and (folder / home).is_file():
        return f"{folder / home}:{name}"
    return str(folder / word) if (folder / word).is_file() else word


def _in_folder(folder: Path) -> dict[str, Pair]:
    files = sorted(p for p in folder.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
    by_name: dict[Path, list[Path]] = {}
    for path in files:
        by_name.setdefault(path.with_suffix(""), []).append(path)
    pairs = {}
    for stem, same in by_name.items():
        first = min(same, key=lambda p: _SUFFIXES.index(p.suffix))
        variants = [p for p in files if p.parent == stem.parent and p.name.startswith(f"{stem.name}.")]
        for other in variants:
            # The variants of NAME.fp16 are its own, not NAME's too.
            nearer = any(len(s.name) > len(stem.name) and other.name.startswith(f"{s.name}.") and len(by_name[s]) > 1
                         for s in by_name if s.parent == stem.parent)  # fmt: skip
            if other != first and not nearer:
                name = str(other.relative_to(folder))
                pairs[name] = Pair(str(first), str(other))
    return pairs
