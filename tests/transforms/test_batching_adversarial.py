"""``ds.vmap`` of functions composed from a grammar, in changing state, shapes and modes, is never silently wrong."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from user_programs import BLOCKS, CHANGES, ENDS, KINDS, STATEMENTS, Session, batch


@st.composite
def programs(draw):
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        statement = draw(st.sampled_from(STATEMENTS))
        if draw(st.booleans()):
            inner = "\n".join("    " + line for line in statement.splitlines())
            statement = draw(st.sampled_from(BLOCKS)).format(inner)
        lines.append(statement)
    return lines, draw(st.sampled_from(ENDS))


calls = st.lists(
    st.tuples(
        st.sampled_from(CHANGES), st.sampled_from([1, 2, 5, 13]), st.sampled_from([3, 4, 7]), st.sampled_from(KINDS),
        st.booleans(), st.booleans(), st.integers(0, 5),
    ),
    min_size=3,
    max_size=5,
)  # fmt: skip


def never_wrong(program, calls):
    session = Session(*program)
    for change, size, width, kind, wants, anew, seed in calls:
        session.state.change(change)
        told = session.wrong(batch(size, width, kind, seed), wants=wants, anew=anew)
        assert not told, f"{told}\nafter {change}, {size} x {width} {kind}, wants={wants} anew={anew}\n{session.text}"


quick = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@quick
@given(programs(), calls)
def test_a_few_programs_are_never_silently_wrong(program, calls):
    never_wrong(program, calls)


@pytest.mark.slow
@settings(quick, max_examples=150)
@given(programs(), calls)
def test_many_programs_are_never_silently_wrong(program, calls):
    never_wrong(program, calls)
