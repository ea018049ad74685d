"""Write what was measured of invariance: what each switch makes invariant, what that costs, how often a check is right.

``python docs/invariance_measured.py [NAME ...]`` runs the benchmarks of that name (all three without), some minutes in
all, and puts what they print into ``docs/reference/invariance-measured.md``; the other sections stay as they are.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import io
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from driftscope.records.environment import capture, processor_words  # noqa: E402

PAGE = HERE / "reference" / "invariance-measured.md"
TITLE = """# What was measured of invariance

Each section is what one command prints. [What the results of ten models depend on](invariance-of-models.md) is the
same question asked of architectures of `transformers`.
"""
SECTIONS = {
    "invariance_catalogue": """How often a check is right

Every program whose dependence is known by construction, modules, functions, exported programs and ONNX files, is asked
along its axis. *Silent* is a dependence that was answered with same, rounding or not-applicable.
""",
    "invariance": """What makes results invariant, and what that costs

An encoder of images under four axes; then what `ds.reproducible()` costs, as ratios of CPU time; then one check along
every axis. `batch_invariant_ops` is made of Triton kernels for `mm`, `addmm`, `log_softmax` and `mean`; without a GPU
they run in Triton's interpreter (`TRITON_INTERPRET=1`) or not at all. There (commit f22b1fb, Triton 3.9) rows of `mm`
have the same bits alone and in a batch, `nn.Linear` still rounds along the batch, and the encoder is refused, because
`mean` asserts a CUDA tensor.
""",
    "greedy": """After how many tokens two greedy generations part

Measured, and predicted by a check from the margins of some of the texts.
""",
}


def section(name: str) -> str:
    """Run one benchmark and return its section."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        importlib.import_module(f"benchmarks.{name}").main()
    where = capture()
    made_with = ", ".join(f"{key} {where['versions'][key]}" for key in ("torch", "onnxruntime"))
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    printed = told.getvalue().strip()
    circumstances = f"with {made_with} on {processor_words(where)}, {today}"
    return f"## {SECTIONS[name]}\n`python -m benchmarks {name}`, {circumstances}:\n\n{blocks(printed)}\n"


def blocks(printed: str) -> str:
    """Write Markdown tables as they are, and everything else as text."""
    parts = re.split(r"((?:^\|.*\n?)+)", printed, flags=re.MULTILINE)
    found = [p.strip() if p.startswith("|") else f"```text\n{p.strip()}\n```" for p in parts if p.strip()]
    return "\n\n".join(found) + "\n"


def main() -> None:
    """Run what is asked for and write the page."""
    known = {}
    if PAGE.is_file():
        for part in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
            named = re.search(r"`python -m benchmarks (\w+)`", part)
            if named:
                known[named[1]] = f"## {part.strip()}\n"
    for name in sys.argv[1:] or list(SECTIONS):
        known[name] = section(name)
        sections = [known[k].strip() for k in SECTIONS if k in known]
        PAGE.write_text("\n\n".join([TITLE.strip(), *sections]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
