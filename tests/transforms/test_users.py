"""Functions as users write them: outcomes, places, fixes and batches are what torch itself says they must be.

The whole set is ``python -m transforms.users.measuring`` and ``python -m transforms.users.batching`` in ``tests/``.
"""

from __future__ import annotations

import pytest

from transforms.users.batching import Batches, hold
from transforms.users.measuring import Score, every_case, measure

#: A few of each file; the others are measured by the scripts.
EVERY = 10


@pytest.fixture(scope="module")
def score():
    found = Score()
    for case in every_case()[::EVERY]:
        measure(case, found)
    return found


@pytest.mark.slow
def test_outcomes_are_what_torch_does(score):
    assert score.outcomes >= 130
    assert score.right_outcomes >= 0.98 * score.outcomes, score.words


@pytest.mark.slow
def test_places_are_the_marked_lines(score):
    assert score.places >= 20
    assert score.right_places >= 0.98 * score.places, score.words


@pytest.mark.slow
def test_what_is_offered_as_tried_works_on_fresh_batches(score):
    assert score.patches >= 5
    assert score.right_patches == score.patches, score.words


@pytest.mark.slow
def test_no_batch_is_silently_wrong():
    counted = Batches()
    for case in every_case()[::EVERY]:
        hold(case, counted)
    assert counted.run >= 350
    assert not counted.wrong
    assert counted.refused < counted.run / 2
