"""What every program does in each way of broadcasting, and which ways the chosen one loses."""

from __future__ import annotations

from collections.abc import Sequence

from driftscope.records.finding import Finding
from driftscope.records.kinds.shape_report import ShapeBroadcast
from driftscope.shapes.check import Check
from driftscope.shapes.probe.domain import RIGHT, Domain, probe
from driftscope.shapes.probe.runners import TorchRunner


def broadcast_record(check: Check) -> tuple[ShapeBroadcast, ...]:
    """What every candidate and every target does in each configuration."""
    if check.original is None or check.arguments is None:
        return ()
    points = [one.point for one in check.broadcasts]
    outcomes: list[dict[str, str]] = [{} for _ in points]
    for candidate in check.candidates:
        made = candidate.capture
        if made is None or not points:
            continue
        seen = probe(check.original, [TorchRunner("tried", made.module, check.original)], points, Domain())
        for told, point in zip(outcomes, points, strict=True):
            told.setdefault(made.mode.value, seen.seen["tried"][point].outcome)
    for target, answers in check.domain.seen.items():
        for told, point in zip(outcomes, points, strict=True):
            if target != "export" and point in answers:
                told[target] = answers[point].outcome
    names = [axis.name for axis in check.arguments.axes]
    return tuple(
        ShapeBroadcast(tuple(names[i] for i in one.axes), one.ones, told)
        for one, told in zip(check.broadcasts, outcomes, strict=True)
    )


def broadcast_finding(broadcasts: Sequence[ShapeBroadcast], mode: str) -> list[Finding]:
    """S031, where the chosen program keeps fewer configurations than the model has."""
    lost = [one for one in broadcasts if one.outcomes.get(mode, RIGHT) != RIGHT]
    if not lost:
        return []
    kept = len(broadcasts) - len(lost)
    shown = "; ".join(words_of(one) for one in lost[:4]) + ("; ..." if len(lost) > 4 else "")
    alone = all(one.outcomes.get("unguarded") == RIGHT for one in broadcasts)
    return [
        Finding(
            "S031",
            f"{mode} keeps {kept} of {len(broadcasts)} broadcasting configurations; lost are {shown}",
            why="a trace decides once whether two sizes are equal",
            fix="ds.cover(model, inputs) keeps them all"
            + (": the program without its checks is right" if alone else ""),
            evidence={"configurations": len(broadcasts), "kept": kept},
            note=True,
            verified=True if alone else None,
        )
    ]


def words_of(one: ShapeBroadcast) -> str:
    """The axes that are 1: ``x.shape[0]=1``; ``all equal`` for none."""
    return ", ".join(f"{name}=1" for name, is_one in zip(one.axes, one.ones, strict=True) if is_one) or "all equal"
