"""A sequence in pieces: caches and states that carry all there is, beside twins that drop something."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import driftscope as ds

HONEST = ("same", "rounding")
X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))


class Streaming(nn.Module):
    """A causal convolution that hands on its last inputs, or zeros."""

    def __init__(self, kept):
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.kept = nn.Conv1d(8, 8, 3), kept

    def forward(self, x, state=None):
        h = x.transpose(1, 2)
        before = h.new_zeros(len(h), 8, 2) if state is None else state
        h = torch.cat([before, h], -1)
        return self.convolution(h).transpose(1, 2), h[..., -2:] * self.kept


class Attending(nn.Module):
    """Causal attention with a cache; positions go on, begin again, or are looked at from both sides."""

    def __init__(self, fault=""):
        super().__init__()
        torch.manual_seed(0)
        self.places, self.fault = nn.Embedding(32, 8), fault

    def forward(self, x, cache=None):
        done = 0 if cache is None else cache.shape[1]
        at = torch.arange(x.shape[1]) + (0 if self.fault == "positions" else done)
        h = x + self.places(at)
        every = h if cache is None else torch.cat([cache, h], 1)
        scores = 0.1 * h @ every.transpose(1, 2)
        if self.fault != "ahead":
            later = torch.arange(every.shape[1])[None] > torch.arange(done, done + x.shape[1])[:, None]
            scores = scores.masked_fill(later, -torch.inf)
        return scores.softmax(-1) @ every, every


@pytest.mark.parametrize(
    ("leaking", "honest", "words"),
    [
        (Streaming(0.0), Streaming(1.0), "they differ: piece 2 begins there"),
        (Attending("positions"), Attending(), "they differ: piece 2 begins there"),
        (Attending("ahead"), Attending(), "in the first piece, already differs"),
        (nn.GRU(8, 4, batch_first=True, bidirectional=True), nn.GRU(8, 4, batch_first=True), "first piece"),
        (nn.LSTM(8, 4, bidirectional=True), nn.LSTM(8, 4), "first piece"),
    ],
)
@pytest.mark.sampled(2)
def test_what_is_lost_between_pieces_is_found_and_its_twin_is_not_flagged(leaking, honest, words):
    found = ds.check_invariance(leaking, X, axes="chunking")
    assert found.outcomes["chunking"] == "different"
    assert found.first.code == "I004"
    assert words in found.first.why
    assert ds.check_invariance(honest, X, axes="chunking", explain=False).outcomes["chunking"] in HONEST


@pytest.mark.parametrize(("forgets", "outcomes"), [(False, HONEST), (True, ("different",))])
def test_a_function_of_one_piece_may_be_given(forgets, outcomes):
    def step(x, state):
        before = torch.zeros(()) if state is None or forgets else state
        after = x.cumsum(1) + before
        return after, after[:, -1:]

    report = ds.check_invariance(lambda x: x.cumsum(1), X, axes="chunking", step=step, explain=False)
    assert report.outcomes["chunking"] in outcomes


def test_a_program_without_a_state_is_not_given_pieces():
    report = ds.check_invariance(nn.Linear(8, 2), X, axes="chunking", explain=False)
    assert report.outcomes["chunking"] == "not-applicable"
    assert "step=function" in report.reasons["chunking"]


def test_a_parameter_that_only_has_the_name_of_a_state_is_let_be():
    def named(x, state=None):
        return x * 2.0

    report = ds.check_invariance(named, X, axes="chunking", explain=False)
    assert report.outcomes["chunking"] == "not-applicable"


def small(name, head="ForCausalLM", **more):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 32}  # fmt: skip
    torch.manual_seed(0)
    return getattr(transformers, f"{name}{head}")(getattr(transformers, f"{name}Config")(**sizes | more)).eval()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.sampled(1)
def test_the_cache_of_a_decoder_gives_what_one_call_gives(masked):
    inputs = {"input_ids": torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))}
    inputs |= {"attention_mask": torch.ones(2, 6, dtype=torch.long)} if masked else {}
    report = ds.check_invariance(small("Llama"), inputs, axes="chunking", explain=False)
    assert report.outcomes["chunking"] in HONEST, report.reasons
    assert len(report.of_axis("chunking")) == 3


def test_a_decoder_whose_positions_begin_again_is_found():
    model = small("Llama")

    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, input_ids, past_key_values=None):
            at = torch.arange(input_ids.shape[1])[None]
            return self.inner(input_ids, past_key_values=past_key_values, position_ids=at, use_cache=True)

    ids = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))
    report = ds.check_invariance(Again(), {"input_ids": ids}, axes="chunking", explain=False)
    assert report.outcomes["chunking"] == "different"


def test_an_encoder_has_no_cache_although_it_has_the_parameter():
    report = ds.check_invariance(
        small("Bert", "Model"), {"input_ids": torch.randint(3, 50, (2, 6))}, axes="chunking", explain=False
    )
    assert report.outcomes["chunking"] == "not-applicable"
    assert "past_key_values" in report.reasons["chunking"]


class Opaque:
    def __init__(self, value):
        self.value = value


def test_an_object_that_equals_only_itself_is_no_difference():
    report = ds.check_invariance(lambda x: (x * 2.0, Opaque(1)), X, axes="repeat", explain=False)
    assert report.outcomes["repeat"] == "same"
    counted = iter(range(9))
    report = ds.check_invariance(lambda x: (x * 2.0, next(counted)), X, axes="repeat", explain=False)
    assert report.outcomes["repeat"] == "different"
