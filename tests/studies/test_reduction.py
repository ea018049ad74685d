"""The reduction study has the bits of the plain loop, a prediction that holds, and words that fit its rows."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest

from driftscope.errors import InputError
from driftscope.studies import reduction
from driftscope.studies.reduction_study import figures
from driftscope.studies.reduction_study.cell import _median, reduction_cell
from driftscope.studies.reduction_study.distributions import LAWS, orders, permutation_rng, permutations, sample
from driftscope.studies.reduction_study.functions import REDUCTIONS
from studies.plain_loops import spreads

SETTINGS = {
    "functions": ("mean", "layer_norm", "sum", "softmax"),
    "laws": ("normal", "fixed", "pareto"),
    "sizes": (2, 4, 9, 130, 1000, 4096),
    "dtypes": ("float64", "float32", "float16"),
    "permutations": 24,
}


@pytest.fixture(scope="module")
def study():
    return reduction(**SETTINGS, workers=0)


def test_the_tables_are_those_of_the_plain_loop_to_the_last_bit(study):
    with np.errstate(over="ignore"):
        plain = spreads(**SETTINGS)
    table = study.matrix()
    assert list(table.columns) == list(SETTINGS["dtypes"])
    assert table.index.names == ["function", "law", "size"]
    for (function, law, size), row in plain.iterrows():
        for dtype in SETTINGS["dtypes"]:
            ours, theirs = table.loc[(function, law, size), dtype], row[dtype]
            assert ours == theirs or (math.isnan(ours) and math.isnan(theirs)), (function, law, size, dtype)


def test_two_terms_have_one_sum_in_both_orders(study):
    assert all(row["spread"] == 0 for row in study.rows if row["size"] == 2)


@pytest.mark.parametrize("function", REDUCTIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_ordinary_reductions_are_called_rounding(function, dtype):
    for law in ("normal", "uniform", "wide"):
        for size in (64, 1000, 5000):
            row = cell(function, law, size, dtype)
            assert row["verdict"] in ("same bits", "rounding"), (law, size, row["floors"])
            assert row["random_spread"] == 0 or 0.2 < row["ratio"] < 12, (law, size)


def test_a_sum_in_a_worse_order_of_a_worse_format_is_not_called_rounding(monkeypatch):
    def sequential_half(x):
        total = np.zeros(len(x), np.float16)
        for k in range(x.shape[1]):
            total += x[:, k].astype(np.float16)
        return (total.astype(x.dtype),)

    from driftscope.studies.reduction_study import cell as module
    from driftscope.studies.reduction_study.functions import NumpyReduction

    monkeypatch.setitem(module.REDUCTIONS, "sum", NumpyReduction(sequential_half))
    row = cell("sum", "normal", 512, "float32")
    assert row["verdict"] == "more than rounding"
    assert row["floors"] > 100


def cell(function, law, size, dtype, count=64):
    return reduction_cell(function, law, size, dtype, threads=1, batch=1, permutations=count, data_seed=0)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("size", [9, 1000, 10000])
def test_what_cells_share_changes_no_bit(size, dtype):
    for function in ("mean", "layer_norm"):
        given = {"threads": 1, "batch": 1, "permutations": 12, "data_seed": 0}
        alone = reduction_cell(function, "normal", size, dtype, **given)
        assert reduction_cell(function, "normal", size, dtype, **given, beside=("mean", "layer_norm")) == alone


@pytest.mark.parametrize("size", [9, 1000, 8192])
def test_a_mean_of_halves_has_the_bits_of_numpy(size):
    rows = orders("normal", size, "float16", 12)
    row = reduction_cell("mean", "normal", size, "float16", threads=1, batch=1, permutations=12, data_seed=0)
    assert row["values"] == [float(np.mean(x)) for x in rows]


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 40])
def test_orders_are_the_same_terms(dtype, count):
    rows = orders("pareto", 300, dtype, count)
    assert rows.shape == (1 + count, 300)
    ascending = np.sort(rows[0].astype(np.float64))
    assert all((np.sort(row.astype(np.float64)) == ascending).all() for row in rows)
    if count >= 3:
        assert (rows[2].astype(np.float64) == ascending).all()
        assert (rows[3].astype(np.float64) == ascending[::-1]).all()


def test_permutations_are_the_stream_they_say_they_are():
    rng = permutation_rng(50, 3)
    assert all((row == rng.permutation(50)).all() for row in permutations(50, 5, 3))


@pytest.mark.parametrize("law", LAWS)
def test_a_law_gives_its_size_and_the_same_numbers_again(law):
    first = sample(law, 257, 1).copy()
    sample.cache_clear()
    assert (sample(law, 257, 1) == first).all()
    assert np.isfinite(first).all()


def my_law(rng, size):
    return rng.random(size) - 0.5


def test_a_law_of_ones_own(monkeypatch):
    row = cell("mean", f"{__file__}:my_law", 100, "float32")
    assert row["observations"] == 65


def test_values_beyond_float16_are_called_not_finite_and_said():
    study = reduction("mean", "shifted", 64, "float16", 8, workers=0)
    assert study.rows[0]["verdict"] in ("same bits", "rounding")
    huge = reduction("sum", "shifted", 4096, "float16", 8, workers=0)
    assert huge.rows[0]["verdict"] == "not finite"
    assert "leaves the format" in huge.conclusion


def test_threads_and_batches_are_further_axes_of_torch():
    study = reduction("torch.sum", "normal", (1000,), "float32", 16, batches=(1, 4), threads=(1, 2), workers=0)
    assert len(study.rows) == 4
    assert study.matrix().index.names == ["threads", "batch", "size"]


def test_the_conclusion_is_in_words_with_evidence(study):
    assert "mean in float16: the same bits" in study.conclusion or "mean in float16: the order" in study.conclusion
    assert any(
        "For random orders the change is rounding" in s.text and s.evidence["beyond"] == 0 for s in study.statements
    )
    assert "error model" in study.conclusion


@pytest.mark.slow
def test_tables_in_every_format(study, tmp_path):
    for suffix in (".csv", ".md", ".jsonl", ".parquet", ".json", ".html"):
        assert study.save(tmp_path / f"rows{suffix}").stat().st_size > 1000
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(lines) == 1 + len(study.rows)
    duckdb = pytest.importorskip("duckdb")
    (count, largest), = duckdb.sql(
        f"SELECT count(*), max(spread) FILTER (NOT isnan(spread)) FROM '{tmp_path / 'rows.parquet'}'"
    ).fetchall()  # fmt: skip
    assert count == len(study.rows)
    assert largest == max(r["spread"] for r in study.rows if r["spread"] == r["spread"])


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_picture_is_drawn_and_equal_rows_give_equal_files(study, tmp_path, suffix):
    one, two = study.plot(tmp_path / f"one{suffix}"), study.plot(tmp_path / f"two{suffix}")
    assert one.read_bytes() == two.read_bytes()
    if suffix == ".svg":
        text = one.read_text()
        assert all(word in text for word in ("layer_norm", "pareto", "float16", "predicted"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"functions": "meen"}, "did you mean 'mean'"),
        ({"laws": "normaal"}, "did you mean 'normal'"),
        ({"dtypes": "float8"}, "no dtype 'float8'"),
        ({"sizes": 0}, "at least 1"),
        ({"sizes": (4, 4)}, "repeats a value"),
        ({"permutations": "many"}, "whole number"),
        ({"sizes": ()}, "at least one"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(settings, words):
    with pytest.raises(InputError, match=words):
        reduction(**settings, workers=0)


@pytest.mark.slow
def test_what_cannot_be_drawn_or_shown_is_one_sentence(study, tmp_path):
    with pytest.raises(InputError, match=r"\.png"):
        study.plot(tmp_path / "picture.gif")
    with pytest.raises(InputError, match="no column 'speed'"):
        study.matrix("speed")
    with pytest.raises(InputError, match="no row has a column"):
        study.matrix(colour="blue")
    with pytest.raises(InputError, match="no finished row"):
        study.matrix(dtype="float8")


@pytest.mark.parametrize("count", [1, 2, 7, 126])
@pytest.mark.parametrize("put", [None, math.inf, -math.inf, math.nan], ids=str)
def test_the_median_is_numpys(count, put):
    values = np.random.default_rng(count).standard_normal(count)
    values[count // 3] = values[count // 3] if put is None else put
    assert np.array_equal(_median(values), np.median(values), equal_nan=True)


@pytest.mark.parametrize(
    "study", ["'mean', 'normal', 8, 'float32', permutations=4, workers=0", "sizes=8, permutations=4"]
)
def test_a_study_imports_no_more_than_it_uses(study):
    others = {"numpy.ma", "ml_dtypes", "torch", "email", "importlib.metadata", "multiprocessing", "subprocess"}
    asked = f"print(*sorted({others | {'numpy'}} & set(sys.modules)))"
    code = f"import sys, driftscope; driftscope.studies.reduction({study}); {asked}"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["numpy"]


def test_the_axis_of_a_picture_says_what_a_spread_is(monkeypatch, tmp_path):
    """Of a number it is the largest result minus the smallest, of a vector how far one element moves."""
    monkeypatch.setattr(figures, "saved", lambda figure, path: figure)
    functions = ("mean", "layer_norm", "torch.sum", "torch.softmax")
    study = reduction(functions, "normal", 16, "float32", permutations=4, workers=0)
    said = [panel.get_ylabel() for panel in figures.spread_bars(study.record, tmp_path / "bars.png").axes]
    of_numbers, of_vectors = "largest - smallest result", "largest change of an element"
    assert said == [of_numbers, of_vectors, of_numbers, of_vectors]
