"""The table of transforms: how each is applied, beside the plain program that it must equal.

The plain reference of ``vmap`` is the loop, of a derivative ``torch.autograd`` run backwards row by row, of
``compile``, ``export`` and ``functional_call`` the program itself. A composition composes on both sides:
``vmap(grad)`` is compared with the loop over plain gradients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.errors import InputError
from driftscope.transforms import derivatives
from driftscope.transforms import torch_internals as internals
from driftscope.transforms.world.trace import Bounded

Function = Callable[..., Any]


@dataclass(frozen=True)
class CheckSetting:
    """What the transforms of one check share.

    Parameters
    ----------
    in_dims : tuple
        One entry per argument.
    randomness : str
    size : int
        Number of examples.
    composed : bool
        Whether several transforms are composed.
    """

    in_dims: tuple[Any, ...]
    randomness: str
    size: int
    composed: bool = False

    @property
    def around(self) -> CheckSetting:
        """The setting of a ``vmap`` around another one: it maps a new leading axis of size 2."""
        outer = internals.tree_map(lambda d: 0, self.in_dims, is_leaf=lambda d: isinstance(d, int))
        return CheckSetting(outer, self.randomness, 2, self.composed)


@dataclass(frozen=True)
class Level:
    """One transform of a composition, with its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """``"map"``, ``"derivative"``, ``"compile"``, ``"export"`` or ``"call"``."""
        return KINDS[self.name].kind


@dataclass(frozen=True)
class TransformKind:
    """A transform: ``lift(function, level, setting)`` applies it, ``plain`` builds its reference."""

    kind: str
    lift: Callable[[Function, Level, CheckSetting], Function]
    plain: Callable[[Function, Level, CheckSetting], Function]


def _lift_vmap(function: Function, level: Level, setting: CheckSetting) -> Function:
    randomness = level.options.get("randomness", setting.randomness)
    chunk = level.options.get("chunk_size")

    def mapped(*args: Any) -> Any:
        return torch.vmap(function, in_dims=setting.in_dims, randomness=randomness, chunk_size=chunk)(*args)

    return mapped


def _plain_vmap(function: Function, level: Level, setting: CheckSetting) -> Function:
    def looped(*args: Any) -> Any:
        return stacked([function(*one) for one in slices_of(args, setting.in_dims, setting.size)])

    return looped


def slices_of(args: tuple[Any, ...], in_dims: tuple[Any, ...], size: int) -> list[tuple[Any, ...]]:
    """Return the arguments of each example: views, as indexing the batch gives them.

    An argument without a mapped tensor is passed as it is, the same object to every example, as a loop would.
    """
    columns = [_one_argument(arg, dim, size) for arg, dim in zip(args, in_dims, strict=True)]
    return [tuple(one) for one in zip(*columns, strict=True)]


def _one_argument(arg: Any, in_dim: Any, size: int) -> list[Any]:
    leaves, spec = internals.tree_flatten(arg)
    dims = internals.broadcast_to(in_dim, spec)
    if dims is None:
        raise InputError(f"in_dims entry {in_dim!r} does not fit the structure of its argument")
    if all(d is None for d in dims):
        return [arg] * size
    return [
        internals.tree_unflatten([x if d is None else x.select(d, i) for x, d in zip(leaves, dims, strict=True)], spec)
        for i in range(size)
    ]


@dataclass(frozen=True)
class Ragged:
    """Results of examples that do not stack: their shapes, or their structures, differ."""

    results: tuple[Any, ...]


def stacked(results: list[Any]) -> Any:
    """Stack the results of the examples leaf by leaf, or keep them as :class:`Ragged`."""
    flat = [internals.tree_flatten(result) for result in results]
    first_spec = flat[0][1]
    if any(spec != first_spec for _, spec in flat):
        return Ragged(tuple(results))
    leaves: list[Any] = []
    for column in zip(*(leaves for leaves, _ in flat), strict=True):
        if all(isinstance(x, torch.Tensor) for x in column):
            if len({(x.shape, x.dtype) for x in column}) > 1:
                return Ragged(tuple(results))
            leaves.append(torch.stack(list(column)))
        elif all(isinstance(x, (int, float, bool, complex)) for x in column):
            leaves.append(torch.tensor(column, dtype=torch.float64 if isinstance(column[0], float) else None))
        else:
            leaves.append(list(column))
    return internals.tree_unflatten(leaves, first_spec)


