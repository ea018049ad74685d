"""Garbage collection is kept off what exists, for a while, and is as it was afterwards."""

import gc
import weakref

import pytest
import torch

import driftscope as ds
from driftscope.programs.state.garbage import spared


class Cycle:
    """Held by nobody but itself."""

    def __init__(self):
        self.own = self


@pytest.fixture(autouse=True)
def nothing_frozen():
    gc.unfreeze()  # mypy, which another test may have run in this process, leaves objects frozen


def test_what_exists_is_spared_and_then_collected_again():
    before = weakref.ref(Cycle())
    with spared():
        gc.collect()
        assert before() is not None
    gc.collect()
    assert before() is None
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("tidy", [True, False])
def test_what_was_made_inside_is_collected_at_the_end_where_that_is_asked(tidy):
    with spared(tidy=tidy):
        gc.disable()
        made = weakref.ref(Cycle())
        gc.enable()
    assert (made() is None) == tidy


def test_what_a_user_has_frozen_stays_frozen():
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with spared(tidy=True):
            pass
        # A few of them may end meanwhile, as objects of other threads do.
        assert gc.get_freeze_count() > 0.99 * frozen
    finally:
        gc.unfreeze()


def test_where_collection_is_off_nothing_is_collected():
    gc.disable()
    try:
        made = None
        with spared(tidy=True):
            made = weakref.ref(Cycle())
        assert made() is not None
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_comparing_again_and_again_leaves_no_garbage_behind():
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    ds.compare(one, two, (torch.randn(4, 3),))
    gc.collect()
    counts = []
    for _ in range(4):
        ds.compare(one, two, (torch.randn(4, 3),))
        counts.append(len(gc.get_objects()))
    assert gc.get_freeze_count() == 0
    assert counts[-1] - counts[1] < 500
