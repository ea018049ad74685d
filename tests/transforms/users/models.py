"""Layers, models and sequence code as users write them for one example."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

from transforms.users.cases import case, floats, integers, masks

torch.manual_seed(0)
LINEAR = nn.Linear(6, 4)
NORM = nn.LayerNorm(6)
GRU = nn.GRU(6, 5, batch_first=True)
CELL = nn.GRUCell(6, 6)
EMBEDDING = nn.Embedding(10, 6)
CONV = nn.Conv1d(1, 3, 3, padding=1)
ATTENTION = nn.MultiheadAttention(6, 2, batch_first=True).eval()


@case(floats(6))
def through_linear(x):
    return LINEAR(x).relu()


@case(floats(6))
def functional_parameters(x):
    parameters = dict(LINEAR.named_parameters())
    return torch.func.functional_call(LINEAR, parameters, (x,))


@case(floats(6), integers(high=4))
def per_sample_loss(x, label):
    return F.cross_entropy(LINEAR(x).unsqueeze(0), label.unsqueeze(0))


@case(floats(5, 6))
def last_hidden(x):
    _out, h = GRU(x.unsqueeze(0))  #! vmap jvp jacfwd linearize
    return h[-1, 0]


@case(floats(5, 6))
def cell_loop(x):
    h = torch.zeros(6)
    for t in range(x.shape[0]):
        h = CELL(x[t], h)
    return h


@case(floats(5, 6), integers(high=5, low=1))
def cell_until_length(x, length):
    h = x.new_zeros(6)
    for t in range(int(length)):  #! vmap
        h = CELL(x[t], h)
    return h


@case(floats(5, 6), integers(high=5, low=1))
def last_valid(x, length):
    return x[: int(length)].mean(0)  #! vmap


@case(floats(5, 6), integers(high=5, low=1))
def last_valid_masked(x, length):
    keep = (torch.arange(5) < length).to(x.dtype)[:, None]
    return (x * keep).sum(0) / keep.sum()


@case(integers(5, high=10))
def embedded(tokens):
    return EMBEDDING(tokens).mean(0)


@case(integers(5, high=10))
def embedded_without_padding(tokens):
    tokens = tokens[tokens != 0]  #! vmap
    return EMBEDDING(tokens).sum(0)


@case(integers(5, high=10))
def embedded_cached(tokens):
    rows = []
    for token in tokens.tolist():  #! vmap
        rows.append(EMBEDDING.weight[token])
    return torch.stack(rows).mean(0)


@case(floats(5, 6))
def attention_by_hand(x):
    scores = x @ x.T / math.sqrt(x.shape[-1])
    causal = torch.tril(torch.ones(5, 5, dtype=torch.bool))
    return scores.masked_fill(~causal, -1e9).softmax(-1) @ x


@case(floats(5, 6), masks(5))
def attention_masked(x, mask):
    scores = x @ x.T / x.shape[-1] ** 0.5
    scores[:, ~mask] = -1e9  #! vmap
    return scores.softmax(-1) @ x


@case(floats(5, 6))
def attention_sdpa(x):
    q = x[None, None]
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)[0, 0]  #! jvp jacfwd


@case(floats(5, 6))
def multihead(x):
    return ATTENTION(x[None], x[None], x[None], need_weights=False)[0][0]  #! jvp jacfwd


@case(floats(6))
def convolved(x):
    return CONV(x[None]).amax(-1)


@case(floats(6))
def normalised(x):
    return NORM(x)


@case(floats(5, 6))
def batch_norm_training(x):
    return F.batch_norm(x, torch.zeros(6), torch.ones(6), training=True)  #! vmap


@case(floats(5, 6))
def group_norm(x):
    return F.group_norm(x.T[None], 2)[0]


@case(floats(6), randomness="error")
def dropout_always(x):
    return F.dropout(x, 0.5)  #!


@case(floats(6), randomness="different", vmap="random")
def dropout_different(x):
    return F.dropout(x, 0.5)  #! jacfwd hess jacrev


@case(floats(6))
def dropout_off(x):
    return F.dropout(x, 0.5, training=False)


@case(floats(3, 8, 8))
def center_crop(image):
    h, w = image.shape[-2:]
    return image[:, (h - 4) // 2 : (h + 4) // 2, (w - 4) // 2 : (w + 4) // 2].mean((1, 2))


@case(floats(3, 8, 8), integers(2, high=4))
def crop_at(image, corner):
    y, x = int(corner[0]), int(corner[1])  #! vmap
    return image[:, y : y + 4, x : x + 4].mean()


@case(floats(3, 8, 8))
def random_flip(image):
    if torch.rand(1) < 0.5:  #!
        image = image.flip(-1)
    return image.mean(-1)


@case(floats(3, 8, 8))
def resized(image):
    return F.interpolate(image[None], scale_factor=0.5, mode="bilinear", align_corners=False)[0]


@case(floats(3, 8, 8))
def gray_world(image):
    mean = image.mean((1, 2), keepdim=True)
    return image * (mean.mean() / (mean.abs() + 0.1))


@case(floats(3, 8, 8))
def jpeg_like_round(image):
    return (image * 8).round() / 8


@case(floats(3, 8, 8))
def patches(image):
    return image.unfold(1, 4, 4).unfold(2, 4, 4).reshape(3, 4, 4, 4).mean((-1, -2))


@case(floats(4, 4), floats(4))
def boxes_kept(boxes, scores):
    keep = []
    for i in scores.argsort(descending=True):
        if scores[i] > 0:  #! vmap
            keep.append(boxes[i])
    return torch.stack(keep).sum(0) if keep else boxes.sum(0) * 0


@case(floats(4, 4), floats(4))
def weighted_boxes(boxes, scores):
    weights = scores.sigmoid()
    return (weights[:, None] * boxes).sum(0) / weights.sum()


@case(floats(4), floats(4))
def soft_iou(a, b):
    inter = torch.minimum(a, b).clamp(min=0).sum()
    union = torch.maximum(a, b).clamp(min=0).sum()
    return inter / union if union > 0 else inter  #! vmap


@case(floats(7), integers(3, high=7))
def sequence_log_prob(logits, tokens):
    return sum(F.log_softmax(logits, -1)[t] for t in tokens)


@case(floats(7))
def nucleus(logits):
    p, _order = logits.softmax(-1).sort(descending=True)
    cut = int((p.cumsum(0) < 0.8).sum()) + 1  #! vmap
    return p[:cut].sum()


@case(floats(7))
def nucleus_masked(logits):
    p = logits.softmax(-1)
    q, _order = p.sort(descending=True)
    keep = (q.cumsum(0) - q) < 0.8
    return (q * keep).sum()


@case(floats(7))
def greedy_token(logits):
    return logits.argmax(-1)


@case(floats(7), integers(high=4, low=1))
def top_k_given(logits, k):
    return logits.topk(int(k)).values.sum()  #! vmap


@functools.lru_cache
def positions(n, d):
    return torch.sin(torch.arange(n)[:, None] / torch.arange(1, d + 1))


@case(floats(5, 6))
def with_positions(x):
    return x + positions(*x.shape)


@case(floats(5, 6))
def viterbi(emissions):
    score = emissions[0]
    back = []
    for t in range(1, 5):
        best, index = (score[:, None] + torch.eye(6)).max(0)
        score = best + emissions[t]
        back.append(index)
    last = score.argmax()
    for index in reversed(back):
        last = index[last]
    return score.max() + last


@case(floats(5, 6))
def ctc_like(emissions):
    alpha = torch.full((6,), -10.0)
    alpha[0] = emissions[0, 0]  #! vmap
    for t in range(1, 5):
        alpha = torch.logaddexp(alpha, alpha.roll(1)) + emissions[t]
    return alpha.logsumexp(0)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        if x.mean() > 0:  #! vmap
            return x * self.weight
        return x - self.weight


case(floats(6))(Gate())


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1  #!
        return x * 2


case(floats(6))(Counter())


class Running(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x  #! vmap grad vjp jvp jac hess func
        return x - self.mean


case(floats(6))(Running())


class Stochastic(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return self.drop(self.lin(x)).sum()  #!


case(floats(6))(Stochastic())


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.skip = {0: False, 1: True, 2: True}

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = x + layer(x).tanh() if self.skip[i] else layer(x)
        return x


case(floats(6))(Residual())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(6, 2) for _ in range(3))
        self.router = nn.Linear(6, 3)

    def forward(self, x):
        chosen = self.router(x).argmax()
        return self.experts[chosen](x)  #! vmap


case(floats(6))(Experts())


class Quantised(nn.Module):
    def forward(self, x):
        scale = x.abs().max().item() / 127  #!
        return (x / scale).round() * scale


case(floats(6))(Quantised())
