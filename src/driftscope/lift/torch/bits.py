"""Floats whose bits a program edits as integers: what emulations of narrower formats do to round to them."""

from __future__ import annotations

from driftscope.lift.torch.entries import AtenCall, Tape, references


def edited_floats(tape: Tape) -> dict[int, int]:
    """Find, for entries that read integers as floats, the one float that these integers were made of.

    Parameters
    ----------
    tape : Tape

    Returns
    -------
    dict of int to int
        Index of the entry to number of the float; entries whose integers were made of none or several are left out.
    """
    sources: dict[int, set[int]] = {}
    found: dict[int, int] = {}
    for entry in tape.entries:
        read = references(entry.args, entry.kwargs)
        views = entry.facts.name == "view_dtype"
        if views and not _is_float(tape, entry) and tape.values[read[0]].format.is_floating_point:
            made = {read[0]}
        elif sources:
            made = set[int]().union(*(sources.get(number, set()) for number in read))
        else:
            continue
        if views and _is_float(tape, entry) and len(made) == 1:
            found[entry.index] = next(iter(made))
        elif made and not _is_float(tape, entry):
            sources.update((number, made) for number in entry.outputs if number is not None)
    return found


def _is_float(tape: Tape, entry: AtenCall) -> bool:
    number = entry.outputs[0] if entry.outputs else None
    return number is not None and tape.values[number].format.is_floating_point
