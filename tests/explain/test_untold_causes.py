"""What every writing-out of a fused operator has, and what zeros make of anything, is told as nobody's cause."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import numpy_helper, parser

import driftscope as ds

TIME, BATCH, SIZE = 2, 2, 3
COSINE, SINE = (f(np.outer(np.arange(4), [1.0, 0.1, 0.01, 0.001])).astype(np.float32) for f in (np.cos, np.sin))


def file(body, inputs, result, opset=18, **stored):
    model = parser.parse_model(
        f'<ir_version: 10, opset_import: ["": {opset}]> g ({inputs}) => ({result} y) {{ {body} }}'
    )
    model.graph.initializer.extend(numpy_helper.from_array(np.array(v, order="C"), k) for k, v in stored.items())
    return model


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def lstm(body):
    """An LSTM as one operator, and written out step by step from states of zeros."""
    w, r, b = numbers(1, 4 * SIZE, SIZE), numbers(1, 4 * SIZE, SIZE, seed=1), numbers(1, 8 * SIZE, seed=2)
    stored = {"w": w[0].T, "r": r[0].T, "b": b[0, : 4 * SIZE] + b[0, 4 * SIZE :], "wb": b[0, : 4 * SIZE]}
    stored |= {"z": np.zeros((BATCH, SIZE), np.float32), "four": np.full(4, SIZE), "ax": np.array([0, 1])}
    stored |= {f"k{t}": np.array(t) for t in range(TIME)}
    steps = [body.replace("_n", str(t + 1)).replace("_t", str(t)) for t in range(TIME)]
    ends = ", ".join(f"u{t}" for t in range(TIME))
    nodes = " ".join(["h0 = Identity(z) c0 = Identity(z)", *steps, f"y = Concat<axis=0>({ends})"])
    inputs, result = f"float[{TIME},{BATCH},{SIZE}] x", f"float[{TIME},1,{BATCH},{SIZE}]"
    whole = file("y = LSTM<hidden_size=3>(x, w, r, b)", inputs, result, w=w, r=r, b=b)
    return whole, file(nodes, inputs, result, **stored), {"x": numbers(TIME, BATCH, SIZE, seed=3)}


CELL = (
    "x_t = Gather<axis=0>(x, k_t) p_t = MatMul(x_t, w) q_t = MatMul(h_t, r) a_t = Add(p_t, q_t) s_t = Add(a_t, b) "
    "i_t, o_t, f_t, g_t = Split<axis=1>(s_t, four) si_t = Sigmoid(i_t) so_t = Sigmoid(o_t) sf_t = Sigmoid(f_t) "
    "tg_t = Tanh(g_t) fc_t = Mul(sf_t, c_t) ig_t = Mul(si_t, tg_t) c_n = Add(fc_t, ig_t) tc_t = Tanh(c_n) "
    "h_n = Mul(so_t, tc_t) u_t = Unsqueeze(h_n, ax) "
)


@pytest.mark.parametrize(
    "body",
    [CELL.replace("i_t, o_t, f_t, g_t =", "i_t, o_t, g_t, f_t ="), CELL.replace("(a_t, b)", "(a_t, wb)")],
    ids=["gates", "one bias"],
)
def test_a_first_state_of_zeros_is_no_cause(body):
    whole, written, x = lstm(body)
    first = ds.compare(whole, written, x, isolate=False).first
    assert first.code == "N001"
    assert "unchanged" not in first.why
    assert first.where.operator != "Add"


def test_a_value_of_zeros_is_made_by_no_other_operator():
    _, one, x = lstm(CELL)
    _, other, _ = lstm(CELL.replace("Tanh(c_n)", "Tanh(c_t)"))
    for a, b in ((one, other), (other, one)):
        found = ds.compare(a, b, x, isolate=False)
        assert str(found.verdict) == "DIFFERENT"
        assert not any("in its place" in f.why or "multiplies with" in f.why for f in found.findings)


def test_an_operator_in_the_place_of_another_is_still_told():
    _, one, x = lstm(CELL)
    _, other, _ = lstm(CELL.replace("so_t = Sigmoid", "so_t = Tanh"))
    first = ds.compare(one, other, x, isolate=False).first
    assert first.where.operator == "Tanh"
    assert first.verified


ROTATION = "p, q = Split<axis=3>(x, halves) n = Neg(q) r = Concat<axis=3>(n, p) c = Mul(x, cos) s = Mul(r, sin)"


def rotated(body):
    one = file("y = RotaryEmbedding(x, c, s)", "float[1,2,4,8] x", "float[1,2,4,8]", 23, c=COSINE[None], s=SINE[None])
    tables = {"cos": np.concatenate([COSINE, COSINE], 1), "sin": np.concatenate([SINE, SINE], 1)}
    return one, file(body, "float[1,2,4,8] x", "float[1,2,4,8]", 23, halves=np.array([4, 4]), **tables)


def test_that_a_rotation_reads_its_input_through_its_first_step_is_no_cause():
    a, b = rotated(f"{ROTATION.replace('(n, p)', '(q, p)')} y = Add(c, s)")
    first = ds.compare(a, b, {"x": numbers(1, 2, 4, 8)}, isolate=False).first
    assert first.code == "N001"
    assert "as it is" not in first.why


def test_a_rotation_that_is_written_out_is_the_same_function():
    a, b = rotated(f"{ROTATION} y = Add(c, s)")
    assert str(ds.compare(a, b, {"x": numbers(1, 2, 4, 8)}, isolate=False).verdict) in ("IDENTICAL", "ROUNDING")


def quantised(levels):
    return file(
        "w = DequantizeLinear(q, s) y = MatMul(x, w)", "float[4,6] x", "float[4,5]", q=levels, s=np.float32(0.02)
    )


def test_quantised_weights_are_looked_up_nowhere():
    levels = np.random.default_rng(0).integers(-127, 128, (6, 5)).astype(np.int8)
    other = levels.copy()
    other[2, 3] ^= 8
    found = ds.compare(quantised(levels), quantised(other), {"x": numbers(4, 6)}, isolate=False)
    assert found.first.code == "W004"
    assert "looks up" not in found.first.what


def test_rows_that_are_looked_up_elsewhere_are_told():
    table = numbers(9, 6)
    a, b = (
        file("e = Gather(t, i) d = Add(x, e) y = Relu(d)", "float[4,6] x", "float[4,6]", t=table, i=np.arange(k, k + 4))
        for k in (0, 1)
    )
    found = ds.compare(a, b, {"x": numbers(4, 6, seed=1)}, isolate=False)
    assert "looks up 1, 2, 3, 4 here, and 0, 1, 2, 3 in A" in found.first.what


TURNED = "float[1,4,2,3] q, float[1,4,2,3] k, float[1,4,2,3] v"
ONCE = "r = Transpose<perm=[0,2,3,1]>({})"
TWICE = "k1 = Transpose<perm=[0,2,1,3]>({}) r = Transpose<perm=[0,1,3,2]>(k1)"
REST = (
    "p = Transpose<perm=[0,2,1,3]>(q) s = MatMul(p, r) w = Softmax(s) t = Transpose<perm=[0,2,1,3]>(v) y = MatMul(w, t)"
)


def test_how_another_value_is_turned_is_no_cause():
    x = {name: numbers(1, 4, 2, 3, seed=k) for k, name in enumerate("qkv")}
    a, b, other = (
        file(f"{way} {REST}", TURNED, "float[1,2,4,3]")
        for way in (ONCE.format("k"), TWICE.format("k"), TWICE.format("v"))
    )
    assert str(ds.compare(a, b, x, isolate=False).verdict) == "IDENTICAL"
    for pair in ((a, other), (other, a)):
        found = ds.compare(*pair, x, isolate=False)
        assert str(found.verdict) == "DIFFERENT"
        assert not any("perm is" in f.why for f in found.findings)


def test_how_one_value_is_turned_is_a_cause():
    x = {name: numbers(1, 4, 4, 3, seed=k) for k, name in enumerate("qkv")}
    inputs = TURNED.replace("4,2,3", "4,4,3")
    a, b = (
        file(f"{ONCE.format('k')} {rest}", inputs, "float[1,4,4,3]")
        for rest in (REST, REST.replace("t = Transpose<perm=[0,2,1,3]>", "t = Transpose<perm=[0,1,2,3]>"))
    )
    assert "perm is" in ds.compare(a, b, x, isolate=False).first.why


TOO_MUCH = {
    "a factor": ("float[3,7] x", "y = Softmax(x)", "f = Constant<value_float=0.999>() z = Mul(x, f) y = Softmax(z)"),
    "an offset": (
        "int64[3] i",
        "y = Gather(t, i)",
        "o = Constant<value_int=1>() j = Add(i, o) n = Constant<value_int=9>() v = Constant<value_floats=[0.0, 1.0]>() "
        "h = OneHot(j, n, v) y = MatMul(h, t)",
    ),
}


@pytest.mark.parametrize("case", TOO_MUCH)
def test_a_step_too_many_is_not_told_as_another_operator(case):
    inputs, *bodies = TOO_MUCH[case]
    stored = {"t": numbers(9, 7)} if case == "an offset" else {}
    a, b = (file(body, inputs, "float[3,7]", **stored) for body in bodies)
    x = {"i": np.array([1, 5, 0])} if case == "an offset" else {"x": numbers(3, 7, seed=1)}
    first = ds.compare(a, b, x, isolate=False).first
    assert "A has no such step" in first.why
    assert first.verified


def test_that_a_fold_reads_what_the_first_of_its_layers_reads_is_no_cause():
    w, v = numbers(6, 8), numbers(8, 5, seed=1)
    apart = file("t = MatMul(x, w) y = MatMul(t, v)", "float[4,6] x", "float[4,5]", w=w, v=v)
    x = {"x": numbers(4, 6, seed=2)}
    folded = file("y = MatMul(x, f)", "float[4,6] x", "float[4,5]", f=w @ v)
    assert str(ds.compare(apart, folded, x, isolate=False).verdict) == "ROUNDING"
    other = file("y = MatMul(x, f)", "float[4,6] x", "float[4,5]", f=w @ v * np.float32(1.001))
    for a, b in ((apart, other), (other, apart)):
        found = ds.compare(a, b, x, isolate=False)
        assert str(found.verdict) == "DIFFERENT"
        assert "reads x" not in found.first.why


def test_another_wire_is_a_cause():
    inputs, weight = "float[4,6] x, float[4,6] z", numbers(6, 6)
    body = "n = MatMul(x, w) t = Tanh(n) r = Sigmoid(n) u = MatMul(r, w) y = Add({}, t)"
    a, b = (file(body.format(read), inputs, "float[4,6]", w=weight) for read in "un")
    first = ds.compare(a, b, {"x": numbers(4, 6, seed=1), "z": numbers(4, 6, seed=2)}, isolate=False).first
    assert "reads n" in first.why
    assert first.verified


def test_an_input_that_the_reference_never_reads_is_the_other_wire():
    inputs, stored = "float[4,6] x, float[4,6] z", {"w": numbers(6, 5), "v": numbers(6, 5, seed=3)}
    body = "n = Tanh(x) p = MatMul({}, w) q = MatMul(n, v) s = Sigmoid(q) y = Add(p, s)"
    a, b = (file(body.format(read), inputs, "float[4,5]", **stored) for read in "nz")
    first = ds.compare(a, b, {"x": numbers(4, 6, seed=1), "z": numbers(4, 6, seed=2)}, isolate=False).first
    assert "it reads z where MatMul in A reads n" in first.why
    assert first.verified


def placed_by_rows(pose, p):
    return (torch.cat([p, torch.ones_like(p[:, :1])], -1) @ pose.T)[:, :3]


def placed_apart(pose, p):
    return np.einsum("ij,nj->ni", pose[:3, :3], p) + pose[3, :3]


def edges(x):
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    y = torch.nn.functional.conv2d(x[None, None], torch.stack([kernel, kernel.T])[:, None])[0]
    return torch.sqrt((y**2).sum(0) + 1e-6)


def edges_by_slices(x):
    across = (x[:-2, 2:] + 2 * x[1:-1, 2:] + x[2:, 2:]) - (x[:-2, :-2] + 2 * x[1:-1, :-2] + x[2:, :-2])
    down = (x[2:, :-2] + x[2:, 1:-1] + x[2:, 2:]) - (x[:-2, :-2] + 2 * x[:-2, 1:-1] + x[:-2, 2:])
    return np.sqrt(across * across + down * down + 1e-6)


def neighbours(x, last=-1):
    return np.roll(x, 1, 0) + np.roll(x, -1, 0) + np.roll(x, 1, 1) + np.roll(x, last, 1) - 4 * x


def orthogonal(x, first=None):
    found = np.zeros_like(x)
    for k in range(x.shape[1]):
        rest = x[:, k] - found[:, :k] @ (found[:, :k].T @ x[:, k if first is None else first])
        found[:, k] = rest / np.linalg.norm(rest)
    return found


def scan(x, decay):
    state, found = torch.zeros_like(x[:, 0]), []
    for k in range(x.shape[1]):
        state = decay[:, k] * state + x[:, k]
        found.append(state)
    return torch.stack(found, 1)


def scan_by_halves(x, decay):
    found, state = np.empty_like(x), np.zeros_like(x[:, 0])
    for k in range(0, 8, 4):
        fall = np.cumprod(decay[:, k : k + 4], 1)
        found[:, k : k + 4] = fall * (state[:, None] + np.cumsum(x[:, k : k + 4] / fall, 1))
        state = found[:, k + 2]
    return found


POSE = (numbers(4, 4), numbers(6, 3))
UNTRUE = {
    "what a guessed counterpart reads": (placed_by_rows, placed_apart, POSE, "reads in["),
    "an index of a guessed counterpart": (scan, scan_by_halves, (numbers(2, 8, 3), np.exp(numbers(2, 8, 3))), "index"),
    "the only image of a batch": (edges, edges_by_slices, (numbers(8, 9),), "unchanged"),
    "another turn": (neighbours, lambda x: neighbours(x, 1), (numbers(6, 8),), "of it first"),
    "a view that both have": (orthogonal, lambda x: orthogonal(x, 0), (numbers(6, 3),), " through "),
}


@pytest.mark.parametrize("case", UNTRUE)
def test_what_is_not_so_is_not_told(case):
    a, b, given, words = UNTRUE[case]
    for one, other in ((a, b), (b, a)):
        found = ds.compare(one, other, tuple(map(torch.from_numpy, given)))
        assert str(found.verdict) == "DIFFERENT"
        assert not [f.why for f in found.findings if words in f.why]


def turned(x, base=1e4):
    angles = np.arange(6)[:, None] * base ** (-np.arange(4) / 4)
    c, s = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    return np.concatenate([x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * c + x[..., :4] * s], -1)


def attention_by_hand(q, k, v, base=1e4):
    scores = turned(q, base) @ np.swapaxes(turned(k, base), -1, -2) * np.float32(8**-0.5)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True) @ v


def attention(q, k, v):
    angles = torch.arange(6.0)[:, None] * 1e4 ** (-torch.arange(0, 8, 2.0) / 8)
    c, s = torch.cos(angles).repeat(1, 2), torch.sin(angles).repeat(1, 2)
    q, k = (x * c + torch.cat([-x[..., 4:], x[..., :4]], -1) * s for x in (q, k))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_a_product_that_ends_in_a_view_is_no_view_of_what_it_reads():
    given = tuple(map(torch.from_numpy, (numbers(2, 4, 6, 8, seed=k) for k in range(3))))
    other = ds.program(lambda q, k, v: attention_by_hand(q, k, v, 1e3), framework="numpy")
    assert str(ds.compare(attention, attention_by_hand, given).verdict) == "ROUNDING"
    for a, b in ((attention, other), (other, attention)):
        first = ds.compare(a, b, given).first
        assert "1000" in first.why
        assert first.verified


def test_a_vector_that_is_read_across_where_it_is_read_along_is_told():
    one, other = numbers(5, 5), np.abs(numbers(5)) + 1
    found = ds.compare(lambda x, m: m / np.exp(x), lambda x, m: m[:, None] / np.exp(x), (one, other))
    assert "through unsqueeze" in found.first.why


def weighed(z, y):
    p, margin = torch.sigmoid(z), torch.nn.functional.binary_cross_entropy_with_logits(z, y, reduction="none")
    return (0.25 * y + 0.75 * (1 - y)) * margin * (1 - (p * y + (1 - p) * (1 - y))) ** 2


def weighed_the_other_way(z, y):
    margin = (2 * y - 1) * z
    share = np.where(y > 0.5, 0.75, 0.25).astype(z.dtype)
    return share * np.logaddexp(0, -margin) * (1 / (1 + np.exp(margin))) ** 2


def test_a_mask_is_no_other_operator_than_one_that_gives_numbers():
    given = torch.from_numpy(numbers(20)), (torch.from_numpy(numbers(20, seed=1)) > 0).float()
    first = ds.compare(weighed, weighed_the_other_way, given).first
    assert "in the other order" in first.why
    assert first.verified
