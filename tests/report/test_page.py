"""The page as a file: complete, closed to the network, harmless, and the record itself."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import record_examples
from driftscope.errors import RecordError
from driftscope.records.kinds.collection import Collection, Entry
from driftscope.report.pages import gauges, page

EVERY = pytest.mark.parametrize("name", record_examples.ALL)


def collection() -> Collection:
    """Return two comparisons with titles."""
    entries = (Entry("one", "fine", record_examples.rounding()), Entry("two", "broken", record_examples.different()))
    return Collection("Two scenes", entries)


class Tags(HTMLParser):
    """Collects every element with its attributes."""

    def __init__(self, html: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@EVERY
def test_the_record_comes_back_whole(name: str, tmp_path: Path) -> None:
    record = record_examples.ALL[name]()
    target = record.save(tmp_path / "page.html")
    assert page.read(target) == record.to_dict()
    assert page.load(target).to_dict() == record.to_dict()


@pytest.mark.parametrize("suffix", [".html", ".json"])
def test_a_collection_comes_back_whole(suffix: str, tmp_path: Path) -> None:
    target = collection().save(tmp_path / f"two{suffix}")
    assert page.load(target) == collection()


@EVERY
def test_the_verdict_is_the_first_thing_read(name: str) -> None:
    record = record_examples.ALL[name]()
    html = page.render(record)
    assert html.startswith("<!doctype html>")
    heading = re.search(r"<h1[^>]*>(.*?)</h1>", html, re.DOTALL)
    assert heading is not None
    assert str(record.verdict) in heading.group(1)


@EVERY
def test_nothing_is_loaded_from_anywhere(name: str) -> None:
    for tag, attributes in Tags(page.render(record_examples.ALL[name]())).found:
        assert tag not in {"link", "iframe", "object", "embed", "base", "form", "img"}
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [key for key in attributes if key.startswith("on")]
        assert str(attributes.get("href", "#")).startswith("#")


def test_the_policy_allows_exactly_the_pages_own_style_and_script() -> None:
    html = page.render(record_examples.different())
    policy = next(str(a["content"]) for t, a in Tags(html).found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_a_hostile_record_adds_no_element() -> None:
    tame = [tag for tag, _ in Tags(page.render(record_examples.different())).found]
    hostile = [tag for tag, _ in Tags(page.render(record_examples.hostile())).found]
    assert hostile.count("script") == tame.count("script") == 2
    assert set(hostile) <= set(tame)


def test_many_findings_are_folded_and_none_is_lost() -> None:
    html = page.render(record_examples.many())
    assert "16 more findings" in html
    assert html.count('<li class="finding') == 21


def test_the_fragment_has_no_script_and_no_style_sheet() -> None:
    for make in record_examples.ALL.values():
        tags = {tag for tag, _ in Tags(page.fragment(make())).found}
        assert tags <= {"div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "code", "br"}


def test_the_fragment_says_the_same() -> None:
    html = page.fragment(record_examples.different())
    for words in ("DIFFERENT", "node_layer_norm_3", "212", "1 note more"):
        assert words in html
    assert record_examples.different()._repr_html_() == html


def test_a_name_cannot_end_the_embedded_record() -> None:
    (embedded,) = re.findall(
        r'id="driftscope-record">(.*?)</script>', page.render(record_examples.hostile()), re.DOTALL
    )
    assert "<" not in embedded
    assert json.loads(embedded) == record_examples.hostile().to_dict()


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("a.html", "<!doctype html><p>hello", "not a driftscope page"),
        ("a.html", page.render(record_examples.rounding()).split('"driftscope/comparison')[0], "cut short"),
        ("a.json", json.dumps(record_examples.rounding().to_dict())[:900], "damaged"),
        ("a.json", "", "damaged"),
        ("a.json", "[1, 2]", "not an object"),
        ("a.json", '{"schema": "driftscope/comparison/99"}', "driftscope/comparison/99"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '{"a":' * 80 + "1" + "}" * 80, "nested too deeply"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", "damaged"),
    ],
)
def test_files_that_hold_no_record_are_refused_in_one_sentence(
    file: str, content: str, words: str, tmp_path: Path
) -> None:
    (tmp_path / file).write_text(content)
    with pytest.raises(RecordError, match=words) as caught:
        page.load(tmp_path / file)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\x80\x04\x95pickle")
    with pytest.raises(RecordError, match="not text"):
        page.load(tmp_path / "a.json")
    with pytest.raises(RecordError, match="no file"):
        page.load(tmp_path / "b.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [("outputs", "abc"), ("outputs", [{"path": 3}]), ("verdict", "FINE"), ("reason", None), ("findings", {"code": 1}),
     ("times", []), ("outputs", None)],
)  # fmt: skip
def test_a_record_with_a_wrong_field_is_refused(field: str, value: object, tmp_path: Path) -> None:
    data = record_examples.rounding().to_dict() | {field: value}
    (tmp_path / "a.json").write_text(json.dumps(data))
    with pytest.raises(RecordError, match="damaged"):
        page.load(tmp_path / "a.json")


def test_a_record_with_a_field_of_the_future_is_read(tmp_path: Path) -> None:
    data = record_examples.rounding().to_dict() | {"weather": "fine"}
    (tmp_path / "a.json").write_text(json.dumps(data))
    assert page.load(tmp_path / "a.json") == page.load(record_examples.rounding().save(tmp_path / "b.json"))


@given(st.floats(min_value=0, allow_nan=False), st.floats(min_value=0, allow_nan=False))
def test_gauges_keep_the_order_of_numbers_and_stay_inside(p: float, q: float) -> None:
    low, high = sorted((p, q))
    for position in (gauges.floors_position, gauges.lifted_position):
        left, right = position(low), position(high)
        assert left is not None
        assert right is not None
        assert 0 <= left <= right <= gauges.WIDTH


def test_gauges_say_nothing_of_what_was_not_measured() -> None:
    assert gauges.floors_position(None) is gauges.lifted_position(float("nan")) is None


def test_where_the_drift_of_one_slice_is_larger_than_the_tensors_the_page_says_so() -> None:
    record = record_examples.different()
    said = "not the same function: in float64 they still differ by 3.7e-04 relative at axis 1, index 60 (limit 1e-13)"
    outputs = (replace(record.outputs[0], reason=said), *record.outputs[1:])
    html = page.render(replace(record, outputs=outputs))
    assert re.search("relative, worst at axis 1, index 60: [^;]*3.2e-05[^;]*; the limit is", html)
    assert "relative; the limit is" in page.render(record)
