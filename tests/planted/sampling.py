"""What a run takes of a table of cases: a quarter of the rows, or every row once with its dtype in turn, or all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

EVERY = 4


def each_once(
    rows: Iterable[Any], dtypes: Callable[[Any], tuple[str, ...]], slow: Callable[[Any], bool] = lambda row: False
) -> list[Any]:
    """Return one pytest parameter per row and dtype: every fourth row once, the other rows slow, the rest a sweep."""
    params = []
    for turn, row in enumerate(rows):
        choice = dtypes(row)[turn % len(dtypes(row))]
        for dtype in dtypes(row):
            if dtype != choice:
                marks = [pytest.mark.sweep]
            else:
                marks = [pytest.mark.slow] if turn % EVERY or slow(row) else []
            params.append(pytest.param(row, dtype, id=f"{row.id}-{dtype}", marks=marks))
    return params
