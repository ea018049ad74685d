"""Tables that a fused operator computes inside and exporters store: weights of an interpolation, a grid of positions.

They depend on sizes alone, so they are constant subgraphs as any other: each is evaluated in float64 and, where an
observer adds noise, with the roundings that computing it in float32 takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from driftscope.lift.steps import Kind, Observer, Rounding, Step
from driftscope.lift.torch.entries import AtenCall, Ref, Tape

#: Rounds one step of a table: its number in the table, and its value.
Rounds = Callable[[int, torch.Tensor], torch.Tensor]


def hidden_tables(tape: Tape, observe: Observer | None) -> Mapping[str, torch.Tensor]:
    """The tables inside the calls of a tape, float64, by ``"call.table"``."""
    found = {}
    for entry in tape.entries:
        name, make = _TABLES.get(entry.facts.name, ("", None))
        if make is not None and entry.function.namespace == "aten":
            label = f"{entry.name}.{name}"
            found[label] = make(tape, entry, _rounding(entry, label, observe))
    return found


def _rounding(entry: AtenCall, label: str, observe: Observer | None) -> Rounds:
    def rounded(number: int, value: torch.Tensor) -> torch.Tensor:
        if observe is None:
            return value
        step = Step(
            number, f"{label}.{number}", f"aten.{entry.facts.name}", entry.where, (), (f"{label}.{number}",), (),
            [value], [torch.float32], Rounding(Kind.ROUND), {},
        )  # fmt: skip
        seen = observe(step)
        return value if seen is None or seen[0] is None else seen[0]

    return rounded


def _argument(entry: AtenCall, name: str) -> object:
    return entry.facts.pick(name, entry.args, entry.kwargs)


def _weights(tape: Tape, entry: AtenCall, rounded: Rounds) -> torch.Tensor:
    """Between which neighbours, and how far, each element of a linear interpolation lies."""
    given, made = _argument(entry, "self") or _argument(entry, "input"), entry.outputs[0]
    size = tape.values[given.value].shape[-1] if isinstance(given, Ref) else 0
    count = tape.values[made].shape[-1] if made is not None else 0
    ends, scales = bool(_argument(entry, "align_corners")), _argument(entry, "scales")
    if scales is None and (several := _argument(entry, "scale_factors")):
        scales = several[0]  # type: ignore[index]
    step = (size - 1) / max(count - 1, 1) if ends else 1.0 / scales if isinstance(scales, float) else size / count
    at = torch.arange(count, dtype=torch.float64) + (0.0 if ends else 0.5)
    place = rounded(1, rounded(0, torch.tensor(step, dtype=torch.float64)) * at)
    place = place if ends else rounded(2, place - 0.5)
    native = at.float() * torch.tensor(step, dtype=torch.float32) - (0.0 if ends else 0.5)
    # Which two are neighbours is chosen natively, as every choice is.
    return (place - native.clamp(min=0).floor().double()).clamp(0, 1)


def _positions(tape: Tape, entry: AtenCall, rounded: Rounds) -> torch.Tensor:
    """The homogeneous positions (height times width, 3) that an affine map is applied to."""
    size, ends = _argument(entry, "size"), bool(_argument(entry, "align_corners"))
    height, width = (int(n) for n in size[-2:])  # type: ignore[index]
    axes = []
    for k, count in enumerate((width, height)):
        step = rounded(4 * k, torch.tensor(2.0 / max(count - 1, 1), dtype=torch.float64))
        line = rounded(4 * k + 1, rounded(4 * k + 2, step * torch.arange(count, dtype=torch.float64)) - 1.0)
        axes.append(line if ends else rounded(4 * k + 3, line * ((count - 1) / count)))
    x, y = (axes[0].expand(height, width), axes[1][:, None].expand(height, width))
    return torch.stack([x, y, torch.ones_like(x)], -1).reshape(-1, 3)


_TABLES: Mapping[str, tuple[str, Callable[[Tape, AtenCall, Rounds], torch.Tensor]]] = {
    "upsample_linear1d": ("weights", _weights),
    "affine_grid_generator": ("positions", _positions),
}
