"""Clean exports, shared by every planted test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .exports import Exports


@pytest.fixture(scope="session")
def exports(request: pytest.FixtureRequest) -> Exports:
    return Exports(request.config.cache.mkdir("planted-exports"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: these tensors are tiny, and two workers with two threads each wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
