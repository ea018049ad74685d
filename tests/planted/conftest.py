"""Clean exports, shared by every planted test."""

from __future__ import annotations

import pytest

from .exports import Exports


@pytest.fixture(scope="session")
def exports(request: pytest.FixtureRequest) -> Exports:
    return Exports(request.config.cache.mkdir("planted-exports"))
