"""A sheet is drawn whole on the page, in the notebook and as Markdown, and no name in it becomes more than text."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import record_examples
import sheet_examples
from driftscope.errors import RecordError
from driftscope.records.finding import Finding, Where
from driftscope.records.kinds.collection import Collection, Entry
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.kinds.matrix import DriftMatrix
from driftscope.records.verdict import Verdict
from driftscope.report import kinds
from driftscope.report.pages import page, sheet_view, shell
from driftscope.report.sheet import HeatMap, Mark, Sheet, Table


class Tags(HTMLParser):
    """Collect the elements of a page, but for the places at which a long name may be broken."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "wbr":
            self.found.append(tag)


def html_of(sheet: Sheet) -> str:
    return shell.page({"schema": "x"}, "t", [sheet_view.document(sheet)])


def matrix() -> DriftMatrix:
    pairs = {
        ("a", "b"): record_examples.rounding(),
        ("a", "c"): record_examples.different(),
        ("b", "c"): record_examples.different(),
    }
    return DriftMatrix(("a", "b", "c"), pairs, (("a", "b"), ("c",)), {"d": "no such operator"})


def test_hostile_names_add_no_element() -> None:
    tame, hostile = (Tags(html_of(sheet_examples.everything(n))).found for n in ("x", sheet_examples.HOSTILE))
    assert hostile == tame


def test_hostile_names_stay_text_in_a_notebook_and_in_markdown() -> None:
    drawn = sheet_view.excerpt(sheet_examples.everything(sheet_examples.HOSTILE))
    fragment = shell.templates().get_template("fragment.html").render(e=drawn)
    assert "<img src=x" not in fragment
    assert "<script" not in fragment
    text = sheet_view.markdown(sheet_examples.everything(sheet_examples.HOSTILE))
    # Rendered as GitHub would: elements in the text would be elements on the page.
    tags = set(Tags(MarkdownIt("commonmark").enable("table").render(text)).found)
    assert tags <= {"h3", "p", "ul", "li", "strong", "code", "pre", "table", "thead", "tbody", "tr", "th", "td"}
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.replace("\\|", "").count("|") for line in rows[:5]}) == 1  # a bar in a name opens no column


def test_each_kind_of_section_is_drawn() -> None:
    html = html_of(sheet_examples.everything())
    for part in ('class="plain"', 'class="grid"', "data:image/svg+xml;base64,", "x = encoder.layers[0]", "N001"):
        assert part in html


@pytest.mark.parametrize(
    ("count", "in_the_script"), [(sheet_view.DRAWN_AT_ONCE, False), (sheet_view.DRAWN_AT_ONCE + 1, True)]
)
def test_a_long_table_is_handed_to_the_script(count: int, in_the_script: bool) -> None:
    html = html_of(sheet_examples.long(count))
    assert ('class="all-rows"' in html) is in_the_script
    assert html.count('<th scope="row"') == sheet_view.DRAWN_AT_ONCE


def test_two_thousand_rows_stay_below_a_megabyte() -> None:
    assert len(html_of(sheet_examples.long(2_000)).encode()) < 1_000_000


@pytest.mark.parametrize(
    ("cells", "expected"),
    [((1, 2.5, None), True), ((1, "x", 2), False), ((Mark("1,000", sort=1000), Mark("–")), True), ((None, None), False),
     ((Mark("DIFFERENT", sort=4),), False)],
)  # fmt: skip
def test_a_column_of_numbers_is_known_as_one(cells: tuple[object, ...], expected: bool) -> None:
    table = Table("t", ("name", "value"), tuple(("n", c) for c in cells))  # type: ignore[misc]
    drawn = sheet_view.document(Sheet("t", "good", "h", "r", sections=(table,)))["sections"][0]
    assert drawn["columns"][1][1] is expected


@pytest.mark.parametrize("suffix", [".json", ".html"])
def test_a_matrix_comes_back_as_it_was(tmp_path: Path, suffix: str) -> None:
    target = matrix().save(tmp_path / f"m{suffix}")
    assert page.load(target) == matrix()


def test_a_matrix_says_who_has_the_same_bits_and_who_did_not_run() -> None:
    html = page.render(matrix())
    assert "a, b" in html
    assert "no such operator" in html
    assert kinds.sheet_of(matrix()).headline == str(Verdict.DIFFERENT)


