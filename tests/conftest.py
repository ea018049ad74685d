"""What holds for every test: a busy machine is no failure, and a cause that is printed was reproduced."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from driftscope.programs import operator_table
from laws.reproduced import unreproduced

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def _kept() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(autouse=True)
def _exports_share_an_operator_table(_kept: contextlib.ExitStack) -> None:
    """Spare every export but the first a second of reading torch's own source, from when something has exported."""
    if operator_table.REGISTRY[0] in sys.modules and not operator_table.kept():
        _kept.enter_context(operator_table.one_table())


@pytest.fixture(autouse=True)
def _every_cause_was_reproduced() -> None:
    """Hold each comparison that any test makes to the law of causes, from when the first test has imported it."""
    inquiry: Any = sys.modules.get("driftscope.inquiry")
    if inquiry is None or getattr(inquiry._record, "held", False):
        return
    plain = inquiry._record

    @functools.wraps(plain)
    def held(*args: Any, **kwargs: Any) -> Any:
        record = plain(*args, **kwargs)
        assert not (missing := unreproduced(record)), missing
        return record

    held.held = True  # type: ignore[attr-defined]
    inquiry._record = held
