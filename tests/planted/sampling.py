"""What the default run takes of a table of cases: every row once, its dtype in turn; the whole product is slow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_once(
    rows: Iterable[Any], dtypes: Callable[[Any], tuple[str, ...]], slow: Callable[[Any], bool] = lambda row: False
) -> list[Any]:
    """Return one pytest parameter per row and dtype; all but one dtype of each row are slow, or left to the sweep."""
    params = []
    for turn, row in enumerate(rows):
        choice = dtypes(row)[turn % len(dtypes(row))]
        for dtype in dtypes(row):
            marks = (
                [] if dtype == choice and not slow(row) else [pytest.mark.slow if turn % 8 == 0 else pytest.mark.sweep]
            )
            params.append(pytest.param(row, dtype, id=f"{row.id}-{dtype}", marks=marks))
    return params
