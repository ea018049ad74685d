"""The page as people use it: in a browser, with a keyboard, on a phone, in the dark, on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import record_examples
import sheet_examples
from driftscope.records.kinds.collection import Collection, Entry
from driftscope.records.kinds.comparison import NodeRecord
from driftscope.report.sheet import HeatMap, Mark, Sheet, Table

Opened = Callable[..., Any]
EVERY = pytest.mark.parametrize("name", record_examples.ALL)


def paths(tab: Any) -> list[str]:
    """Return the paths of the rows that are visible, in order."""
    found: list[str] = tab.eval_on_selector_all(
        "tbody.output", "rows => rows.filter(r => r.offsetParent !== null).map(r => r.dataset.path)"
    )
    return found


@EVERY
def test_every_record_opens_without_a_complaint(name: str, opened: Opened) -> None:
    record = record_examples.ALL[name]()
    tab = opened(record)
    assert str(record.verdict) in tab.inner_text("h1")
    assert tab.title().endswith("driftscope")


def test_a_hostile_record_runs_nothing(opened: Opened) -> None:
    tab = opened(record_examples.hostile())
    tab.wait_for_timeout(50)
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("img").count() == 0
    assert "<img src=x" in tab.inner_text(".reason")


def test_the_policy_stops_a_script_that_is_not_ours(opened: Opened, browser: Any, tmp_path: Any) -> None:
    target = record_examples.rounding().save(tmp_path / "page.html")
    poisoned = target.read_text().replace("</main>", "<script>window.pwned = 1</script></main>")
    target.write_text(poisoned)
    tab = browser.new_page()
    tab.goto(target.as_uri())
    assert tab.evaluate("window.pwned") is None
    tab.close()


def test_rows_sort_by_each_kind_of_column(opened: Opened) -> None:
    tab = opened(record_examples.many(30))
    tab.click("[data-sort=floors]")
    floors = [float(x) for x in tab.eval_on_selector_all("tbody.output", "r => r.map(x => x.dataset.floors)")]
    assert floors == sorted(floors, reverse=True)
    assert tab.get_attribute("th:has([data-sort=floors])", "aria-sort") == "descending"
    tab.click("[data-sort=floors]")
    assert [float(x) for x in tab.eval_on_selector_all("tbody.output", "r => r.map(x => x.dataset.floors)")] == sorted(
        floors
    )
    tab.click("[data-sort=path]")
    names = paths(tab)
    numbered = [int(p.split("layers[")[1].split("]")[0]) for p in names if "layers[" in p]
    assert numbered == sorted(numbered)  # 2 before 10
    assert tab.locator("th[aria-sort]").count() == 1


def test_rows_filter_by_path_and_by_verdict(opened: Opened) -> None:
    tab = opened(record_examples.many(30))
    everything = paths(tab)
    tab.fill("input[type=search]", "EXTRA")
    assert paths(tab) == ["out['extra']"]
    tab.fill("input[type=search]", "no such output")
    assert paths(tab) == []
    assert tab.is_visible(".none")
    tab.press("input[type=search]", "Escape")
    assert paths(tab) == everything
    tab.click("[data-filter=DIFFERENT]")
    assert sorted(paths(tab)) == ["out['extra']", "out['scores']"]
    assert tab.inner_text("section.outputs [role=status]") == "2 of 30 outputs shown"
    tab.click("[data-filter=DIFFERENT]")
    assert paths(tab) == everything


def test_a_row_unfolds_by_keyboard_alone(opened: Opened) -> None:
    tab = opened(record_examples.many(30))
    assert tab.locator(".detail:visible").count() == 0
    tab.focus("tbody.output .more")
    tab.keyboard.press("Enter")
    assert tab.locator(".detail:visible").count() == 1
    tab.keyboard.press("Space")
    assert tab.locator(".detail:visible").count() == 0


def test_few_rows_start_unfolded(opened: Opened) -> None:
    assert opened(record_examples.different()).locator(".detail:visible").count() == 2


def test_tab_reaches_every_control(opened: Opened) -> None:
    tab = opened(record_examples.different())
    controls = tab.locator("button:visible, summary:visible, input:visible, a[href]").count()
    reached = set()
    for _ in range(controls + 3):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("[...document.querySelectorAll('*')].indexOf(document.activeElement)"))
    assert len(reached) >= controls


def test_without_scripts_everything_is_readable(opened: Opened) -> None:
    tab = opened(record_examples.many(30), java_script_enabled=False)
    assert tab.locator(".detail").count() == 30
    assert tab.locator(".detail:visible").count() == 30


@pytest.mark.parametrize("name", ["different", "many", "hostile"])
@pytest.mark.parametrize("width", [320, 768, 1280])
def test_nothing_sticks_out_sideways(name: str, width: int, opened: Opened) -> None:
    tab = opened(record_examples.ALL[name](), width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_paper_shows_what_was_folded(opened: Opened) -> None:
    tab = opened(record_examples.many(12))
    tab.emulate_media(media="print")
    tab.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details:not([open])").count() == 0
    assert tab.locator(".detail:visible").count() == 12
    assert tab.locator(".controls:visible").count() == 0


# WCAG 2.2, relative luminance and contrast ratio, of every piece of text against what is painted behind it.
CONTRAST = """() => {
  const parse = (c) => {
    // Mixed colours are told as color(srgb 0.5 0.5 0.5), all others as rgb(127, 127, 127).
    const scale = c.startsWith("color(srgb") ? 255 : 1;
    const n = c.match(/[\\d.]+/g).map(Number);
    return [n[0] * scale, n[1] * scale, n[2] * scale, n.length > 3 ? n[3] : 1];
  };
  const lum = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c[3] === 1) return c; }
    return [255, 255, 255, 1];
  };
  const bad = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !e.offsetParent || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    const [x, y] = [lum(parse(getComputedStyle(e).color)), lum(behind(e))].sort((p, q) => q - p);
    const ratio = (x + 0.05) / (y + 0.05);
    const words = walker.currentNode.textContent.trim().slice(0, 30);
    if (ratio < 4.5) bad.push(`${e.className || e.tagName}: ${words} ${ratio.toFixed(2)}`);
  }
  return [...new Set(bad)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["identical", "rounding", "precision", "inconclusive", "different"])
