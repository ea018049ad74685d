"""torch is made to see into dataclasses and caches, and only into what it does not know."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import pytest
import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

import driftscope as ds
from driftscope.shapes.attempts import Attempt, Mode
from driftscope.shapes.capture.containers import register, register_containers
from driftscope.shapes.capture.export import Capture, capture
from driftscope.shapes.probe.axes import arguments_of
from shapes.small_models import seeded


@dataclass
class Returned:
    doubled: torch.Tensor


@dataclass
class Fresh:
    a: torch.Tensor
    b: torch.Tensor


def test_a_dataclass_is_registered_once_and_survives_the_round_trip():
    value = Fresh(seeded(2), seeded(3))
    assert register([value]) == [Fresh]
    assert register([value]) == []
    leaves, spec = pytree.tree_flatten(value)
    again = pytree.tree_unflatten(leaves, spec)
    assert torch.equal(again.a, value.a)
    assert pytree.tree_flatten(Fresh(seeded(9), seeded(9)))[1] == spec, "sizes are no part of the structure"


def test_what_torch_knows_is_left_to_torch():
    assert register([OrderedDict(a=seeded(2)), [seeded(2)], {"a": (seeded(2), None, 3)}]) == []


def test_a_model_with_a_cache_is_exported_and_named():
    cache_utils = pytest.importorskip("transformers.cache_utils")

    def attend(q, cache):
        keys, values = cache.update(q, q * 2, 0)
        return torch.softmax(q @ keys.mT, -1) @ values

    cache = cache_utils.DynamicCache()
    cache.update(seeded(2, 2, 5, 4), seeded(2, 2, 5, 4), 0)
    arguments = arguments_of(attend, (seeded(2, 2, 3, 4), cache))
    register_containers(arguments)
    made = capture(attend, arguments, Attempt(Mode.AUTO, (Dim.AUTO,) * len(arguments.axes)))
    assert isinstance(made, Capture), made
    assert "cache.layers[0].keys.shape[2] == cache.layers[0].values.shape[2]" in str(made.relations)
    args, kwargs = arguments.call()
    expected = attend(*arguments.call()[0])
    assert torch.allclose(made.module(*args, **kwargs), expected, atol=1e-6)
    assert cache.layers[0].keys.shape[2] == 5, "the user's cache is not written to"


def test_a_container_among_the_outputs_is_seen_into():
    """T5 returns two caches in a container of which torch does not know: every export was refused."""
    report = ds.check_shapes(lambda x: Returned(x * 2), (seeded(3, 4),), targets=())
    assert report.program is not None
    assert report.status((seeded(7, 2),)) == "right"
