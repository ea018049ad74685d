"""Losses, metrics and statistics as users write them for one example."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from transforms.users.cases import case, definite, floats, integers, masks


@case(floats(5), floats(5))
def huber(pred, target):
    diff = pred - target
    if diff.abs().max() < 1.0:  #! vmap
        return 0.5 * (diff**2).mean()
    return diff.abs().mean() - 0.5


@case(floats(5), floats(5))
def huber_where(pred, target):
    diff = (pred - target).abs()
    return torch.where(diff < 1.0, 0.5 * diff**2, diff - 0.5).mean()


@case(floats(7), integers(high=7))
def focal(logits, label):
    p = F.softmax(logits, dim=-1)[label]
    return -((1 - p) ** 2.0) * torch.log(p)


@case(floats(7), integers(high=7))
def label_smoothing(logits, label):
    target = torch.full((7,), 0.1 / 6)
    target[label] = 0.9  #! vmap
    return -(target * F.log_softmax(logits, -1)).sum()


@case(floats(7), integers(high=7))
def one_hot_loss(logits, label):
    return ((F.one_hot(label, 7) - logits.softmax(-1)) ** 2).sum()


@case(floats(7), integers(high=7))
def one_hot_guessed(logits, label):
    return (F.one_hot(label) * logits[: int(label) + 1]).sum()  #! vmap


@case(floats(4), floats(4))
def cosine_margin(a, b):
    similarity = F.cosine_similarity(a, b, dim=0)
    return max(similarity - 0.2, torch.zeros(()))  #! vmap


@case(floats(8), floats(8))
def correlation(x, y):
    x, y = x - x.mean(), y - y.mean()
    return (x * y).sum() / (x.norm() * y.norm() + 1e-8)


@case(floats(8))
def standardise(x):
    std = x.std()
    if std > 1e-6:  #! vmap
        return (x - x.mean()) / std
    return x - x.mean()


@case(floats(8))
def entropy_of_positive(x):
    p = x.abs() / x.abs().sum()
    p = p[p > 0.05]  #! vmap
    return -(p * p.log()).sum()


@case(floats(8), masks(8))
def masked_mean(x, mask):
    return x[mask].mean()  #! vmap


@case(floats(8), masks(8))
def masked_mean_right(x, mask):
    return (x * mask).sum() / mask.sum()


@case(floats(8), masks(8))
def masked_fill_softmax(x, mask):
    return x.masked_fill(~mask, float("-inf")).softmax(-1)


@case(floats(8), masks(8))
def masked_assign(x, mask):
    y = x.clone()
    y[~mask] = 0.0  #! vmap
    return y.cumsum(0)


@case(floats(8))
def median_absolute(x):
    return (x - x.median()).abs().median()


@case(floats(10))
def trimmed_mean(x):
    k = int(0.1 * x.numel())
    return x.sort().values[k:-k].mean()


@case(floats(10))
def winsorise(x):
    low, high = torch.quantile(x, 0.1), torch.quantile(x, 0.9)
    return x.clamp(low, high)


@case(floats(10))
def winsorise_items(x):
    low, high = torch.quantile(x, 0.1).item(), torch.quantile(x, 0.9).item()  #!
    return x.clamp(low, high)


@case(floats(6), floats(6))
def gaussian_nll(mean, log_var):
    return 0.5 * (log_var + mean**2 / log_var.exp()).sum() + 0.5 * mean.numel() * math.log(2 * math.pi)


@case(floats(3), definite(3))
def mahalanobis(x, cov):
    return torch.sqrt(x @ torch.linalg.solve(cov, x))


@case(floats(3), definite(3))
def gaussian_logpdf(x, cov):
    chol = torch.linalg.cholesky(cov)
    z = torch.linalg.solve_triangular(chol, x[:, None], upper=False)[:, 0]
    return -0.5 * z.dot(z) - chol.diagonal().log().sum()


@case(floats(3), definite(3))
def distribution_logprob(x, cov):
    return torch.distributions.MultivariateNormal(torch.zeros(3), cov).log_prob(x)  #!


@case(floats(4), floats(4))
def kl_categorical(a, b):
    p = torch.distributions.Categorical(logits=a)
    q = torch.distributions.Categorical(logits=b)
    return torch.distributions.kl_divergence(p, q)  #!


@case(floats(9))
def histogram(x):
    return torch.histc(x, bins=4, min=-2, max=2)  #!


@case(floats(9))
def soft_histogram(x):
    centres = torch.linspace(-2, 2, 5)
    return torch.exp(-((x[:, None] - centres) ** 2)).sum(0)


@case(integers(9, high=4))
def count_values(x):
    return torch.bincount(x, minlength=4)  #! vmap


@case(integers(9, high=4))
def distinct(x):
    return torch.unique(x).numel()  #! vmap


@case(floats(5), integers(5, high=3))
def segment_sum(x, group):
    out = torch.zeros(3)
    out.index_add_(0, group, x)  #! vmap
    return out


@case(floats(5), integers(5, high=3))
def segment_sum_new(x, group):
    return x.new_zeros(3).index_add(0, group, x)


@case(floats(5), integers(5, high=3))
def segment_loop(x, group):
    sums = []
    for g in range(3):
        sums.append(x[group == g].sum())  #! vmap
    return torch.stack(sums)


@case(floats(5))
def numpy_percentile(x):
    return x - float(np.percentile(x.detach().numpy(), 50))  #!


@case(floats(5))
def rounded_report(x):
    return x * round(x.mean().item(), 2)  #!


@case(floats(5))
def signed_sqrt(x):
    return torch.sign(x) * torch.sqrt(x.abs() + 1e-6)


@case(floats())
def log1p_exp(x):
    if x > 20:  #! vmap
        return x
    return torch.log1p(torch.exp(x))


@case(floats())
def sinc(x):
    return torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)


@case(floats())
def safe_log(x):
    return torch.log(x) if x > 0 else x * 0  #! vmap


@case(floats(4))
def soft_threshold(x):
    out = []
    for v in x:
        if v > 0.5:  #! vmap
            out.append(v - 0.5)
        elif v < -0.5:
            out.append(v + 0.5)
        else:
            out.append(v * 0)
    return torch.stack(out)


@case(floats(4))
def list_comprehension_relu(x):
    return torch.stack([v if v > 0 else 0 * v for v in x])  #! vmap


@case(floats(4), floats(4))
def hinge_with_python_max(a, b):
    return sum(max(0.0, 1.0 - float(u * v)) for u, v in zip(a, b, strict=False))  #!


@case(floats(4), floats(4))
def triplet(a, b):
    near, far = (a - b).norm(), (a + b).norm()
    return F.relu(near - far + 0.3)


@case(floats(6))
def accuracy_like(x):
    return (x.argmax() == 2).float()


@case(floats(6))
def predicted_class(x):
    return x.argmax().item()  #!


@case(floats(6))
def top_two_gap(x):
    values, _ = x.topk(2)
    return values[0] - values[1]


@case(floats(6))
def dict_of_metrics(x):
    return {"mean": x.mean(), "max": x.max(), "positive": (x > 0).sum()}


@case(floats(6))
def metrics_with_name(x):
    return {"loss": x.square().mean(), "name": "mse"}  #! vmap jac vjp jvp


@case(floats(6))
def loss_and_none(x):
    return x.square().mean(), None  #! vmap jac vjp jvp


@case(floats(6))
def with_assert(x):
    assert (x.abs() < 100).all(), "diverged"  #! vmap
    return x.exp().sum()


@case(floats(6))
def with_nan_check(x):
    if torch.isnan(x).any():  #! vmap
        raise ValueError("nan in the input")
    return x.logsumexp(0)


@case(floats(6))
def isclose_shortcut(x):
    if torch.allclose(x, torch.zeros_like(x)):  #! vmap
        return x.sum()
    return x / x.abs().sum()


@case(floats(6))
def huber_python_float(x):
    scale = float(x.abs().mean())  #!
    return (x / scale).square().clamp(max=1).sum()


@case(floats(6))
def exp_decay_weights(x):
    weights = torch.tensor([0.9**i for i in range(len(x))])
    return (weights * x).sum()


@case(floats(6))
def tensor_of_tensors(x):
    return torch.tensor([x[0] * 2, x.sum()])  #!


@case(floats(6))
def stacked_stats(x):
    return torch.stack([x.mean(), x.var(), x.amin()])


@case(floats(5), floats(5))
def dtw(a, b):
    n, m = len(a), len(b)
    cost = torch.full((n + 1, m + 1), float("inf"))
    cost[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            d = (a[i - 1] - b[j - 1]) ** 2
            cost[i, j] = d + torch.min(torch.stack([cost[i - 1, j], cost[i, j - 1], cost[i - 1, j - 1]]))  #! vmap
    return cost[n, m]


@case(floats(5), floats(5))
def edit_like(a, b):
    total = 0.0
    for u, v in zip(a, b, strict=False):
        if (u - v).abs() > 0.5:  #! vmap
            total += (u - v).abs()
    return total


@case(floats(8))
def peaks(x):
    inside = (x[1:-1] > x[:-2]) & (x[1:-1] > x[2:])
    return torch.nonzero(inside).shape[0] + x.sum() * 0  #! vmap


@case(floats(8))
def first_crossing(x):
    for i in range(len(x)):
        if x[i] > 0:  #! vmap
            return torch.tensor(float(i))
    return torch.tensor(-1.0)


@case(floats(8))
def autocorrelation(x):
    x = x - x.mean()
    return torch.stack([(x[: len(x) - k] * x[k:]).sum() for k in range(4)])


@case(floats(8))
def spectrum(x):
    return torch.fft.rfft(x).abs()


@case(floats(8))
def power_of_complex(x):
    return torch.fft.rfft(x).real.square().sum()
