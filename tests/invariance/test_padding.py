"""Padding: leaks are found with their operator, honest masks are not flagged, and what marks padding is read."""

from __future__ import annotations

import types
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from driftscope.invariance.rows import find_rows
from driftscope.invariance.running import Runner
from driftscope.invariance.sequences import find_sequence, lengthened
from driftscope.programs.loading.load import load_program

HONEST = ("same", "rounding")
X = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
ALL = torch.ones(3, 5)
SOME = torch.tensor([[1.0] * 5, [1, 1, 1, 0, 0], [1, 1, 0, 0, 0]])


class Convolving(nn.Module):
    """Two convolutions along the sequence, each behind the mask or not."""

    def __init__(self, masked):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (nn.Conv1d(8, 8, 3, padding=1) for _ in range(2))
        self.masked = masked

    def forward(self, x, mask):
        kept = mask[:, None] if self.masked else torch.ones_like(mask[:, None])
        hidden = self.first(x.transpose(1, 2) * kept).relu()
        return self.second(hidden * kept).transpose(1, 2)


def attention(added):
    def attend(x, mask):
        scores = x @ x.transpose(1, 2)
        return (scores + (1 - mask)[:, None] * added).softmax(-1) @ x

    return attend


def recurrent(x, lengths):
    torch.manual_seed(0)
    every = nn.GRU(8, 4, batch_first=True)(x)[0]
    return every[torch.arange(len(x)), lengths - 1]


def last_of(x, lengths):
    return x[:, -1] * (lengths[:, None] > 0)


@dataclass(frozen=True)
class Twins:
    id: str
    leaking: object
    honest: object
    place: str = ""
    mask: torch.Tensor | None = None
    name: str = ""


LENGTHS = torch.tensor([5, 3, 2])
KEEP = Convolving(True), Convolving(False)
TWINS = [
    Twins("mean", lambda x, mask: x.mean(1) * mask.amax(1, keepdim=True),
          lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), "mean"),
    Twins("partly padded mean", lambda x, mask: x.mean(1) * mask.amax(1, keepdim=True),
          lambda x, mask: (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True), "mean", SOME),
    Twins("maximum", lambda x, mask: x.amax(1) * mask.amax(1, keepdim=True),
          lambda x, mask: x.masked_fill(mask[..., None] == 0, -torch.inf).amax(1), "amax"),
    Twins("convolution", KEEP[1], KEEP[0], "convolution"),
    Twins("attention", attention(0.0), attention(-1e9), "softmax"),
    Twins("mask of -10000", attention(-1e4), attention(torch.finfo(torch.float32).min), "softmax"),
    Twins("softmax over the sequence", lambda x, mask: x.softmax(1) * mask[..., None],
          lambda x, mask: x.softmax(2) * mask[..., None], "softmax"),
    Twins("standardised", lambda x, mask: (x - x.mean((1, 2), keepdim=True)) * mask[..., None],
          lambda x, mask: (x - x.mean(2, keepdim=True)) * mask[..., None], "mean"),
    Twins("lengths", last_of, recurrent, "", LENGTHS, "lengths"),
]  # fmt: skip


def given(twins):
    return {"x": X, twins.name or "mask": ALL if twins.mask is None else twins.mask}


@pytest.mark.parametrize("twins", TWINS, ids=lambda t: t.id)
def test_leaking_padding_is_found_and_its_twin_is_not_flagged(twins):
    leaking = ds.check_invariance(twins.leaking, given(twins), axes="padding")
    assert leaking.outcomes["padding"] == "different"
    assert leaking.first.code == "I003"
    assert twins.place in str(leaking.first.where.operator)
    honest = ds.check_invariance(twins.honest, given(twins), axes="padding", explain=False)
    assert honest.outcomes["padding"] in HONEST, honest.reasons


def test_nan_in_the_padding_is_told_as_a_note_and_its_twin_has_none():
    multiplied = ds.check_invariance(TWINS[0].honest, given(TWINS[0]), axes="padding", explain=False)
    taken_out = ds.check_invariance(
        lambda x, mask: torch.where(mask[..., None] > 0, x, 0).sum(1) / mask.sum(1, keepdim=True),
        given(TWINS[0]), axes="padding", explain=False,
    )  # fmt: skip
    assert [(f.code, f.note) for f in multiplied.findings if "NaN" in f.what] == [("I003", True)]
    assert "torch.where" in multiplied.findings[-1].fix
    assert not [f for f in taken_out.findings if "NaN" in f.what]
    assert multiplied.outcomes["padding"] in HONEST


def test_a_padding_mask_of_booleans_is_true_where_there_is_padding():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()

    def masked(src, src_key_padding_mask):
        return layer(src, src_key_padding_mask=src_key_padding_mask)

    inputs = {"src": X, "src_key_padding_mask": torch.zeros(3, 5, dtype=torch.bool)}
    report = ds.check_invariance(masked, inputs, axes="padding", explain=False)
    assert report.outcomes["padding"] in HONEST
    assert "1 in src_key_padding_mask marks padding" in report.axes["sequence"]
    unmasked = ds.check_invariance(lambda src, src_key_padding_mask: layer(src), inputs, axes="padding", explain=False)
    assert unmasked.outcomes["padding"] == "different"


