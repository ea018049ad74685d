"""Which axes vary: from one set, from several, from a spec."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

from driftscope.errors import InputError
from driftscope.shapes.capture.containers import register_containers
from driftscope.shapes.capture.inference import infer
from driftscope.shapes.probe.axes import sets_of
from shapes.small_models import FirstOf, Gated, OfPair, Pair, PoolAndAdd, pool_inputs, seeded


def inferred(model, inputs, dynamic="all"):
    sets = sets_of(model, inputs)
    register_containers(sets[0])
    return infer(sets, dynamic)


def test_one_set_leaves_everything_free():
    wanted = inferred(FirstOf(), (seeded(2, 5), 3))
    assert wanted.free == (True, True, True)
    assert inferred(FirstOf(), (seeded(2, 5), 3), None).free == (False, False, False)


def test_several_sets_show_what_varies_what_is_equal_and_what_follows():
    sets = [pool_inputs(b, p, q) for b, p, q in ((3, 2, 4), (5, 3, 7), (2, 6, 5), (4, 5, 9))]
    wanted = inferred(PoolAndAdd(), sets)
    assert all(wanted.free)
    assert "left.shape[1] == right.shape[1] == long.shape[1]" in str(wanted)
    assert "long.shape[0] == 2*left.shape[0] + 2*right.shape[0]" in str(wanted)


def test_a_derived_size_and_a_constant_one():
    def model(x, y):
        return x, y

    wanted = inferred(model, [(seeded(n, 6), seeded(3 * n - 1)) for n in (2, 5, 7)])
    assert wanted.free == (True, False, True)
    assert str(wanted) == "y.shape[0] == 3*x.shape[0] - 1\nx.shape[1] == 6"


def test_two_sets_are_no_evidence_of_a_line():
    def model(x, y):
        return x, y

    # 2 -> 7 and 5 -> 13 lie on 2*n + 3, as any two points lie on some line.
    assert "==" not in str(inferred(model, [(seeded(2), seeded(7)), (seeded(5), seeded(13))]))
    # A plain multiple is believed.
    assert "y.shape[0] == 4*x.shape[0]" in str(inferred(model, [(seeded(2), seeded(8)), (seeded(5), seeded(20))]))


def test_a_spec_by_name_by_position_and_nested():
    batch = Dim("batch")
    by_name = inferred(Gated(), (seeded(2, 6), seeded(2, 6)), {"x": {0: batch}, "gate": {0: batch}})
    by_place = inferred(Gated(), (seeded(2, 6), seeded(2, 6)), ({0: batch}, {0: batch}))
    assert by_name.free == by_place.free == (True, False, True, False)
    assert "x.shape[0] == gate.shape[0]" in str(by_name)
    pair = (Pair(seeded(2, 3), seeded(3, 4)), {"by": torch.ones(2)})
    nested = inferred(OfPair(), pair, {"pair": [{0: Dim.DYNAMIC}, None], "scale": {"by": {0: Dim.AUTO}}})
    assert nested.free == (True, False, False, False, True)


def test_derived_dims_of_a_spec():
    n = Dim("n")
    wanted = inferred(Gated(), (seeded(3, 6), seeded(7, 6)), {"x": {0: n}, "gate": {0: 2 * n + 1}})
    assert "gate.shape[0] == 2*x.shape[0] + 1" in str(wanted)


@pytest.mark.parametrize(
    ("dynamic", "words"),
    [
        ({"door": {0: Dim.AUTO}}, "door"),
        ({"x": {7: Dim.AUTO}}, "axis 7"),
        (3, "not a spec"),
        ({"x": Dim.AUTO}, "dict from axis"),
    ],
)
def test_a_spec_that_does_not_fit_is_refused(dynamic, words):
    with pytest.raises(InputError, match=words):
        inferred(Gated(), (seeded(2, 6), seeded(2, 6)), dynamic)


def test_negative_axes_and_static_hints_are_understood():
    wanted = inferred(Gated(), (seeded(2, 6), seeded(2, 6)), {"x": {-2: Dim.AUTO, 1: Dim.STATIC}, "gate": {0: 4}})
    assert wanted.free == (True, False, False, False)
