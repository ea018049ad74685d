"""Which axes of a program's inputs and outputs are its batch, and rows taken out, repeated and replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from driftscope.errors import InputError
from driftscope.invariance.running import Leaves, Runner
from driftscope.records.words import counted


@dataclass(frozen=True, slots=True)
class FoldedRows:
    """An axis with several entries for each row of the batch.

    Parameters
    ----------
    entries : int
        For each row.
    outermost : bool
        Whether those of a row stand together.
    """

    entries: int
    outermost: bool

    def entries_of(self, rows: torch.Tensor, length: int) -> torch.Tensor:
        """Return where the entries of these rows stand in an axis of this length."""
        inner = torch.arange(self.entries, device=rows.device)
        count = length // self.entries
        if self.outermost:
            return (rows[:, None] * self.entries + inner).flatten()
        return (inner[:, None] * count + rows).flatten()


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The batch of a program.

    Parameters
    ----------
    inputs : mapping of int to int
        Position of an input tensor to its batch axis.
    outputs : mapping of int to int
        The same for outputs.
    count : int
        Rows of the inputs as given.
    runner : Runner
    resizable : bool
        Whether the program takes another number of rows.
    refusal : str
        What it says when it does not.
    folded : mapping of int to FoldedRows
        Outputs in whose batch axis each row has several entries, as scores of shape (rows x positions, classes).
    """

    inputs: Mapping[int, int]
    outputs: Mapping[int, int]
    count: int
    runner: Runner
    resizable: bool = True
    refusal: str = ""
    folded: Mapping[int, FoldedRows] = field(default_factory=dict)

    def select(self, k: int, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """Return these rows of an output; a row may stand there more than once."""
        dim, index = self.outputs[k], torch.tensor(list(order), device=x.device)
        if k in self.folded:
            index = self.folded[k].entries_of(index, x.shape[dim])
        return x.index_select(dim, index)

    @property
    def words(self) -> str:
        """The axes, as ``batch=`` takes them, and those of the outputs."""
        given = [f"{self.runner.names[k]}={dim}" for k, dim in self.inputs.items()]
        leaves = self.runner.base.leaves
        found = [f"{leaves[k][0]}: axis {dim}{self._entries(k)}" for k, dim in self.outputs.items()]
        return ", ".join([*given, *found])

    def _entries(self, k: int) -> str:
        return f" ({self.folded[k].entries} entries for each row)" if k in self.folded else ""

    def taking(self, order: Sequence[int]) -> dict[int, torch.Tensor]:
        """Return the inputs with these rows, in this order; a row may stand there more than once."""
        return take(self.runner.tensors, self.inputs, order)


def take(tensors: Sequence[torch.Tensor], dims: Mapping[int, int], order: Sequence[int]) -> dict[int, torch.Tensor]:
    """Select along one axis of each tensor."""
    index = torch.tensor(list(order))
    return {k: tensors[k].index_select(dim, index.to(tensors[k].device)) for k, dim in dims.items()}


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits; NaNs count as equal whatever their payload."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_quantized or one.layout is not torch.strided:
        return bool(one.is_quantized and other.is_quantized and torch.equal(one.int_repr(), other.int_repr()))
    one, other = one.detach().resolve_conj().resolve_neg(), other.detach().resolve_conj().resolve_neg()
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if not one.is_floating_point() or one.element_size() == 1:
        return bool(torch.equal(one, other))
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    alike = one.contiguous().view(whole) == other.contiguous().view(whole)
    return bool((alike | (one.isnan() & other.isnan())).all())


def find_rows(runner: Runner, asked: object = None) -> BatchRows | str:
    """Find the batch of a program by running it on one row (two, where one is given).

    Parameters
    ----------
    runner : Runner
    asked : str, mapping or None
        ``"x=0,mask=0"``: name of input to its axis. None takes axis 0 of every input that has the commonest length
        there, or axis 1 where modules say ``batch_first=False`` and rows meet along axis 0.

    Returns
    -------
    Rows or str
        Or why there is no batch.

    Raises
    ------
    InputError
        If an axis that was asked for does not exist, or the lengths differ.
    """
    if asked is not None:
        return _rows_along(runner, read_axes(asked, runner, "batch"))
    found = [_rows_along(runner, dims) for dims in _guesses(runner)]
    usable = [rows for rows in found if isinstance(rows, BatchRows) and rows.resizable]
    if not found:
        return "no input has an axis that could be a batch; name it, as batch='x=0'"
    # Of several possible axes the batch is the one along which rows do not meet.
    apart = usable if len(usable) < 2 else [rows for rows in usable if not _meet(rows)]
    return (apart or usable or found)[0]


def _rows_along(runner: Runner, dims: Mapping[int, int]) -> BatchRows | str:
    counts = {runner.tensors[k].shape[dim] for k, dim in dims.items()}
    if len(counts) > 1:
        raise InputError(f"batch: the axes named have different lengths, {', '.join(map(str, sorted(counts)))}")
    (count,) = counts
    if count == 0:
        return "the batch is empty"
    order = [0] if count > 1 else [0, 0]
    probe = runner.run(take(runner.tensors, dims, order))
    if not probe.ran:
        guessed = {
            k: 0 for k, (_, x) in enumerate(runner.base.leaves)
            if isinstance(x, torch.Tensor) and x.dim() and x.shape[0] == count and count > 1
        }  # fmt: skip
        if not guessed:
            return f"it does not run on {len(order)} row{'s'[: len(order) - 1]}: {probe.refusal}"
        return BatchRows(dims, guessed, count, runner, False, probe.refusal)
    outputs = _following(runner.base.leaves, probe.leaves, count, len(order))
    folded: dict[int, FoldedRows] = {}
    if not outputs:
        outputs, folded = _folded(runner.base.leaves, probe.leaves, count, len(order))
    if not outputs:
        return _unfollowed(runner.base.leaves, probe.leaves, count, len(order))
    return BatchRows(dims, outputs, count, runner, folded=folded)


def _unfollowed(base: Leaves, probe: Leaves, count: int, probed: int) -> str:
    """Say of what shapes the outputs were, where none has one row for each of the batch."""
    shapes = [
        f"{path} is {_shape(one)} for {counted(count, 'row')} and {_shape(other)} for {probed}"
        for (path, one), (_, other) in zip(base, probe, strict=False)
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    ]
    return f"no output has one axis with an entry for each row: {shapes[0]}" if shapes else "no output is a tensor"


def _shape(x: torch.Tensor) -> str:
    return "x".join(map(str, x.shape)) or "a scalar"


def _guesses(runner: Runner) -> Iterator[dict[int, int]]:
    """Yield what may be the batch: axis 0 of inputs of one length; axis 1 where modules are told ``batch_first=False``.

    Where the program takes no other number of rows in all of them, one input may be a weight that happens to be as
    long; each is then tried alone.
    """
    leading = _leading(runner.tensors)
    if not leading:
        return
    yield leading
    count = runner.tensors[next(iter(leading))].shape[0]
    if len(leading) > 1 and not runner.run(take(runner.tensors, leading, [0] if count > 1 else [0, 0])).ran:
        yield from ({k: dim} for k, dim in leading.items())
        yield from _of_one_length(runner.tensors)
    if _sequence_first(runner):
        lengths = Counter(x.shape[1] for x in runner.tensors if x.dim() >= 3)
        for length, _ in lengths.most_common(1):
            second = {k: 1 for k, x in enumerate(runner.tensors) if x.dim() >= 3 and x.shape[1] == length}
            masks = {k: 0 for k, x in enumerate(runner.tensors) if x.dim() in (1, 2) and x.shape[0] == length}
            yield second | {k: dim for k, dim in masks.items() if runner.tensors[k].dim() == 1 or "mask" not in
                            runner.names[k].lower() or runner.tensors[k].shape[1] != length}  # fmt: skip


def _of_one_length(tensors: Sequence[torch.Tensor]) -> Iterator[dict[int, int]]:
    """Yield axis 0 of the first input with the first axis as long of each other one: states are (layers, rows, ...)."""
    first = next((k for k, x in enumerate(tensors) if x.dim()), None)
    length = tensors[first].shape[0] if first is not None else 0
    if length > 1:
        axes = {k: next((d for d, n in enumerate(x.shape) if n == length), None) for k, x in enumerate(tensors)}
        yield {k: d for k, d in axes.items() if d is not None}


def _sequence_first(runner: Runner) -> bool:
    """Whether modules of the program say that the batch is not their first axis."""
    module = getattr(runner.program, "module", None)
    parts = module.modules() if isinstance(module, torch.nn.Module) else ()
    return any(getattr(part, "batch_first", None) is False for part in parts)


def _meet(rows: BatchRows) -> bool:
    """Whether the last row or the first changes when all others are made equal to it."""
    for kept in (rows.count - 1, 0):  # the first step of a sequence does not see the others, the last does
        alike = rows.runner.run(rows.taking([kept] * rows.count))
        for k in rows.outputs:
            one, other = rows.runner.base.leaves[k][1], alike.leaves[k][1] if alike.ran else None
            if other is not None and not same_bits(*(rows.select(k, x, [kept]) for x in (one, other))):
                return True
    return False


def _leading(tensors: Sequence[torch.Tensor]) -> dict[int, int]:
    lengths = Counter(x.shape[0] for x in tensors if x.dim())
    if not lengths:
        return {}
    # Of equally common lengths, the first input's.
    most = max(lengths.values())
    length = next(x.shape[0] for x in tensors if x.dim() and lengths[x.shape[0]] == most)
    return {k: 0 for k, x in enumerate(tensors) if x.dim() and x.shape[0] == length}


def _following(base: Leaves, probe: Leaves, count: int, probed: int) -> dict[int, int]:
    """Return the outputs' axes that went from ``count`` to ``probed``."""
    found = {}
    for k, ((_, one), (_, other)) in enumerate(zip(base, probe, strict=False)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.dim() == other.dim():
            changed = [d for d in range(one.dim()) if one.shape[d] != other.shape[d]]
            if len(changed) == 1 and (one.shape[changed[0]], other.shape[changed[0]]) == (count, probed):
                found[k] = changed[0]
    return found


def _folded(
    base: Leaves, probe: Leaves, count: int, probed: int
) -> tuple[dict[int, int], dict[int, FoldedRows]]:  # fmt: skip
    """Return outputs of which an axis has several entries for each row, and how these lie.

    The values say how: those of the rows that both runs have are alike in one of the two ways.
    """
    axes, found = {}, {}
    for k, ((_, one), (_, other)) in enumerate(zip(base, probe, strict=False)):
        if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor) or one.dim() != other.dim():
            continue
        changed = [d for d in range(one.dim()) if one.shape[d] != other.shape[d]]
        if len(changed) != 1 or one.shape[changed[0]] % count or one.is_complex():
            continue
        dim, entries = changed[0], one.shape[changed[0]] // count
        if other.shape[dim] != entries * probed:
            continue
        ways = [FoldedRows(entries, outermost) for outermost in (True, False)]
        first = torch.zeros(1, dtype=torch.long, device=one.device)
        gaps = []
        for way in ways:
            x, y = (v.index_select(dim, way.entries_of(first, v.shape[dim])).double() for v in (one, other))
            gaps.append(float((x - y).abs().nan_to_num(0.0).sum()))
        axes[k], found[k] = dim, ways[gaps[1] < gaps[0]]
    return axes, found


def read_axes(asked: object, runner: Runner, what: str) -> dict[int, int]:
    """Read ``"x=0,mask=1"`` or a mapping: position of an input to the axis that is meant.

    Raises
    ------
    InputError
        If an input or an axis does not exist.
    """
    pairs = asked.items() if isinstance(asked, Mapping) else _pairs(asked, what)
    found = {}
    for name, axis in pairs:
        if name not in runner.names:
            raise InputError(f"{what}: there is no input {name!r}; there are {', '.join(runner.names)}")
        k = runner.names.index(name)
        dim = runner.tensors[k].dim()
        if not isinstance(axis, int) or not -dim <= axis < dim:
            raise InputError(f"{what}: input {name!r} has {counted(dim, 'axis', 'axes')}, so there is no axis {axis}")
        found[k] = axis % dim
    return found


def _pairs(asked: object, what: str) -> list[tuple[str, int]]:
    found = []
    for part in str(asked).split(","):
        name, equals, axis = part.strip().rpartition("=")
        if not equals or not axis.strip().removeprefix("-").isdecimal():
            raise InputError(f"{what}={asked!r} is not of the form 'x=0,mask=0'")
        found.append((name.strip(), int(axis)))
    return found
