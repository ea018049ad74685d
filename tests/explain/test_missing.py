"""What one program has and the other lacks is named, tried, and its twin without a bug is not."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import driftscope as ds

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(2, 5, 16, generator=GENERATOR)
IMAGE = torch.rand(2, 3, 8, 8, generator=GENERATOR)


class Block(nn.Module):
    def __init__(self, activation=functional.silu):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)
        self.activation = activation

    def forward(self, x):
        return x + self.down(self.activation(self.up(self.norm(x))))


class Prepared(nn.Module):
    def __init__(self, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean)[:, None, None])
        self.register_buffer("std", torch.tensor(std)[:, None, None])
        self.first, self.flipped = nn.Conv2d(3, 4, 3), False

    def forward(self, x):
        return self.first(((x.flip(1) if self.flipped else x) * 1.0 - self.mean) / self.std)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.causal = True

    def forward(self, x):
        scores = x @ x.mT * 0.25
        if not self.causal:
            return torch.softmax(scores, -1) @ x
        return functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.25)


def _made(module):
    torch.manual_seed(0)
    for p in module.parameters():
        p.data.normal_(0, 0.3)
    return module.eval()


def _without_bias(b):
    b.up.bias = None


def _hard(b):
    b.activation = lambda y: y * functional.hardsigmoid(y)


def _exchanged(b):
    b.mean, b.std = b.std, b.mean


def _flipped(b):
    b.flipped = True


def _unmasked(b):
    b.causal = False


CASES = {
    "a missing bias": (lambda: Block(), _without_bias, X, "A adds up.bias, and nothing here does"),
    "another function": (lambda: Block(), _hard, X, "hardsigmoid is aten.hardsigmoid; with sigmoid in its place"),
    "mean and std": (Prepared, _exchanged, IMAGE, "mean and std hold each other's numbers"),
    "order of colours": (Prepared, _flipped, IMAGE, "without flip (aten.flip) this piece gives A's values"),
    "a missing mask": (Attention, _unmasked, X, "A masks later positions"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_one_program_lacks_is_named_and_was_tried(name):
    make, bug, x, words = CASES[name]
    a = _made(make())
    b = copy.deepcopy(a)
    assert ds.compare(a, b, (x,), isolate=False).verdict == "IDENTICAL"
    bug(b)
    c = ds.compare(a, b, (x,), isolate=False)
    assert c.verdict == "DIFFERENT"
    assert words in f"{c.first.what} {c.first.why}", (c.first.what, c.first.why)
    assert c.first.verified is True


def test_a_term_that_only_one_side_adds_is_named_the_other_way_round_too():
    b = _made(Block())
    a = copy.deepcopy(b)
    _without_bias(a)
    first = ds.compare(a, b, (X,), isolate=False).first
    assert "it adds up.bias, and nothing in A does" in first.why
    assert first.verified is True


class Heads(nn.Module):
    """Attention that hides what is later than a number of positions ahead, by the fused operator or by hand."""

    def __init__(self, ahead, fused):
        super().__init__()
        self.project, self.ahead, self.fused = nn.Linear(16, 48), ahead, fused

    def forward(self, x):
        q, k, v = (part.view(2, 5, 2, 8).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        seen = torch.ones(5, 5, dtype=torch.bool).tril(self.ahead)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v, seen)
        else:
            mixed = torch.softmax((q @ k.mT * 8**-0.5).masked_fill(~seen, -1e9), -1) @ v
        return mixed.transpose(1, 2).reshape(2, 5, 16) + x


def test_a_mask_that_is_off_by_one_is_not_said_to_be_none():
    a = _made(Heads(0, fused=True))
    same, off, none = (ds.compare(a, _made(Heads(n, fused=False)), (X,), isolate=False) for n in (0, 1, 4))
    assert [c.verdict for c in (same, off, none)] == ["ROUNDING", "DIFFERENT", "DIFFERENT"]
    said = "A masks all later positions, and what _softmax (aten._softmax) reads leaves some of them as they are"
    assert said in off.first.why
    assert "nothing that _softmax (aten._softmax) reads does" in none.first.why


def test_scores_far_apart_are_no_mask():
    mixed = torch.randn(16, 16, generator=torch.Generator().manual_seed(2))

    def attention(causal):
        def run(x):
            scores = (x @ mixed) @ x.mT * 20.0  # most shares are zero without a mask
            if causal:
                scores = scores.masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), float("-inf"))
            return torch.softmax(scores, -1) @ x

        return run

    c = ds.compare(attention(True), attention(False), (X,), isolate=False)
    assert "nothing that _softmax (aten._softmax) reads does" in c.first.why


def test_another_operator_that_chooses_is_a_fix_that_was_tried():
    c = ds.compare(lambda x: (2 * x).argmax(-1), lambda x: (2 * x).argmin(-1), (X,), isolate=False)
    assert c.first.code == "N010"
    assert c.first.verified is True
    assert c.first.fix == "Compute aten.argmax in argmin, as A does."


class Padded(nn.Module):
    """Causal attention over a text whose first two places are padding: their rows see nothing."""

    def __init__(self, fused, scale=0.25, twice=False):
        super().__init__()
        self.fused, self.scale, self.twice = fused, scale, twice

    def forward(self, x, kept):
        seen = torch.ones(5, 5, dtype=torch.bool).tril() & kept[:, None, :]
        if self.fused:
            return functional.scaled_dot_product_attention(x, x, x, seen, scale=self.scale)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
        if self.twice:  # of two masks the weaker one leaves shares that are not equal
            mask = torch.where(kept[:, None, :], torch.where(seen, 0.0, -1e30), mask)
        return torch.softmax(x @ x.mT * self.scale + mask, -1) @ x


KEPT = torch.tensor([[False, False, True, True, True], [True] * 5])


def test_rows_that_are_masked_as_a_whole_are_named():
    c = ds.compare(Padded(True), Padded(False), (X, KEPT), isolate=False)
    assert c.verdict == "DIFFERENT"
    assert "A gives zeros in rows that are masked as a whole" in c.first.why
    assert c.first.verified is True
    # The twins: without such rows there is nothing to say, and another scale is another reason.
    none = ds.compare(Padded(True), Padded(False), (X, torch.ones_like(KEPT)), isolate=False)
    assert none.verdict in ("IDENTICAL", "ROUNDING")
    unequal = ds.compare(Padded(True), Padded(False, twice=True), (X, KEPT), isolate=False)
    assert unequal.verdict == "DIFFERENT"
    assert all("equal shares" not in (f.why or "") for f in unequal.findings)
    for kept in (KEPT, torch.ones_like(KEPT)):
        wrong = ds.compare(Padded(True), Padded(False, 0.26), (X, kept), isolate=False)
        assert wrong.verdict == "DIFFERENT"
        assert all("masked as a whole" not in (f.why or "") for f in wrong.findings)


class Mixture(nn.Module):
    """Experts of which each row takes the likeliest few, one expert after another."""

    def __init__(self, taken):
        super().__init__()
        self.router, self.taken = nn.Linear(16, 4, bias=False), taken
        self.up, self.down = nn.Parameter(torch.randn(4, 16, 32) * 0.2), nn.Parameter(torch.randn(4, 32, 16) * 0.2)

    def forward(self, x):
        weights, which = self.router(x).softmax(-1).topk(self.taken, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        sums = torch.zeros_like(x)
        for e in range(4):
            share = (weights * (which == e)).sum(-1, keepdim=True)
            sums = sums + share * (functional.gelu(x @ self.up[e]) @ self.down[e])
        return sums


def test_of_steps_of_the_same_names_the_first_other_setting_is_said_and_not_that_each_computes_itself():
    a = _made(Mixture(2))
    assert ds.compare(a, _made(Mixture(2)), (X,), isolate=False).verdict == "IDENTICAL"
    more = ds.compare(a, _made(Mixture(3)), (X,), isolate=False)
    assert "topk" in str(more.first.where)
    assert "k is 3 here and 2 in A" in more.first.why
    assert more.first.verified is not True
    assert not any("where B computes" in f.why for f in more.findings)
