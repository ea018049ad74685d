"""Session options on the command line: for both sides, or for one with ``a:`` or ``b:`` in front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftscope.cli.help_pages import suggestion
from driftscope.errors import InputError

LEVELS = ("disable", "basic", "extended", "layout", "all")
PROVIDERS = ("cpu", "cuda", "tensorrt", "openvino", "coreml")  # and whatever the installed onnxruntime has


_ONCE = (("--level", "level"), ("--threads", "threads"), ("--provider", "provider"), ("--runtime", "runtime"))


def session_options(a: str, b: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of each side's session.

    Raises
    ------
    InputError
        For a value that cannot be, or an option that no side can use.
    """
    sides: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    takes = (_is_onnx(a), _is_onnx(b))
    for flag, name in _ONCE:
        for index, value in _sided(flag, options[name], takes):
            if name in sides[index]:
                raise InputError(f"{flag} is given twice for the same side; write {flag} a:… and {flag} b:…")
            if (name, value) != ("runtime", "onnxruntime"):
                sides[index][name] = _checked(flag, value)
    for index, value in _sided("--disable-optimizer", options["disabled"], takes):
        sides[index]["disabled"] = (*sides[index].get("disabled", ()), value)
    return sides


def _is_onnx(program: str) -> bool:
    return program.lower().endswith(".onnx")


def _sided(flag: str, values: Sequence[str], takes: tuple[bool, bool]) -> list[tuple[int, str]]:
    """Return ``(side, value)`` pairs."""
    found = []
    for given in values:
        prefix, colon, rest = given.partition(":")
        side = {"a": 0, "b": 1}.get(prefix.lower()) if colon else None
        if side is not None:
            found.append((side, rest))
            continue
        if not any(takes):
            raise InputError(
                f"{flag} is for ONNX files, and neither side is one; write {flag} b:{given} if B makes one"
            )
        found += [(index, given) for index in (0, 1) if takes[index]]
    return found


def _checked(flag: str, value: str) -> str | int:
    if flag == "--threads":
        if not value.isdecimal() or int(value) < 1:
            raise InputError(f"--threads needs a whole number of at least 1, not {value!r}")
        return int(value)
    if flag == "--level" and value not in LEVELS:
        raise InputError(f"--level knows {', '.join(LEVELS)}, not {value!r}{suggestion(value, LEVELS)}")
    return value
