"""What the reduction study says about its rows is true of its rows, whatever these are."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftscope.studies import reduction
from driftscope.studies.reduction_study.cell import MORE, NOT_FINITE, ROUNDING, SAME_BITS
from driftscope.studies.reduction_study.words import finished_rows, statements

sizes = st.one_of(st.just(0.0), st.floats(1e-12, 1e6))


@st.composite
def tables(draw):
    rows = []
    for size in draw(st.lists(st.integers(1, 9999), min_size=1, max_size=8, unique=True)):
        spread, random_spread = sorted((draw(sizes), draw(sizes)), reverse=True)
        verdict = draw(st.sampled_from((ROUNDING, MORE, NOT_FINITE))) if spread else SAME_BITS
        rows.append({
            "law": draw(st.sampled_from(("normal", "pareto"))), "size": size,
            "dtype": draw(st.sampled_from(("float32", "float16"))),
            "function": draw(st.sampled_from(("mean", "softmax"))),
            "spread": spread, "random_spread": random_spread, "predicted_spread": draw(sizes),
            "ratio": draw(st.none() | st.floats(0.1, 9)), "steps": draw(st.none() | sizes), "floors": draw(sizes),
            "ordered_floors": draw(sizes), "ordered_times": draw(st.none() | st.floats(0, 50)), "verdict": verdict,
            "values": [0.0] * 3 + [spread],
        })  # fmt: skip
    return rows


@given(tables())
def test_no_sentence_contradicts_its_table(rows):
    finite = [row for row in rows if row["verdict"] != NOT_FINITE]
    for said in statements(rows):
        assert not re.search(r"(?<![\d.])1 (cells|floors|pairs)\b|\bnan\b|\binf\b|None", said.text), said.text
        if "largest_spread" in said.evidence:
            group = [
                r for r in finite if (r["function"], r["dtype"]) == (said.evidence["function"], said.evidence["dtype"])
            ]
            assert said.evidence["largest_spread"] == max(r["random_spread"] for r in group)
            assert all(r["random_spread"] <= said.evidence["largest_spread"] for r in group)
        assert not re.search(r"\b0 of \d|\b0% of|\b1 of \d+ cells? (have|move) ", said.text), said.text
        if said.text.startswith("For random orders the change is rounding"):
            assert any(r["verdict"] != SAME_BITS for r in finite), "nothing moved, and others are spoken of"
            assert not any(r["verdict"] == MORE for r in finite)
        if said.text.startswith("For sorted terms it is larger"):
            counted = [r for r in finite if (r["ordered_times"] or 0) > 1 and r["ordered_floors"] > 2.5]
            assert len(counted) == said.evidence["cells"]
            assert max(r["ordered_floors"] for r in counted) == said.evidence["floors"]


@pytest.fixture(scope="module")
def study():
    return reduction(
        ("mean", "sum", "layer_norm"), ("normal", "pareto", "shifted"), (16, 512, 4096), ("float32", "float16"), 24,
        workers=0,
    )  # fmt: skip


def test_cells_named_for_their_sorted_terms_have_no_random_order_that_goes_as_far(study):
    (said,) = (s for s in study.statements if s.text.startswith("For sorted terms"))
    named = 0
    for row in study.rows:
        if row["ordered_floors"] > 2.5 and (row["ordered_times"] or 0) > 1:
            named += 1
            values = np.array(row["values"])
            random = np.delete(values, [2, 3])
            middle = 0.0 if row["function"] == "layer_norm" else np.median(random)
            assert np.abs(values[2:4] - middle).max() > np.abs(random - middle).max()
    assert named == said.evidence["cells"] > 0


def test_a_row_tells_random_from_sorted_orders(study):
    for row in study.rows:
        if row["verdict"] == NOT_FINITE:
            continue
        random = np.delete(np.array(row["values"]), [2, 3])
        low = 0.0 if row["function"] == "layer_norm" else random.min()
        assert row["random_spread"] == random.max() - low
        assert row["random_spread"] <= row["spread"]


def test_a_run_of_an_earlier_version_is_still_read(study):
    from dataclasses import replace

    old = tuple({k: v for k, v in r.items() if k not in ("random_spread", "ordered_times")} for r in study.record.rows)
    assert statements(finished_rows(replace(study.record, rows=old)))
