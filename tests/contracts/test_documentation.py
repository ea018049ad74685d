"""Generated pages are current, links lead somewhere, and the checks can fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def script(name: str) -> ModuleType:
    """Load a script of the docs folder."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> Any:
    return script("build")


def test_generated_pages_are_current() -> None:
    generate = script("generate")
    stale = [name for name, text in generate.pages().items() if (generate.REFERENCE / name).read_text() != text]
    assert stale == [], "run python docs/generate.py"


def test_no_reference_page_of_a_code_is_left_over() -> None:
    generate = script("generate")
    present = {f"codes/{path.name}" for path in (generate.REFERENCE / "codes").iterdir()}
    assert present == {name for name in generate.pages() if name.startswith("codes/")}


def test_every_link_leads_somewhere(build: Any) -> None:
    assert build.broken_links(build.collect()) == []


@pytest.fixture
def little(build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build script over a folder of its own."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(
        "# Home\n\nSee [two](docs/two.md#a-part-of-it) and [web](https://example.org).\n"
    )
    (tmp_path / "docs" / "two.md").write_text("# Two\n\n## A part, of it!\n\n<script>x</script> [home](../README.md)\n")
    for name, value in (("ROOT", tmp_path), ("DOCS", tmp_path / "docs"), ("BUILD", tmp_path / "docs" / "_build"),
                        ("MADE", tmp_path / "docs" / "made")):  # fmt: skip
        monkeypatch.setattr(build, name, value)
    return build


def test_good_links_are_left_alone(little: Any) -> None:
    assert little.broken_links(little.collect()) == []


@pytest.mark.parametrize(
    ("link", "words"),
    [("docs/none.md", "there is no docs/none.md"), ("docs/two.md#nowhere", "no heading #nowhere"), ("#lost", "#lost"),
     ("../outside.md", "out of the repository")],
)  # fmt: skip
def test_broken_links_are_named(little: Any, link: str, words: str) -> None:
    (little.ROOT / "README.md").write_text(f"# Home\n\n[x]({link})\n")
    (problem,) = little.broken_links(little.collect())
    assert problem.startswith("README.md:3: ")
    assert words in problem


def test_every_page_written_by_hand_is_in_the_index(build: Any) -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    rooms = ("tutorial", "howto", "explanation")
    pages = [p.relative_to(DOCS).as_posix() for room in rooms for p in (DOCS / room).iterdir() if p.is_file()]
    assert [page for page in pages if f"({page})" not in index] == []
