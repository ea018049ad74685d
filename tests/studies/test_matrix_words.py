"""What the gemm and layer norm studies say is true of their rows: no ranking of equals, no contradiction."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftscope.records.kinds.study import StudyRecord
from driftscope.studies import pairwise
from driftscope.studies.gemm_study import words as gemm_words
from driftscope.studies.layer_norm_study import words as norm_words
from driftscope.studies.sentences import floors, is_ranked, joined

sizes = st.one_of(st.just(0.0), st.floats(1e-9, 1e3))
ODD = re.compile(r"(?<![\d.])1 (pairs|floors|variants|times|cells|variances)\b|\bnan\b|\bNone\b")


def verdict(value):
    return pairwise.SAME_BITS if value == 0 else pairwise.verdict_of(value)


def size(draw):
    value = draw(sizes)
    return {"rms": value, "floors": value, "max_abs": value, "max_ulp": value, "verdict": verdict(value),
            "changed": 0.0 if value == 0 else draw(st.floats(0.001, 1))}  # fmt: skip


@st.composite
def norms(draw):
    rows = []
    for data in draw(st.lists(st.sampled_from(("normal", "outliers", "large mean")), min_size=1, unique=True)):
        at = {"data": data, "dtype": "float32", "device": "cpu", "outcome": "ok"}
        for name in ("ttt", "ooo", "onnxruntime whole"):
            rows.append(at | size(draw) | {"kind": "chain", "name": name, "roundings": draw(st.integers(0, 4)),
                                           "runtime": draw(st.sampled_from(("", "2 Cast inserted")))})  # fmt: skip
        for one, other in (("ttt", "ooo"), ("ttt", "onnxruntime whole"), ("ooo", "onnxruntime whole")):
            rows.append(at | size(draw) | {"kind": "pair", "name": one, "other": other})
        for name in ("LayerNormalization", "MatMul", "Add"):
            rows.append(at | size(draw) | {"kind": "operator", "name": name, "other": ""})
        for name in ("two-pass", "one-pass"):
            rows.append(at | size(draw) | {"kind": "implementation", "name": name, "negative": draw(st.integers(0, 3))})
    return StudyRecord("layer_norm", {"data": ["normal"], "dtype": ["float32"], "device": ["cpu"]}, tuple(rows))


@settings(deadline=None)
@given(norms())
def test_no_sentence_about_layer_norm_contradicts_its_rows(record):
    own = {(r["data"], r["name"]): r for r in record.rows if r["kind"] == "implementation"}
    for said in norm_words.statements(record):
        assert not ODD.search(said.text), said.text
        if "within" in said.evidence:
            for (_, name), row in own.items():
                if name in said.evidence["within"]:
                    assert row["verdict"] in (pairwise.SAME_BITS, pairwise.ROUNDING)
                    assert row["floors"] <= said.evidence["floors"]
        if isinstance(said.evidence.get("negative"), dict):
            for place, count in said.evidence["negative"].items():
                assert own[place.removesuffix(" float32"), said.evidence["implementation"]]["negative"] == count
        if "closer" in said.evidence:
            near, far = said.evidence["rms"]
            assert bool(said.evidence["closer"]) <= is_ranked(near, far)
            for a, b in re.findall(r"rms error (\S+) against (\S+)\)", said.text):
                assert a != b
        if "operators" in said.evidence and said.evidence["operator"]:
            shares = said.evidence["shares"]
            assert shares[said.evidence["operator"]] == max(shares.values())


@st.composite
def gemms(draw):
    rows = []
    names = ("F.linear", "Gemm", "numpy", "exact")
    for dtype in draw(st.lists(st.sampled_from(("float32", "float16")), min_size=1, unique=True)):
        at = {"data": "bias", "dtype": dtype, "device": "cpu", "outcome": "ok"}
        there = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
        bits = {name: draw(st.integers(1, 3)) for name in there}
        for name in names:
            row = at | {"kind": "variant", "variant": name, "other": ""}
            if name not in there:
                rows.append(row | {"verdict": "not available", "gap": "no kernel " * draw(st.integers(1, 60))})
                continue
            rows.append(row | size(draw) | {"bits": bits[name], "casts": draw(st.integers(0, 2)), "order": "fold(4)",
                                            "runtime": draw(st.sampled_from(("", "1 Add became 1 Gemm")))})  # fmt: skip
        for i, one in enumerate(there):
            for other in there[i + 1 :]:
                pair = size(draw)
                if bits[one] == bits[other]:
                    pair |= {"rms": 0.0, "floors": 0.0, "max_abs": 0.0, "verdict": pairwise.SAME_BITS}
                by_column = {"by_column": [draw(sizes) for _ in range(4)]} if "Gemm" in (one, other) else {}
                rows.append(at | pair | by_column | {"kind": "pair", "variant": one, "other": other, "cause": ""})
        rows.append(at | {"kind": "columns", "variant": "", "other": "", "bias": [1.0, 4.0, 9.0, 16.0]})
    return StudyRecord("gemm", {"data": ["bias"], "dtype": ["float32"], "device": ["cpu"]}, tuple(rows))


@settings(deadline=None)
@given(gemms())
def test_no_sentence_about_gemm_contradicts_its_rows(record):
    pairs = [row for row in record.rows if row["kind"] == "pair"]
    said = gemm_words.statements(record)
    assert len(said) <= 5
    for one in said:
        assert not ODD.search(one.text), one.text
        assert len(one.text) < 900
        if one.text.startswith(("Every difference is rounding", "All ")):
            assert all(row["verdict"] != pairwise.MORE for row in pairs)
        if "below" in one.evidence:
            assert one.evidence["above"] > one.evidence["below"]
    for shown in gemm_words.tables(record):
        assert all(len(line) == len(shown.columns) for line in shown.rows)


@pytest.mark.parametrize(
    ("near", "far", "ranked"),
    [(3.5e-6, 3.5e-6, False), (3.5e-6, 3.52e-6, False), (1.0, 1.2, True), (0.0, 1.0, True), (0.0, 0.0, False)],
)
def test_equals_are_not_ranked(near, far, ranked):
    assert is_ranked(near, far) is ranked


def test_words_have_their_number():
    assert [floors(v) for v in (1.0, 1.04, 0.5, 250.4)] == ["1 floor", "1 floor", "0.5 floors", "250 floors"]
    assert [joined(w) for w in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
