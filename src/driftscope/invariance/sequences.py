"""Which axes of a program's inputs and outputs are a sequence, which input marks its padding, and longer sequences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from driftscope.errors import InputError
from driftscope.invariance.rows import BatchRows, read_axes
from driftscope.invariance.running import Runner

#: Names of inputs that hold a mask of something else than padding.
_OTHER_MASKS = ("head_mask", "masked", "perm_mask", "prompt_mask", "causal", "loss_mask")
#: Inputs whose padding must be positions, or what stands beside it; not what a caller would fill padding with.
_POSITIONS, _ORDINAL, _EDGE = "position", ("cache_position",), ("token_type", "segment", "type_id")


@dataclass(frozen=True, slots=True)
class Sequence:
    """The sequence axis of a program and what marks its padding.

    Parameters
    ----------
    inputs : mapping of int to tuple of int
        Position of an input tensor to its axes that are as long as the sequence.
    length : int
        Of the inputs as given.
    mask : int or None
        Position of the input that marks padding.
    marker : float
        What stands in the mask where there is padding.
    kept : torch.Tensor or None
        Batch x length: positions of the inputs as given that are no padding; None where all are kept.
    lengths : bool
        Whether ``mask`` holds the lengths of the rows instead.
    runner : Runner
    """

    inputs: Mapping[int, tuple[int, ...]]
    length: int
    mask: int | None
    marker: float
    kept: torch.Tensor | None
    lengths: bool
    runner: Runner

    @property
    def words(self) -> str:
        """The axes, as ``sequence=`` takes them, and the mask."""
        names = self.runner.names
        axes = ", ".join(f"{names[k]}={dims[0]}" for k, dims in self.inputs.items())
        if self.mask is None:
            return axes
        if self.lengths:
            return f"{axes}; {names[self.mask]} holds the lengths"
        return f"{axes}; {self.marker:g} in {names[self.mask]} marks padding"


def find_sequence(
    runner: Runner, rows: BatchRows | str, asked: object = None, mask: str | None = None
) -> Sequence | str:
    """Find the sequence axis of a program's inputs from its mask, or from what is asked.

    Parameters
    ----------
    runner : Runner
    rows : BatchRows or str
        Its batch, which is no sequence.
    asked : str, mapping or None
        ``"x=1"``: name of input to its sequence axis.
    mask : str or None
        The input that marks padding, and with what: ``"mask"``, ``"mask=0"``, ``"mask=True"``, ``"lengths"``.

    Raises
    ------
    InputError
        If an input or an axis that was asked for does not exist, or lengths differ.
    """
    at, marker = _mask_of(runner, mask)
    named = read_axes(asked, runner, "sequence") if asked is not None else {}
    if at is None and not named:
        return "no input marks padding; name it, as mask='mask', or the sequence axis, as sequence='x=1'"
    lengths = at is not None and _holds_lengths(runner, at)
    batch = dict(rows.inputs) if isinstance(rows, BatchRows) else {}
    length = _length(runner, at, named, batch, lengths)
    if not length:
        return "the sequence has no length that the inputs show; name its axis, as sequence='x=1'"
    inputs: dict[int, tuple[int, ...]] = {k: (dim,) for k, dim in named.items()}
    for k, x in enumerate(runner.tensors):
        if k not in inputs and not (lengths and k == at) and _beside(runner, k, at) and not (named and k != at):
            dims = tuple(d for d in range(x.dim()) if x.shape[d] == length and batch.get(k) != d)
            if dims:
                inputs[k] = dims if k == at else dims[:1]
    if not [k for k in inputs if k != at]:
        return f"no input beside the mask is {length} long; name the sequence axis, as sequence='x=1'"
    value = 0.0 if at is None or lengths else marker if marker is not None else _marker(runner, at)
    return Sequence(inputs, length, at, value, _kept(runner, at, value, length, lengths), lengths, runner)


def _mask_of(runner: Runner, asked: str | None) -> tuple[int | None, float | None]:
    if asked is not None:
        name, equals, value = asked.rpartition("=") if asked not in runner.names else (asked, "", "")
        if name not in runner.names:
            raise InputError(f"mask: there is no input {name or asked!r}; there are {', '.join(runner.names)}")
        try:
            marker = {"true": 1.0, "false": 0.0}.get(value.lower()) if equals else None
            return runner.names.index(name), float(value) if equals and marker is None else marker
        except ValueError as error:
            raise InputError(f"mask={asked!r} is not of the form 'mask' or 'mask=0'") from error
    names = [name.lower() for name in runner.names]
    found = [k for k, n in enumerate(names) if "mask" in n and not any(w in n for w in _OTHER_MASKS)]
    found = [k for k in found if runner.tensors[k].dim() >= 1] or [
        k for k, n in enumerate(names) if "length" in n and _holds_lengths(runner, k)
    ]
    # The mask of an encoder's inputs comes before that of the decoder.
    first = sorted(found, key=lambda k: ("pad" not in names[k] and "attention_mask" not in names[k], k))
    return (first[0] if first else None), None


def _holds_lengths(runner: Runner, k: int) -> bool:
    x = runner.tensors[k]
    return "length" in runner.names[k].lower() and x.dim() == 1 and not x.is_floating_point() and x.dtype != torch.bool


def _beside(runner: Runner, k: int, mask: int | None) -> bool:
    """Whether an input belongs to the sequence of the mask: that of a decoder is another one than the encoder's."""
    if mask is None:
        return False
    one, other = runner.names[k].lower(), runner.names[mask].lower()
    return ("decoder" in one) == ("decoder" in other) and not any(w in one for w in _OTHER_MASKS)


