"""The assertions people type, and the numbers they know."""

from __future__ import annotations

import collections
import dataclasses
import math

import numpy as np
import pytest
import torch

from driftscope.testing import assert_close, assert_invariant, assert_same, assert_transforms, max_diff

INF, NAN = math.inf, math.nan


def message(actual, expected, **options):
    with pytest.raises(AssertionError) as caught:
        assert_close(actual, expected, **options)
    return str(caught.value)


# --- assert_close -------------------------------------------------------------------------------------------------


def test_every_mismatch_is_named_not_only_the_first():
    torch.manual_seed(0)
    x = torch.randn(4, 3)
    y = x.clone()
    y[3, 1] += 0.5
    said = message({"a": [x, y], "b": y, "c": x}, {"a": [x, x], "b": x, "c": x})
    assert said.startswith("2 values are not close")
    assert "out['a'][1]: 1 of 12 elements beyond atol=1e-05 + rtol=1.3e-06 * |expected|" in said
    assert "out['b']: 1 of 12" in said
    assert "out['c']" not in said
    assert "worst at (3, 1): expected " in said
    assert "ulp" in said
    assert said.splitlines()[-1].startswith("next: ")


def test_nan_on_both_sides_is_said_and_not_only_counted():
    one, other = torch.tensor([NAN, 1.0, NAN]), torch.tensor([NAN, 1.0, 2.0])
    assert "on both sides" not in message(one[2:], other[2:])
    assert "2 of 3 elements beyond" in (said := message(one, other))
    assert "1 of them NaN on both sides, which equal_nan=True takes for equal" in said
    assert "on both sides" not in message(one, other, equal_nan=True)


def test_rounding_within_the_default_tolerance_is_accepted():
    torch.manual_seed(0)
    x = torch.randn(100, 100)
    assert_close({"a": [x * (1 + 1e-7)]}, {"a": [x]})


@pytest.mark.parametrize(("noise", "words"), [(1e-4, "ordinary rounding"), (1e-2, "more than its rounding explains")])
def test_a_floor_says_how_much_is_rounding(noise, words):
    torch.manual_seed(0)
    x = torch.randn(1000)
    said = message(x + noise * torch.randn(1000), x, floor=1e-4)
    assert "floors (noise floor 0.0001)" in said
    assert words in said
    assert words in message([x + noise * torch.randn(1000)], [x], floor={"out[0]": 1e-4})
    assert "floors" not in message([x + noise * torch.randn(1000)], [x], floor={"out[1]": 1e-4})


def test_a_floor_never_changes_the_decision():
    x = torch.ones(3)
    assert_close(x, x, floor=1e-30)
    message(x + 1, x, floor=1e30)


def test_special_values_are_counted():
    said = message(torch.tensor([1.0, NAN, INF]), torch.tensor([1.0, 2.0, 3.0]))
    assert "NaN in expected only: 0, in actual only: 1; infinity against another value: 1" in said
    message(torch.tensor([NAN]), torch.tensor([NAN]))
    assert_close(torch.tensor([NAN, -INF]), torch.tensor([NAN, -INF]), equal_nan=True)


def test_structures_are_all_reported():
    x = torch.ones(2)
    said = message({"a": [x], "b": x, "d": x + 1}, {"a": [x, x], "c": x, "d": x})
    assert "out: a mapping that lacks ['c'] and has the unexpected ['b']" in said
    assert "out['a']: a sequence of 1 items, expected 2" in said
    assert "out['d']: 2 of 2 elements" in said


def test_dtype_shape_and_layout():
    x = torch.ones(2, 2)
    assert "dtype" in message(x.half(), x)
    assert_close(x.half(), x, check_dtype=False)
    assert "shape" in message(x, x[:1])
    assert "layout" in message(x.to_sparse(), x)
    assert_close(x.to_sparse(), x, check_layout=False)
    assert "stride" in message(x.t().contiguous().t(), torch.ones(2, 2), check_stride=True)


def test_large_integers_are_not_rounded():
    message(torch.tensor([2**62]), torch.tensor([2**62 + 1]))
    assert_close(torch.tensor([2**62 + 1]), torch.tensor([2**62 + 1]))


