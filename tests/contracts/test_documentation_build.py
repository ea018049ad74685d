"""What the build of the documentation adds to Sphinx: a front page, and a search that works from a folder."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

BUILD = Path(__file__).parents[2] / "docs" / "build.py"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_search_finds_the_text_of_every_page_beside_it(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    page = '<html><head></head><body><article role="main"><h1>Floors</h1><p>1 &lt; 2</p></article></body></html>'
    (tmp_path / "docs" / "floors.html").write_text(page)
    (tmp_path / "search.html").write_text("<html><head></head><body></body></html>")
    build.keep_excerpts(tmp_path)
    script = (tmp_path / "_static" / "excerpts.js").read_text()
    kept = json.loads(re.search(r"const texts = (.*);\n", script)[1])  # type: ignore[index]
    assert kept == {"docs/floors.html": '<div role="main">Floors 1 &lt; 2</div>'}
    assert "<" not in script.split("const texts = ")[1].split(";\n")[0]  # no name can close the script
    assert (tmp_path / "search.html").read_text().count("_static/excerpts.js") == 1
