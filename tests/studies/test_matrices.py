"""The gemm and layer norm studies: classes, floors, gaps and words that are what the rows say."""

from __future__ import annotations

import math

import pytest
import torch

from driftscope.errors import InputError
from driftscope.studies import gemm, layer_norm
from driftscope.studies.gemm_study.cell import operands
from driftscope.studies.gemm_study.variants import ONNX_VARIANTS, Variant, compute
from driftscope.studies.layer_norm_study.chain import ChainKernels, mixtures
from driftscope.studies.layer_norm_study.implementations import exact, normalise, rows_of
from driftscope.studies.onnx_graphs import rounding_operators
from driftscope.studies.pairwise import bit_classes, distance

VARIANTS = ("F.linear", *ONNX_VARIANTS, "a @ x + b", "numpy", "exact")


@pytest.fixture(scope="module")
def gemms():
    return gemm("48x600x40", ("float32", "float16", "bfloat16"), "cpu", variants=VARIANTS, workers=0)


@pytest.fixture(scope="module")
def norms():
    return layer_norm(32, 160, ("float32", "float16"), "cpu", workers=0)


def kind(study, name, **where):
    return [r for r in study.rows if r["kind"] == name and all(r[k] == v for k, v in where.items())]


@pytest.mark.slow
def test_every_difference_of_honest_products_is_rounding(gemms):
    pairs = kind(gemms, "pair")
    assert len(pairs) > 200
    assert {r["verdict"] for r in pairs} <= {"same bits", "rounding"}
    assert all(r["floors"] < 1.5 for r in pairs)
    assert all(0.1 < r["floors"] < 1.6 for r in kind(gemms, "variant") if r["verdict"] != "not available")


def test_the_matrix_is_the_one_of_a_plain_loop(gemms):
    a, x, b = operands("bias", (48, 600, 40), "float16", 0)
    computed = {name: compute(Variant(name, name, "disable"), a, x, b, 1).y for name in VARIANTS}
    table = gemms.matrix(dtype="float16", data="bias")
    for one, y in computed.items():
        for other, z in computed.items():
            if y is not None and z is not None:
                assert table.loc[one, other] == float((y.float() - z.float()).abs().max())


def test_equal_bits_make_a_class_and_other_bits_another():
    y = torch.tensor([[1.0, -0.0]])
    assert bit_classes({"a": y, "b": y.clone(), "c": torch.tensor([[1.0, 0.0]])}) == {"a": 1, "b": 1, "c": 2}


def test_distance_is_what_numpy_would_say():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn((301, 77), generator=generator) for _ in range(2))
    found, difference = distance(a, b), (a - b)
    assert found.max_abs == float(difference.abs().max())
    assert found.rms == pytest.approx(float(difference.double().square().mean().sqrt()), rel=1e-7)
    assert torch.equal(found.columns, difference.abs().amax(0))


def test_a_wrong_bias_is_not_called_rounding(monkeypatch):
    from driftscope.studies.gemm_study import cell

    real = cell.compute

    def planted(variant, a, x, b, threads):
        if variant.name == "MatMul + Add":
            return real(variant, a, x, b * 1.001, threads)
        return real(variant, a, x, b, threads)

    monkeypatch.setattr(cell, "compute", planted)
    study = gemm(64, "float32", "cpu", "bias", variants=("F.linear", "Gemm", "MatMul + Add"), levels="disable",
                 reveal=False, workers=0)  # fmt: skip
    verdicts = {(r["variant"], r["other"]): r["verdict"] for r in kind(study, "pair")}
    assert verdicts["F.linear", "Gemm"] in ("same bits", "rounding")
    assert verdicts["F.linear", "MatMul + Add"] not in ("same bits", "rounding")
    assert "differ by more than rounding" in study.conclusion


def test_tf32_products_are_named(monkeypatch):
    from driftscope.studies.gemm_study import cell

    def tf32(t):
        return (t.view(torch.int32) + 0x1000 & -0x2000).view(torch.float32)

    real = cell.compute
    monkeypatch.setattr(
        cell, "compute",
        lambda v, a, x, b, t: real(v, tf32(a), tf32(x), b, t) if v.kind == "Gemm" else real(v, a, x, b, t),
    )  # fmt: skip
    study = gemm(256, "float32", "cpu", "normal", variants=("F.linear", "Gemm"), levels="disable", reveal=False,
                 workers=0)  # fmt: skip
    (pair,) = kind(study, "pair")
    assert (pair["verdict"], pair["cause"]) == ("precision", "TF32 multiplication")


def test_casts_the_runtime_inserts_are_told_from_those_the_model_holds(gemms):
    half = {r["variant"]: r for r in kind(gemms, "variant", dtype="float16", data="normal")}
    assert half["Gemm"]["casts"] == 4
    assert half["Cast(Gemm)"]["casts"] == 0
    single = {r["variant"]: r for r in kind(gemms, "variant", dtype="float32", data="normal")}
    assert single["Gemm"]["casts"] == 0
    assert single["MatMul + Add [all]"]["runtime"] == "1 Add, 1 MatMul became 1 Gemm"
    assert "inserted casts" in gemms.conclusion


def test_what_a_runtime_lacks_is_a_stated_gap(gemms):
    missing = kind(gemms, "variant", dtype="bfloat16", variant="Gemm", data="normal")
    assert missing[0]["verdict"] == "not available"
    assert "Gemm" in missing[0]["gap"]
    assert "in bfloat16 on cpu. The first: onnxruntime" in gemms.conclusion
    assert not gemms.failures


def test_a_device_that_is_not_there_is_a_gap():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert {r["verdict"] for r in gemm(8, "float32", "cuda", "normal", workers=0).rows} == {"not available"}
    assert {r["verdict"] for r in layer_norm(4, 8, "float32", "cuda", "normal", workers=0).rows} == {"not available"}