def _length(
    runner: Runner, at: int | None, named: Mapping[int, int], batch: Mapping[int, int], lengths: bool
) -> int:  # fmt: skip
    found = {runner.tensors[k].shape[d] for k, d in named.items()}
    if len(found) > 1:
        raise InputError(f"sequence: the axes named have different lengths, {', '.join(map(str, sorted(found)))}")
    if found:
        return int(found.pop())
    if at is not None and not lengths:
        free = [d for d in range(runner.tensors[at].dim()) if batch.get(at) != d]
        return int(runner.tensors[at].shape[free[-1]]) if free else 0
    if at is None:
        return 0
    most = int(runner.tensors[at].max()) if runner.tensors[at].numel() else 0
    free = [n for k, x in enumerate(runner.tensors) if k != at for d, n in enumerate(x.shape) if batch.get(k) != d]
    return next((n for n in free if n >= most), 0)


def _marker(runner: Runner, at: int) -> float:
    """What marks padding: by the name and the values, as the libraries have it."""
    x, name = runner.tensors[at], runner.names[at].lower()
    if x.dtype == torch.bool:
        # torch's key_padding_mask is True where there is padding; a mask that keeps nothing would be no example.
        return float("padding_mask" in name or "pad_mask" in name or not bool(x.any()))
    if x.is_floating_point() and (float(x.min()) < 0 or not bool(x.any())):
        return float(x.min()) if float(x.min()) < 0 else torch.finfo(x.dtype).min
    return 0.0


def _kept(runner: Runner, at: int | None, marker: float, length: int, lengths: bool) -> torch.Tensor | None:
    if at is None:
        return None
    x = runner.tensors[at]
    if lengths:
        kept = torch.arange(length, device=x.device)[None] < x[:, None]
    elif x.dim() == 2 and x.shape[1] == length:
        kept = x != (bool(marker) if x.dtype == torch.bool else marker)
    else:
        return None
    return None if bool(kept.all()) else kept


# --- longer sequences ------------------------------------------------------------------------------------------------


def lengthened(seq: Sequence, added: int, left: bool, fill: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the inputs with padding.

    Parameters
    ----------
    seq : Sequence
    added : int
        Positions of padding.
    left : bool
        Before the sequence instead of after it.
    fill : mapping of int to Tensor
        What stands in the padding: a tensor like each input, of which the first ``added`` entries are taken (again
        and again where there are fewer).
    """
    changed = {}
    for k, dims in seq.inputs.items():
        x = seq.runner.tensors[k]
        for d in dims:
            x = torch.cat(_sided(x, _padding(seq, k, x, d, added, left, fill, last=d == dims[-1]), left), dim=d)
        changed[k] = x
    return changed


def _sided(x: torch.Tensor, padding: torch.Tensor, left: bool) -> list[torch.Tensor]:
    return [padding, x] if left else [x, padding]


def _padding(
    seq: Sequence, k: int, x: torch.Tensor, d: int, added: int, left: bool, fill: Mapping[int, torch.Tensor], *,
    last: bool,
) -> torch.Tensor:  # fmt: skip
    name = seq.runner.names[k].lower()
    edge = x.select(d, 0 if left else x.shape[d] - 1).unsqueeze(d).repeat_interleave(added, dim=d)
    if k == seq.mask:
        return torch.full_like(edge, seq.marker) if last else edge
    if _POSITIONS in name and not x.is_floating_point():
        steps = torch.arange(1, added + 1, device=x.device).reshape([-1 if a == d else 1 for a in range(x.dim())])
        if left and any(word in name for word in _ORDINAL):
            return edge + steps - 1  # numbers of places in memory: the sequence itself is moved on by its padding
        return torch.zeros_like(edge) if left else edge + steps
    if any(word in name for word in _EDGE) or k not in fill:
        return edge
    own = fill[k]
    times = -(-added // own.shape[d])
    return torch.cat([own] * times, dim=d).narrow(d, 0, added).to(x.dtype)
