"""Caches and states that are inputs and outputs: on onnxruntime and in torch, honest ones beside ones with a fault."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds
from driftscope.invariance.pieces.states import find_states
from driftscope.invariance.running import Runner
from driftscope.programs.loading.load import load_program
from invariance.cached_decoders import FAULTS, checked, decoder, inputs

HONEST = ("same", "rounding")
X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("held", [0, 3])
def test_the_cache_of_an_honest_file_costs_rounding_at_most(held):
    report = checked("", held)
    assert report.outcomes["chunking"] in HONEST, report.reasons
    assert len(report.of_axis("chunking")) == 3


@pytest.mark.parametrize(("fault", "operator"), [f for f in FAULTS.items() if f[0]])
@pytest.mark.sampled(2)
def test_a_fault_in_the_cache_of_a_file_is_found_with_its_operator(fault, operator):
    report = checked(fault)
    assert report.outcomes["chunking"] == "different", report.reasons
    assert report.first.code == "I004"
    assert report.first.where.operator == operator
    assert "piece 2 begins there" in report.first.why


def test_states_are_paired_by_name_and_else_by_order():
    for plain in (False, True):
        runner = Runner(load_program(ds.onnx(decoder(plain_names=plain))), inputs(2))
        found = find_states(runner, "not looked for")
        assert (found.states, found.held, found.length, found.outputs) == ({1: 1, 2: 2}, 2, 6, {0: 1})


def test_one_empty_tensor_may_be_given_for_every_cache():
    given = inputs()
    given["past_key_values.0.value"] = given["past_key_values.0.key"]
    report = ds.check_invariance(ds.onnx(decoder()), given, axes="chunking", explain=False)
    assert report.outcomes["chunking"] in HONEST, report.reasons


class Attending(nn.Module):
    """Causal attention with positions and a cache that is an argument; a mask of all positions, or of the piece."""

    def __init__(self, fault=""):
        super().__init__()
        torch.manual_seed(0)
        self.places, self.fault = nn.Embedding(32, 8), fault

    def forward(self, x, past, attention_mask=None):
        done = past.shape[1]
        local = torch.arange(x.shape[1])
        h = x + self.places(local if self.fault == "positions" else local + done)
        every = torch.cat([h, past] if self.fault == "order" else [past, h], 1)
        later = torch.arange(every.shape[1])[None] > (local if self.fault == "mask" else local + done)[:, None]
        scores = (0.1 * h @ every.transpose(1, 2)).masked_fill(later, -torch.inf)
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask[:, None] == 0, -1e9)
        return scores.softmax(-1) @ every, every


def exported(fault):
    free = torch.export.Dim.DYNAMIC
    shapes = ({0: free, 1: free}, {0: free, 1: free})
    return torch.export.export(Attending(fault), (X, torch.zeros(3, 4, 8)), dynamic_shapes=shapes)


@pytest.mark.parametrize("made", [Attending, exported], ids=["module", "exported"])
@pytest.mark.parametrize(("fault", "operator"), [("positions", "embedding"), ("mask", "gt"), ("order", "cat")])
@pytest.mark.sampled(2)
def test_a_fault_in_a_cache_that_is_an_argument_is_found_with_its_operator(made, fault, operator):
    given = (X, torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(1)))
    report = ds.check_invariance(made(fault), given, axes="chunking")
    assert report.outcomes["chunking"] == "different", report.reasons
    assert operator in report.first.where.operator
    assert ds.check_invariance(made(""), given, axes="chunking", explain=False).outcomes["chunking"] in HONEST


@pytest.mark.parametrize("held", [0, 2])
def test_a_mask_of_all_positions_grows_with_the_cache(held):
    given = {"x": X, "past": torch.zeros(3, held, 8), "attention_mask": torch.ones(3, 6 + held)}
    report = ds.check_invariance(Attending(), given, axes="chunking", explain=False)
    assert report.outcomes["chunking"] in HONEST, report.reasons


@pytest.mark.parametrize(("both", "outcome"), [(False, HONEST), (True, ("different",))])
def test_one_tensor_of_zeros_may_be_given_for_both_states_of_a_recurrent_layer(both, outcome):
    torch.manual_seed(0)
    zeros = torch.zeros(1 + both, 3, 4)
    layer = nn.LSTM(8, 4, batch_first=True, bidirectional=both)
    report = ds.check_invariance(layer, (X, (zeros, zeros)), axes="chunking", explain=False)
    assert report.outcomes["chunking"] in outcome


def test_what_is_named_like_a_state_and_returned_as_none_is_said():
    report = ds.check_invariance(ds.onnx(decoder()), inputs(), axes="chunking", sequence="input_ids=1", explain=False)
    assert report.outcomes["chunking"] in HONEST

    def forgets(x, past):
        return (x * past.sum()).cumsum(1)

    report = ds.check_invariance(torch.export.export(_Module(forgets), (X, X[:, :2, :3])), axes="chunking",
                                 inputs=(X, X[:, :2, :3]), explain=False)  # fmt: skip
    assert "past" in report.reasons["chunking"]
    assert report.outcomes["chunking"] == "not-applicable"


class _Module(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, past):
        return self.function(x, past)


class _WithCache(nn.Module):
    """A decoder of transformers whose cache is a list of keys and values; positions may begin again in every piece."""

    def __init__(self, again):
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                 "intermediate_size": 32, "attn_implementation": "eager"}  # fmt: skip
        torch.manual_seed(0)
        self.model, self.again = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval(), again
        self.cache = transformers.DynamicCache

    def forward(self, input_ids, attention_mask, past_key_values):
        at = torch.arange(input_ids.shape[1])[None] if self.again else None
        found = self.model(input_ids, attention_mask=attention_mask, past_key_values=self.cache(past_key_values),
                           position_ids=at, use_cache=True)  # fmt: skip
        return found.logits, [(layer.keys, layer.values) for layer in found.past_key_values.layers]


@pytest.mark.parametrize(
    ("again", "outcome"),
    [pytest.param(False, HONEST, marks=pytest.mark.slow), pytest.param(True, ("different",), marks=pytest.mark.sweep)],
)
def test_a_decoder_of_transformers_that_torch_exported_with_its_cache(again, outcome):
    free, past = torch.export.Dim.DYNAMIC, torch.zeros(2, 2, 3, 8)
    model, ids = _WithCache(again), torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    example = (ids[:, :4], torch.ones(2, 7, dtype=torch.long), [(past, past.clone())])
    shapes = ({0: free, 1: free}, {0: free, 1: free}, [({0: free, 2: free},) * 2])
    file = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=shapes, verbose=False).model_proto
    names = [value.name for value in file.graph.input]
    empty = torch.zeros(2, 2, 0, 8)
    given = dict(zip(names, (ids, torch.ones(2, 6, dtype=torch.long), empty, empty), strict=True))
    report = ds.check_invariance(ds.onnx(file), given, axes="chunking")
    assert report.outcomes["chunking"] in outcome, report.reasons
    if again:
        assert "piece 2 begins there" in report.first.why
        assert report.first.where.operator


def test_a_cache_joined_along_the_wrong_axis_is_refused_in_the_second_piece():
    def joined(x, axis, cache):
        every = x if cache is None else torch.cat([cache, x], axis)
        return (x @ every.transpose(1, 2)).tril(every.shape[1] - x.shape[1]) @ every, every

    wrong = ds.check_invariance(lambda x, cache=None: joined(x, 0, cache), X, axes="chunking", explain=False)
    assert wrong.outcomes["chunking"] != "not-applicable"
    assert wrong.outcomes["chunking"] not in HONEST
    right = ds.check_invariance(lambda x, cache=None: joined(x, 1, cache), X, axes="chunking", explain=False)
    assert right.outcomes["chunking"] in HONEST


def _moved(state, action):
    return torch.cat([state, action], -1)[:, : state.shape[1]] * 2.0


def _messages(h, e, edge_index):
    m = h[edge_index[0]] + e
    return torch.zeros_like(h).index_add(0, edge_index[1], m), m


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (_moved, {"state": X[:, 0], "action": X[:, 1, :3]}),
        (_messages, {"h": X[0], "e": X[1, :4], "edge_index": torch.tensor([[0, 1, 2, 5], [1, 1, 4, 0]])}),
        (lambda hidden_states, attention_mask: hidden_states * attention_mask[..., None],
         {"hidden_states": X, "attention_mask": torch.ones(3, 6)}),
    ],
)  # fmt: skip
def test_what_is_only_named_like_a_state_is_let_be(function, given):
    report = ds.check_invariance(function, given, axes="chunking", explain=False)
    assert report.outcomes["chunking"] == "not-applicable", report.reasons


class _Static(nn.Module):
    """Keys are written into a cache of fixed length at the positions given; a mask may count from the piece."""

    def __init__(self, local):
        super().__init__()
        self.local = local

    def forward(self, x, cache, cache_position):
        keys = cache.index_copy(1, cache_position, x)
        own = cache_position - cache_position[0] if self.local else cache_position
        later = torch.arange(cache.shape[1])[None] > own[:, None]
        return (x @ keys.transpose(1, 2)).masked_fill(later, -1e9).softmax(-1) @ keys, keys


@pytest.mark.parametrize(("local", "outcome"), [(False, HONEST), (True, ("different",))])
def test_a_cache_of_fixed_length_is_handed_on(local, outcome):
    given = {"x": X, "cache": torch.zeros(3, 10, 8), "cache_position": torch.arange(6)}
    report = ds.check_invariance(_Static(local), given, axes="chunking")
    assert report.outcomes["chunking"] in outcome, report.reasons
    if local:
        assert "gt" in report.first.where.operator
