"""Take the pictures of the documentation with a headless Chromium: ``python docs/screenshots.py``.

Makes one record of each kind on small real programs, opens its page, and writes ``docs/images/KIND-LOOK.png`` for each
look (light, dark, narrow), and the picture of the demo. Needs playwright (``pip install -e '.[browser]'``) and a
Chromium (``apt-get install -y chromium-headless-shell``), or its path in the variable ``CHROMIUM``.
"""

from __future__ import annotations

import copy
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch

import driftscope as ds

IMAGES = Path(__file__).parent / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LARGEST = 300_000  # bytes: everybody who clones the repository pays for it
LOOKS = {"light": (1180, 1150, "light"), "dark": (1180, 1150, "dark"), "narrow": (420, 1150, "light")}


def records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Make one record of each kind."""
    # From a folder of its own: pages name the file that a program stands in.
    shutil.copy(Path(__file__).parent / "pictured.py", folder / "pictured.py")
    sys.path.insert(0, str(folder))
    from pictured import Net, Pool, clip

    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(8, 64)
    broken = copy.deepcopy(model)
    broken.norms[1].eps = 1e-3  # type: ignore[assignment]
    file = folder / "net.onnx"
    torch.onnx.export(broken, (x,), str(file), verbose=False)
    yield "comparison", ds.compare(model, str(file), x, nodes=True)
    programs = {"eager": model, "onnx": str(file), "float16": ds.torch(model, dtype="float16"),
                "captured": ds.torch(model, compile="aot_eager")}  # fmt: skip
    yield "matrix", ds.compare_all(programs, x)
    yield "shapes", ds.check_shapes(Pool(), (torch.randn(4, 6, 8), torch.ones(4, 6)))
    yield "transforms", ds.check_transforms(clip, torch.randn(5, 8), transforms=("vmap", "grad", "jvp"))
    yield "study", ds.studies.reduction("mean", sizes=(512, 4096), dtypes=("float32",), permutations=32, workers=0)
    yield "accumulation", ds.reveal("torch.sum", 4096)


def photograph(browser: Any, page: Path, target: Path, look: tuple[int, int, str]) -> int:
    """Write a picture of the top of a page with few colours, and return its size in bytes."""
    from PIL import Image

    width, height, scheme = look
    tab = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
    tab.goto(page.resolve().as_uri())
    tab.screenshot(path=str(target))
    tab.close()
    Image.open(target).convert("RGB").quantize(128).save(target, optimize=True)
    return target.stat().st_size


def main() -> int:
    """Take every picture; return the exit code."""
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        taken = dict(_every_picture(Path(name), lambda page, target, look: photograph(browser, page, target, look)))
        browser.close()
    for picture, size in taken.items():
        click.echo(f"{picture}: {size:,} bytes")
    return 0 if max(taken.values()) <= LARGEST else 1


def _every_picture(folder: Path, take: Callable[[Path, Path, tuple[int, int, str]], int]) -> Iterator[tuple[str, int]]:
    for kind, record in records(folder):
        page = folder / f"{kind}.html"
        record.save(page)
        for look, how in LOOKS.items():
            yield f"{kind}-{look}.png", take(page, IMAGES / f"{kind}-{look}.png", how)
    from click.testing import CliRunner

    from driftscope.cli import main as driftscope

    result = CliRunner().invoke(driftscope, ["demo", "-o", str(folder / "demo.html")])
    if result.exit_code != 0:
        raise click.ClickException(result.stderr)
    yield "demo.png", take(folder / "demo.html", IMAGES / "demo.png", LOOKS["light"])


if __name__ == "__main__":
    raise SystemExit(main())
