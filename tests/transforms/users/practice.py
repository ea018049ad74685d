"""Training practice: functional_call, hooks, compiled and checkpointed parts, nested transforms, generators, grids."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
import operator

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from transforms.users.cases import case, definite, floats, integers, masks

torch.manual_seed(7)
NET = nn.Sequential(nn.Linear(4, 5), nn.SiLU(), nn.Linear(5, 2))
NET.requires_grad_(False)
WEIGHTS = {name: p.detach().clone() for name, p in NET.named_parameters()}
SCORES = collections.defaultdict(lambda: 1.5, {0: 2.0, 1: 3.0})
DEPTH = collections.Counter()
HISTORY = collections.deque(maxlen=3)


@dataclasses.dataclass(frozen=True)
class Grid:
    low: float = -1.0
    high: float = 1.0
    steps: int = 5

    def nodes(self):
        return torch.linspace(self.low, self.high, self.steps)


class Moments(collections.namedtuple("Moments", "mean spread")):
    __slots__ = ()

    def standardised(self, x):
        return (x - self.mean) / self.spread


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]), requires_grad=False)
        self.calls = 0

    def forward(self, x):
        self.calls += 1  #!
        return x * self.factor


class Lowest(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.min()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, g):
        x, low = ctx.saved_tensors
        return g * (x == low)

    @staticmethod
    def vmap(info, in_dims, x):
        return Lowest.apply(x.movedim(in_dims[0], 0).min(0).values), 0


GRID = Grid()
SCALE = Scale()


@case(floats(4))
def functional_call_of_net(x):
    return functional_call(NET, {k: v * 1.1 for k, v in WEIGHTS.items()}, (x,)).square().sum()


@case(floats(4), floats(4))
def functional_call_with_loss(x, y):
    def loss(params):
        return F.mse_loss(functional_call(NET, params, (x,)), y[:2])

    return torch.func.grad(loss)(WEIGHTS)["2.bias"]  #! jvp jacfwd hess


@case(floats(4))
def one_inner_step(x):
    def loss(params):
        return functional_call(NET, params, (x,)).logsumexp(0)

    slopes = torch.func.grad(loss)(WEIGHTS)
    moved = {k: v - 0.1 * slopes[k] for k, v in WEIGHTS.items()}
    return loss(moved)


@case(floats(4))
def gradient_penalty(x):
    slope = torch.func.grad(lambda z: functional_call(NET, WEIGHTS, (z,)).sum())(x)
    return (slope.norm() - 1) ** 2


@case(floats(4))
def laplacian(x):
    return torch.func.hessian(lambda z: functional_call(NET, WEIGHTS, (z,))[0])(x).diagonal().sum()


@case(floats(4))
def jacobian_logdet(x):
    jac = torch.func.jacrev(lambda z: torch.tanh(z * z.sum()) + z)(x)
    return torch.linalg.slogdet(jac).logabsdet


@case(floats(4))
def gauss_newton_product(x):
    out, push = torch.func.jvp(lambda z: functional_call(NET, WEIGHTS, (z,)), (x,), (torch.ones_like(x),))
    return (out * push).sum()


@case(floats(4), floats(3, 4))
def mapped_inside(x, keys):
    return torch.vmap(lambda k: torch.dot(x, k).exp())(keys).sum()


@case(floats(4))
def hook_that_scales(x):
    y = x * 2
    if y.requires_grad:  #!
        y.register_hook(lambda g: g * 0.5)  #!
    return (y * y).sum()


@case(floats(4))
def module_hook(x):
    seen = []
    handle = NET[0].register_forward_hook(lambda module, args, out: seen.append(out.abs().amax()))
    try:
        y = NET(x)
    finally:
        handle.remove()
    return y.sum() + seen[0]


@case(floats(4))
def saved_on_cpu(x):
    with torch.autograd.graph.save_on_cpu():  #!
        return (x.exp() * x).sum()


@case(floats(4))
def reentrant_checkpoint(x):
    return checkpoint(lambda z: z.sin() * z, x, use_reentrant=True).sum()  #!


@case(floats(4))
def checkpoint_with_branch(x):
    def block(z):
        return z * 3 if z.sum() > 0 else z.exp()  #! vmap

    return checkpoint(block, x, use_reentrant=False).sum()  #! grad vjp jac hess


@case(floats(4))
def counted_calls(x):
    return SCALE(x).sum()


@case(floats(4))
def running_deque(x):
    HISTORY.append(float(x.detach().sum()))  #!
    return x * len(HISTORY)


@case(floats(4))
def counter_by_sign(x):
    DEPTH["calls"] += 1  #!
    return x * 2


@case(floats(4))
def default_dict_lookup(x):
    return x * SCORES[int(x.argmax())]  #!


@case(floats(4))
def default_dict_grows(x):
    table = collections.defaultdict(float)
    for i in range(4):
        table[i % 2] = table[i % 2] + x[i]
    return table[0] - table[1]


@case(floats(4))
def frozen_grid(x):
    nodes = GRID.nodes()
    return (x[:, None] - nodes).square().amin(1).sum()


@case(floats(4))
def moments_subclass(x):
    moments = Moments(x.mean(), x.std())
    return moments.standardised(x)


@case(floats(4))
def returns_moments(x):
    return Moments(x.mean(), x.std())


@case(floats(4))
def ordered_results(x):
    return collections.OrderedDict(low=x.min(), spread=x.max() - x.min(), counts=[(x > 0).sum(), x.abs().sum()])


@case(floats(4))
def lowest_rule(x):
    return Lowest.apply(x) * 2  #!


@case(floats(4))
def partial_applied(x):
    return functools.partial(torch.clamp, min=-0.5, max=0.7)(x).sum()


@case(floats(4))
def reduced_by_operator(x):
    return functools.reduce(operator.mul, x.unbind())


@case(floats(5))
def pairs_of_terms(x):
    return sum(a * b for a, b in itertools.combinations(x.unbind(), 2))


@case(floats(5))
def windows_zipped(x):
    return torch.stack([a - b for a, b in itertools.pairwise(x.unbind())]).abs().sum()


@case(floats(4))
def generator_of_terms(x):
    def terms():
        for i in range(4):
            yield x[i] ** (i + 1)

    return sum(terms())


@case(floats(4), randomness="different")
def dropout_by_hand(x):
    keep = torch.rand(4) > 0.3  #! jacfwd hess
    return x * keep / 0.7


@case(floats(4))
def own_generator(x):
    g = torch.Generator().manual_seed(3)
    return x + torch.randn(4, generator=g)  #! vmap jacfwd hess


@case(floats(4))
def match_on_size(x):
    match x.shape[0]:
        case 4:
            return x.view(2, 2).sum(0)
        case _:
            return x.sum()


@case(floats(4))
def walrus_condition(x):
    if (total := x.sum()) > 0:  #! vmap
        return x / (1 + total)
    return x - total


@case(floats(4))
def chained_comparison(x):
    if -0.5 < x.mean() < 0.5:  #! vmap
        return x.tanh()
    return x * 0.1


@case(floats(4))
def and_or_conditions(x):
    if (x[0] > 0 and x[1] > 0) or x[2] > 1:  #! vmap
        return x * 2
    return x * -1


@case(floats(4))
def conditional_expression_chain(x):
    s = x.sum()
    return s * 2 if s > 1 else s * s if s > 0 else s.exp()  #! vmap


@case(floats(4))
def while_with_break(x):
    n = 0
    while True:
        x = x * 0.7
        n += 1
        if x.abs().max() < 0.5:  #! vmap
            break
    return x.sum() * n


@case(floats(4))
def for_else(x):
    for i in range(4):
        if x[i] > 1.0:  #! vmap
            break
    else:
        return x.sum()
    return x[i] * 3


@case(floats(4))
def recursion_by_value(x):
    def halve(z, depth):
        if depth == 4 or z.abs().max() < 0.4:  #! vmap
            return z
        return halve(z / 2, depth + 1)

    return halve(x, 0).sum()


@case(floats(4))
def exception_as_control(x):
    def root(z):
        if z.min() < 0:  #! vmap
            raise ValueError("negative")
        return z.sqrt()

    try:
        return root(x - 0.2).sum()
    except ValueError:
        return x.abs().sum()


@case(definite(3))
def solve_or_lstsq(a):
    try:
        return torch.linalg.solve(a, torch.ones(3))
    except torch.linalg.LinAlgError:
        return torch.linalg.lstsq(a, torch.ones(3, 1)).solution[:, 0]


@case(floats(4))
def finally_branch(x):
    scale = 1.0
    try:
        scale = 1.0 / (float(x[0]) > 0)  #!
    except ZeroDivisionError:
        scale = 3.0
    finally:
        x = x + 1
    return x * scale


@case(floats(6))
def slice_by_argmax(x):
    k = int(x.argmax())  #!
    return x[: k + 1].sum()


@case(floats(6))
def put_by_index(x):
    y = torch.zeros(6)
    y.index_put_((torch.tensor([0, 2, 2]),), x[:3], accumulate=True)  #!
    return y


@case(floats(6))
def index_add_new(x):
    return torch.zeros(3).index_add(0, torch.tensor([0, 0, 1, 1, 2, 2]), x)


@case(floats(6), integers(6, high=3))
def scatter_reduced(x, group):
    return torch.zeros(3).scatter_reduce(0, group, x, "amax", include_self=False)


@case(floats(4, 4))
def triangle_filled(a):
    low = a.tril(-1)
    low.diagonal().copy_(a.diagonal().exp())
    return low @ low.T


@case(floats(4, 4))
def row_swapped(a):
    b = a.clone()
    b[[0, 2]] = b[[2, 0]]
    return b[0] - a[1]


@case(floats(6))
def ema_in_place(x):
    out = torch.empty_like(x)
    out[0] = x[0]
    for i in range(1, 6):
        out[i] = 0.8 * out[i - 1] + 0.2 * x[i]
    return out


@case(floats(6), masks(6))
def compacted(x, mask):
    kept = torch.masked_select(x, mask)  #! vmap
    return torch.cat([kept, torch.zeros(6 - kept.numel())])


@case(floats(4))
def logspace_guard(x):
    return torch.where(x > 0.1, x.log(), x * 10 - 3.3).sum()


@case(floats(4))
def arc_guard(x):
    inside = x.abs() < 1
    return torch.where(inside, torch.acos(x.clamp(-1, 1)), torch.zeros_like(x)).sum()


@case(floats(4))
def ratio_branch(x):
    if x[0].abs() > 0.3:  #! vmap
        return x[1] / x[0]
    return x[1] * x[0]


@case(floats(4))
def log_branch(x):
    if x[0] > 0:  #! vmap
        return x[0].log()
    return x[0] * 0.5


@case(floats(4))
def polar(x):
    z = torch.complex(x[:2], x[2:])
    return z.abs() + z.angle()


@case(floats(3), floats(3))
def angle_between(a, b):
    c = torch.dot(a, b) / (a.norm() * b.norm())
    if c > 1 - 1e-6:  #! vmap
        return torch.linalg.cross(a, b).norm()
    return torch.acos(c)


@case(floats(4))
def float_format(x):
    return x * len(f"{abs(x[0].item()):.0f}")  #!


@case(floats(4))
def type_dispatch(x):
    scale = 2.0 if isinstance(x, nn.Parameter) else 1.0
    return x * scale if x.dtype == torch.float32 else x


@case(floats(4))
def isinstance_number(x):
    m = x.max().item()  #!
    return x / m if math.isfinite(m) and m != 0 else x


@case(floats(4))
def default_dtype_constant(x):
    return x * torch.tensor(math.pi) + torch.full((4,), 0.5)


@case(floats(4))
def einops_by_hand(x):
    return x.reshape(2, 2).transpose(0, 1).reshape(-1) * torch.arange(4)


@case(floats(2, 3), in_dims=(0,))
def method_chain(x):
    return x.softmax(-1).cumsum(-1).flip(-1).diff(dim=-1).abs().amax()


@case(floats(4), floats(4, batch=False), in_dims=(0, None))
def shared_weight(x, w):
    y = x * w
    return y if y.sum() > 0 else -y  #! vmap


@case(floats(4))
def gumbel_topk(x):
    values, places = x.topk(2)
    return values.softmax(0) @ x[places]


@case(floats(5))
def sorted_unique(x):
    return torch.unique(x.round()).numel() + x.sum()  #!


@case(floats(4))
def compare_bits(x):
    return x if torch.equal(x, x.abs()) else x * 0.5  #!


@case(floats(4))
def allclose_test(x):
    if torch.allclose(x, torch.zeros(4), atol=1.0):  #!
        return x * 2
    return x.sign()
