"""Inputs: a tree of tensors and Python values that can be made again anywhere from its recipe."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.programs.arrays import array_of, dtype_name, library_of, tensor_of
from driftscope.programs.feeding.distributions import DTYPES, Wanted, parse_spec
from driftscope.programs.feeding.files import SUFFIXES, is_input_file, read_inputs
from driftscope.programs.value_trees import flatten, unflatten
from driftscope.records.paths import Path

RECIPE_SCHEMA = "driftscope/inputs/1"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a program is given.

    Parameters
    ----------
    args : tuple
        Positional inputs, a tree of torch tensors, Python values and tensors still to be drawn.
    kwargs : dict
        The same by name.
    seed : int
        Seed of the tensors to be drawn.
    files : tuple of (str, str)
        Paths read and their SHA-256.
    guessed : tuple of str
        Names of drawn integers whose range nobody gave.
    specs : mapping of str to Wanted
        What drawn tensors were drawn from, by path.
    library : str
        ``"torch"``, ``"numpy"`` or ``"jax"`` where arrays of one library were handed over, else empty.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    files: tuple[tuple[str, str], ...] = ()
    guessed: tuple[str, ...] = ()
    specs: Mapping[str, Wanted] = field(default_factory=dict)
    library: str = ""

    @property
    def leaves(self) -> list[tuple[Path, Any]]:
        """Every leaf with its path: ``in[0]``, ``in['mask']``, ``in['cache'].layers[0].keys``."""
        leaves, _ = flatten(self.args, "in")
        return leaves + flatten(self.kwargs, "in")[0]

    @property
    def by_name(self) -> bool:
        """Whether every input is given by name."""
        return bool(self.kwargs) and not self.args

    @property
    def names(self) -> list[str]:
        """Names of the inputs given by name."""
        return list(self.kwargs)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Tensors by path, drawn where needed."""
        return {str(p): v for p, v in self.realise().leaves if isinstance(v, torch.Tensor)}

    def wanted(self) -> list[tuple[Path, Wanted]]:
        """Leaves still to be drawn."""
        return [(path, leaf) for path, leaf in self.leaves if isinstance(leaf, Wanted)]

    def probe(self) -> Inputs:
        """Return the same inputs with integers of unknown range as zeros: indices that are right for any table."""
        return self.mapped(lambda path, leaf: leaf.within(1) if isinstance(leaf, Wanted) else leaf).realise()

    def settle(self, limits: Mapping[str, int]) -> Inputs:
        """Return the same inputs with index ranges taken from ``limits``, by input name."""

        def within(path: Path, leaf: Any) -> Any:
            limit = limits.get(str(path.keys[0])) if path.keys else None
            return leaf.within(limit) if isinstance(leaf, Wanted) and limit is not None else leaf

        return self.mapped(within)

    def realise(self) -> Inputs:
        """Return the same inputs with every tensor drawn."""
        wanted = self.wanted()
        if not wanted:
            return self
        drawn = self.mapped(lambda path, leaf: leaf.draw(self.seed) if isinstance(leaf, Wanted) else leaf)
        guessed = tuple(leaf.name for _, leaf in wanted if not leaf.settled)
        return dataclasses.replace(drawn, guessed=guessed, specs={str(path): leaf for path, leaf in wanted})

    def replacing(self, values: Mapping[int, Any]) -> Inputs:
        """Return the same inputs with some leaves replaced, by the ``id()`` of the leaf."""
        return self.mapped(lambda path, leaf: values.get(id(leaf), leaf))

    def mapped(self, change: Callable[[Path, Any], Any]) -> Inputs:
        """Return the same inputs with ``change(path, leaf)`` in the place of each leaf."""
        parts = []
        for tree in (self.args, self.kwargs):
            leaves, spec = flatten(tree, "in")
            parts.append(unflatten([change(path, leaf) for path, leaf in leaves], spec))
        return dataclasses.replace(self, args=parts[0], kwargs=parts[1])

    @property
    def recipe(self) -> dict[str, Any]:
        """Plain data from which the same inputs can be made again, or at least recognised.

        Drawn tensors keep spec and law, files their path and SHA-256, tensors handed over only shape, dtype and
        SHA-256 of their bytes.
        """
        leaves = []
        for path, leaf in self.leaves:
            name = {"name": str(path.keys[0])} if len(path.keys) == 1 else {}
            leaves.append({"path": str(path), **name, **_leaf_recipe(self.specs.get(str(path), leaf))})
        return {
            "schema": RECIPE_SCHEMA,
            "seed": self.seed,
            "by_name": self.by_name,
            "leaves": leaves,
            "files": [{"path": path, "sha256": digest} for path, digest in self.files],
        }

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any]) -> Inputs:
        """Make the inputs of a record again.

        Raises
        ------
        InputError
            If a file is missing or has changed, or if tensors were handed over, whose values no record holds.
        """
        if recipe.get("schema") != RECIPE_SCHEMA:
            raise InputError(f"this is not a recipe for inputs (schema {recipe.get('schema')!r})")
        seed = int(recipe["seed"])
        inputs = _from_files(recipe["files"], seed) if recipe["files"] else cls(seed=seed)
        known = {str(path) for path, _ in inputs.leaves}
        leaves = [leaf for leaf in recipe["leaves"] if leaf["path"] not in known]
        lost = [leaf["path"] for leaf in leaves if not ("spec" in leaf or ("value" in leaf and "name" in leaf))]
        if lost:
            raise InputError(
                f"the record holds only a checksum of {', '.join(lost)};"
                " give the same tensors again, as a file or by a spec"
            )
        named = {leaf["name"]: _made(leaf) for leaf in leaves if recipe["by_name"]}
        placed = tuple(_made(leaf) for leaf in leaves if not recipe["by_name"])
        return dataclasses.replace(inputs, args=inputs.args + placed, kwargs={**inputs.kwargs, **named})

    def __repr__(self) -> str:
        return f"<Inputs {', '.join(f'{path}: {_words(leaf)}' for path, leaf in self.leaves)}>"


