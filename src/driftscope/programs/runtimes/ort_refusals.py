"""What onnxruntime raises, as :class:`RuntimeRefused`: its own words without its source lines."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from driftscope.errors import ProgramError, RuntimeRefused

_STATUS = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_STACK = re.compile(r"(?<!\s)\s+Stacktrace:.*", re.DOTALL)
_OPSET = re.compile(r"Opset (\d+) is under development .* domain (\S+) is till opset (\d+)")
_PLACE = re.compile(r"(?<!\S)\S+\.(?:cc|h|cu|cuh):\d+ ")
_READ = 20_000  # characters of a message; it repeats names of the model, which may be of any length


@contextlib.contextmanager
def refusals(stage: str) -> Iterator[None]:
    """Turn what onnxruntime raises into :class:`RuntimeRefused`, in its own words without its source lines."""
    try:
        yield
    except (RuntimeRefused, ProgramError):
        raise
    except Exception as error:
        # pybind raises many classes without a common ancestor below Exception.
        raise RuntimeRefused("onnxruntime", stage, own_words(str(error))) from error


def own_words(message: str) -> str:
    """Strip C++ source places from a message of onnxruntime and put it on one line."""
    message = _STACK.sub("", _STATUS.sub("", message[:_READ]))
    while (place := _PLACE.search(message)) is not None:
        message = message[: place.start()] + message[place.end() + _signature_length(message[place.end() :]) :]
    words = " ".join(message.split())[:600]
    newer = _OPSET.search(words)
    if newer is not None:
        words = f"opset {newer[1]} of {newer[2]} is newer than it supports, which is {newer[3]}"
    return words + _advice(words)


def _signature_length(text: str) -> int:
    """Return how much of ``text`` is the function that a message begins with: a whole C++ signature or one word."""
    opening = text.find("(")
    # A signature names its types before the bracket; a message that merely contains brackets is prose.
    if "::" not in text[: max(opening, 0)]:
        word = re.match(r"\w+ ", text)
        return word.end() if word else 0
    depth = 0
    for i, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == ")" and depth == 0 and text[i + 1 : i + 2] == " ":
            rest = re.match(r"(?: const| noexcept)*(?: \[with [^\]]*\])? ", text[i + 1 :])
            return i + 1 + (rest.end() if rest else 0)
    return 0


def _advice(words: str) -> str:
    if "model IR version" in words or "Opset" in words or ("opset" in words and "support" in words):
        return " (convert it with onnx.version_converter, or save it with an older opset and ir_version)"
    return ""
