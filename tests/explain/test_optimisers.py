"""Which graph optimiser of onnxruntime moved a result; honest fusions are not blamed."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from onnx import numpy_helper
from optimised_graphs import APPROXIMATE, batch, four_bit_model, two_faults, written_gelu

import driftscope as ds
from driftscope.explain.blame.optimisers import RULES, operator_delta, operators_of
from driftscope.programs.runtimes.ort_log import is_rule_based, listening
from driftscope.programs.runtimes.ort_options import OPTIMIZERS
from driftscope.records.kinds.left_out import Blame


def test_an_approximation_is_named_and_the_line_to_paste_mends_it():
    found = ds.blame(ds.onnx(written_gelu(), config=APPROXIMATE), batch())
    assert found.guilty == ("GeluApproximation",)
    assert found.paste == "disabled_optimizers=['GeluApproximation']"
    assert found.verified
    assert found.lifted > 1e-4 > 1e-11 > found.lifted_without
    mended = ds.onnx(written_gelu(), config=APPROXIMATE, disabled=found.guilty)
    assert ds.compare(ds.onnx(written_gelu(), level="disable"), mended, batch()).verdict <= ds.Verdict.ROUNDING


def test_the_same_graph_fused_honestly_has_nobody_to_blame():
    found = ds.blame(written_gelu(), batch())
    assert not found.wrong
    assert found.guilty == ()
    assert found.paste == ""
    assert "GeluFusionL2" in {s.name for s in found.suspects}
    assert found["GeluFusionL2"].operators == {"Add": -1, "Div": -1, "Erf": -1, "Gelu": 1, "Mul": -2}


def test_a_fusion_into_a_cheaper_kernel_is_named_though_it_is_the_same_function():
    found = ds.blame(four_bit_model(), batch())
    assert found.guilty == ("QDQSelectorActionTransformer",)
    assert found.floors > 100
    assert found.floors_without <= 2.5
    assert found[found.guilty[0]].operators == {"DequantizeLinear": -1, "MatMul": -1, "MatMulNBits": 1}


def test_two_that_only_explain_it_together_are_found_together():
    found = ds.blame(ds.onnx(two_faults(), config=APPROXIMATE), batch())
    assert len(found.guilty) == 2
    assert "QDQSelectorActionTransformer" in found.guilty
    assert {"GeluApproximation", "GeluFusionL2"} & set(found.guilty)
    assert not any(s.explains for s in found.suspects)
    assert found.verified
    assert "together" in found.answer


def test_a_wrong_file_is_not_blamed_on_its_optimisers():
    other = written_gelu()
    for node in other.graph.node:
        if node.name == "gelu_half":
            node.op_type = "Div"
    found = ds.blame(other, batch(), reference=ds.onnx(written_gelu(), level="disable"))
    assert found.wrong
    assert found.guilty == ()
    assert "no optimiser is to blame" in found.answer


def test_what_the_program_leaves_out_already_stays_left_out():
    found = ds.blame(ds.onnx(two_faults(), config=APPROXIMATE, disabled=["QDQSelectorActionTransformer"]), batch())
    assert found.guilty == ("GeluApproximation",)
    assert found.paste == "disabled_optimizers=['QDQSelectorActionTransformer', 'GeluApproximation']"


def test_a_budget_ends_the_search_and_says_so():
    found = ds.blame(ds.onnx(two_faults(), config=APPROXIMATE), batch(), runs=2)
    assert not found.complete
    assert found.runs <= 2 + 1
    assert found.guilty == ()


def test_compare_blames_when_the_verdict_asks_for_it_and_only_then():
    plain = ds.onnx(four_bit_model(), level="disable")
    first = ds.compare(plain, four_bit_model(), batch()).first
    assert first.code == "O013"
    assert (first.where.node, first.where.operator) == ("four_bit_matmul", "MatMulNBits")
    assert "disabled=['QDQSelectorActionTransformer']" in first.fix
    assert first.verified
    clean = ds.compare(ds.onnx(written_gelu(), level="disable"), written_gelu(), batch())
    assert not [f for f in clean.findings if f.code in ("O013", "O014", "O018")]
    asked = ds.compare(ds.onnx(written_gelu(), level="disable"), written_gelu(), batch(), blame=True)
    assert [f.code for f in asked.findings if f.code[:2] == "O0"] == ["O018"]
    never = ds.compare(plain, four_bit_model(), batch(), blame=False)
    assert "O013" not in {f.code for f in never.findings}


def test_the_search_takes_the_side_that_is_wrong_even_if_it_is_the_reference():
    c = ds.compare(four_bit_model(), ds.onnx(four_bit_model(), level="disable"), batch())
    found = next(f for f in c.findings if f.code == "O013")
    assert found.evidence["side"] == "A"


def test_a_record_of_blame_is_read_back_as_it_was():
    found = ds.blame(four_bit_model(), batch())
    assert Blame.from_dict(found.to_dict()) == found
    assert found.answer in str(found)
    with pytest.raises(ds.InputError, match="was not left out"):
        found["NoSuchFusion"]


def test_nothing_optimises_recorded_outputs():
    with pytest.raises(ds.InputError, match="nothing optimises it"):
        ds.blame(ds.recorded({"y": batch()["x"]}))


def test_every_rule_has_a_name_that_onnxruntime_knows():
    assert set(RULES) <= OPTIMIZERS
    assert is_rule_based("Level1_RuleBasedTransformer")
    assert not is_rule_based("GeluFusionL2")


def test_listening_passes_on_what_others_write_and_keeps_the_log(capfd):
    import os

    with listening() as heard:
        os.write(2, b"a warning of another library\n")
        os.write(2, b"2026 [I:onnxruntime:, x.cc:15 Apply] GraphTransformer GeluFusionL2 modified: 1 with status: OK\n")
        os.write(2, b"2026 [I:onnxruntime:, x.cc:15 Apply] GraphTransformer Quiet modified: 0 with status: OK\n")
    assert heard.fired == ("GeluFusionL2",)
    assert capfd.readouterr().err == "a warning of another library\n"


def test_operators_of_two_graphs_are_counted_against_each_other():
    written, four_bits = operators_of(written_gelu()), operators_of(four_bit_model())
    assert operator_delta(written, four_bits)["Erf"] == 1
    assert operator_delta(four_bits, written)["Erf"] == -1
    assert operator_delta(None, written) == {}


def test_two_comparisons_that_blame_give_the_same_findings():
    def findings():
        c = ds.compare(ds.onnx(four_bit_model(), level="disable"), four_bit_model(), batch())
        return c.to_dict()["findings"]

    assert findings() == findings()


@pytest.mark.parametrize(("factor", "asked"), [(1.001, True), (3.0, False)])
def test_an_optimiser_is_asked_about_where_it_may_be_a_part_of_what_is_seen(factor: float, asked: bool):
    """Beside a weight three times as large, an approximation of a few millionths is none."""
    changed = copy.deepcopy(written_gelu())
    weight = next(t for t in changed.graph.initializer if list(t.dims) == [64, 64])
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    compared = ds.compare(ds.onnx(changed, level="disable"), ds.onnx(written_gelu(), config=APPROXIMATE), batch())
    assert compared.verdict is ds.Verdict.DIFFERENT
    assert compared.first is not None
    assert compared.first.code == "W008"
    assert any(f.code in ("O013", "O014") for f in compared.findings) is asked
