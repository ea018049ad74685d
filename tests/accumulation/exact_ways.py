"""Choosing between the compiled library and integer arithmetic in a test."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from driftscope.accumulation import exact_native


@contextlib.contextmanager
def only_integers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, the package behaves as if it had been built without a compiler."""
    with monkeypatch.context() as patch:
        patch.setenv("DRIFTSCOPE_NO_NATIVE", "1")
        exact_native.library.cache_clear()
        yield
    exact_native.library.cache_clear()


def need_compiled() -> None:
    """Skip, visibly, where nothing was compiled."""
    if exact_native.library() is None:
        pytest.skip("the package was built without a compiler")
