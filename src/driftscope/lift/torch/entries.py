"""The data of a tape: values, entries, and the facts of an operator's schema that recording and replay share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from driftscope.records.finding import Where

COMPLEX = {torch.complex32: torch.complex128, torch.complex64: torch.complex128}
#: Where torch keeps the operators that it dispatches to kernels of its own.
ATEN_NAMESPACES = frozenset({"aten", "prims", "prim"})
#: Operators that hand out memory as it is: whatever it holds decides nothing.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"})
FLOAT8 = frozenset(getattr(torch, n) for n in dir(torch) if n.startswith("float8_"))

# Mutations that a schema does not declare: running statistics are written when `training` is set.
_UNDECLARED = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
}


def lifted_dtype(dtype: torch.dtype) -> torch.dtype:
    """Give the dtype in which a value of native format `dtype` is lifted."""
    if dtype.is_complex:
        return COMPLEX.get(dtype, dtype)
    return torch.float64 if dtype.is_floating_point else dtype


@dataclass(frozen=True, slots=True)
class Ref:
    """Stands in an entry's arguments for the value of that number."""

    value: int


@dataclass(slots=True)
class TensorValue:
    """What a recording knows of one tensor value.

    Parameters
    ----------
    id : int
        Its number.
    name : str
        Its name in the tape: the step that made it, the parameter or the input that it is.
    format : torch.dtype
        Native dtype.
    shape, strides : tuple of int
        Native geometry; strides are kept by the replay so that views mean the same.
    device : torch.device
        Where it natively lies.
    storage : int
        Number of the native storage; values that share one are aliases.
    dependent : bool
        Whether it depends on an input value.
    offset : int
        Where in the native storage it begins.
    copied : bool
        Whether `stored` is a copy, in memory of its own.
    stored : torch.Tensor or None
        Its native bits, kept for inputs, captured tensors and constants that dependent entries use.
    """

    id: int
    name: str
    format: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device
    storage: int
    dependent: bool
    offset: int = 0
    copied: bool = False
    stored: torch.Tensor | None = None


@dataclass(slots=True)
class CallPlace:
    """Where an entry was called from, as far as it is known."""

    module: str | None = None
    file: str | None = None
    line: int | None = None
    expression: str | None = None
    operator: str = ""


@dataclass(slots=True)
class AtenCall:
    """One ATen call.

    Parameters
    ----------
    index : int
    name : str
        Unique in the tape.
    operator : torch._ops.OpOverload
        What was called.
    function : torch._ops.OpOverload
        What is evaluated: the functional form of an in-place or ``out=`` call, else `operator` itself.
    args, kwargs
        Arguments of `function`, with :class:`Ref` in the place of tensors.
    outputs : list of int or None
        Values made (or written) by it; None for results that are no tensors.
    writes : frozenset of int
        Positions in `outputs` that are written into existing, aliased memory.
    constant : bool
    place : CallPlace
    """

    index: int
    name: str
    operator: Any
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[int | None]
    constant: bool
    place: CallPlace
    writes: frozenset[int] = frozenset()
    _where: Where | None = field(default=None, repr=False)

    @property
    def where(self) -> Where:
        """The place in the words of a finding."""
        if self._where is None:
            p = self.place
            expression = p.expression or _source_line(p.file, p.line)
            operator = p.operator or f"{self.operator.namespace}.{self.facts.name}"
            self._where = Where(None, self.name, operator, p.module, p.file, p.line, expression)
        return self._where

    @property
    def facts(self) -> Facts:
        """The facts of the evaluated function."""
        return facts_of(self.function)

    @property
    def random(self) -> bool:
        """Whether it draws numbers: attention and dropout have kernels that could, and do not in evaluation."""
        drawn = [self.argument(n) for n in ("dropout_p", "p", "train", "training") if n in self.facts.types]
        return self.facts.random and all(drawn)

    def argument(self, name: str) -> Any:
        """Give an argument by its schema name, the default where it was not given."""
        return self.facts.pick(name, self.args, self.kwargs)


@dataclass(slots=True)
class Tape:
    """A recorded run.

    Parameters
    ----------
    entries : list of AtenCall
    values : list of TensorValue
    inputs, captured : list of int
        Values that are inputs, and tensors that came from outside.
    unnamed : set of int
        Captured values that are no parameters, buffers, attributes or literals.
    written : set of int
        Storages that the replay writes into.
    folded : set of int
        Constant entries that write into memory which others see; they are never evaluated again.
    snapshots : dict of int to (torch.Tensor, list of int)
        For entries that bring constant memory into the replay: its native content, and the offset of each view.
    rounds : callable or None
        ``rounds(call, rounding)``: how another library than torch, whose calls these stand for, rounds.
    edited : dict of int to int
        For entries that read integers as floats, the float whose bits those integers were made of.
    growths : dict of int to float
        For entries of linear algebra, what was measured of how their kernels round.
    """

    entries: list[AtenCall] = field(default_factory=list)
    values: list[TensorValue] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    captured: list[int] = field(default_factory=list)
    unnamed: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    folded: set[int] = field(default_factory=set)
    snapshots: dict[int, tuple[torch.Tensor, list[int]]] = field(default_factory=dict)
    growths: dict[int, float] = field(default_factory=dict)
    rounds: Callable[[Any, Any], Any] | None = None
    edited: dict[int, int] = field(default_factory=dict)

    def device_of(self, entry: AtenCall) -> str:
        """Where a call natively ran, as torch names it."""
        made = next((number for number in entry.outputs if number is not None), None)
        return "cpu" if made is None else self.values[made].device.type

    def to_processor(self) -> None:
        """Bring what is kept to the processor, where all is evaluated: not every device has float64, or room for it."""
        if all(value.device.type in _HERE for value in self.values):
            return
        copies: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        for value in self.values:
            if value.stored is not None:
                value.stored = _on_processor(value.stored, copies)
        self.snapshots = {k: (_on_processor(whole, copies), at) for k, (whole, at) in self.snapshots.items()}
        for entry in self.entries:
            entry.args = tuple(_without_device(arg) for arg in entry.args)
            entry.kwargs = {name: _without_device(given) for name, given in entry.kwargs.items()}


