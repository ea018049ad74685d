"""Trees come apart and go together again, and their paths print the way a user would index them."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from driftscope.errors import InputError
from driftscope.programs.value_trees import flatten, unflatten


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    name: str
    parts: list[int]


trees = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=12,
)


@given(trees)
def test_unflatten_undoes_flatten(tree):
    leaves, spec = flatten(tree)
    assert unflatten([leaf for _, leaf in leaves], spec) == tree
    assert len({str(path) for path, _ in leaves}) == len(leaves) == spec.count


@pytest.mark.parametrize(
    ("tree", "paths"),
    [
        (1, ["out"]),
        ({"past": ({"key": 1},)}, ["out['past'][0]['key']"]),
        (Pair(1, [2, 3]), ["out.left", "out.right[0]", "out.right[1]"]),
        (Frozen("a", [1]), ["out.name", "out.parts[0]"]),
        (collections.OrderedDict(b=1, a=2), ["out['b']", "out['a']"]),
        ([], []),
        (None, ["out"]),
        ({3: 1}, ["out[3]"]),
    ],
)
def test_paths_print_as_indexing(tree, paths):
    assert [str(path) for path, _ in flatten(tree)[0]] == paths


@pytest.mark.parametrize(
    "tree",
    [
        Frozen("a", [1, 2]),
        collections.defaultdict(list, {"a": 1}),
        collections.OrderedDict(b=1, a=2),
        collections.deque([1, 2]),
        Pair(1, (2, 3)),
    ],
    ids=lambda t: type(t).__name__,
)
def test_containers_keep_their_class(tree):
    leaves, spec = flatten(tree)
    rebuilt = unflatten([leaf for _, leaf in leaves], spec)
    assert type(rebuilt) is type(tree)
    assert rebuilt == tree


def test_torch_return_types_are_containers():
    leaves, spec = flatten(torch.tensor([[1.0, 3.0]]).max(dim=1))
    assert len(leaves) == 2
    assert unflatten([leaf for _, leaf in leaves], spec).indices.item() == 1


def test_a_cache_is_opened_and_rebuilt_fresh():
    transformers = pytest.importorskip("transformers")
    cache = transformers.DynamicCache()
    cache.update(torch.zeros(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    leaves, spec = flatten({"past": cache}, "in")
    assert [str(path) for path, _ in leaves] == ["in['past'].layers[0].keys", "in['past'].layers[0].values"]
    rebuilt = unflatten([leaf for _, leaf in leaves], spec)["past"]
    rebuilt.update(torch.zeros(1, 2, 1, 4), torch.zeros(1, 2, 1, 4), 0)
    assert rebuilt.get_seq_length() == 4
    assert cache.get_seq_length() == 3


def test_a_model_output_is_opened_and_rebuilt():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    output = outputs.BaseModelOutput(last_hidden_state=torch.ones(2))
    leaves, spec = flatten(output)
    assert [str(path) for path, _ in leaves] == ["out['last_hidden_state']"]
    assert isinstance(unflatten([torch.zeros(2)], spec), outputs.BaseModelOutput)


def test_a_tree_that_contains_itself_is_refused():
    tree: list[Any] = [1]
    tree.append(tree)
    with pytest.raises(InputError, match="contains itself"):
        flatten(tree)


def test_the_wrong_number_of_leaves_is_refused():
    _, spec = flatten([1, 2])
    with pytest.raises(ValueError, match="2 leaves, not 3"):
        unflatten([1, 2, 3], spec)
