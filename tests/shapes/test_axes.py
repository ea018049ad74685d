"""Inputs taken apart into axes, named as the user indexes them, and built again at other sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import driftscope as ds
from driftscope.errors import InputError
from driftscope.shapes.probe.axes import AxisClasses, arguments_of, sets_of
from driftscope.shapes.probe.building import InputBuilder
from shapes.small_models import FirstOf, Gated, OfPair, Pair, PoolAndAdd, pool_inputs, seeded


def names(arguments) -> list[str]:
    return [axis.name for axis in arguments.axes]


def test_axes_are_named_as_they_are_indexed():
    arguments = arguments_of(OfPair(), (Pair(seeded(2, 3), seeded(3, 4)), {"by": torch.ones(())}))
    assert names(arguments) == [
        "pair.left.shape[0]",
        "pair.left.shape[1]",
        "pair.right.shape[0]",
        "pair.right.shape[1]",
    ]


def test_nested_containers_and_keywords():
    def model(rows, *, extra):
        return rows["a"][0] + extra

    arguments = arguments_of(model, ds.Inputs(args=({"a": [seeded(2)]},), kwargs={"extra": seeded(2)}))
    assert names(arguments) == ["rows['a'][0].shape[0]", "extra.shape[0]"]
    args, kwargs = arguments.call()
    assert torch.equal(model(*args, **kwargs), seeded(2) + seeded(2))


def test_what_a_star_gathers_is_indexed():
    def joined(*parts):
        return torch.cat(parts)

    report = ds.check_shapes(joined, (seeded(2, 3), seeded(4, 3)), targets=())
    assert report.record.axes == tuple(f"parts[{part}].shape[{dim}]" for part in (0, 1) for dim in (0, 1))
    assert "parts[0].shape[1] == parts[1].shape[1]" in str(report.relations)
    torch.export.export(_as_module(joined), (seeded(2, 3), seeded(4, 3)), dynamic_shapes=report.spec)
    assert all(candidate.accepted for candidate in report.record.candidates)


def _as_module(function):
    return type("Joined", (torch.nn.Module,), {"forward": staticmethod(function)})()


def test_a_cache_of_transformers():
    cache_utils = pytest.importorskip("transformers.cache_utils")
    cache = cache_utils.DynamicCache()
    cache.update(seeded(1, 2, 5, 4), seeded(1, 2, 5, 4), 0)
    arguments = arguments_of(lambda q, cache: q, (seeded(1, 2, 3, 4), cache))
    assert "cache.layers[0].keys.shape[2]" in names(arguments)
    assert "cache.layers[0].values.shape[3]" in names(arguments)


def test_integers_are_axes_and_booleans_are_not():
    arguments = arguments_of(FirstOf(), (seeded(2, 5), 3))
    assert names(arguments)[-1] == "count"
    assert arguments.sizes == (2, 5, 3)
    flagged = arguments_of(lambda x, flag: x, (seeded(2), True))
    assert names(flagged) == ["x.shape[0]"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [((seeded(2, 6),), "missing a required argument: 'gate'"), ({"x": seeded(2, 6), "door": seeded(2, 6)}, "'gate'")],
)
def test_inputs_that_do_not_bind_are_refused_in_pythons_words(inputs, words):
    with pytest.raises(InputError, match=words):
        arguments_of(Gated(), inputs)


def test_inputs_by_name_bind_as_well():
    assert arguments_of(Gated(), {"gate": seeded(2, 6), "x": seeded(2, 6)}).names == ("gate", "x")


def test_several_sets_must_be_built_alike():
    sets = sets_of(Gated(), [(seeded(2, 6), seeded(2, 6)), (seeded(4, 6), seeded(4, 6))])
    assert [one.sizes for one in sets] == [(2, 6, 2, 6), (4, 6, 4, 6)]
    with pytest.raises(InputError, match="set 1"):
        sets_of(Gated(), [(seeded(2, 6), seeded(2, 6)), (seeded(4, 6), seeded(6))])


def test_a_tuple_is_one_set_even_of_tuples():
    assert len(sets_of(lambda a, b: a, ((seeded(2),), (seeded(3),)))) == 1


@given(st.lists(st.integers(0, 9), min_size=6, max_size=6), st.integers(0, 5))
def test_built_inputs_stand_at_the_point_asked_for(point, seed):
    builder = InputBuilder(arguments_of(PoolAndAdd(), pool_inputs()))
    args, kwargs = builder.at(point, seed=seed)
    assert builder.point_of(args, kwargs) == tuple(point)
    again, _ = builder.at(point, seed=seed)
    assert all(torch.equal(a, b) for a, b in zip(args, again, strict=True))


def test_integers_stay_integers_one_could_index_with():
    lengths = torch.tensor([3, 5])
    builder = InputBuilder(arguments_of(lambda x, lengths: x[lengths - 1], (seeded(5, 2), lengths)))
    for size in (2, 3, 9):
        (x, drawn), _ = builder.at((size, 2, 4))
        assert drawn.dtype == torch.int64
        assert int(drawn.min()) >= 1
        assert int(drawn.max()) <= max(size, 3), "a length must fit the axis it came from"
        assert x.shape == (size, 2)


def test_positions_and_masks_keep_their_kind():
    positions, mask = torch.arange(6).expand(2, 6), torch.tensor([[0.0, float("-inf")] * 3] * 2)
    builder = InputBuilder(arguments_of(lambda p, m: p, (positions, mask)))
    (p, m), _ = builder.at((3, 9, 3, 9))
    assert torch.equal(p, torch.arange(9).expand(3, 9))
    assert set(m.unique().tolist()) <= {0.0, float("-inf")}


def test_a_call_does_not_share_its_tensors():
    arguments = arguments_of(lambda x: x.add_(1), (seeded(3),))
    (first,), _ = arguments.call()
    first.zero_()
    assert torch.equal(arguments.call()[0][0], seeded(3))


def test_classes_spread_sizes_over_axes():
    axes = arguments_of(PoolAndAdd(), pool_inputs()).axes
    classes = AxisClasses(axes, ((0,), (1, 3, 5), (2,), (4,)))
    import numpy as np

    assert classes.spread(np.array([[1, 9, 3, 4]])).tolist() == [[1, 9, 3, 9, 4, 9]]
    assert classes.names[1] == "left.shape[1]"