def test_text_stands_out_from_its_ground(name: str, scheme: str, opened: Opened) -> None:
    assert opened(record_examples.ALL[name](), scheme=scheme).evaluate(CONTRAST) == []


def test_the_contrast_check_can_fail(opened: Opened) -> None:
    tab = opened(record_examples.rounding())
    tab.evaluate("document.querySelector('.reason').attributeStyleMap.set('color', 'rgb(150, 190, 170)')")
    assert tab.evaluate(CONTRAST) != []


def toned_sheet() -> sheet_examples.Drawn:
    """Return a sheet with every tone at every depth."""
    tones = ("good", "fair", "bad", "unsure", "")
    squares = tuple(tuple(Mark("0.5", tone, level / 10, tip=tone) for level in range(11)) for tone in tones)
    grid = HeatMap("Tones", tones, tuple(map(str, range(11))), squares, legend=tuple((t, t) for t in tones if t))
    rows = tuple((tone or "none", Mark("text", tone)) for tone in tones)
    return sheet_examples.Drawn(
        replace(sheet_examples.everything(), tone="unsure", sections=(grid, Table("Rows", ("tone", "text"), rows)))
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("make", [toned_sheet, lambda: sheet_examples.Drawn(sheet_examples.everything())])
def test_text_of_a_sheet_stands_out_from_its_ground(make: Any, scheme: str, opened: Opened) -> None:
    assert opened(make(), scheme=scheme).evaluate(CONTRAST) == []


@pytest.mark.parametrize("width", [320, 768, 1280])
@pytest.mark.parametrize("name", ["encoder.layers[0]", "x" * 200])
def test_a_sheet_does_not_stick_out_sideways(name: str, width: int, opened: Opened) -> None:
    tab = opened(sheet_examples.Drawn(sheet_examples.everything(name)), width=width)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_is_dark(opened: Opened) -> None:
    grounds = [
        opened(record_examples.rounding(), scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    light, dark = (sum(map(int, g.removeprefix("rgb(").rstrip(")").split(","))) for g in grounds)
    assert dark < 150 < 600 < light


@pytest.mark.parametrize(
    "make", [record_examples.different, lambda: sheet_examples.Drawn(sheet_examples.everything()),
             lambda: sheet_examples.Drawn(sheet_examples.long(500))]
)  # fmt: skip
def test_a_reader_of_the_page_by_ear_finds_names_and_order(make: Any, opened: Opened) -> None:
    tab = opened(make())
    assert tab.get_attribute("html", "lang") == "en"
    assert tab.locator("main").count() == tab.locator("h1").count() == 1
    unnamed = tab.eval_on_selector_all(
        "button, input, summary, section",
        """all => all.filter(e => !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length
            || e.getAttribute('aria-labelledby'))).length""",
    )
    assert unnamed == 0
    lost = tab.eval_on_selector_all(
        "[aria-labelledby], [aria-controls], a[href^='#']",
        """all => all.flatMap(e => [e.getAttribute('aria-labelledby'), e.getAttribute('aria-controls'),
            e.getAttribute('href')?.slice(1)]).filter(id => id && !document.getElementById(id))""",
    )
    assert lost == []
    twice = tab.evaluate("(() => { const ids = [...document.querySelectorAll('[id]')].map(e => e.id);"
                         " return ids.length - new Set(ids).size; })()")  # fmt: skip
    assert twice == 0
    assert tab.locator("th:not([scope])").count() == 0


def test_a_collection_leads_to_its_parts(opened: Opened) -> None:
    entries = tuple(Entry(n, f"about {n}", record_examples.ALL[n]()) for n in ("rounding", "different", "precision"))
    tab = opened(Collection("Three scenes", entries), reduced_motion="reduce")
    assert tab.locator("nav a").count() == tab.locator("article").count() == 3
    tab.click("nav a >> nth=2")
    assert tab.evaluate("document.querySelectorAll('article')[2].getBoundingClientRect().top") < 400


def test_three_hundred_outputs_open_in_a_moment(opened: Opened) -> None:
    tab = opened(record_examples.many(300))
    milliseconds = tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert milliseconds < 3000


def test_a_sheet_opens_without_a_complaint_and_runs_no_name(opened: Opened) -> None:
    tab = opened(sheet_examples.Drawn(sheet_examples.everything(sheet_examples.HOSTILE)))
    tab.wait_for_timeout(50)
    assert tab.evaluate("window.pwned") is None
    assert tab.locator("img").count() == 1  # the picture
    assert tab.evaluate("document.querySelector('.picture img').naturalWidth") == 80
    assert "<img src=x" in tab.inner_text(".reason")


def test_a_table_of_a_sheet_sorts_and_filters(opened: Opened) -> None:
    tab = opened(sheet_examples.Drawn(sheet_examples.everything()))

    def names() -> list[str]:
        found: list[str] = tab.locator("section.rows tbody th").all_inner_texts()
        return found

    tab.click("section.rows [data-column='1']")
    assert names() == ["c", "encoder.layers[0]", "b"]  # largest first; what has no number comes last
    tab.click("section.rows [data-column='1']")
    assert names() == ["encoder.layers[0]", "c", "b"]
    tab.click("section.rows [data-column='2']")
    assert tab.locator("section.rows th[aria-sort]").count() == 1


@pytest.mark.slow
def test_twenty_thousand_rows_are_usable(opened: Opened) -> None:
    tab = opened(sheet_examples.Drawn(sheet_examples.long(20_000)))
    assert tab.locator("section.rows tbody tr").count() < 200
    tab.click("section.rows [data-column='2']")
    assert tab.locator("section.rows tbody tr").first.locator("td").last.inner_text() == "200"
    tab.fill("section.rows input", "layers[777]")
    assert tab.locator("section.rows tbody th").all_inner_texts() == ["layers[777]"]
    tab.fill("section.rows input", "no such node")
    assert tab.is_visible("section.rows .none")
    tab.press("section.rows input", "Escape")
    tab.evaluate("document.querySelector('.window').scrollTop = 1e9")
    tab.wait_for_timeout(200)
    assert "layers[0]" in tab.locator("section.rows tbody th").all_inner_texts()  # the smallest number


def test_a_table_of_twenty_columns_is_moved_sideways_and_cuts_no_cell(opened: Opened) -> None:
    columns = tuple(f"column{k}" for k in range(20))
    rows = tuple((f"row{i}", *(f"value {i}.{k}" for k in range(19))) for i in range(400))
    tab = opened(sheet_examples.Drawn(Sheet("t", "good", "d", "r", sections=(Table("Rows", columns, rows),))))
    cut = "cells => cells.filter(c => c.scrollWidth > c.clientWidth + 1).length"
    assert tab.locator("section.rows tbody td").first.inner_text() == "value 0.0"
    assert tab.locator("section.rows tbody td").evaluate_all(cut) == 0


def test_the_way_is_drawn_and_its_nodes_can_be_searched(opened: Opened) -> None:
    nodes = tuple(NodeRecord(f"n{i}", "Add", f"v{i}", (2,), lifted=0.0, error_a=1.0, error_b=1.2) for i in range(1_000))
    tab = opened(replace(record_examples.different(), nodes=nodes))
    box = tab.locator(".way .wide .w-b").first.bounding_box()
    assert box is not None
    assert box["width"] > 600
    tab.fill("section.rows input", "n999")
    assert tab.locator("section.rows tbody th").all_inner_texts() == ["n999"]
    assert tab.evaluate(CONTRAST) == []
