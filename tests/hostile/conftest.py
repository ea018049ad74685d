"""An export takes seconds: it is made once."""

from __future__ import annotations

import pytest

from hostile import exported_files


@pytest.fixture(scope="session")
def members() -> exported_files.Members:
    """The members of an honest ``.pt2``."""
    return exported_files.honest_members()
