"""Records as pandas tables. pandas is imported only when a table is asked for: it takes a second."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from driftscope.errors import DependencyMissing


def frame(rows: Sequence[Any], **options: Any) -> Any:
    """Return ``pandas.DataFrame(rows, **options)``.

    Raises
    ------
    DependencyMissing
        If pandas is not installed.
    """
    if importlib.util.find_spec("pandas") is None:
        raise DependencyMissing("to_pandas()", "pandas", "frames")
    import pandas

    return pandas.DataFrame(rows, **options)
