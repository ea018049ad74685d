"""The way through two programs on the page: a point for each value, the guilty node marked, gaps left open."""

from __future__ import annotations

import dataclasses

import pytest

import record_examples
from driftscope.records.finding import Where
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.nodes import NodeRecord
from driftscope.report.pages import node_chart, page


def along(count: int = 5, guilty: int | None = 2) -> Comparison:
    """Return a comparison with nodes, the first finding at one of them."""
    nodes = tuple(
        NodeRecord(f"node_{i}", "Gemm", f"v{i}", (2, 3), f"layers.{i}", "/site-packages/net.py", 10, "self.fc(x)",
                   f"fc_{i}", 0.0 if guilty is None or i < guilty else 1e-3, 0.9, None if i == 1 else 1.1)
        for i in range(count)
    )  # fmt: skip
    record = record_examples.different()
    name = f"node_{guilty}" if guilty is not None else "elsewhere"
    first = dataclasses.replace(record.findings[0], where=Where(node=name), note=False)
    return dataclasses.replace(record, nodes=nodes, findings=(first,))


def test_a_value_that_was_not_read_leaves_a_gap() -> None:
    drawn = node_chart.way_of(along(), "e")
    assert drawn is not None
    assert drawn["chart"]["error_a"].count("M") == 1
    assert drawn["chart"]["error_b"].count("M") == 2


def test_the_guilty_node_is_marked_in_chart_and_table() -> None:
    html = page.render(along())
    assert 'class="guilty"' in html
    assert '<span class="mark-text t-bad" title="the first finding is about this node">node_2</span>' in html
    assert 'class="guilty"' not in page.render(along(guilty=None))


@pytest.mark.parametrize("count", [1, 2, 400])
def test_any_number_of_nodes_is_drawn(count: int) -> None:
    drawn = node_chart.way_of(along(count, guilty=0), "e")
    assert drawn is not None
    assert drawn["table"]["count"] == count
    assert "nan" not in drawn["chart"]["error_a"]


def test_without_nodes_there_is_no_chart() -> None:
    assert node_chart.way_of(record_examples.different(), "e") is None
    assert 'class="way"' not in page.render(record_examples.different())


def test_two_thousand_nodes_stay_below_a_megabyte() -> None:
    assert len(page.render(along(2_000)).encode()) < 1_000_000
