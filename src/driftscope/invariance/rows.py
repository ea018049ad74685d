"""Which axes of a program's inputs and outputs are its batch, and rows taken out, repeated and replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from driftscope.errors import InputError
from driftscope.invariance.running import Leaves, Runner


@dataclass(frozen=True, slots=True)
class Rows:
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
    """

    inputs: Mapping[int, int]
    outputs: Mapping[int, int]
    count: int
    runner: Runner
    resizable: bool = True
    refusal: str = ""

    @property
    def words(self) -> str:
        """The axes, as ``batch=`` takes them, and those of the outputs."""
        given = [f"{self.runner.names[k]}={dim}" for k, dim in self.inputs.items()]
        leaves = self.runner.base.leaves
        return ", ".join([*given, *(f"{leaves[k][0]}: axis {dim}" for k, dim in self.outputs.items())])

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


def find_rows(runner: Runner, asked: object = None) -> Rows | str:
    """Find the batch of a program by running it on one row (two, where one is given).

    Parameters
    ----------
    runner : Runner
    asked : str, mapping or None
        ``"x=0,mask=0"``: name of input to its axis. None takes axis 0 of every input that has the commonest length
        there.

    Returns
    -------
    Rows or str
        Or why there is no batch.

    Raises
    ------
    InputError
        If an axis that was asked for does not exist, or the lengths differ.
    """
    dims = read_axes(asked, runner, "batch") if asked is not None else _leading(runner.tensors)
    if not dims:
        return "no input has an axis that could be a batch; name it, as batch='x=0'"
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
        return Rows(dims, guessed, count, runner, False, probe.refusal)
    outputs = _following(runner.base.leaves, probe.leaves, count, len(order))
    if not outputs:
        return "no output has an axis that follows the batch"
    return Rows(dims, outputs, count, runner)


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
            raise InputError(f"{what}: input {name!r} has {dim} axes, so there is no axis {axis}")
        found[k] = axis % dim
    return found


def _pairs(asked: object, what: str) -> list[tuple[str, int]]:
    found = []
    for part in str(asked).split(","):
        name, equals, axis = part.strip().rpartition("=")
        if not equals or not axis.strip().lstrip("-").isdecimal():
            raise InputError(f"{what}={asked!r} is not of the form 'x=0,mask=0'")
        found.append((name.strip(), int(axis)))
    return found
