"""Write the table of what tools make of real models, from the rows that ``python -m benchmarks zoo`` wrote.

``python docs/zoo_table.py out/sweeps/zoo.jsonl`` writes ``docs/reference/tools-on-real-models.md``. The rows are
measured by ``python -m benchmarks zoo``, which takes hours for all architectures.
"""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests")]

from benchmarks.verdicts import zoo_rows  # noqa: E402

from driftscope.records.environment import capture, processor_words  # noqa: E402
from zoo.tools import TOOLS  # noqa: E402

PAGE = HERE / "reference" / "tools-on-real-models.md"
TODAY = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
INTRODUCTION = """# What tools make of real models

`python -m benchmarks zoo` builds small models of real architectures (`transformers`, torchvision, timm; random
weights, no two layers alike), hands each to the tools that people use, and asks `ds.compare` whether the result is
still the same program. Then it plants bugs, in the weights and in the exported graph, and asks again.

**clean**: identical, rounding, or the cheaper arithmetic that the tool was asked for; **really wrong**: the tool made
another function, and the verdict names the number, the term or the optimiser without which it was seen right, or the
kernel that, run alone, is off; **answered wrongly**: DIFFERENT without such a proof; **does not run**: the tool made
something that onnxruntime or torch refuses, and the answer says so; **refused by the tool**: it raised an error, or
the tool does not apply to that model; **s**: the middle of the seconds that one comparison took, the first run of the
model included.

Rows were measured in one night with the versions named, 29 models with all tools and the others with eleven, bugs on
all but two; the five pairs that were answered wrongly in it (one crash in four of them) were mended and asked again.
The models are among those that driftscope was developed against: what an earlier version answered wrongly on them was
mended, so the table says what tools do to models, not how often the verdict is right on a model that was never seen.
Their weights are random: trained ones, whose gains lie near one and whose layers may be nearly copies, have tests of
their own.
""".splitlines()
WRONG = """## What is really wrong

onnxruntime's static int8 quantisation of models with a causal mask: the exporter adds a mask of -3.4e38 to the
attention scores, calibration takes the range of the sum from the mask, and one step becomes 1.3e36. Every score is
then 0, and every token attends to all tokens before it alike. Leave these nodes out with `nodes_to_exclude`
([W012](codes/W012.md)).

And of a layer that is called several times (`cells`, a convolution inside a recurrent cell): in operator form the file
stores its bias once, as integers in steps of the first call's scales, and the later calls, whose inputs have scales of
their own, add it in theirs.

And of a MaxPool behind a Pad of zeros (onnxruntime 1.31.1, level basic and above): Pad_Fusion makes the zeros the
pool's own padding, which is minus infinity, so a border window that holds nothing above 0 gives one of its numbers
instead of 0. It was met on BiT, a model that is not in the table; on `max_pool2d(pad(x, (1, 1, 1, 1)), 3, 2)` of
negative numbers every border element is wrong. Leave it out with `disabled_optimizers=["Pad_Fusion"]`
([O013](codes/O013.md)).

And of bfloat16 on a processor with AMX (torch 2.13.0's oneDNN, Intel Xeon): a convolution of few channels with a long
filter, `Conv2d(16, 16, 8, stride=8)` or `Conv1d(32, 32, 16, groups=4)`, is off by more than its own size. It was met on
Segformer, PVT, PVT-v2 and Wav2Vec2, where the verdict names that kernel. With `ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16`, or
without oneDNN, it is right.

And of operators alone: onnxruntime 1.31.1's Gemm of no products at all (an inner dimension of 0) adds its third input
as it is and leaves out `beta`; and the exporter writes `atan2` with Greater where GreaterOrEqual is meant, so
`atan2(0, -1)` becomes -pi.
""".splitlines()
FALSE = """## What is answered wrongly

Neither clean nor proven wrong, as printed.
""".splitlines()
IDLE = """## What does not run

The tool made a file or a program, and onnxruntime or torch refuses it; the answer says so and names the operator.
""".splitlines()


def _answered_wrongly(row: dict[str, Any]) -> bool:
    explained = zoo_rows.really_wrong(row) or zoo_rows.does_not_run(row)
    return not explained and row["verdict"] not in ("IDENTICAL", "ROUNDING", "PRECISION", "REFUSED")


def read(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows of several files; of a case measured twice, the later one."""
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        for line in Path(path).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            found[row["case"]] = row
    # A tool that is not installed has refused nothing.
    absent = [case for case, row in found.items() if row["reason"].startswith("ModuleNotFoundError")]
    return [row for case, row in found.items() if row["verdict"] != "END" and case not in absent]


def _by_hand() -> list[str]:
    """The section on models that were never seen, which is written by hand: as the page has it."""
    before = PAGE.read_text(encoding="utf-8")
    start, end = (before.find(title) for title in ("## Models that were never seen", FALSE[0]))
    return before[start:end].splitlines() if 0 <= start < end else []


def page(rows: list[dict[str, Any]]) -> str:
    """Return the page: what was asked, the tools, what is really wrong, and the bugs."""
    models = sorted({r["case"].partition("/")[0] for r in rows})
    honest, bugs = zoo_rows.honest(rows), zoo_rows.planted(rows)
    where = capture()
    versions = where["versions"]
    made_with = ", ".join(f"{name} {versions[name]}" for name in ("torch", "onnxruntime", "transformers"))
    size = (
        f"{len(honest)} pairs of {len(models)} models: "
        + ", ".join(f"{number} {word}" for word, number in zoo_rows.counts(honest).items())
        + f"; {len(bugs)} bugs. Measured with {made_with} on {processor_words(where)}, {TODAY}, while the machine did "
        f"other work. The models: {', '.join(models)}."
    )
    asked = {r["case"].partition("/")[2] for r in rows}
    absent = [tool for tool in TOOLS if tool not in asked]
    size += f" Not asked: {', '.join(absent)}." if absent else ""
    wrong = [f"* {r['case']}: {r['first']}." for r in rows if zoo_rows.really_wrong(r)]
    false = [f"* {r['case']}: {r['first'] or r['reason']}" for r in honest if _answered_wrongly(r)]
    idle = [f"* {r['case']}: {r['first'] or r['reason']}" for r in honest if zoo_rows.does_not_run(r)]
    return "\n".join(
        [*INTRODUCTION, "", size, "", *zoo_rows.tool_table(rows, TOOLS), "", *WRONG, "", *wrong, "",
         *_by_hand(), *FALSE, "", *(false or ["None of these pairs."]), "", *IDLE, "", *idle, "",
         "## Planted bugs", "",
         "A place counts as right when the first finding names the node or the parameter that was changed, or the "
         "module that holds it; a fix counts as tried when it was put into the program and made it the same function.",
         "", *zoo_rows.bug_table(rows), ""]
    )  # fmt: skip


if __name__ == "__main__":
    PAGE.write_text(page(read(sys.argv[1:])), encoding="utf-8")
