"""Choosing between the compiled library and integer arithmetic in a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from driftscope.accumulation.exact import compiled


@contextlib.contextmanager
def only_integers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, the package behaves as if it had been built without a compiler."""
    with monkeypatch.context() as patch:
        patch.setenv("DRIFTSCOPE_NO_NATIVE", "1")
        compiled.library.cache_clear()
        yield
    compiled.library.cache_clear()


def need_compiled() -> None:
    """Skip, visibly, where nothing was compiled."""
    if compiled.library() is None:
        pytest.skip("the package was built without a compiler")