# Tensors on "meta" have a shape alone.
_HERE = ("cpu", "meta")


def _on_processor(tensor: torch.Tensor, copies: dict[tuple[int, torch.dtype], torch.Tensor]) -> torch.Tensor:
    """A tensor on the processor, in its own strides; tensors that share memory share it there too."""
    if tensor.device.type in _HERE:
        return tensor
    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    if tensor.is_conj() or tensor.is_neg() or count < tensor.numel():  # not every device shows its memory
        return tensor.cpu()
    key = storage._cdata, tensor.dtype
    if key not in copies:
        copies[key] = tensor.detach().as_strided((count,), (1,), 0).cpu()
    return copies[key].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _without_device(argument: Any) -> Any:
    return torch.device("cpu") if isinstance(argument, torch.device) and argument.type not in _HERE else argument


def _source_line(file: str | None, line: int | None) -> str | None:
    if file is None or line is None:
        return None
    import linecache

    return linecache.getline(file, line).strip() or None


@dataclass(frozen=True, slots=True)
class Facts:
    """What an operator's schema says.

    Parameters
    ----------
    name : str
        Without namespace and overload.
    positions : dict of str to int
        Place of each positional argument.
    defaults : dict
    types : dict of str to str
        Schema type of each argument.
    writes : tuple of str
        Arguments that it writes to.
    view : bool
        Whether it returns a view of an argument.
    restrides : bool
        Whether it changes an argument's geometry in place (``t_``).
    random : bool
    pointwise : bool
    """

    name: str
    positions: dict[str, int]
    defaults: dict[str, Any]
    types: dict[str, str]
    writes: tuple[str, ...]
    view: bool
    restrides: bool
    random: bool
    pointwise: bool

    def pick(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give an argument by name from positional and keyword arguments."""
        if name in kwargs:
            return kwargs[name]
        position = self.positions.get(name, len(args))
        return args[position] if position < len(args) else self.defaults.get(name)

    def names(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
        """Pair the given arguments with their names."""
        return [(n, args[p]) for n, p in self.positions.items() if p < len(args)] + list(kwargs.items())


@functools.cache
def facts_of(operator: Any) -> Facts:
    """Read an operator's schema once."""
    schema = operator._schema
    tags = operator.tags
    arguments = schema.arguments
    positional = [a.name for a in arguments if not a.kwarg_only]
    name = schema.name.split("::")[-1]
    if name in ("view", "view_copy") and "dtype" in positional:
        name = "view_dtype"  # the bits as another format: what it gives has nothing to do with a view's
    declared = tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write)
    restrides = torch.Tag.inplace_view in tags
    return Facts(
        name=name,
        positions={n: i for i, n in enumerate(positional)},
        defaults={a.name: a.default_value for a in arguments if a.has_default_value()},
        types={a.name: str(a.type) for a in arguments},
        writes=() if restrides else declared + _UNDECLARED.get(name, ()),
        view=any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        restrides=restrides,
        random=torch.Tag.nondeterministic_seeded in tags,
        pointwise=torch.Tag.pointwise in tags,
    )


@functools.cache
def functional_form(operator: Any) -> Any | None:
    """Find the overload that returns what an in-place or ``out=`` overload writes; None if there is none."""
    schema = operator._schema
    out = [a.name for a in schema.arguments if a.kwarg_only and a.alias_info is not None and a.alias_info.is_write]
    wanted = [(a.name, str(a.type)) for a in schema.arguments if a.name not in out]
    namespace, name = schema.name.split("::")
    stem = name if out else name.removesuffix("_")
    packet = getattr(getattr(torch.ops, namespace), stem, None)
    if packet is None:
        return None
    for overload in packet.overloads():
        candidate = getattr(packet, overload)
        arguments = candidate._schema.arguments
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
        if not writes and [(a.name, str(a.type)) for a in arguments] == wanted:
            return candidate
    return None


def tensors_in(tree: Any) -> list[Any]:
    """List the tensors in an operator's result, in order; None where it has no tensor in a tensor's place."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (list, tuple)):
        return [t for item in tree for t in tensors_in(item)]
    return [None]


def references(*trees: Any) -> list[int]:
    """List the values that argument trees refer to."""
    found: list[int] = []
    for tree in trees:
        if isinstance(tree, Ref):
            found.append(tree.value)
        elif isinstance(tree, (list, tuple)):
            found.extend(references(*tree))
        elif isinstance(tree, dict):
            found.extend(references(*tree.values()))
    return found