def make_inputs(source: Any = None, *, seed: int = 0) -> Inputs:
    """Make inputs for programs.

    Parameters
    ----------
    source : object
        A tensor or array; a tuple or list of trees (positional); a dict of trees, of spec strings such as
        ``"4x64:float32:uniform(0, 1)"``, or of both (by name); a path to ``.npz``, ``.npy``, ``.pt``,
        ``.safetensors`` or Polygraphy ``.json``; a spec with its name, ``"x=4x64:float32"``; a list of such
        strings; or Inputs.
    seed : int
        Seed of the tensors to be drawn.

    Returns
    -------
    Inputs

    Raises
    ------
    InputError
        One sentence: what could not be read and what would do.
    """
    if isinstance(source, Inputs):
        return source
    if source is None:
        raise InputError("no inputs were given; give tensors, a file, or a spec such as {'x': '4x64:float32'}")
    if isinstance(source, (str, FilePath)):
        return _from_strings([source], seed)
    if isinstance(source, (list, tuple)) and source and all(isinstance(s, (str, FilePath)) for s in source):
        return _from_strings(source, seed)
    if isinstance(source, Mapping):
        named = {_name(k): _value(_name(k), v) for k, v in source.items()}
        return Inputs(kwargs=named, seed=seed, library=library_of(source))
    if isinstance(source, (list, tuple)) and not hasattr(source, "_fields"):
        return Inputs(args=tuple(_tensors(item) for item in source), seed=seed, library=library_of(source))
    return Inputs(args=(_tensors(source),), seed=seed, library=library_of(source))


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise InputError(f"inputs by name need names that are strings, not {key!r}")
    return key


def _value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return parse_spec(name, value)
    return _tensors(value)


def _tensors(tree: Any) -> Any:
    leaves, spec = flatten(tree, "in")
    for _, leaf in leaves:
        if isinstance(leaf, torch.Tensor) and leaf.is_meta:
            raise InputError(f"an input of shape {tuple(leaf.shape)} is on the meta device and has no values")
    return unflatten([tensor_of(leaf) for _, leaf in leaves], spec)


def _from_strings(sources: Sequence[str | FilePath], seed: int) -> Inputs:
    named: dict[str, Any] = {}
    positional: list[Any] = []
    files: list[tuple[str, str]] = []
    for source in sources:
        if is_input_file(source):
            tree, digest = read_inputs(FilePath(source))
            files.append((str(source), digest))
            if isinstance(tree, Mapping):
                named |= {str(k): _tensors(v) for k, v in tree.items()}
            else:
                positional += [_tensors(v) for v in (tree if isinstance(tree, (list, tuple)) else [tree])]
            continue
        name, equals, spec = str(source).partition("=")
        if not equals or not name.strip():
            raise InputError(
                f"{str(source)!r} is neither a file ({', '.join(SUFFIXES)}) nor a spec such as 'x=4x64:float32'"
            )
        if name.strip() in named:
            raise InputError(f"input {name.strip()!r} is given twice")
        named[name.strip()] = parse_spec(name.strip(), spec)
    return Inputs(args=tuple(positional), kwargs=named, seed=seed, files=tuple(files))


def _from_files(files: Sequence[Mapping[str, str]], seed: int) -> Inputs:
    inputs = _from_strings([entry["path"] for entry in files], seed)
    for entry, (path, digest) in zip(files, inputs.files, strict=True):
        if entry["sha256"] != digest:
            raise InputError(f"{path} is not the file of the record: its SHA-256 is {digest}, not {entry['sha256']}")
    return inputs


def _leaf_recipe(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, Wanted):
        return {
            "stream": leaf.name,
            "shape": list(leaf.shape),
            "dtype": dtype_name(leaf.dtype),
            "law": leaf.law,
            "arguments": list(leaf.arguments),
            "spec": str(leaf),
        }
    if isinstance(leaf, torch.Tensor):
        return {"shape": list(leaf.shape), "dtype": dtype_name(leaf.dtype), "sha256": _digest(leaf)}
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return {"value": leaf}
    return {"kind": type(leaf).__name__, "sha256": hashlib.sha256(repr(leaf).encode()).hexdigest()}


def _digest(tensor: torch.Tensor) -> str:
    dense = tensor.detach().cpu()
    if dense.layout is not torch.strided:
        dense = dense.to_dense()
    if dense.is_quantized:
        dense = dense.int_repr()
    return hashlib.sha256(array_of(dense).tobytes()).hexdigest()


def _made(leaf: Mapping[str, Any]) -> Any:
    if "spec" not in leaf:
        return leaf["value"]
    shape, dtype = tuple(leaf["shape"]), DTYPES[leaf["dtype"]]
    return Wanted(leaf["stream"], shape, dtype, leaf["law"], tuple(leaf["arguments"]))


def _words(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{'x'.join(map(str, leaf.shape)) or '()'}:{dtype_name(leaf.dtype)}"
    return str(leaf)
