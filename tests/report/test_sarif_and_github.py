"""What code hosts read: findings on their lines, and names that cannot become commands."""

from __future__ import annotations

import json
from pathlib import Path

from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.session import Session, SessionEntry
from driftscope.records.verdict import Verdict
from driftscope.report.exchange import github
from driftscope.report.exchange.sarif import sarif_of
from driftscope.report.pages import page


def finding(**where: object) -> Finding:
    return Finding("N001", "another function", "epsilon is 1e-3", "set epsilon to 1e-5", Where(**where))  # type: ignore[arg-type]


def entry(*findings: Finding, failed: bool = True) -> SessionEntry:
    return SessionEntry("test_a.py::test_b", Verdict.DIFFERENT, "differs", findings, failed, "p.html", "test_a.py", 3)


def test_a_finding_on_a_line_is_a_result(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    source = tmp_path / "net" / "model.py"
    placed = finding(file=str(source), line=12, expression="self.norm(x)", node="n", module="encoder.norm")
    run = sarif_of([placed, finding(node="n")], tmp_path)["runs"][0]
    (result,) = run["results"]
    location = result["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "net/model.py"
    assert location["region"] == {"startLine": 12, "snippet": {"text": "self.norm(x)"}}
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "N001"
    assert result["level"] == "warning"
    json.dumps(run)


def test_the_same_finding_keeps_its_fingerprint_when_numbers_and_lines_move() -> None:
    def prints(line: int, what: str) -> str:
        where = Where(file="a.py", line=line, expression="f(x)")
        results = sarif_of([Finding("N001", what, where=where)])["runs"][0]["results"]
        return str(results[0]["partialFingerprints"])

    assert prints(1, "0.5") == prints(2, "0.7")
    other = sarif_of([finding(file="a.py", line=1, expression="g(x)")])["runs"][0]["results"][0]
    assert str(other["partialFingerprints"]) != prints(1, "0.5")


def test_a_file_elsewhere_keeps_its_name(tmp_path: Path) -> None:
    (result,) = sarif_of([finding(file="/usr/lib/x.py", line=1)], tmp_path)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "/usr/lib/x.py"


def test_a_name_cannot_start_another_command(tmp_path: Path) -> None:
    hostile = Finding("N001", "100%\n::error ::x", where=Where(file="a,b:c.py", line=1))
    (line,) = github.commands(Session((entry(hostile),)), tmp_path)
    assert line == "::error file=a%2Cb%3Ac.py,line=1,title=driftscope N001::100%25 ::error ::x"


def test_what_has_no_line_is_shown_at_the_test(tmp_path: Path) -> None:
    nowhere, bare, passed = entry(finding(node="n")), entry(), entry(finding(), failed=False)
    lines = github.commands(Session((nowhere, bare, passed)), tmp_path)
    assert [line.split(",title")[0] for line in lines] == ["::error file=test_a.py,line=3"] * 2


def test_a_session_comes_back_and_links_to_its_pages(tmp_path: Path) -> None:
    session = Session((entry(finding()), entry(failed=False)))
    assert page.load(session.save(tmp_path / "index.html")) == session
    assert 'href="p.html"' in (tmp_path / "index.html").read_text()


def test_only_a_name_beside_the_page_becomes_a_link() -> None:
    for link in ("javascript:alert(1)", "https://x.org", "../up.html", "/etc/passwd", ".hidden"):
        assert "<a href=" not in page.render(Session((SessionEntry("t", Verdict.IDENTICAL, "r", page=link),))).replace(
            '<a class="skip" href=', ""
        )
