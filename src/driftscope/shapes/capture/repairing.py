"""Repair a spec that ``torch.export`` refused: read what it said, change as little as that asks for."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.export import Dim

from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.export import Capture, Refusal

Try = Callable[[Attempt], Capture | Refusal]

_MOST_STEPS = 8
_SUGGESTED = re.compile(r"^\s{2,}(?P<name>\w+) = (?P<value>.+)$", re.MULTILINE)
_BOUNDED = re.compile(r"Dim\('(?P<name>\w+)'(?P<bounds>(?:, ?(?:min|max)=\d+)*)\)")
_LINEAR = re.compile(r"^(?:(?P<slope>\d+)\*)?(?P<root>[A-Za-z_]\w*)(?: (?P<sign>[+-]) (?P<offset>\d+))?$")
_VIOLATED = re.compile(r"Constraints violated \((?P<names>[^)]*)\)")
_SPECIALISED = re.compile(r"(?:You marked|marked) (?P<source>L\[.+?\](?:\.size\(\)\[\d+\])?) as dynamic")
# torch's own "any size": a bound beyond it says nothing.
_UNBOUNDED = 2**31


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One refusal and what was changed for it."""

    refusal: Refusal
    change: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """What came of repairing one attempt.

    Parameters
    ----------
    result : Capture or Refusal
        Of the last attempt.
    steps : tuple of RepairStep
        Empty when the first attempt was accepted.
    rejected : tuple of str
        torch's suggestions that were not followed because they freeze or thin out an axis.
    """

    result: Capture | Refusal
    steps: tuple[RepairStep, ...] = ()
    rejected: tuple[str, ...] = ()


def repaired(first: Attempt, attempt: Try, going_on: Callable[[], bool] = lambda: True) -> Repaired:
    """Export, and change the spec until it is accepted.

    Parameters
    ----------
    first : Attempt
    attempt : callable
        Exports one attempt.
    going_on : callable
        Whether one more attempt is worth its time.
    """
    steps: list[RepairStep] = []
    rejected: list[str] = []
    tried = {_key(first)}
    current = first
    while True:
        result = attempt(current)
        if isinstance(result, Capture) or len(steps) == _MOST_STEPS or not going_on():
            return Repaired(result, tuple(steps), tuple(dict.fromkeys(rejected)))
        following = None
        for change in (_suggested, _violated, _specialised, _loosened):
            made = change(result, rejected)
            if made is not None and _key(made[0]) not in tried:
                following = made
                break
        if following is None:
            return Repaired(result, tuple(steps), tuple(dict.fromkeys(rejected)))
        current = following[0]
        tried.add(_key(current))
        steps.append(RepairStep(result, following[1]))


def _key(attempt: Attempt) -> str:
    return f"{attempt.mode} {[_word(size) for size in attempt.sizes]}"


def _word(size: Any) -> str:
    if size is None:
        return "fixed"
    hint = getattr(size, "type", None)
    if hint is not None:
        return str(hint.name)
    return f"{size.__name__}[{getattr(size, 'min', '')},{getattr(size, 'max', '')}]"


Change = tuple[Attempt, str] | None


def _suggested(refusal: Refusal, rejected: list[str]) -> Change:
    """Follow torch's suggested fixes, but for those that freeze an axis or keep one residue class of it."""
    if "Suggested fixes" not in refusal.words:
        return None
    by_name = _by_name(refusal.attempt)
    replaced: dict[str, Any] = {}
    for found in _SUGGESTED.finditer(refusal.words.partition("Suggested fixes")[2]):
        name, value = found["name"], found["value"].strip()
        if name not in by_name:
            continue
        made = _read_fix(name, value, by_name, rejected)
        if made is not None:
            replaced[name] = made
    if not replaced:
        return None
    sizes = tuple(_renamed(size, replaced) for size in refusal.attempt.sizes)
    words = ", ".join(f"{name} = {_word_of(dim)}" for name, dim in replaced.items())
    return Attempt(refusal.attempt.mode, sizes), f"torch suggested {words}"


