"""What holds for every test: a busy machine is no failure, any order will do, and a printed cause was reproduced."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

from driftscope.programs import operator_table
from laws.reproduced import unreproduced

# JAX would take an accelerator where there is one, and multiply in TF32 there: what is tested is said of processors.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: orders of sums depend on threads, and small kernels wait long for each other's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave cases of ``sampled`` tests to the slow run, and bring the tests into an order."""
    _sample(items)
    _shuffle(items)


def _sample(items: list[pytest.Item]) -> None:
    """Mark as slow all cases of a test but as many as ``sampled`` names, the first and the last among those kept."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            tests.setdefault(item.nodeid.split("[")[0], []).append(item)
    for cases in tests.values():
        kept: int = cases[0].get_closest_marker("sampled").args[0]  # type: ignore[union-attr]
        quick = np.linspace(0, len(cases) - 1, min(kept, len(cases))).round()
        for place in set(range(len(cases))) - {int(place) for place in quick}:
            cases[place].add_marker(pytest.mark.slow)


def _shuffle(items: list[pytest.Item]) -> None:
    """Draw an order of the files, and of the tests in each, where ``DRIFTSCOPE_TEST_ORDER`` is set to a seed."""
    seed = os.environ.get("DRIFTSCOPE_TEST_ORDER")
    if seed:
        # A file stays together: what its tests share is then made once.
        draw = random.Random(seed)
        places = {path: draw.random() for path in dict.fromkeys(item.path for item in items)}
        drawn = [(places[item.path], draw.random(), number) for number, item in enumerate(items)]
        items[:] = [items[number] for *_, number in sorted(drawn)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test draw the numbers that it draws when it runs alone, whatever ran before it."""
    _seed(20261)
    for restore in _restorers(getattr(item, "module", None)):
        restore()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Let it draw them whether or not it was the one for which a shared fixture was set up."""
    _seed(20262)


def _seed(seed: int) -> None:
    """Seed the generators of the libraries; not with a seed of tests and fixtures, whose numbers would come again."""
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.manual_seed(seed)


@functools.cache
def _restorers(module: Any) -> list[Callable[[], object]]:
    """Return what brings each generator of a test's file back to where its import left it."""
    torch: Any = sys.modules.get("torch")
    found: list[Callable[[], object]] = []
    for value in getattr(module, "__dict__", {}).values():
        if isinstance(value, np.random.Generator):
            found.append(functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state))
        elif torch is not None and isinstance(value, torch.Generator):
            found.append(functools.partial(value.set_state, value.get_state()))
    return found


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
