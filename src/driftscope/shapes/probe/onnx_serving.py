"""An ONNX file asked at many points, inside a worker process: onnxruntime may abort the process it runs in.

This file is what the worker imports, so it loads neither torch nor anything that does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from driftscope.programs.bare_sessions import bare_session
from driftscope.records.files import stamp

#: ("ran", arrays) or ("refused", words, class of the error)
Served = tuple[Any, ...]
Feed = Mapping[str, np.ndarray]

# By path and stamp: another file may be at the path by the next call.
_sessions: dict[tuple[str, tuple[int, int, int]], Any] = {}
_KEPT = 4
_LONGEST = 400
# Where onnxruntime was built, and the assertion in its source: what is wrong follows behind it.
_BUILD = re.compile(r"\S*onnxruntime_src/\S+ (?:[^()]*\([^()]*\) )(?:.*? was false\. )?", re.DOTALL)


def serve(path: str, feeds: Sequence[Feed]) -> list[Served]:
    """Run a file on several feeds, one after another.

    Parameters
    ----------
    path : str
        The file; its session is kept for the next call, unless another file is there by then.
    feeds : sequence of dict of str to ndarray

    Returns
    -------
    list
        One entry per feed: ``("ran", [ndarray, ...])`` or ``("refused", words, kind)``.
    """
    session = _session(path)
    return [_serve_one(session, feed) for feed in feeds]


def input_names(path: str) -> list[str]:
    """Names of the inputs onnxruntime wants, in order; raises what it raises when it cannot load the file."""
    return [value.name for value in _session(path).get_inputs()]


def _session(path: str) -> Any:
    key = path, stamp(path)
    if key not in _sessions:
        while len(_sessions) >= _KEPT:
            _sessions.pop(next(iter(_sessions)))
        # One thread: the tensors are small, and other processes want the cores.
        _sessions[key] = bare_session(path, threads=1)
    return _sessions[key]


def _serve_one(session: Any, feed: Feed) -> Served:
    try:
        return ("ran", [_owned(value) for value in session.run(None, dict(feed))])
    except Exception as error:  # onnxruntime's errors share no class of their own
        return ("refused", _words(str(error)), type(error).__name__)


def _owned(value: Any) -> Any:
    """An array that does not point into the session's memory; sequences stay lists."""
    return np.array(value) if isinstance(value, np.ndarray) else value


def _words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    found = lines[0] if lines else "onnxruntime said nothing"
    return _BUILD.sub("", found.rpartition(" : ")[2] if " : " in found else found)[:_LONGEST]