def _lift_compile(function: Function, level: Level, setting: CheckSetting) -> Function:
    # On its own with AOTAutograd, which changes semantics and costs little; inside a composition Dynamo alone, because
    # AOTAutograd refuses tensors of the other transforms' levels.
    backend = level.options.get("backend", "eager" if setting.composed else "aot_eager")
    compiled: Function = torch.compile(function, backend=backend, fullgraph=level.options.get("fullgraph", False))
    return compiled


class _Wrapped(torch.nn.Module):
    """A function as a module, for the transforms that take modules alone."""

    def __init__(self, function: Function):
        super().__init__()
        self.wrapped = function if isinstance(function, torch.nn.Module) else None
        self._call = function

    def forward(self, *args: Any) -> Any:
        return self._call(*args)


def _lift_export(function: Function, level: Level, setting: CheckSetting) -> Function:
    module = function if isinstance(function, torch.nn.Module) else _Wrapped(function)
    programs: list[Function] = []

    def exported(*args: Any) -> Any:
        if not programs:
            strict = bool(level.options.get("strict", False))
            programs.append(torch.export.export(module, args, strict=strict).module())
        return programs[0](*args)

    return exported


def _lift_call(function: Function, level: Level, setting: CheckSetting) -> Function:
    inner = function.function if isinstance(function, Bounded) else function
    module = inner if isinstance(inner, torch.nn.Module) else _Wrapped(function)
    values = {name: value.detach().clone() for name, value in module.named_parameters()}

    def called(*args: Any) -> Any:
        return torch.func.functional_call(module, values, args)

    return Bounded(called, function.trace) if isinstance(function, Bounded) and module is inner else called


def _same(function: Function, level: Level, setting: CheckSetting) -> Function:
    return function


def _derivative(name: str) -> TransformKind:
    def lifted(function: Function, level: Level, setting: CheckSetting) -> Function:
        return derivatives.LIFTED[name](function)

    def plainly(function: Function, level: Level, setting: CheckSetting) -> Function:
        return derivatives.PLAIN[name](function)

    return TransformKind("derivative", lifted, plainly)


KINDS: dict[str, TransformKind] = {
    "vmap": TransformKind("map", _lift_vmap, _plain_vmap),
    **{name: _derivative(name) for name in ("grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "linearize")},
    "functional_call": TransformKind("call", _lift_call, _same),
    "compile": TransformKind("compile", _lift_compile, _same),
    "export": TransformKind("export", _lift_export, _same),
}

DEFAULT_TRANSFORMS = ("vmap", "grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian", "functional_call")


def lift(function: Function, levels: tuple[Level, ...], setting: CheckSetting) -> Function:
    """Apply the transforms, innermost first."""
    setting = dataclasses.replace(setting, composed=len(levels) > 1)
    for level in reversed(levels):
        function = KINDS[level.name].lift(function, level, setting)
        setting = setting.around if level.kind == "map" else setting
    return function


def plain(function: Function, levels: tuple[Level, ...], setting: CheckSetting) -> Function:
    """Build the plain program that the transforms must equal."""
    for level in reversed(levels):
        function = KINDS[level.name].plain(function, level, setting)
        setting = setting.around if level.kind == "map" else setting
    return function


def plain_key(levels: tuple[Level, ...]) -> tuple[str, ...]:
    """Name the plain reference: levels that change nothing are left out, so that compositions share references."""
    names = [level.name for level in levels if level.kind in ("map", "derivative")]
    return tuple("jvp" if name == "linearize" else name for name in names)


def arguments_for(levels: tuple[Level, ...], examples: tuple[Any, ...], setting: CheckSetting) -> list[tuple[Any, ...]]:
    """Return the arguments of each call: the batch under ``vmap``, else one example, or all where calls repeat."""
    maps = sum(level.kind == "map" for level in levels)
    if not maps:
        size = setting.size if levels[0].kind in ("compile", "export", "call") else 1
        return slices_of(examples, setting.in_dims, size)
    batch = examples
    for _ in range(maps - 1):
        batch = tuple(_doubled(arg, dim) for arg, dim in zip(batch, setting.in_dims, strict=True))
        setting = setting.around
    return [batch]


def _doubled(arg: Any, in_dim: Any) -> Any:
    """Give the mapped tensors of an argument another leading axis: the batch, and the batch backwards."""
    leaves, spec = internals.tree_flatten(arg)
    dims = internals.broadcast_to(in_dim, spec) or []
    both = [x if d is None else torch.stack([x, x.flip(d)]) for x, d in zip(leaves, dims, strict=True)]
    return internals.tree_unflatten(both, spec)