def test_a_matrix_does_not_repeat_a_cause_from_the_other_side() -> None:
    """Two programs against one that is right: the pair of the two would advise to break the right one."""

    def found(fix: str, node: str) -> Comparison:
        given = record_examples.different()
        return replace(given, findings=(Finding("N001", fix, fix=fix, where=Where(node=node)),))

    wrong, back = found("Set epsilon of n to 1e-05.", "n"), found("Set epsilon of m to 0.001.", "m")
    same = record_examples.identical()
    told = DriftMatrix(("a", "b", "c"), {("a", "b"): wrong, ("a", "c"): same, ("b", "c"): back}, (("a", "c"), ("b",)))
    assert [f.fix for f in kinds.sheet_of(told).findings] == ["Set epsilon of n to 1e-05."]
    # Where neither differs from the reference, what their pair shows is news.
    news = replace(told, pairs={("a", "b"): same, ("a", "c"): same, ("b", "c"): back})
    assert [f.fix for f in kinds.sheet_of(news).findings] == ["Set epsilon of m to 0.001."]
    text = kinds.text_of(told, width=100, color=False)
    assert "Classes of equal bits: 2 (programs in one class" in text


def test_a_finding_of_a_matrix_names_its_programs_and_stands_there_once() -> None:
    wrong, same = record_examples.different(), record_examples.identical()
    pairs = {("a", "b"): wrong, ("a", "c"): wrong, ("b", "c"): same}
    first = kinds.sheet_of(DriftMatrix(("a", "b", "c"), pairs, (("a",), ("b", "c")))).findings
    whats = [f.what for f in first if f.code == wrong.findings[0].code]
    assert whats == [f"b and c (B) against a (A): {wrong.findings[0].what}"]


@pytest.mark.parametrize(("rows", "cell", "grid"), [(3, "a sentence " * 8, False), (3, "short", True),
                                                    (30, "a sentence " * 8, True)])  # fmt: skip
def test_a_few_rows_of_sentences_are_a_list_on_a_narrow_screen(rows: int, cell: str, grid: bool) -> None:
    table = Table("t", tuple(f"column {k}" for k in range(7)), tuple((k, 1, 2, 3, 4, 5, cell) for k in range(rows)))
    assert sheet_view.section(table, "t")["grid"] is grid


@pytest.mark.parametrize("aside", [True, False])
def test_what_few_look_at_can_be_folded_and_is_open_without_scripts(aside: bool) -> None:
    table = Table("Every shape", ("a", "b"), ((1, 2),), aside=aside)
    grid = HeatMap("Picture", ("r",), ("c",), ((Mark("x"),),), aside=aside)
    html = html_of(Sheet("t", "good", "fine", "because", sections=(table, grid)))
    assert html.count('<details class="aside" open>') == (2 if aside else 0)
    assert html.count("<h2 id=") == 2


def test_a_long_name_among_words_may_be_broken_at_its_parts() -> None:
    broken = shell.templates().filters["breakable"]("Dim.AUTO, backed_size_oblivious_and_long")
    assert broken == "Dim.AUTO, backed_<wbr>size_<wbr>oblivious_<wbr>and_<wbr>long"


def test_a_small_matrix_stays_a_grid_on_a_narrow_screen() -> None:
    grid = Table("pairs", ("variants", "A", "B"), (("A x", 0, 1), ("B y", 1, 0)))
    rows = Table("rows", ("name", "size"), (("x", 1),))
    assert sheet_view.section(grid, "g")["grid"]
    assert not sheet_view.section(rows, "r")["grid"]


@pytest.mark.parametrize(
    "change", [{"pairs": [{"a": "x"}]}, {"names": None}, {"refused": []}, {"schema": "driftscope/matrix/9"}]
)
def test_a_damaged_matrix_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "m.json").write_text(json.dumps(matrix().to_dict() | change))
    with pytest.raises(RecordError):
        page.load(tmp_path / "m.json")


@pytest.mark.parametrize("name", record_examples.ALL)
def test_every_comparison_has_a_markdown_version(name: str) -> None:
    record = record_examples.ALL[name]()
    text = record._repr_markdown_()
    assert text.splitlines()[0].endswith(str(record.verdict))


def test_a_record_is_also_written_as_markdown_and_sarif(tmp_path: Path) -> None:
    text = record_examples.different().save(tmp_path / "a.md").read_text()
    assert "DIFFERENT" in text.splitlines()[0]
    log = json.loads(record_examples.different().save(tmp_path / "a.sarif").read_text())
    placed = [f for f in record_examples.different().findings if f.where.file and f.where.line]
    assert len(log["runs"][0]["results"]) == len(placed) > 0
    collection = Collection(
        "all", (Entry("one", "", record_examples.different()), Entry("two", "", record_examples.rounding()))
    )
    assert "## two" in collection.save(tmp_path / "b.md").read_text()
    assert len(json.loads(collection.save(tmp_path / "b.sarif").read_text())["runs"][0]["results"]) == len(placed)
