"""What looks wrong in a torch program before any number is computed, seen from its modes and its calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from driftscope.errors import RuntimeRefused
from driftscope.programs.state.module_tree import modules_in
from driftscope.programs.value_trees import flatten
from driftscope.records.finding import Finding, Where
from driftscope.records.words import listed

if TYPE_CHECKING:
    from driftscope.programs.protocol import Bound

# Frames in these folders are the machinery between the user's line and the call.
_MACHINERY = (str(FilePath(torch.__file__).parent), str(FilePath(__file__).parents[1]))

# function -> the name and default of the argument that says how much is dropped, and of the one that turns it on
_DROPOUTS: dict[Any, tuple[str, float]] = {
    nn.functional.dropout: ("p", 0.5),
    nn.functional.alpha_dropout: ("p", 0.5),
    nn.functional.feature_alpha_dropout: ("p", 0.5),
    nn.functional.dropout1d: ("p", 0.5),
    nn.functional.dropout2d: ("p", 0.5),
    nn.functional.dropout3d: ("p", 0.5),
    torch.dropout: ("p", 0.5),
    nn.functional.scaled_dot_product_attention: ("dropout_p", 0.0),
}


class _TorchProgram(Protocol):
    """What is asked here of a torch program."""

    name: str

    @property
    def module(self) -> nn.Module | None: ...

    def as_called(self) -> Callable[..., Any]: ...


def train_mode(module: nn.Module | None, name: str) -> list[Finding]:
    """Return O003 for a module in train() mode, if anything inside behaves differently there."""
    if module is None:
        return []
    # A frozen TorchScript module holds no modes any more.
    modes = ((path, child) for path, child in modules_in(module) if getattr(child, "training", False))
    differs = {path: words for path, child in modes if (words := _differs(child))}
    if not differs:
        return []
    some = listed([f"{path or name} ({words})" for path, words in differs.items()])
    return [
        Finding(
            "O003",
            f"{name} is in train() mode: {some}",
            why="dropout draws random numbers and batch normalisation uses the batch's own statistics",
            fix=f"call {name}.eval() before comparing or exporting it" if name.isidentifier() else "call eval() first",
            where=Where(module=next(iter(differs)) or None),
            evidence={"modules": dict(differs)},
        )
    ]


def _differs(module: nn.Module) -> str:
    """Say in which way a module in train() mode differs from eval(); empty when it does not."""
    if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
        return f"drops {module.p:.0%} of its input"
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
        return "normalises by the batch, not by its running statistics"
    if isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
        return f"drops {module.dropout:.0%} between layers"
    if isinstance(module, nn.MultiheadAttention) and module.dropout > 0:
        return f"drops {module.dropout:.0%} of the attention weights"
    if isinstance(module, nn.RReLU):
        return "draws random slopes"
    return ""


class _Calls(TorchFunctionMode):
    """Watches the calls that a program makes in eval() mode."""

    def __init__(self) -> None:
        super().__init__()
        self.dropouts: list[tuple[str, float, str | None, int | None]] = []
        self.tables: list[tuple[torch.Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUTS:
            self._note_dropout(func, args, kwargs)
        elif func in (nn.functional.embedding, nn.functional.embedding_bag):
            indices, weight = (*args, kwargs.get("input"), kwargs.get("weight"))[:2]
            if isinstance(indices, torch.Tensor) and isinstance(weight, torch.Tensor):
                self.tables.append((indices, weight.shape[0]))
        return func(*args, **kwargs)

    def _note_dropout(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name, default = _DROPOUTS[func]
        if name == "dropout_p":
            p = kwargs.get(name, args[4] if len(args) > 4 else default)
            on = True
        else:
            p = kwargs.get(name, args[1] if len(args) > 1 else default)
            on = kwargs.get("training", kwargs.get("train", True)) if len(args) < 3 else args[2]
        if on and p > 0:
            file, line = _callers_line()
            self.dropouts.append((func.__name__, float(p), file, line))


def _callers_line() -> tuple[str | None, int | None]:
    frame = sys._getframe(2)
    while frame is not None:
        place = frame.f_code.co_filename
        if not place.startswith(("<", *_MACHINERY)):
            return place, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None, None


def active_dropout(program: _TorchProgram, bound: Bound) -> list[Finding]:
    """Return O004 for dropout that a function call leaves on; the program is run to see its calls."""
    calls = _Calls()
    if not _runs_under(calls, program, bound) or not calls.dropouts:
        return []
    name, p, file, line = calls.dropouts[0]
    count = len(calls.dropouts)
    calls_words = "one call" if count == 1 else f"{count} calls"
    training = getattr(program.module, "training", False)
    off = "pass training=self.training" if name != "scaled_dot_product_attention" else "pass dropout_p=0.0 in eval()"
    return [
        Finding(
            "O004",
            f"{program.name} drops values {'in train()' if training else 'although it is in eval()'} mode: "
            f"{calls_words} of {name} with p={p:g}",
            why="in train() mode dropout draws random numbers"
            if training
            else f"{name} drops by default whenever it is called, whatever mode the module is in",
            fix=f"call eval() first; if it still drops, {off}" if training else off,
            where=Where(operator=name, file=file, line=line),
            evidence={"calls": [[n, q, f, at] for n, q, f, at in calls.dropouts]},
        )
    ]


def table_rows(program: _TorchProgram, bound: Bound) -> dict[str, int]:
    """Return, for integer inputs looked up in an embedding, the smallest number of rows they are looked up in."""
    from driftscope.programs.feeding.binding import leaf_feeds

    calls = _Calls()
    given: list[torch.Tensor] = []
    if not _runs_under(calls, program, bound, given):
        return {}
    names = [name for name, leaf in leaf_feeds(bound.arguments).items() if isinstance(leaf, torch.Tensor)]
    place = {_storage(leaf): name for name, leaf in zip(names, given, strict=True) if leaf.numel()}
    rows: dict[str, int] = {}
    for indices, count in calls.tables:
        name = place.get(_storage(indices))
        if name is not None:
            rows[name] = min(count, rows.get(name, count))
    return rows


def _storage(tensor: torch.Tensor) -> int:
    # A view of an input is still that input; anything computed from it has memory of its own.
    return tensor.untyped_storage().data_ptr()


def _runs_under(calls: _Calls, program: _TorchProgram, bound: Bound, given: list[torch.Tensor] | None = None) -> bool:
    """Run once while ``calls`` watches; False when the program does not run, which a later run will report."""
    from driftscope.programs.torch_run import run_torch

    function = program.as_called()

    def watched(*args: Any, **kwargs: Any) -> Any:
        if given is not None:
            given.extend(leaf for _, leaf in flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor))
        with calls:
            return function(*args, **kwargs)

    try:
        run_torch(watched, bound, module=program.module)
    except RuntimeRefused:
        return False
    return True
