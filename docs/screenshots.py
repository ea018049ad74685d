"""Take the pictures of the documentation with a headless Chromium: ``python docs/screenshots.py``.

Runs the demo, opens its page, and writes ``docs/images/demo.png``. Needs playwright (``pip install -e '.[browser]'``)
and a Chromium (``apt-get install -y chromium-headless-shell``), or its path in the variable ``CHROMIUM``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import click
from click.testing import CliRunner

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LARGEST = 300_000  # bytes: everybody who clones the repository pays for it


def photograph(page: Path, target: Path, *, width: int = 1180, height: int = 1150) -> None:
    """Write a picture of the top of a page."""
    from playwright.sync_api import sync_playwright

    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="light")
        tab = context.new_page()
        tab.goto(page.resolve().as_uri())
        tab.screenshot(path=str(target))
        browser.close()


def main() -> int:
    """Take every picture; return the exit code."""
    from driftscope.cli import main as driftscope

    IMAGES.mkdir(exist_ok=True)
    target = IMAGES / "demo.png"
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "demo.html"
        result = CliRunner().invoke(driftscope, ["demo", "-o", str(page)])
        if result.exit_code != 0:
            click.echo(result.stderr, err=True)
            return 1
        photograph(page, target)
    size = target.stat().st_size
    click.echo(f"{target.name}: {size:,} bytes")
    return 0 if size <= LARGEST else 1


if __name__ == "__main__":
    raise SystemExit(main())
