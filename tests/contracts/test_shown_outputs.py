"""What the README and the pages show is what happens: every block is run, every output compared, numbers aside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from contracts.test_documentation import DOCS, script

outputs: ModuleType = script("outputs")
ROOT = DOCS.parent


def check(page: str, folder: Path, *, slow: bool) -> None:
    found = list(outputs.run_page((ROOT / page).read_text(encoding="utf-8"), folder, slow=slow))
    assert found
    for output in found:
        assert outputs.masked(output.block.body) == outputs.masked(output.now), f"run python docs/outputs.py {page}"


@pytest.mark.parametrize(
    "page", [page if page == "README.md" else pytest.param(page, marks=pytest.mark.slow) for page in outputs.PAGES]
)
def test_the_page_shows_what_happens(page: str, tmp_path: Path) -> None:
    folder = tmp_path / "example"
    folder.mkdir()
    check(page, folder, slow=False)


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_says(tmp_path: Path) -> None:
    folder = tmp_path / "example"
    folder.mkdir()
    check("README.md", folder, slow=True)


PAGE = """
```python file=there.py
answer = 41.5
```

```python
from there import answer
print("the answer is", answer, "floors: ordinary")
```

```text
the answer is 7 floors: ordinary
```

```console from="Usage" to="Options"
$ driftscope compare --help
```
"""


def test_an_output_that_differs_in_numbers_alone_agrees(tmp_path: Path) -> None:
    shown, helped = outputs.run_page(PAGE, tmp_path)
    assert shown.now == "the answer is 41.5 floors: ordinary\n"
    assert shown.agrees
    assert not helped.agrees


def test_an_output_in_other_words_does_not_agree(tmp_path: Path) -> None:
    shown, _ = outputs.run_page(PAGE.replace("7 floors: ordinary", "7 floors: unusual"), tmp_path)
    assert not shown.agrees


def test_outputs_are_replaced_and_then_agree(tmp_path: Path) -> None:
    once = outputs.rewritten(PAGE, list(outputs.run_page(PAGE, tmp_path)))
    assert "the answer is 41.5" in once
    again = list(outputs.run_page(once, tmp_path))
    assert all(output.agrees for output in again)
    assert outputs.rewritten(once, again) == once


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("DIFFERENT: by 1e-3", "ROUNDING: by 1e-3"),
        ("N001 out", "W001 out"),
        ("fix  Set epsilon in a to A's value.", "fix  Set alpha in a to A's value."),
    ],
)
def test_what_matters_is_not_masked(one: str, other: str) -> None:
    assert outputs.masked(one) != outputs.masked(other)


GALLERY = sorted(p.name for p in (DOCS / "gallery").glob("*.py"))


@pytest.mark.sweep  # .ci/run builds the documentation, which runs them all
@pytest.mark.parametrize("example", GALLERY)
def test_the_gallery_runs(example: str, tmp_path: Path) -> None:
    # DRIFTSCOPE_SMALL asks an example for its smallest size; the figures are drawn, but on no screen.
    environment = os.environ | {"DRIFTSCOPE_SMALL": "1", "MPLBACKEND": "agg"}
    command = [sys.executable, str(DOCS / "gallery" / example)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
