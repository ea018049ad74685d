"""Take the pictures of the documentation with a headless Chromium: ``python docs/screenshots.py [FOLDER]``.

Makes one record of each kind on small real programs, opens its page, and writes ``docs/images/KIND-LOOK.png`` for
each look (light and dark at 1,400 and 420 pixels), and the picture of the demo; with FOLDER it writes there, and whole
pages instead of their tops. Needs a Chromium (``apt-get install -y chromium``), or its path in ``CHROMIUM``. It says
how high each page is at 420 pixels.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import torch

import driftscope as ds

IMAGES = Path(__file__).resolve().parent / "images"
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
LARGEST = 300_000  # bytes: everybody who clones the repository pays for it
LOOKS = {"light": (1400, 1150, "light"), "dark": (1400, 1150, "dark"), "narrow": (420, 1150, "light"),
         "narrow-dark": (420, 1150, "dark")}  # fmt: skip
WHOLE = 6000  # pixels of height that a whole page may have


def records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Make one record of each kind."""
    # From a folder of its own: pages name the file that a program stands in.
    shutil.copy(IMAGES.parent / "pictured.py", folder / "pictured.py")
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


def photograph(page: Path, target: Path, look: tuple[int, int, str]) -> int:
    """Write a picture of the top of a page with few colours, and return its size in bytes."""
    from PIL import Image

    width, height, scheme = look
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), "chromium")
    # Blink counts the schemes from dark to light. A profile of its own: nothing of the user's is read or written.
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [executable, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             f"--user-data-dir={profile}", "--hide-scrollbars", f"--window-size={width},{height}",
             f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
             "--run-all-compositor-stages-before-draw", "--virtual-time-budget=2000",
             f"--screenshot={target.resolve()}", page.resolve().as_uri()],
            check=True, capture_output=True, timeout=300,
        )  # fmt: skip
    Image.open(target).convert("RGB").quantize(128).save(target, optimize=True)
    return target.stat().st_size


def drawn_height(picture: Path) -> int:
    """Return how high a page is that was photographed whole: down to its last line that is not paper."""
    import numpy as np
    from PIL import Image

    pixels = np.asarray(Image.open(picture).convert("L")).astype(int)
    drawn = np.flatnonzero(np.ptp(pixels, axis=1) > 8)
    return int(drawn[-1]) + 1 if drawn.size else 0


def main(folder: str | None = None) -> int:
    """Take every picture; return the exit code."""
    images = (IMAGES if folder is None else Path(folder)).resolve()
    images.mkdir(parents=True, exist_ok=True)
    # In the project's folder, as a user works: places are named from it.
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        taken = dict(_every_picture(Path(name), images, whole=folder is not None))
    for picture, size in taken.items():
        high = f", {drawn_height(images / picture):,} pixels high" if folder and "narrow" in picture else ""
        click.echo(f"{picture}: {size:,} bytes{high}")
    return 0 if folder or max(taken.values()) <= LARGEST else 1


def _every_picture(folder: Path, images: Path, *, whole: bool) -> Iterator[tuple[str, int]]:
    for kind, record in records(folder):
        page = folder / f"{kind}.html"
        record.save(page)
        for look, (width, height, scheme) in LOOKS.items():
            name = f"{kind}-{look}.png"
            yield name, photograph(page, images / name, (width, WHOLE if whole else height, scheme))
    from click.testing import CliRunner

    from driftscope.cli import main as driftscope

    result = CliRunner().invoke(driftscope, ["demo", "-o", str(folder / "demo.html")])
    if result.exit_code != 0:
        raise click.ClickException(result.stderr)
    yield "demo.png", photograph(folder / "demo.html", images / "demo.png", LOOKS["light"])


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:2]))