def test_msg_replaces_or_wraps():
    x = torch.ones(1)
    assert message(x, x + 1, msg="mine") == "mine"
    assert message(x, x + 1, msg=lambda m: f"head\n{m}").startswith("head\n1 value is not close\n\nout: 1 of 1")


def test_misuse_is_not_an_assertion():
    x = torch.ones(1)
    with pytest.raises(ValueError, match="rtol"):
        assert_close(x, x, rtol=1e-3)
    with pytest.raises(TypeError):
        assert_close(x, np.ones(1, dtype=np.float32))
    with pytest.raises(TypeError):
        assert_close(torch.nn.Parameter(x), x, allow_subclasses=False)


def test_many_mismatches_are_listed_but_not_all_written_out():
    said = message([torch.ones(1)] * 50, [torch.zeros(1)] * 50)
    assert said.startswith("50 values are not close")
    assert "and 30 more: out[20], out[21]" in said


def test_the_traceback_ends_at_the_caller():
    with pytest.raises(AssertionError) as caught:
        assert_close(torch.ones(1), torch.zeros(1))
    assert caught.traceback[-1].ishidden(caught)


# --- assert_same --------------------------------------------------------------------------------------------------


def test_two_programs():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).eval()
    other = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).eval()
    other.load_state_dict(model.state_dict())
    inputs = {"input": torch.randn(5, 8)}
    assert_same(model, other, inputs)
    with torch.no_grad():
        other[2].bias[1] += 1e-3
    with pytest.raises(AssertionError, match="DIFFERENT"):
        assert_same(model, other, inputs)
    assert_same(model, other, inputs, fail_on="never")


def test_fail_on_is_one_of_four():
    with pytest.raises(ValueError, match="sometimes"):
        assert_same(abs, abs, {}, fail_on="sometimes")


# --- max_diff -----------------------------------------------------------------------------------------------------

# What onnx-diagnostic 0.9.3 returned for the same values.
KNOWN = [
    (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]),
     {"abs": 0.5, "rel": 0.24987506246876562, "sum": 0.5, "n": 2.0, "dnan": 0.0, "argm": (1,), "dev": 0}),
    (np.array([1.0, 2.0]), np.array([1.0, 2.5]),
     {"abs": 0.5, "rel": 0.24987506246876562, "sum": 0.5, "n": 2.0, "dnan": 0.0, "argm": (1,)}),
    ([torch.tensor([1.0])], [torch.tensor([2.0])],
     {"abs": 1.0, "rel": 0.9990009990009991, "sum": 1.0, "n": 1.0, "dnan": 0, "dev": 0}),
    (torch.tensor([1.0]), [torch.tensor([2.0])],
     {"abs": 1.0, "rel": 0.9990009990009991, "sum": 1.0, "n": 1.0, "dnan": 0.0, "argm": (0,), "dev": 0}),
    ({"a": torch.tensor([1.0])}, {"a": torch.tensor([2.0])},
     {"abs": 1.0, "rel": 0.9990009990009991, "sum": 1.0, "n": 1.0, "dnan": 0, "dev": 0}),
    ({"a": torch.tensor([1.0])}, [torch.tensor([2.0])],
     {"abs": 1.0, "rel": 0.9990009990009991, "sum": 1.0, "n": 1.0, "dnan": 0, "dev": 0}),
    (torch.tensor([]), torch.tensor([]),
     {"abs": 0.0, "rel": 0.0, "sum": 0.0, "n": 0.0, "dnan": 0.0, "argm": None, "dev": 0}),
    (torch.tensor([True]), torch.tensor([False]),
     {"abs": 1.0, "rel": 0.9990009990009991, "sum": 1.0, "n": 1.0, "dnan": 0.0, "argm": (0,), "dev": 0}),
    ([torch.tensor([1.0]), None], [torch.tensor([1.0]), None],
     {"abs": 0, "rel": 0, "sum": 0.0, "n": 1.0, "dnan": 0, "dev": 0}),
    (torch.tensor([INF]), torch.tensor([INF]),
     {"abs": 0.0, "rel": 0.0, "sum": 0.0, "n": 1.0, "dnan": 0.0, "argm": (0,), "dev": 0}),
    (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]),
     {"abs": 0.0, "rel": 0.0, "sum": 0.0, "n": 2.0, "dnan": 0.0, "argm": (0,), "dev": 0}),
    (torch.ones(3), torch.ones(1), {"abs": INF, "rel": INF, "sum": INF, "n": INF, "dnan": INF}),
    ([torch.ones(1)], [torch.ones(1)] * 2, {"abs": INF, "rel": INF, "sum": INF, "n": INF, "dnan": INF}),
    ({"a": torch.ones(1)}, {"b": torch.ones(1)}, {"abs": INF, "rel": INF, "sum": INF, "n": INF, "dnan": INF}),
    (None, None, {"abs": 0, "rel": 0, "sum": 0, "n": 0, "dnan": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "got", "known"), KNOWN)
