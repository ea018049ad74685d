"""The way through two programs on the page: an unbroken line, the first differing node, a graph round it."""

from __future__ import annotations

import dataclasses

import pytest

import record_examples
from driftscope.records.finding import Where
from driftscope.records.kinds.comparison import Comparison, NodeRecord
from driftscope.report.pages import node_chart, page, piece_graph


def along(count: int = 5, first: int | None = 2) -> Comparison:
    """Return a comparison with nodes, the first finding at one of them."""
    nodes = tuple(
        NodeRecord(f"node_{i}", "Gemm", f"v{i}", (2, 3), f"layers.{i}", "/site-packages/net.py", 10, "self.fc(x)",
                   f"fc_{i}", 0.0 if first is None or i < first else 1e-3, 0.9, None if i == 1 else 1.1,
                   1e-3 if i == first else 0.0, (f"node_{i - 1}",) if i else (), (f"fc_{i - 1}",) if i else ())
        for i in range(count)
    )  # fmt: skip
    record = record_examples.different()
    name = f"node_{first}" if first is not None else "elsewhere"
    found = dataclasses.replace(record.findings[0], where=Where(node=name), note=False)
    return dataclasses.replace(record, nodes=nodes, findings=(found,))


def test_the_line_passes_over_what_was_not_measured() -> None:
    drawn = node_chart.way_of(along(), "e")
    assert drawn is not None
    assert drawn["chart"]["error_b"].count("M") == 1
    assert (drawn["chart"]["error_a"].count("L"), drawn["chart"]["error_b"].count("L")) == (4, 3)


def test_only_the_node_that_differs_when_fed_has_a_stem() -> None:
    drawn = node_chart.way_of(along(), "e")
    assert drawn is not None
    assert drawn["chart"]["fed"].count("M") == 1
    assert drawn["chart"]["fed"].startswith(f"M{drawn['chart']['first']:.1f} ")


def test_the_first_differing_node_is_marked_in_chart_graph_and_table() -> None:
    html = page.render(along())
    assert 'class="w-first"' in html
    assert 'class="box t-bad origin"' in html
    assert '<span class="mark-text t-bad" title="the first differing node">node_2</span>' in html
    assert 'class="w-first"' not in page.render(along(first=None))


def test_the_chart_stands_before_the_findings_and_says_each_node_when_pointed_at() -> None:
    html = page.render(along())
    assert html.index('class="way"') < html.index('class="findings"')
    assert "<title>node_2 (Gemm) · layers.2: A and B differ by 1.0e-03, given A&#39;s values by 1.0e-03</title>" in html


def test_without_a_finding_at_a_node_the_first_that_differs_when_fed_is_marked() -> None:
    record = dataclasses.replace(along(), findings=())
    assert node_chart.first_differing(record) == 2
    assert node_chart.first_differing(along(first=None)) is None


@pytest.mark.parametrize("count", [1, 4, 60])
def test_the_piece_is_what_lies_round_the_place(count: int) -> None:
    record = along(count, first=count // 2)
    piece = piece_graph.piece_of(record.nodes, count // 2, 1e-11)
    shown = [box["full"] for box in piece["boxes"] if box["lane"] == "b"]
    assert len(shown) == min(count, 10)
    assert f"node_{count // 2}" in shown
    # Each node shown is joined with the others, on both sides.
    assert sum(kind == "flow" for kind, _ in piece["lines"]) == 2 * (len(shown) - 1)


def test_nodes_before_the_place_are_the_same_and_those_after_it_differ_because_of_it() -> None:
    record = along(6, first=2)
    piece = piece_graph.piece_of(record.nodes, 2, 1e-11)
    tones = {box["full"]: box["tone"] for box in piece["boxes"] if box["lane"] == "b"}
    assert tones == {"node_0": "good", "node_1": "good", "node_2": "bad", "node_3": "fair", "node_4": "fair",
                     "node_5": "fair"}  # fmt: skip


@pytest.mark.parametrize("count", [1, 2, 400])
def test_any_number_of_nodes_is_drawn(count: int) -> None:
    drawn = node_chart.way_of(along(count, first=0), "e")
    assert drawn is not None
    assert drawn["table"]["count"] == count
    assert "nan" not in drawn["chart"]["error_a"]


def test_without_nodes_there_is_no_chart() -> None:
    assert node_chart.way_of(record_examples.different(), "e") is None
    assert 'class="way"' not in page.render(record_examples.different())


def test_a_page_of_two_thousand_nodes_can_still_be_mailed() -> None:
    assert len(page.render(along(2_000)).encode()) < 1_200_000
