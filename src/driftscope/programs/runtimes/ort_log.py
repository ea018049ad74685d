"""What onnxruntime says of its graph optimisation while a session is created: which transformers changed the graph.

onnxruntime's Python package has no callback for its log; it writes to the process's standard error. The file
descriptor is put aside for as long as one session takes to be created, and what anything else wrote in that time is
passed on afterwards. Read in onnxruntime 1.31, ``core/optimizer/graph_transformer.cc``; the words are the same in 1.17.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass

#: Severity (INFO) at which a session tells which transformers changed its graph.
TALKATIVE = 1

_MODIFIED = re.compile(r"GraphTransformer (\S+) modified: 1 with status: OK")
_LEVEL = re.compile(r"Level(\d)_RuleBasedTransformer$")
_OURS = re.compile(r"\[[VIWEF]:onnxruntime:")
# One descriptor, one listener: two at once would put aside each other's file.
_ALONE = threading.Lock()


@dataclass(slots=True)
class Heard:
    """What a session said while it was created.

    Parameters
    ----------
    text : str
    audible : bool
        False where standard error could not be put aside: then nothing is known.
    """

    text: str = ""
    audible: bool = True

    @property
    def fired(self) -> tuple[str, ...]:
        """Names of the graph transformers that changed the graph, in the order of their first change."""
        return tuple(dict.fromkeys(_MODIFIED.findall(self.text)))


def is_rule_based(name: str) -> bool:
    """Whether a name of the log stands for a set of rewrite rules, which have names of their own."""
    return _LEVEL.match(name) is not None


@contextlib.contextmanager
def listening() -> Iterator[Heard]:
    """Hear what onnxruntime writes to standard error inside the block."""
    heard = Heard()
    with _ALONE, contextlib.ExitStack() as stack:
        try:
            kept = os.dup(2)
        except OSError:  # no standard error at all, as under pythonw
            heard.audible = False
            yield heard
            return
        stack.callback(os.close, kept)
        with tempfile.TemporaryFile() as file:
            os.dup2(file.fileno(), 2)
            try:
                yield heard
            finally:
                os.dup2(kept, 2)
                file.seek(0)
                heard.text = file.read().decode(errors="replace")
                _pass_on(heard.text)


def _pass_on(text: str) -> None:
    others = [line for line in text.splitlines(keepends=True) if not _OURS.search(line)]
    if others:
        os.write(2, "".join(others).encode())