def test_orders_of_addition_are_revealed(gemms):
    orders = {r["variant"]: r["order"] for r in kind(gemms, "variant", dtype="float32", data="normal")}
    assert "fold" in orders["F.linear"]
    assert "fold" in orders["MatMul + Add"]
    (shown,) = [table for table in gemms.record.tables if table.title == "In which order the kernels add"]
    assert {line[0] for line in shown.rows} >= {"float32"}
    assert all(len(line[1]) < 200 for line in shown.rows)  # a name, not a page


def test_a_larger_bias_makes_larger_differences_and_it_is_said(gemms):
    assert "coarser grid" in gemms.conclusion


def test_who_is_responsible_in_the_chain(norms):
    for dtype in ("float32", "float16"):
        changed = {r["name"]: r["rms"] for r in kind(norms, "operator", dtype=dtype, data="normal")}
        assert changed["Add"] == 0
        assert max(changed.values()) > 0
    assert "operator by operator" in norms.conclusion
    assert "Add gives the same bits" in norms.conclusion


def test_a_planted_epsilon_is_blamed_on_layer_normalization(monkeypatch):
    real = ChainKernels.one

    def planted(self, operator, runtime, inputs):
        y = real(self, operator, runtime, inputs)
        return y * 1.01 if operator == "LayerNormalization" and runtime == "o" else y

    monkeypatch.setattr(ChainKernels, "one", planted)
    study = layer_norm(16, 64, "float32", "cpu", "normal", workers=0)
    assert "LayerNormalization changes most" in study.conclusion
    assert "by more than rounding" in study.conclusion


def test_every_mixture_is_there_and_a_whole_graph_rounds_less(norms):
    chains = {r["name"]: r for r in kind(norms, "chain", dtype="float16", data="normal")}
    assert set(mixtures()) <= set(chains)
    assert chains["ooo"]["roundings"] == 3
    assert chains["onnxruntime whole"]["roundings"] < 3
    assert sum(chains["ttt"]["histogram"]) == 32 * 160


@pytest.mark.parametrize("data", ["normal", "large mean", "tiny variance", "outliers"])
def test_runtimes_stay_within_rounding_on_hard_data(norms, data):
    rows = [r for r in kind(norms, "implementation", data=data) if r["name"] in ("torch", "onnxruntime", "two pass")]
    assert len(rows) == 6
    assert all(r["floors"] <= 2.5 for r in rows)


def test_one_pass_breaks_on_a_large_mean_and_not_on_normal_data(norms):
    floors = {r["data"]: r["floors"] for r in kind(norms, "implementation", dtype="float32") if r["name"] == "one pass"}
    assert floors["large mean"] > 20
    assert floors["normal"] < 2.5
    assert "one pass is more than rounding away" in norms.conclusion


def test_the_exact_normalisation_is_exact():
    from fractions import Fraction

    x = rows_of("large mean", 1, 8, 0)
    ones, zeros = torch.ones(8), torch.zeros(8)
    terms = [Fraction(float(v)) for v in x[0]]
    mean = sum(terms) / 8
    variance = float(sum((t - mean) ** 2 for t in terms) / 8)
    wanted = [float(t - mean) / math.sqrt(variance + 1e-5) for t in terms]
    assert exact(x, ones, zeros)[0].tolist() == pytest.approx(wanted, rel=1e-14)
    assert normalise("two pass", x, ones, zeros)[0][0].tolist() == pytest.approx(wanted, rel=1e-3)


def test_roundings_are_counted_where_they_happen():
    import onnx
    import onnx.helper as oh

    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    nodes = [
        oh.make_node("LayerNormalization", ["x", "s"], ["n"]), oh.make_node("Cast", ["n"], ["n32"], to=single),
        oh.make_node("MatMul", ["n32", "w"], ["m"]), oh.make_node("Cast", ["m"], ["y"], to=half),
    ]  # fmt: skip
    graph = oh.make_graph(nodes, "g", [oh.make_tensor_value_info("x", half, [2, 2])], [])
    assert rounding_operators(oh.make_model(graph), "float16") == ("LayerNormalization", "MatMul")


def test_a_small_study_has_a_picture_and_a_page(tmp_path):
    study = gemm(16, "float16", "cpu", "normal", variants=("F.linear", "Gemm"), levels="disable", reveal=False,
                 workers=0)  # fmt: skip
    assert study.plot(tmp_path / "small.png").stat().st_size > 10_000
    page = study.save(tmp_path / "small.html").read_text()
    assert "data:image/svg+xml" in page
    assert "float16" in page


@pytest.mark.sweep
def test_pictures_and_pages(gemms, norms, tmp_path):
    for name, study in (("gemm", gemms), ("norm", norms)):
        assert study.plot(tmp_path / f"{name}.png").stat().st_size > 20_000
        page = study.save(tmp_path / f"{name}.html").read_text()
        assert "data:image/svg+xml" in page
        assert "float16" in page
    assert gemms.matrix("verdict").shape[0] == gemms.matrix().shape[0]
    assert norms.matrix("roundings").shape == norms.matrix().shape


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gemm("8x8"), "MxKxN"),
        (lambda: gemm(8, variants="Gem"), "did you mean 'Gemm'"),
        (lambda: gemm(8, levels="full"), "no optimisation level"),
        (lambda: gemm(8, data="weird"), "there are normal, bias"),
        (lambda: layer_norm(0), "at least 1"),
        (lambda: layer_norm(8, 8, devices="tpu"), "no device"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(make, words):
    with pytest.raises(InputError, match=words):
        make()
