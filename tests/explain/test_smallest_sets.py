"""Delta debugging keeps a part that suffices and of which nothing can be spared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from driftscope.explain.blame.smallest_sets import Counted, smallest_set


@given(st.integers(1, 24), st.data())
def test_a_monotone_cause_is_found_exactly(n, data):
    needed = data.draw(st.sets(st.integers(0, n - 1), min_size=1))
    assert set(smallest_set(range(n), lambda part: needed <= set(part))) == needed


@given(st.integers(1, 16), st.data())
def test_whatever_the_predicate_the_rest_suffices_and_no_single_member_can_be_spared(n, data):
    good = data.draw(st.sets(st.frozensets(st.integers(0, n - 1), min_size=1), max_size=6))

    def holds(part):
        return any(g <= set(part) for g in good) or set(part) == set(range(n))

    kept = smallest_set(range(n), holds)
    assert holds(kept)
    assert len(kept) == 1 or not any(holds([k for k in kept if k != spare]) for spare in kept)


def test_a_counted_predicate_asks_once_and_stops_at_its_limit():
    asked = []
    counted = Counted(lambda part: asked.append(part) or True, most=2)
    assert counted([1])
    assert counted([1])
    assert counted([2])
    assert not counted([3])
    assert len(asked) == 2
    assert counted.exhausted