def test_positions_that_count_the_padding_on_the_left_are_found_and_mended_by_position_ids():
    torch.manual_seed(0)
    table = nn.Embedding(32, 8)

    def placed(input_ids, attention_mask, position_ids=None):
        if position_ids is None:
            position_ids = torch.arange(input_ids.shape[1])[None]
        return (table(position_ids) + input_ids[..., None]) * attention_mask[..., None]

    ids, mask = torch.randint(1, 9, (2, 6)), torch.ones(2, 6, dtype=torch.long)
    report = ds.check_invariance(placed, {"input_ids": ids, "attention_mask": mask}, axes="padding")
    assert report.outcomes["padding"] == "different"
    assert "on the left" in report.first.what
    assert report.first.verified
    assert "position_ids" in report.first.fix
    positions = torch.arange(6)[None].repeat(2, 1)
    told = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    assert ds.check_invariance(placed, told, axes="padding", explain=False).outcomes["padding"] in HONEST


def test_without_a_mask_nothing_is_padded_unless_the_sequence_is_named():
    def causal(x):
        return x.cumsum(1)

    silent = ds.check_invariance(causal, X, axes="padding", explain=False)
    assert (silent.outcomes["padding"], "mask='mask'" in silent.reasons["padding"]) == ("not-applicable", True)
    named = ds.check_invariance(causal, X, axes="padding", sequence="x=1", explain=False)
    assert named.outcomes["padding"] in HONEST
    both = ds.check_invariance(lambda x: x.flip(1).cumsum(1).flip(1), X, axes="padding", sequence="x=1", explain=False)
    assert both.outcomes["padding"] == "different"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"mask": "m"}, "no input 'm'"), ({"mask": "mask=much"}, "not of the form"), ({"sequence": "x=9"}, "no axis 9")],
)
def test_what_does_not_exist_is_refused(options, words):
    with pytest.raises(ds.InputError, match=words):
        ds.check_invariance(TWINS[0].honest, given(TWINS[0]), axes="padding", **options)


def test_what_marks_padding_may_be_named():
    def inverted(x, ignore):
        return (x * (1 - ignore)[..., None]).sum(1) / (1 - ignore).sum(1, keepdim=True)

    inputs = {"x": X, "ignore": torch.zeros(3, 5)}
    right = ds.check_invariance(inverted, inputs, axes="padding", mask="ignore=1", explain=False)
    wrong = ds.check_invariance(inverted, inputs, axes="padding", mask="ignore=0", explain=False)
    assert (right.outcomes["padding"] in HONEST, wrong.outcomes["padding"]) == (True, "different")


def test_a_program_that_takes_no_other_length_refuses():
    def fixed(x, mask):
        return (x * mask[..., None]).reshape(len(x), 40)

    report = ds.check_invariance(fixed, {"x": X, "mask": ALL}, axes="padding", explain=False)
    assert report.outcomes["padding"] == "refused"
    assert report.first.code == "I008"


def test_longer_inputs_hold_the_given_ones_and_continue_positions():
    ids = torch.arange(1, 7).reshape(1, 6)
    inputs = {"input_ids": ids, "attention_mask": torch.ones(1, 6), "position_ids": ids - 1, "token_type_ids": ids * 0}
    runner = Runner(load_program(lambda input_ids, attention_mask, position_ids, token_type_ids: input_ids), inputs)
    seq = find_sequence(runner, find_rows(runner))
    for left in (False, True):
        made = lengthened(seq, 2, left, {0: torch.full_like(ids, 9)})
        assert made[0].tolist() == [[9, 9, 1, 2, 3, 4, 5, 6] if left else [1, 2, 3, 4, 5, 6, 9, 9]]
        assert made[1].tolist() == [[0, 0, 1, 1, 1, 1, 1, 1] if left else [1, 1, 1, 1, 1, 1, 0, 0]]
        assert made[2].tolist() == [[0, 0, 0, 1, 2, 3, 4, 5] if left else [0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("name", ["Bert", "Llama"])
def test_models_of_transformers_are_padded_as_they_are_meant_to_be(name):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 32}  # fmt: skip
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes)).eval()
    inputs = {"input_ids": torch.randint(3, 50, (2, 6)), "attention_mask": torch.ones(2, 6, dtype=torch.long)}
    report = ds.check_invariance(model, inputs, axes="padding", explain=False)
    right = {t.outcome for t in report.of_axis("padding") if "right" in t.trial}
    assert right <= set(HONEST)
    if name == "Llama":  # rotary positions are relative: padding on the left costs nothing but rounding
        assert report.outcomes["padding"] in HONEST
    else:
        assert report.outcomes["padding"] == "different"
        assert "on the right" in report.first.fix
    unmasked = {"input_ids": inputs["input_ids"]}
    assert ds.check_invariance(model, unmasked, axes="padding").outcomes["padding"] == "not-applicable"