def _word_of(dim: Any) -> str:
    return _word(dim).replace("[0,int_oo]", "")


def _read_fix(name: str, value: str, by_name: dict[str, Any], rejected: list[str]) -> Any:
    bounded = _BOUNDED.match(value)
    if bounded:
        bounds = {key: int(number) for key, number in re.findall(r"(min|max)=(\d+)", bounded["bounds"])}
        bounds = {key: number for key, number in bounds.items() if number < _UNBOUNDED}
        return Dim(name, **bounds) if bounds else Dim.DYNAMIC
    linear = _LINEAR.match(value)
    if linear is None or ((linear["slope"] or linear["offset"]) and linear["root"] not in by_name):
        # A number freezes the axis; 4*_s - 2 of a new symbol keeps one size in four.
        rejected.append(f"{name} = {value}")
        return Dim.DYNAMIC
    root = by_name.get(linear["root"])
    if root is None:
        rejected.append(f"{name} = {value}")
        return Dim.DYNAMIC
    slope = int(linear["slope"] or 1)
    offset = int(linear["offset"] or 0) * (-1 if linear["sign"] == "-" else 1)
    made = root * slope if slope != 1 else root
    return made + offset if offset > 0 else made - -offset if offset else made


def _by_name(attempt: Attempt) -> dict[str, Any]:
    return {size.__name__: size for size in attempt.sizes if isinstance(size, Dim)}


def _renamed(size: Any, replaced: dict[str, Any]) -> Any:
    if not isinstance(size, Dim):
        return size
    root = getattr(size, "root", None)
    if root is not None and root.__name__ in replaced:
        return Dim.DYNAMIC
    return replaced.get(size.__name__, size)


def _violated(refusal: Refusal, _: list[str]) -> Change:
    """Leave the Dims that the message names to torch."""
    found = _VIOLATED.search(refusal.words)
    if found is None:
        return None
    names = set(re.findall(r"[A-Za-z_]\w*", found["names"]))
    hit = [isinstance(s, Dim) and (s.__name__ in names or _root_in(s, names)) for s in refusal.attempt.sizes]
    if not any(hit):
        return None
    sizes = tuple(Dim.DYNAMIC if h else size for size, h in zip(refusal.attempt.sizes, hit, strict=True))
    return Attempt(refusal.attempt.mode, sizes), f"{', '.join(sorted(names))} left to Dim.DYNAMIC"


def _root_in(size: Any, names: set[str]) -> bool:
    root = getattr(size, "root", None)
    return root is not None and root.__name__ in names


def _specialised(refusal: Refusal, _: list[str]) -> Change:
    """An axis that the model fixes cannot be DYNAMIC; AUTO lets it be fixed."""
    specialised = "specialized" in refusal.words or "static" in refusal.words or "inferred to be" in refusal.words
    if not specialised or not any(_word(size) == "DYNAMIC" for size in refusal.attempt.sizes):
        return None
    sizes = tuple(Dim.AUTO if _word(size) == "DYNAMIC" else size for size in refusal.attempt.sizes)
    return Attempt(refusal.attempt.mode, sizes), "Dim.DYNAMIC became Dim.AUTO, because an axis is fixed by the model"


def _loosened(refusal: Refusal, _: list[str]) -> Change:
    """When nothing in the message helps: names to DYNAMIC, then DYNAMIC to AUTO."""
    sizes = refusal.attempt.sizes
    if any(isinstance(size, Dim) for size in sizes):
        made = tuple(Dim.DYNAMIC if isinstance(size, Dim) else size for size in sizes)
        return Attempt(Mode.DYNAMIC, made), "every named Dim left to Dim.DYNAMIC"
    if any(_word(size) == "DYNAMIC" for size in sizes):
        made = tuple(Dim.AUTO if size is not None else None for size in sizes)
        return Attempt(Mode.AUTO, made), "every axis left to Dim.AUTO"
    return None
