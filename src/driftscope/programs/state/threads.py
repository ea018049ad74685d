"""How many threads add: set for a question, and set back."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from driftscope.errors import InputError
from driftscope.records.environment import thread_pools

_MOST_THREADS = 1024


@contextlib.contextmanager
def thread_count(threads: int | None) -> Iterator[None]:
    """Set the threads of torch, where it is loaded, and of the BLAS libraries, and set them back."""
    if threads is None:
        yield
        return
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= _MOST_THREADS:
        raise InputError(f"threads={threads!r}: give a whole number from 1 to {_MOST_THREADS}")
    torch = sys.modules.get("torch")
    before = threads if torch is None else torch.get_num_threads()
    with thread_pools().limit(limits=threads):
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)