def test_the_mean_of_probabilities_is_not_taken_for_padding():
    report = ds.check_invariance(lambda x, mask: F.softmax(x, -1) * mask[..., None], (X, ALL), explain=False)
    assert report.outcomes["padding"] in HONEST
    assert report.runs <= 60


class _CountsTokens(nn.Module):
    """Numbers positions by the tokens that are no padding, as RoBERTa does."""

    def __init__(self, pad: int):
        super().__init__()
        self.config = types.SimpleNamespace(pad_token_id=pad)
        self.words = nn.Embedding(9, 4)
        self.places = nn.Embedding(64, 4)

    def forward(self, ids, attention_mask):
        there = ids != 1
        return self.words(ids) + self.places(there.cumsum(1) * there)


@pytest.mark.parametrize(("pad", "outcome"), [(1, HONEST), (2, ("different",))])
def test_the_padding_token_of_a_model_inside_the_module_is_used(pad, outcome):
    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = _CountsTokens(pad)

        def forward(self, ids, attention_mask):
            return self.model(ids, attention_mask)

    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    inputs = {"ids": ids, "attention_mask": torch.ones_like(ids)}
    report = ds.check_invariance(Wrapper(), inputs, axes="padding", explain=False)
    assert report.outcomes["padding"] in outcome


class _Turned(nn.Module):
    """Attention whose queries and keys are turned by their position (relative), or given it (absolute)."""

    def __init__(self, relative: bool):
        super().__init__()
        torch.manual_seed(0)
        self.queries, self.keys, self.out = (nn.Linear(8, 8) for _ in range(3))
        self.relative = relative

    def forward(self, x, mask):
        angle = torch.arange(x.shape[1])[:, None].float() * torch.tensor([1.0, 0.3, 0.1, 0.03])
        cos, sin = angle.cos(), angle.sin()
        q, k = self.queries(x), self.keys(x)
        if self.relative:
            q, k = (torch.cat([a * cos - b * sin, a * sin + b * cos], -1) for a, b in (y.chunk(2, -1) for y in (q, k)))
        else:
            q = q + torch.cat([cos, sin], -1)
        scores = (q @ k.transpose(1, 2)).masked_fill(mask[:, None] == 0, -1e9)
        return self.out(scores.softmax(-1) @ x)


@pytest.mark.parametrize(("relative", "outcome"), [(True, HONEST), (False, ("different",))])
def test_tables_of_angles_that_are_rounded_otherwise_at_another_place_are_rounding(relative, outcome):
    report = ds.check_invariance(_Turned(relative), {"x": X, "mask": ALL}, axes="padding", explain=False)
    assert report.outcomes["padding"] in outcome


class Attending(torch.nn.Module):
    """A product whose kernel depends on the length, and then what ``then`` does with the weights of attention."""

    def __init__(self, then):
        super().__init__()
        self.embedding, self.then = torch.nn.Embedding(50, 16), then

    def forward(self, ids, attention_mask):
        x = self.embedding(ids)
        scores = x @ x.transpose(1, 2) / 4 + (attention_mask[:, None] - 1.0) * 1e4
        return self.then(scores, x)


PADDING_SEEN = [
    (lambda scores, x: (scores.softmax(-1) @ x).mean(1), "aten.mean"),
    (lambda scores, x: scores.softmax(-1) @ x / x.shape[1], "aten.div"),
    (lambda scores, x: scores.clamp(min=-3).softmax(-1) @ x, "aten.clamp|aten._softmax"),
]


@pytest.mark.parametrize(("then", "operator"), PADDING_SEEN, ids=[operator for _, operator in PADDING_SEEN])
def test_the_place_is_where_padding_makes_more_than_rounding(then, operator):
    """Padding on the right changes these too, and is not advised."""
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(0))
    inputs = {"ids": ids, "attention_mask": torch.ones(3, 6)}
    report = ds.check_invariance(Attending(then).eval(), inputs, axes=("padding",), pad=0)
    assert report.outcomes["padding"] == "different"
    assert report.first.where.operator in operator.split("|")
    assert "pad on the right" not in report.first.fix


def test_the_twin_that_masks_its_scores_only_rounds():
    torch.manual_seed(0)
    ids = torch.randint(1, 50, (3, 6), generator=torch.Generator().manual_seed(0))
    inputs = {"ids": ids, "attention_mask": torch.ones(3, 6)}
    model = Attending(lambda scores, x: scores.softmax(-1) @ x).eval()
    assert ds.check_invariance(model, inputs, axes=("padding",), pad=0).outcomes["padding"] in ("same", "rounding")
