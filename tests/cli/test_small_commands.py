"""``report``, ``rule`` and ``env``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import record_examples
from driftscope.records.kinds.collection import Collection, Entry
from driftscope.records.rules import RULES
from driftscope.records.words import WORDS, word
from driftscope.report.terminal.comparison import _COLUMNS, _DETAILS


def test_report_turns_each_form_into_each_other(run, tmp_path: Path) -> None:
    record = record_examples.different()
    page = record.save(tmp_path / "page.html")
    shown = run("report", page)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("DIFFERENT: ")
    assert json.loads(run("report", page, "--json").stdout) == record.to_dict()
    run("report", page, "-o", tmp_path / "record.json", "-q")
    assert json.loads((tmp_path / "record.json").read_text()) == record.to_dict()
    run("report", tmp_path / "record.json", "-o", tmp_path / "again.html", "-q")
    assert (tmp_path / "again.html").read_bytes() == page.read_bytes()


def test_report_shows_a_collection(run, tmp_path: Path) -> None:
    entries = (Entry("one", "", record_examples.rounding()), Entry("two", "", record_examples.different()))
    saved = Collection("Both", entries).save(tmp_path / "both.html")
    one, two = run("report", saved, "-q").stdout.splitlines()
    assert one.startswith("ROUNDING: one: the same function;")
    assert two.startswith("DIFFERENT: two: B computes something else from node_layer_norm_3 (")
    assert "2. two" in run("report", saved).stdout


def test_report_refuses_what_is_no_record_and_writes_nothing(run, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    result = run("report", tmp_path / "a.json", "-o", tmp_path / "page.html")
    assert result.exit_code == 2
    assert "no record" in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_report_may_overwrite_the_page_it_reads(run, tmp_path: Path) -> None:
    page = record_examples.rounding().save(tmp_path / "page.html")
    before = page.read_bytes()
    assert run("report", page, "-o", page).exit_code == 0
    assert page.read_bytes() == before


def test_rule_lists_and_explains(run) -> None:
    listing = run("rule").stdout.splitlines()
    # Meanings are wrapped beside their names.
    assert [line.split()[0] for line in listing if line[:7].strip()] == [*RULES, *WORDS]
    assert max(map(len, listing)) <= 120
    assert run("rule", "n001").stdout.startswith("# N001: different function")
    assert json.loads(run("rule", "N001", "--json").stdout)["page"] == RULES["N001"].page
    assert len(json.loads(run("rule", "--json").stdout)) == len(RULES)
    assert run("rule", "N001", "-q").stdout.startswith("N001 different function: ")


@pytest.mark.parametrize(("typed", "name"), [("floors", "floors"), ("Lifted", "lifted"), ("in-float64", "lifted"),
                                              ("ulps", "ulp"), ("noise floor", "floor")])  # fmt: skip
def test_rule_explains_the_words_of_an_answer(run, typed: str, name: str) -> None:
    assert run("rule", typed).stdout.startswith(f"# {name}\n")
    assert run("rule", typed, "-q").stdout.startswith(f"{name}: ")
    assert json.loads(run("rule", typed, "--json").stdout)["word"] == name


def test_every_column_of_an_answer_has_its_word() -> None:
    assert {"floors", "ulp", "in float64", "closer"} <= {c.title for c in (*_COLUMNS, *_DETAILS)}
    assert all(word(title) for title in ("floors", "ulp", "in float64", "closer"))
    assert word("verdict") is None


def test_rule_in_colour_is_formatted(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in run("rule", "N001", env={"FORCE_COLOR": "1"}, color=True).stdout


def test_an_unknown_rule_is_refused(run) -> None:
    result = run("rule", "N0001")
    assert result.exit_code == 2
    assert "did you mean" in result.stderr


def test_env_as_text_and_as_data(run) -> None:
    data = json.loads(run("env", "--json").stdout)
    assert {"python", "system", "processor", "versions", "torch", "onnxruntime", "blas"} <= set(data)
    text = run("env")
    assert text.exit_code == 0
    assert data["versions"]["torch"] in text.stdout
    assert data["processor"]["model"] in text.stdout


def test_pretty_lists_the_graph_as_stored_and_as_it_runs(run, tmp_path: Path) -> None:
    import onnx
    from onnx import helper

    nodes = [helper.make_node("Identity", ["x"], ["y"], name="\x1b[2Jgone"), helper.make_node("Relu", ["y"], ["z"])]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in ("x", "z")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(tmp_path / "m.onnx"))
    stored, run_graph = run("pretty", tmp_path / "m.onnx"), run("pretty", tmp_path / "m.onnx", "--optimized")
    assert "y = Identity(x)" in stored.stdout
    assert "Identity" not in run_graph.stdout
    assert "Relu(" in run_graph.stdout
    assert "\x1b" not in stored.stdout
    lines = json.loads(run("pretty", tmp_path / "m.onnx", "--json").stdout)["lines"]
    assert lines == stored.stdout.rstrip("\n").split("\n")
    refused = run("pretty", tmp_path / "missing.onnx")
    assert refused.exit_code == 2
    assert "no such file" in refused.stderr


@pytest.mark.parametrize("asked", [("rule",), ("rule", "N001"), ("rule", "floors")], ids=" ".join)
def test_rule_is_wrapped_and_whole_on_a_narrow_screen(run, monkeypatch, asked) -> None:
    wide = run(*asked).stdout
    monkeypatch.setenv("COLUMNS", "60")
    narrow = run(*asked).stdout
    assert narrow.split() == wide.split()
    drawn = re.sub(r"```.*?```", "", narrow, flags=re.DOTALL)  # what is shown as printed elsewhere stays as it is
    assert max(map(len, drawn.splitlines())) <= 60


@pytest.mark.parametrize(
    ("name", "text"), [("m.json", '{"verdict": "IDENTICAL"}'), ("m.textproto", "garbage"), ("m.onnxtxt", "garbage")]
)
def test_a_text_that_is_no_model_is_refused_in_a_sentence(run, tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    refused = run("pretty", tmp_path / name)
    assert refused.exit_code == 2, refused.stderr
    assert "is not an ONNX model" in refused.stderr
