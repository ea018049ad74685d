"""A browser for the tests of the page; where there is none, they say that they were skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driftscope.records.kinds.collection import Collection
from driftscope.records.kinds.comparison import Comparison

_BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="the page is not tested: playwright is not installed")
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _BROWSERS)), None)
    if executable is None:
        pytest.skip("the page is not tested: there is no Chromium (apt-get install -y chromium-headless-shell)")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open the page of a record; at the end, nothing may have gone wrong in it and nothing been requested."""
    contexts, troubles = [], []

    def open_page(record: Comparison | Collection, *, width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        target = record.save(tmp_path / f"page{len(contexts)}.html")
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: troubles.append(f"console: {message.text}"))
        tab.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        tab.on("request", lambda r: troubles.append(f"request: {r.url}") if r.url != target.as_uri() else None)
        tab.goto(target.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
