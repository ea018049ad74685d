"""How many threads add: set for a question, and set back.

Threads of torch wait busily for one another after every operation of more than 32,768 elements. Of small ones that
doubles the processor time and saves none, and where another process keeps a core busy an operation of microseconds
takes as long as the scheduler lets that one run: a comparison of 1.7 s took 70. What is computed about small programs
is therefore computed by one thread (:func:`threads_to_suit`), and the programs themselves run on as many as were set
(:func:`own_threads`): how many add may decide the last bits.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from driftscope.errors import InputError
from driftscope.records.environment import thread_pools

_MOST_THREADS = 1024
# Elements of the largest tensor of a program about which one thread computes: a square matrix of them times another
# takes it 6 ms.
_SMALL = 2**18


@dataclass(slots=True)
class _Suited:
    """How many threads were set before one was made to suit, by library; none where none was."""

    own: Sequence[tuple[Any, int]] = ()
    large: bool = False

    def alone(self) -> None:
        """Have this thread compute alone: OpenMP keeps the number for each thread that asks."""
        for pool, _ in self.own:
            pool.set_num_threads(1)

    def together(self) -> None:
        """Have it compute with as many as before."""
        for pool, count in self.own:
            pool.set_num_threads(count)


_SUITED: ContextVar[_Suited | None] = ContextVar("driftscope_threads", default=None)


@contextlib.contextmanager
def threads_to_suit() -> Iterator[None]:
    """Let :func:`suit` set the threads that compute inside; afterwards they are as they were."""
    if _SUITED.get() is not None:
        yield
        return
    suited = _Suited()
    token = _SUITED.set(suited)
    try:
        yield
    finally:
        _SUITED.reset(token)
        suited.together()


def suit(largest: int) -> None:
    """Compute with one thread from here on, if no program that was met is large.

    ``torch.set_num_threads`` would do more: MKL no longer chooses its threads afterwards.

    Parameters
    ----------
    largest : int
        Elements of the largest tensor of a further program.
    """
    suited = _SUITED.get()
    if suited is None or suited.large:
        return
    suited.large = largest > _SMALL
    if suited.large:
        suited.together()
        suited.own = ()
    elif not suited.own:
        suited.own = [(pool, pool.num_threads) for pool in thread_pools().lib_controllers if pool.user_api == "openmp"]
        suited.alone()


@contextlib.contextmanager
def own_threads() -> Iterator[None]:
    """Run what belongs to a program itself on as many threads as were set before any suited us."""
    suited = _SUITED.get()
    if suited is None or not suited.own:
        yield
        return
    token = _SUITED.set(None)
    suited.together()
    try:
        yield
    finally:
        suited.alone()
        _SUITED.reset(token)


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
    token = _SUITED.set(None)  # what runs inside runs on these
    with thread_pools().limit(limits=threads):
        if torch is not None:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            _SUITED.reset(token)
            if torch is not None:
                torch.set_num_threads(before)
