"""What one thread prints, caught without taking the stream away from the others.

:func:`contextlib.redirect_stdout` exchanges the stream of the whole process: a thread that exchanges it while another
has put its own in the way puts that one back, for good.
"""

from __future__ import annotations

import contextlib
import io
import sys
import threading
from collections.abc import Iterator
from typing import Any


class _Shared:
    """Stands in for a stream: a thread that catches what it prints gets it, all others write to the stream."""

    def __init__(self, stream: Any):
        self.stream = stream
        self.users = 0
        self._caught = threading.local()

    @property
    def buffers(self) -> list[io.StringIO]:
        """What this thread writes to, innermost last."""
        if not hasattr(self._caught, "buffers"):
            self._caught.buffers = []
        buffers: list[io.StringIO] = self._caught.buffers
        return buffers

    def write(self, text: str) -> Any:
        """Write where this thread's words go."""
        return (self.buffers[-1] if self.buffers else self.stream).write(text)

    def flush(self) -> None:
        """Flush where this thread's words go."""
        (self.buffers[-1] if self.buffers else self.stream).flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_LOCK = threading.Lock()


@contextlib.contextmanager
def caught(name: str = "stdout") -> Iterator[io.StringIO]:
    """Catch what this thread prints inside.

    Parameters
    ----------
    name : str
        ``"stdout"`` or ``"stderr"``.
    """
    with _LOCK:
        shared = getattr(sys, name)
        if not isinstance(shared, _Shared):
            shared = _Shared(shared)
            setattr(sys, name, shared)
        shared.users += 1
    buffer = io.StringIO()
    shared.buffers.append(buffer)
    try:
        yield buffer
    finally:
        shared.buffers.pop()
        with _LOCK:
            shared.users -= 1
            if not shared.users and getattr(sys, name) is shared:
                setattr(sys, name, shared.stream)


def streams() -> tuple[Any, ...]:
    """Return the process's own streams, whoever catches what."""
    return tuple(s.stream if isinstance(s, _Shared) else s for s in (sys.stdout, sys.stderr, sys.stdin))


def put_back_streams(kept: tuple[Any, ...]) -> None:
    """Put streams back that were exchanged since."""
    for name, old, now in zip(("stdout", "stderr", "stdin"), kept, streams(), strict=True):
        if old is not now:
            setattr(sys, name, old)
