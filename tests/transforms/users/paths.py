"""Functions whose rows go different ways: thresholds, jitters, caches, views, masks, loops that stop at convergence."""

import dataclasses
import math

import torch
import torch.nn.functional as F

from transforms.users.cases import case, definite, floats, integers, masks

LIMITS = {"low": -0.5, "high": 0.5, "table": [1.0, 2.0, 3.0]}


@dataclasses.dataclass
class Settings:
    scale: float = 1.5
    weights: tuple = (0.2, 0.3, 0.5)
    offsets: dict = dataclasses.field(default_factory=lambda: {"bias": torch.tensor([0.1, -0.2, 0.3, 0.4])})


SETTINGS = Settings()


class Huberised(torch.autograd.Function):
    @staticmethod
    def forward(x, limit):
        return torch.where(x.abs() < limit, 0.5 * x * x, limit * (x.abs() - 0.5 * limit))

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.limit = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.clamp(-ctx.limit, ctx.limit), None


class BranchingRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.flat = bool(x.sum() > 0)
        return x * 3 if ctx.flat else x.exp()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 if ctx.flat else g * x.exp()


def banded(limits):
    def score(x):
        low, high = limits["low"], limits["high"]
        m = x.mean()
        if m < low:  #!
            return x * limits["table"][0]
        if m > high:
            return x * limits["table"][2] - 1
        return (x * limits["table"][1]).sin()

    return score


@case(floats(4))
def settings_dataclass(x):
    y = x * SETTINGS.scale + SETTINGS.offsets["bias"]
    return sum(w * y**i for i, w in enumerate(SETTINGS.weights))


# The derivative reads one triangle of a matrix that is taken to be symmetric: a convention, not a mistake.
@case(definite(3), jacfwd="same", hessian="same")
def cholesky_with_jitter(a):
    jitter = 0.0
    shifted = a - 3.2 * torch.eye(3)
    for _ in range(6):
        try:
            return torch.linalg.cholesky(shifted + jitter * torch.eye(3))  #!
        except RuntimeError:
            jitter = max(2 * jitter, 0.5)
    return torch.full((3, 3), math.nan)


@case(floats(5))
def safe_root(x):
    return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)).sum()  #! jvp jacfwd hess


@case(floats(5))
def log_sinc(x):
    return torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x).abs().log().sum()


@case(floats(4, 4))
def views_written(x):
    y = x.clone()
    upper, diagonal = y[:2], y.diagonal()
    upper += 1
    diagonal.mul_(2)
    y.t()[0] -= y[1]
    return y.sum(0)


@case(floats(6))
def welford(x):
    count, mean, m2 = 0, torch.zeros(()), torch.zeros(())
    for value in x:
        if value < -1:  #! vmap
            continue
        count += 1
        delta = value - mean
        mean = mean + delta / count
        m2 = m2 + delta * (value - mean)
    return {"mean": mean, "var": m2 / max(count - 1, 1), "count": count}  #! vjp jvp jac


@case(floats(5, 3), masks(5))
def masked_softmax_pool(x, mask):
    scores = x.sum(-1).masked_fill(~mask, -math.inf)
    return (F.softmax(scores, 0)[:, None] * x).sum(0)


@case(floats(5), masks(5))
def masked_select_mean(x, mask):
    kept = x[mask]  #!
    return kept.mean() if kept.numel() > 2 else kept.sum()


@case(floats(4, positive=True))
def newton_until_converged(x):
    y = x.clone()
    for _ in range(40):
        new = 0.5 * (y + x / y)
        if (new - y).abs().max() < 1e-4:  #!
            break
        y = new
    return y


@case(floats(4, 4))
def power_iteration(a):
    v, last = torch.ones(4) / 2, torch.zeros(())
    s = a @ a.T
    for _ in range(30):
        v = s @ v
        v = v / v.norm()
        value = v @ s @ v
        if torch.abs(value - last) < 1e-3 * value:  #!
            return {"value": value, "vector": v}
        last = value
    return {"value": last, "vector": v}


@case(floats(6), integers(high=6))
def row_by_index(x, i):
    return x[i] * x[:i].sum() if i > 2 else x[i:].prod()  #!


@case(floats(6))
def trimmed_mean(x):
    ordered, places = torch.sort(x)
    kept = ordered[1:-1]
    return kept.mean() + 0.1 * places[0]


@case(floats(3, 4), floats(4, 5))
def einsum_attention(q, k):
    weights = torch.einsum("id,dj->ij", q, k).softmax(-1)
    return torch.einsum("ij,dj->id", weights, k)


@case(floats(5))
def huberised(x):
    return Huberised.apply(x, 1.0).sum()  #!


@case(floats(5))
def branching_rule(x):
    return BranchingRule.apply(x).sum()  #!


@case(floats(5))
def clipped_when_large(x):
    n = x.norm()
    if n > 2.0:  #!
        x = x * (2.0 / n)
    return x


@case(floats(4), floats(4))
def in_place_by_sign(x, y):
    out = torch.zeros(4)
    out[x > 0] = y[x > 0]  #!
    out[x <= 0] = -1.0
    return out


@case(floats(7))
def runs_of_sign(x):
    longest, current = 0, 0
    for value in (x > 0).tolist():  #!
        current = current + 1 if value else 0
        longest = max(longest, current)
    return x.sum() * longest


@case(floats(6))
def dictionary_by_branch(x):
    parts = {"sum": x.sum()}
    if x[0] > 0:  #!
        parts["extra"] = x.max()
    else:
        parts["extra"] = x.min() * 2
    return parts


@case(floats(6))
def accumulated_in_list(x):
    kept = []
    for i in range(6):
        if x[i] > 0:  #!
            kept.append(x[i] ** 2)
    return torch.stack(kept).sum() if kept else torch.zeros(())


@case(floats(3, 3))
def inverse_or_pseudo(a):
    if torch.linalg.det(a).abs() < 0.5:  #!
        return torch.linalg.pinv(a)
    return torch.linalg.inv(a)


@case(floats(6, positive=True))
def entropy_with_guard(p):
    q = p / p.sum()
    q = torch.where(q < 0.1, torch.zeros_like(q), q)
    return -torch.where(q > 0, q * q.log(), torch.zeros_like(q)).sum()


@case(floats(5))
def nan_cleaned(x):
    y = torch.log(x)
    if torch.isnan(y).any():  #!
        y = torch.nan_to_num(y, nan=-1.0)
    return y.sum()


@case(floats(5))
def assigned_maximum(x):
    y = x.clone()
    y[y.argmax()] = 0.0
    return y * x


@case(floats(4), integers(high=3))
def chosen_from_list(x, i):
    return [torch.sin, torch.cos, torch.tanh][int(i)](x)  #!


@case(floats(6))
def early_return_none_of_many(x):
    try:
        first = next(i for i in range(6) if x[i] > 0.3)  #!
    except StopIteration:
        return x.sum() * 0
    return x[first:].sum() * (first + 1)


banded_score = case(floats(4))(banded(LIMITS))