def test_max_diff_as_its_users_know_it(expected, got, known):
    assert max_diff(expected, got) == known


def test_histograms_have_the_keys_their_users_read():
    pair = (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]))
    assert max_diff(*pair, hist=True)["rep"] == {
        ">0.0": 1, ">0.0001": 1, ">0.001": 1, ">0.01": 1, ">0.1": 1, ">1.0": 0, ">10.0": 0, ">100.0": 0,
    }  # fmt: skip
    assert max_diff([pair[0], pair[0]], [pair[0], pair[1]], hist=[0, 1e-2])["rep"] == {">0": 1, ">0.01": 1}
    assert "rep" not in max_diff(*pair)


def test_max_diff_where_the_known_one_is_wrong():
    nan = max_diff(torch.tensor([1.0, NAN]), torch.tensor([1.0, 2.0]), hist=True)
    assert (nan["abs"], nan["rel"], nan["sum"], nan["dnan"], nan["argm"]) == (INF, INF, INF, 1, (1,))
    assert nan["rep"][">100.0"] == 1
    assert max_diff(torch.tensor([INF]), torch.tensor([3.0]))["abs"] == INF
    assert max_diff(np.array([1 + 2j]), np.array([1 + 5j]))["abs"] == 3.0
    assert max_diff(torch.tensor([2**62]), torch.tensor([2**62 + 1]))["abs"] == 1.0
    assert max_diff(torch.ones(1), torch.ones(1).half())["dtype"] == "float32 against float16"
    assert max_diff(1.0, 2.0)["abs"] == 1.0
    assert max_diff("a", "a")["abs"] == 0.0
    assert max_diff("a", "b")["abs"] == INF
    assert max_diff(torch.ones(1), None)["abs"] == INF


Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    states: tuple


def test_max_diff_opens_every_container():
    x, y = torch.ones(2), torch.full((2,), 3.0)
    expected = Output(x, ({"k": [x, x]}, Pair(x, None)))
    got = Output(x, ({"k": [x, y]}, Pair(x, None)))
    found = max_diff(expected, got)
    assert (found["abs"], found["n"], found["sum"]) == (2.0, 8.0, 4.0)
    assert "argm" not in found
    assert max_diff(expected, expected)["abs"] == 0.0


ONE = torch.ones(2)


@pytest.mark.parametrize(
    ("actual", "expected", "options"),
    [
        ([ONE, ONE], [(ONE,)], {}),
        ({"a": ONE, "b": (ONE,)}, {"b": ONE}, {}),
        (ONE.to(torch.float8_e5m2), ONE.to_sparse(), {"check_dtype": False}),
    ],
)
def test_other_structures_and_layouts_are_not_close_as_in_torch(actual, expected, options):
    for check in (torch.testing.assert_close, assert_close):
        with pytest.raises(AssertionError):
            check(actual, expected, **options)


def test_things_that_do_not_compare_are_a_type_error_as_in_torch():
    for check in (torch.testing.assert_close, assert_close):
        with pytest.raises(TypeError):
            check([ONE, ONE], [ONE, (ONE,)])


def test_a_limit_of_comparisons_is_none_of_transforms():
    for check in (assert_transforms, assert_invariant):
        with pytest.raises(ValueError, match="for comparisons"):
            check(torch.sin, torch.ones(4, 3), fail_on="function")
    assert_transforms(torch.sin, torch.ones(4, 3), fail_on="never", transforms=("vmap",))
