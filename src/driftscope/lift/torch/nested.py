"""Nested tensors, as far as `nn.TransformerEncoder` makes them: padded sequences and the mask of the padding.

With a padding mask, the encoder's inference path drops padded positions, runs its layers on what is left, and puts
zeros back. On the tape these are the same layers on the padded tensor, with the mask, and zeros at the end.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from driftscope.errors import CannotLift
from driftscope.lift.torch.entries import Facts, Ref, Tape
from driftscope.lift.torch.ledger import Ledger

_MAKER = "_nested_tensor_from_mask"
_aten = torch.ops.aten


class Recording(Protocol):
    """What nested tensors ask of the recording they are part of."""

    tape: Tape
    ledger: Ledger

    def encode(self, tree: Any) -> Any: ...

    def append(
        self, func: Any, name: str, args: tuple[Any, ...], outputs: list[int | None], constant: bool
    ) -> None: ...

    def name(self, facts: Facts) -> str: ...


class NestedTensors:
    """The nested tensors of a recording: for each, the padded value and the mask of its padding."""

    def __init__(self, recorder: Recording):
        self._recorder = recorder
        self._known: dict[int, tuple[Any, int, torch.Tensor]] = {}

    def concerns(self, facts: Facts, args: Any) -> bool:
        """Tell whether a call makes or takes a nested tensor."""
        if facts.name == _MAKER:
            return True
        return bool(self._known) and any(isinstance(a, torch.Tensor) and a.is_nested for a in args)

    def call(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> Any:
        """Run a call natively and tape what it means for padded tensors.

        Raises
        ------
        CannotLift
            For anything but the encoder's own calls.
        """
        result = func(*args, **kwargs)
        if facts.name == _MAKER:
            padding = self._padding(args[1])
            self._remember(result, self._recorder.ledger.id_of(args[0]), padding)
        elif facts.name == "_transformer_encoder_layer_fwd" and args[0]._cdata in self._known:
            self._layer(func, facts, args, result)
        elif facts.name == "to_padded_tensor" and args[0]._cdata in self._known:
            self._padded(args, result)
        else:
            raise CannotLift(f"aten.{facts.name} on a nested tensor cannot be lifted.")
        return result

    def _remember(self, nested: torch.Tensor, padded: int, padding: torch.Tensor) -> None:
        alive = torch._C._WeakTensorRef(nested)  # type: ignore[attr-defined]
        self._known[nested._cdata] = (alive, padded, padding)

    def _padding(self, kept: torch.Tensor) -> torch.Tensor:
        """Tape the mask of what is left out."""
        return self._tape(_aten.logical_not.default, (kept,), kept.logical_not())

    def _tape(self, function: Any, args: tuple[Any, ...], result: torch.Tensor) -> torch.Tensor:
        recorder = self._recorder
        ledger = recorder.ledger
        dependent = any(ledger.depends(a) for a in args if isinstance(a, torch.Tensor))
        encoded = tuple(recorder.encode(a) for a in args)
        name = ledger.unique(function._schema.name.split("::")[-1])
        value = ledger.register(result, name, dependent)
        recorder.append(function, name, encoded, [value.id], not dependent)
        return result

    def _layer(self, func: Any, facts: Facts, args: Any, result: torch.Tensor) -> None:
        recorder = self._recorder
        ledger = recorder.ledger
        _, padded, padding = self._known[args[0]._cdata]
        like = recorder.tape.values[padded]
        weights = [a for a in args[1:] if isinstance(a, torch.Tensor)]
        ledger.keep_constants([padding, *weights])
        encoded = [Ref(padded), *(recorder.encode(a) for a in args[1:])]
        encoded = [*encoded[: facts.positions["mask"]], Ref(ledger.id_of(padding)), 1]
        name = recorder.name(facts)
        value = ledger.register_unseen(name, like, like.shape)
        recorder.append(func, name, tuple(encoded), [value.id], False)
        self._remember(result, value.id, padding)

    def _padded(self, args: Any, result: torch.Tensor) -> None:
        recorder = self._recorder
        ledger = recorder.ledger
        _, padded, padding = self._known[args[0]._cdata]
        like = recorder.tape.values[padded]
        wide = self._tape(_aten.unsqueeze.default, (padding, -1), padding.unsqueeze(-1))
        ledger.keep_constants([wide])
        filled = ledger.register_unseen(ledger.unique("masked_fill"), like, like.shape)
        call = (Ref(padded), Ref(ledger.id_of(wide)), float(args[1]))
        recorder.append(_aten.masked_fill.Scalar, filled.name, call, [filled.id], False)
        # Natively only as long as the longest sequence, unless a size was given.
        name = ledger.unique("to_padded_tensor")
        value = ledger.register(result, name, dependent=True)
        recorder.append(_aten.slice.Tensor, name, (Ref(filled.id), 1, 0, result.shape[1]), [value.id], False)
