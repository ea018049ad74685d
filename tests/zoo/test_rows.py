"""What the table of the zoo counts: a difference that was mended by its own number or optimiser is the tool's."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.verdicts.zoo_rows import bug_table, counts, really_wrong, tool_table


def row(case: str, verdict: str, expected: str = "honest", codes: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {"case": case, "verdict": verdict, "expected": expected, "codes": list(codes), "seconds": 1.5, "more": more,
            "reason": more.pop("reason", "")}  # fmt: skip


@pytest.mark.parametrize(
    ("codes", "verified", "wrong"),
    [
        (("W012", "N001"), True, True),
        (("W012",), None, False),
        (("O013", "O006"), True, True),
        (("N001", "W012"), True, False),
        ((), True, False),
    ],
)
def test_a_tool_is_wrong_where_the_first_finding_was_tried(codes: tuple[str, ...], verified: bool | None, wrong: bool):
    assert really_wrong(row("a/int8", "DIFFERENT", codes=codes, verified=verified)) is wrong


def test_every_pair_is_in_one_column():
    rows = [
        row("a/x", v) for v in ("IDENTICAL", "ROUNDING", "PRECISION", "DIFFERENT", "INCONCLUSIVE", "REFUSED", "CRASH")
    ]
    rows.append(row("b/x", "DIFFERENT", codes=("W012",), verified=True))
    rows.append(row("c/x", "INCONCLUSIVE", codes=("R001",)))
    rows.append(row("d/x", "REFUSED", reason="ProgramError: h.onnx cannot be used: onnxruntime says: invalid"))
    assert list(counts(rows).values()) == [3, 1, 1, 1, 2, 1, 1]
    assert tool_table(rows, ["x", "y"])[2:] == ["| x | 3 | 1 | 1 | 1 | 2 | 1 | 1 | 1.5 |"]


def test_a_bug_counts_where_it_had_an_effect():
    kind = "bug one bit"
    rows = [
        row("a/bug-one bit", "DIFFERENT", kind, placed=True, verified=True), row("b/bug-one bit", "REFUSED", kind),
        row("c/bug-one bit", "ROUNDING", kind), row("d/bug-one bit", "DIFFERENT", kind, placed=False),
    ]  # fmt: skip
    assert bug_table(rows)[2:] == ["| weights: one bit | 3 | 2 | 1 | 1 |", "| all | 3 | 2 | 1 | 1 |"]


def test_a_tool_is_wrong_where_what_is_named_was_left_out_or_run_alone():
    told = "A adds 1e-08 in add_1, and B does not; without it the two are the same function."
    lacking = row("a/dynamo", "DIFFERENT", codes=("N001",), verified=True)
    lacking["more"]["whys"] = [told]
    assert really_wrong(lacking)
    assert not really_wrong({**lacking, "more": {"whys": ["its counterpart in A is aten.add", told]}})
    padded = (
        "it reads conv2d, which is convolution in A, where aten.max_pool2d_with_indices in A reads constant_pad_nd."
    )
    assert really_wrong({**lacking, "more": {"whys": [padded], "verified": True}})
    assert not really_wrong({**lacking, "more": {"whys": [padded], "verified": False}})
    reason = "same function, 32 floors: the kernel of conv (aten.convolution), in B, run alone, is off by that much"
    assert really_wrong(row("a/bfloat16", "DIFFERENT", codes=("N025",), reason=reason))
    assert not really_wrong(row("a/bfloat16", "PRECISION", codes=("N025",), reason=reason))


@pytest.mark.parametrize("verified", [True, None])
def test_a_tool_is_wrong_where_it_wrote_another_attribute_that_was_tried(verified: bool | None):
    fused = row("a/fused", "DIFFERENT", codes=("N001",), verified=verified)
    fused["more"]["whys"] = ["Its counterpart in A is aten.gelu (gelu): approximate is 'none' here and 'tanh' in A."]
    assert really_wrong(fused) is (verified is True)
    fused["more"]["whys"] = ["the steps up to view (View) compute something else than aten.mm in A."]
    assert not really_wrong(fused)


@pytest.mark.parametrize(
    "why",
    [
        "B has no such step: without relu_1 (aten.relu) this piece gives B's values.",
        "node_conv reads max_pool2d as it is, where A computes relu (aten.relu, models/nfnet.py:259) of it first.",
    ],
)
def test_a_quantiser_that_loses_a_relu_is_wrong_where_that_was_tried(why: str):
    lost = row("a/int8-qoperator", "DIFFERENT", codes=("N001",), verified=True)
    lost["more"]["whys"] = [why]
    assert really_wrong(lost)
    assert not really_wrong({**lost, "more": {**lost["more"], "verified": None}})
