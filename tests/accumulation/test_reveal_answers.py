"""What is said about a revealed sum: numbers, sentences, a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch

import driftscope as ds
from accumulation.known_kernels import adding, folded, pairwise


@pytest.fixture(scope="module")
def short():
    return ds.reveal(adding(pairwise(0, 16)), 16)


@pytest.fixture(scope="module")
def other():
    return ds.reveal(adding(folded(range(16))), 16)


def test_the_record_is_plain_data(short):
    record = json.loads(json.dumps(short.to_dict()))
    assert record["schema"] == "driftscope/accumulation/1"
    assert record["pattern"] == short.pattern == "tree16[+8,+4,+2,+1](x)"
    assert (record["depth"], record["additions"], record["accumulator"]) == (4, 15, "float32")
    assert (record["calls"], record["rows"]) == (short.calls, short.rows)
    assert 0 < record["verified"]["miss"] < 1e-4


def test_text_and_repr_name_what_matters(short):
    assert repr(short) == ("<Accumulation of kernel, n=16, float32: tree16[+8,+4,+2,+1](x), in float32, depth 4>")
    for words in ("pairwise", "4 additions in a row, of 15", "replayed bit for bit", f"{short.calls} calls"):
        assert words in str(short)


def test_two_orders_in_two_sentences(short, other):
    text = short.explain(other)
    assert text.count(". ") == 1
    assert text.endswith(".")
    assert "pairwise, tree16[+8,+4,+2,+1](x)" in text
    assert "sequential, fold(16)" in text
    # Those of the first 2, 4 and 8 terms.
    assert "15 and 15 partial sums 3 are the same besides the total" in text
    assert "chains of additions are 4 and 15" in text


def test_one_order_twice_is_said_to_be_one(short):
    again = ds.reveal(adding(pairwise(0, 16)), 16, seed=5)
    assert "add the 16 terms in the same order" in short.explain(again)
    assert "the same values give the same bits" in short.explain(again)
    wider = ds.reveal(adding(pairwise(0, 16)), 16, dtype="float64")
    assert "one accumulates in float32, the other in float64, and the results are float32 and float64" in short.explain(
        wider
    )


def test_one_order_that_divides_otherwise_is_told_by_the_division():
    total = adding(folded(range(24)))
    whole, divided, times = (
        ds.reveal(kernel, 24)
        for kernel in (
            total,
            lambda x: total(x) / np.float32(24),
            lambda x: total(x) * (np.float32(1) / np.float32(24)),
        )
    )
    assert "one returns the sum, the other the sum divided by n, so the results are not of" in whole.explain(divided)
    assert "the sum divided by n, the other the sum times 1/n, so the last bits can" in divided.explain(times)


def test_sums_of_unlike_length_have_nothing_to_compare(short):
    with pytest.raises(ds.InputError, match="same n"):
        short.explain(ds.reveal(adding(pairwise(0, 15)), 15))


@pytest.mark.parametrize(
    ("x", "weights", "message"),
    [
        (np.zeros((2, 15), np.float32), None, r"takes \(rows, 16\), not \(2, 15\)"),
        (np.zeros(16, np.float32), None, r"takes \(rows, 16\)"),
        (np.zeros((2, 16)), None, "revealed in float32, the values are float64"),
        (np.zeros((2, 16), np.float32), np.ones(16, np.float32), "takes no weights"),
    ],
)
def test_what_cannot_be_replayed(short, x, weights, message):
    with pytest.raises(ds.InputError, match=message):
        short.replay(x, weights)


def test_tensors_are_replayed_like_arrays(short):
    x = torch.randn(3, 16)
    assert (short.replay(x) == short.replay(x.numpy())).all()
    assert short.replay(x[:0]).shape == (0,)


def texts(path):
    return [element.text or "" for element in ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")]


def test_a_short_sum_is_drawn_term_by_term(short, tmp_path):
    path = short.draw(tmp_path / "tree.svg")
    assert [t for t in texts(path) if t.isdigit()] == [str(k) for k in range(16)]
    dots = list(ET.parse(path).getroot().iter("{http://www.w3.org/2000/svg}circle"))
    assert len(dots) == 16 + 15


def test_a_long_sum_is_drawn_folded(tmp_path):
    lanes = folded([folded(range(lane, 2048, 8)) for lane in range(8)])
    path = ds.reveal(adding(lanes), 2048).draw(tmp_path / "tree.svg")
    words = texts(path)
    assert "8 copies, added one after another" in words
    assert "256 terms, added one after another" in words
    assert path.stat().st_size < 20_000


def test_names_are_escaped(tmp_path):
    kernel = adding(pairwise(0, 8))
    kernel.__name__ = "<script>&"
    path = ds.reveal(kernel, 8).draw(tmp_path / "tree.svg")
    assert "<script>" not in path.read_text()
    assert any("<script>&" in text for text in texts(path))


def test_other_pictures_are_refused(short, tmp_path):
    with pytest.raises(ds.InputError, match=r"drawn as \.svg or \.png"):
        short.draw(tmp_path / "tree.pdf")


@pytest.mark.parametrize("n", [16, pytest.param(1003, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_picture_as_png(tmp_path, n):
    pytest.importorskip("matplotlib")
    path = ds.reveal("numpy.sum", n).draw(tmp_path / "tree.png")
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = (int.from_bytes(data[at : at + 4], "big") for at in (16, 20))
    assert wide >= 1280
    assert 300 < high < 3200
    from matplotlib.image import imread

    colours = imread(path)[..., :3].reshape(-1, 3)
    assert len(np.unique((colours * 8).astype(int), axis=0)) > 4  # lines, boxes and words, not an empty sheet


def test_uneven_known_orders_have_a_name():
    assert "numpy's pairwise sum" in ds.reveal("numpy.sum", 1003).family
    assert "numpy" not in ds.reveal("numpy.sum", 1024).family
    assert "numpy" not in ds.reveal(adding(folded(range(103))), 103).family


@pytest.mark.parametrize(
    ("dtype", "kernel"),
    [
        ("float32", lambda x: x.sum(-1).to(torch.bfloat16).to(x.dtype)),
        ("float32", lambda x: (x.sum(-1).view(torch.int32) & ~1).view(torch.float32)),
        ("float64", lambda x: x.sum(-1).float().double()),
    ],
)
@pytest.mark.parametrize("n", [8, 100])
def test_a_result_that_is_rounded_further_is_no_sum_in_any_order(dtype, kernel, n):
    with pytest.raises(ds.DriftscopeError, match="not reported"):
        ds.reveal(kernel, n, dtype=dtype)
    plain = ds.reveal(lambda x: x.sum(-1), n, dtype=dtype)
    x = torch.randn(50, n, dtype=getattr(torch, dtype))
    assert np.array_equal(plain.replay(x), x.sum(-1).numpy())


def test_a_sum_whose_terms_overflow_on_the_way_is_refused_with_what_was_seen() -> None:
    """What float16 makes of large terms that cancel is no fraction; in float64 they cancel."""
    with pytest.raises(ds.DriftscopeError, match=r"a count of terms came out as no whole number \(nan\)"):
        ds.reveal(lambda x: x.half().sum(1).float(), 13)
    assert ds.reveal(lambda x: x.double().sum(1).float(), 13).verified
