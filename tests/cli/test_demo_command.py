"""``driftscope demo``, the first thing people run."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftscope.records.kinds.collection import Collection
from driftscope.records.verdict import Verdict
from driftscope.report.pages import page


@pytest.mark.sweep  # the README's own run of the demo is in the slow suite
def test_the_demo_writes_one_page_with_every_scene(run, tmp_path: Path) -> None:
    result = run("demo", "-o", tmp_path / "demo.html")
    assert result.exit_code == 0, result.stderr
    stored = page.load(tmp_path / "demo.html")
    assert isinstance(stored, Collection)
    verdicts = [entry.comparison.verdict for entry in stored.entries]
    assert verdicts == [Verdict.ROUNDING, Verdict.DIFFERENT, Verdict.DIFFERENT, Verdict.PRECISION]
    for entry in stored.entries:
        assert entry.title in result.stdout
