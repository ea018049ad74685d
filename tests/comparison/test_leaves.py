"""Output trees side by side: every difference, each named once and at its path."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from driftscope.comparison.leaves import compare_leaves
from driftscope.programs.value_trees import flatten
from driftscope.records.paths import Attribute, Path

NAN, INF = math.nan, math.inf


def compare(a, b, flat=False):
    return compare_leaves(flatten(a)[0], flatten(b)[0], flat=flat)


def kinds(a, b, flat=False):
    return [(str(leaf.path), leaf.kind) for leaf in compare(a, b, flat)]


KINDS = [
    ("the same", torch.ones(2), torch.ones(2), "same"),
    ("a value", torch.ones(2), torch.zeros(2), "value"),
    ("a shape that would broadcast", torch.ones(3), torch.ones(1), "shape"),
    ("a scalar and a vector of one", torch.tensor(1.0), torch.ones(1), "shape"),
    ("None against a tensor", None, torch.ones(1), "kind"),
    ("None on both sides", None, None, "same"),
    ("a dtype, equal values", torch.ones(2), torch.ones(2).half(), "dtype"),
    ("a dtype, other values", torch.ones(2), torch.zeros(2).half(), "dtype"),
    ("NaN on one side", torch.ones(2), torch.tensor([1.0, NAN]), "nan"),
    ("NaN on both sides", torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]), "same"),
    ("an infinity on one side", torch.ones(1), torch.tensor([INF]), "nan"),
    ("infinities on both sides", torch.tensor([INF]), torch.tensor([INF]), "same"),
    ("NaN in another float format", torch.ones(1).half(), torch.tensor([NAN]), "nan"),
    ("NaN against integers", torch.ones(1, dtype=torch.int64), torch.tensor([NAN]), "dtype"),
    ("integers", torch.tensor([2**62]), torch.tensor([2**62 + 1]), "value"),
    ("int32 against int64", torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.int64), "dtype"),
    ("a number against a tensor", 1.0, torch.tensor(1.0), "kind"),
    ("numbers", 1.0, 2.0, "value"),
    ("an int against a float", 1, 1.0, "dtype"),
    ("text", "a", "b", "value"),
    ("the same text", "a", "a", "same"),
    ("text against a tensor", np.array(["a"]), torch.ones(1), "kind"),
    ("an array against a tensor", np.ones(2, dtype=np.float32), torch.ones(2), "same"),
    (
        "other components",
        torch.nested.nested_tensor([torch.ones(2), torch.ones(4)], layout=torch.jagged),
        torch.nested.nested_tensor([torch.ones(4), torch.ones(2)], layout=torch.jagged),
        "dtype",
    ),
    (
        "another scale, equal values",
        torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
        torch.quantize_per_tensor(torch.ones(2), 0.2, 0, torch.quint8),
        "dtype",
    ),
    ("minus zero", torch.tensor([-0.0]), torch.tensor([0.0]), "same"),
]


@pytest.mark.parametrize(("a", "b", "kind"), [k[1:] for k in KINDS], ids=[k[0] for k in KINDS])
def test_kinds(a, b, kind):
    (leaf,) = compare(a, b)
    assert leaf.kind == kind
    assert bool(leaf.detail) == (kind != "same") or leaf.drift.nan_both or leaf.drift.mismatched


def test_same_bits_and_nothing_but_nan():
    assert compare(torch.ones(2), torch.ones(2))[0].same_bits
    assert not compare(torch.tensor([-0.0]), torch.tensor([0.0]))[0].same_bits
    assert compare(torch.tensor([NAN, NAN]), torch.tensor([NAN, NAN]))[0].all_nan
    assert not compare(torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]))[0].all_nan
    assert not compare(torch.ones(1), torch.ones(2))[0].same_bits


def test_the_details_say_everything():
    (leaf,) = compare(torch.tensor([1.0, 2.0, 3.0]).half(), torch.tensor([NAN, 2.5, 3.0]))
    assert leaf.detail == (
        "NaN in B only: 1 of 3 elements; float16 against float32; "
        "1 of 3 elements differ, by up to 0.5 at (1,): 2.0 against 2.5"
    )


def test_every_difference_is_found_and_none_twice():
    a = {"x": torch.ones(2), "y": [torch.ones(1), torch.ones(1)], "z": torch.ones(3)}
    b = {"x": torch.zeros(2), "y": [torch.ones(1), torch.zeros(1)], "w": torch.ones(3)}
    assert kinds(a, b) == [
        ("out['x']", "value"), ("out['y'][0]", "same"), ("out['y'][1]", "value"),
        ("out['z']", "structure"), ("out['w']", "structure"),
    ]  # fmt: skip
    missing, extra = compare(a, b)[3:]
    assert (missing.index_a, missing.index_b, extra.index_a, extra.index_b) == (3, None, None, 3)
    assert missing.detail == "only A has it: float32 of shape (3,)"


def test_a_list_and_a_tuple_of_the_same_leaves_are_the_same():
    assert kinds([torch.ones(1), torch.ones(2)], (torch.ones(1), torch.ones(2))) == [
        ("out[0]", "same"),
        ("out[1]", "same"),
    ]


def test_an_item_and_a_field_of_one_name_are_the_same_place():
    a = [(Path((Attribute("logits"),)), torch.ones(1))]
    b = [(Path(("logits",)), torch.ones(1))]
    assert [leaf.kind for leaf in compare_leaves(a, b)] == ["same"]


def test_a_dict_in_another_order_is_the_same():
    a = {"x": torch.zeros(1), "y": torch.ones(1)}
    assert {k for _, k in kinds(a, dict(reversed(a.items())))} == {"same"}


# --- one side flat ------------------------------------------------------------------------------------------------

X, Y = torch.zeros(1), torch.ones(1)


def test_flat_outputs_are_paired_by_name_whatever_their_order():
    assert kinds({"x": X, "y": Y}, {"y": Y, "x": X}, flat=True) == [("out['x']", "same"), ("out['y']", "same")]


def test_flat_outputs_with_other_names_are_paired_by_order():
    found = compare((X, {"k": Y}), {"output_0": X, "val_7": Y}, flat=True)
    assert [(str(leaf.path), leaf.kind, leaf.index_b) for leaf in found] == [
        ("out[0]", "same", 0), ("out[1]['k']", "same", 1),
    ]  # fmt: skip


def test_without_flat_the_same_two_trees_have_other_structures():
    assert {k for _, k in kinds((X, {"k": Y}), {"output_0": X, "val_7": Y})} == {"structure"}


def test_a_flat_side_cannot_return_none():
    assert kinds((X, None, Y), {"a": X, "b": Y}, flat=True) == [
        ("out[0]", "same"),
        ("out[1]", "same"),
        ("out[2]", "same"),
    ]
    assert kinds({"a": X, "b": Y}, (X, None, Y), flat=True)[-1] == ("out[1]", "same")


def test_a_missing_flat_output_is_still_missing():
    assert ("out['y']", "structure") in kinds({"x": X, "y": Y}, {"x": X}, flat=True)
    assert "structure" in {k for _, k in kinds((X, Y), {"x": X}, flat=True)}


def test_a_number_is_compared_with_a_flat_side_s_tensor_by_value():
    assert kinds((X, 3), {"x": X, "n": torch.tensor(3)}, flat=True)[1][1] == "same"
    assert kinds((X, 3), {"x": X, "n": torch.tensor(4)}, flat=True)[1][1] == "value"
    assert kinds((X, 0.1), {"x": X, "n": torch.tensor(0.1)}, flat=True)[1][1] == "same"
    assert kinds((X, 0.5), {"x": X, "n": torch.tensor(1)}, flat=True)[1][1] == "dtype"


def test_objects_that_know_no_equality_are_not_compared():
    class Handle:
        pass

    class Version:
        def __eq__(self, other):
            return isinstance(other, Version)

        __hash__ = None

    handle = Handle()
    kinds = [
        compare_leaves([(Path(), a)], [(Path(), b)])[0].kind
        for a, b in ((Handle(), Handle()), (handle, handle), (Version(), Version()))
    ]
    assert kinds == ["opaque", "same", "same"]
