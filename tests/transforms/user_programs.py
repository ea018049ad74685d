"""Functions of one example as users write them, composed from a grammar, with the state they live in.

A program is a list of statements over ``x`` (a vector) and an end; it is compiled from text, so that it has lines and
closures as a user's file has. ``Session`` calls ``ds.vmap`` of it again and again, with other batches and other state,
and holds every call against the plain loop: values, dtypes, derivatives, and what is left behind.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import linecache
import math
import textwrap
import types

import torch
from torch.utils.checkpoint import checkpoint

import driftscope as ds
from driftscope.errors import DriftscopeError

STATEMENTS = (
    "x = torch.sin(x)",
    "x = x * 2.0 - 0.3",
    "x = x * cfg.scale",
    "x = x * w",
    "x = torch.where(x > 0, x, x * cfg.scale)",
    "x = torch.where(x[0] > 0, x.sum(), c32) + x",
    "x = torch.clamp(x, max=x.mean().float())",
    "x = x.sort().values",
    "x = x[x.argsort()]",
    "x = x.flip(0).cumsum(0)",
    "x = x / x.norm() if x.norm() > 1 else x",
    "x = x * 2 if x.sum() > 0 else x.cos()",
    "x = x - x.mean().item()",
    "x = x * math.sqrt(float(x.abs().sum()) + 1)",
    "x = x * TABLE.get(int(x.sum()), 1.5)",
    "x = memo(x.shape[0]).to(x.dtype) * x",
    "x = steps[cfg.index](x)",
    "x = x * (2 if x.is_contiguous() else 3)",
    "x = x * (2 if x.requires_grad else 3)",
    "x = x * (2 if torch.is_grad_enabled() else 3)",
    "x = x + len(x) * x.shape[0]",
    "x = Straight.apply(x)",
    "x = Ruled.apply(x)",
    "x = checkpoint(torch.tanh, x, use_reentrant=False)",
    "x = dropout(x)",
    "x = x.float().to(x.dtype)",
    "x = x + x.unique()[0]",
    "x = x + float(f'{x.max():.1f}')",
    "x = x + sorted([float(v) for v in x])[0]",
    "x = torch.stack([v * 2 if v > 0 else v for v in x])",
    "x = (x > 0).to(x.dtype) * x",
    "x = x + (x > 0).sum()",
    "x = x * x.detach()",
    "x = x + torch.nonzero(x > 0).sum()",
    "x = x + x[x > 0].sum()",
    "x = x * (1 if x is not w else 0)",
    "x = x.clone()\nx[x > 0.7] = 0.7",
    "x = x * 1.0\nf = x.view(-1)\nf[f > 0.5] = 0.5",
    "x = x * 1.0\nx[0] = cfg.scale",
    "buffer = torch.zeros(x.shape[0], dtype=x.dtype)\nbuffer[:] = x\nx = buffer",
    "buffer = torch.zeros(x.shape[0], dtype=x.dtype)\nbuffer += x\nx = buffer * 2",
    "for _ in range(int(x.abs().max().clamp(max=3))):\n    x = x * 0.5",
    "while x.abs().max() > 1.5:\n    x = x / 2",
    "with torch.no_grad():\n    m = x.max()\nx = x / (1 + m.abs())",
    "h = x * 3\nif h.requires_grad:\n    h.register_hook(lambda g: g.clamp(-0.5, 0.5))\nx = h",
    "try:\n    s = float(x.sum())\nexcept Exception:\n    s = 1.0\nx = x * s",
    "try:\n    s = float(x.sum())\nexcept:\n    s = 1.0\nx = x * s",
    "try:\n    if x[0] > 0.5:\n        raise ValueError\n    x = x + 1\nexcept ValueError:\n    x = x - 1",
    "try:\n    x = torch.linalg.cholesky(torch.diag(x)).diagonal()\nexcept RuntimeError:\n    x = x * 5",
    "try:\n    p = TABLE[int(x[0])]\nexcept KeyError:\n    p = 10.0\nx = p * x",
    "with contextlib.suppress(RuntimeError):\n    x = x * x.item()",
    "with contextlib.suppress(Exception):\n    x = x * (2 if bool(x.sum() > 0) else 3)",
    "try:\n    x = x + x.numpy().sum()\nexcept Exception:\n    x = x + 1",
    "if flag_tensor > 0:\n    x = x.exp()",
    "if x.shape[0] > 5:\n    try:\n        x = x * float(x[0])\n    except RuntimeError:\n        pass",
    "if cfg.note:\n    cfg.seen.append(1)",
    "if x[0] > 1.2:\n    cfg.seen.append(2)",
    "cfg.last = 3",
    "x = x.clone()\nx.mul_(2)",
)
BLOCKS = ("if cfg.flag:\n{}", "if x.sum() > 0:\n{}", "if x.shape[0] > 3:\n{}", "for _ in range(cfg.index + 1):\n{}")
ENDS = (
    "return x", "return x.sum()", "return x, x.sum()", "return {'a': x, 'b': x > 0}", "return x.argmax()", "return w",
    "return float(x.sum())", "return x[:2]", "return x > 0", "return x if x.sum() > 0 else x * 0", "return (x, 1)",
)  # fmt: skip


class Straight(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round(decimals=1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, slope):
        return slope


class Ruled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, slope):
        return slope * ctx.saved_tensors[0].cos()

    @staticmethod
    def vmap(info, in_dims, x):
        return x.detach().sin(), in_dims[0]


@functools.cache
def memo(n):
    return torch.hann_window(n, periodic=False) + 0.5


def careful(x):
    try:
        return x * float(x.mean())
    except Exception:
        return x


def text_of(lines: list[str], end: str, *, as_method: bool = False) -> str:
    """Return the program's source."""
    body = textwrap.indent("\n".join([*lines, end]), "        ")
    free = "cfg, w, c32, flag_tensor, steps, dropout"
    return f"def make({free}):\n    def program(x):\n{body}\n    return program\n"


class State:
    """What the program is closed over, and the changes a session makes to it."""

    def __init__(self):
        self.cfg = types.SimpleNamespace(scale=1.3, flag=False, note=False, index=0, seen=[], last=0)
        self.w = torch.tensor(0.7, dtype=torch.float64)
        self.c32 = torch.tensor(0.1, dtype=torch.float32)
        self.flag_tensor = torch.tensor(1.0)
        self.steps = [torch.sin, careful]
        self.dropout = torch.nn.Dropout().eval()

    def change(self, what: str) -> None:
        """Make one change."""
        cfg = self.cfg
        if what == "scale":
            cfg.scale = -cfg.scale
        elif what in ("flag", "note"):
            setattr(cfg, what, not getattr(cfg, what))
        elif what == "index":
            cfg.index = 1 - cfg.index
        elif what == "steps":
            self.steps.reverse()
        elif what == "tensor":
            self.flag_tensor.neg_()
        elif what == "weight":
            self.w.requires_grad_(not self.w.requires_grad)
        elif what == "train":
            self.dropout.train(not self.dropout.training)


CHANGES = ("none", "none", "scale", "flag", "note", "index", "steps", "tensor", "weight", "train")


def batch(size: int, width: int, kind: str, seed: int) -> torch.Tensor:
    """Return a batch; ``kind`` says what is special about it."""
    x = torch.randn(size, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if kind == "transposed":
        x = x.T.contiguous().T
    elif kind == "expanded":
        x = x[:1].expand(size, width)
    elif kind == "one row off" and size > 3:
        x = x.abs() + 0.1
        x[1] *= -1
    elif kind == "zeros":
        x[size // 2] = 0
    elif kind == "narrow":
        x = torch.cat([x, x], 1)[:, 1 : width + 1]
    return x


KINDS = ("plain", "transposed", "expanded", "one row off", "zeros", "narrow")


class Session:
    """One program, called again and again."""

    made = 0

    def __init__(self, lines: list[str], end: str):
        self.text = text_of(lines, end)
        self.state = State()
        Session.made += 1
        name = f"<program {Session.made}>"
        space = {
            "torch": torch, "math": math, "contextlib": contextlib, "checkpoint": checkpoint, "memo": memo,
            "Straight": Straight, "Ruled": Ruled, "TABLE": {0: 1.0, 1: 2.5, -1: 4.0},
        }  # fmt: skip
        linecache.cache[name] = (len(self.text), None, self.text.splitlines(keepends=True), name)
        exec(compile(self.text, name, "exec"), space)  # noqa: S102  the grammar's own text
        state = self.state
        self.function = space["make"](state.cfg, state.w, state.c32, state.flag_tensor, state.steps, state.dropout)
        self.mapped = ds.vmap(self.function)
        self.calls = 0

    def wrong(self, x: torch.Tensor, *, wants: bool, anew: bool) -> str:
        """Call once; return what is silently wrong, or a foreign error, "" when nothing is."""
        self.calls += 1
        mapped = ds.vmap(self.function) if anew else self.mapped
        state = copy.deepcopy((self.state.cfg.seen, self.state.cfg.last))
        one, two = (x.clone(memory_format=torch.preserve_format).requires_grad_(wants) for _ in range(2))
        torch.manual_seed(0)
        expected = _result(self._looped, one)
        left = (list(self.state.cfg.seen), self.state.cfg.last)
        self.state.cfg.seen[:], self.state.cfg.last = list(state[0]), state[1]
        torch.manual_seed(0)
        got = _result(mapped, two)
        now = (list(self.state.cfg.seen), self.state.cfg.last)
        self.state.cfg.seen[:], self.state.cfg.last = list(state[0]), state[1]
        if isinstance(got, DriftscopeError):
            return "" if now == state else f"refused, but changed state: {state} -> {now}"
        if isinstance(expected, Exception):
            same = isinstance(got, Exception) and type(got) is type(expected)
            return "" if same else f"the loop raises {expected!r}, ds.vmap gives {got!r:.200}"
        if isinstance(got, Exception):
            return f"foreign error {type(got).__name__}: {got}"
        if now != left:
            return f"state {now}, with the loop {left}"
        return _differ(expected, got) or self._slopes(one, two, expected, got)

    def _looped(self, x):
        rows = [self.function(row) for row in x]
        leaves = [torch.utils._pytree.tree_flatten(row) for row in rows]
        stacked = [
            torch.stack([_tensor(leaf) for leaf in column])
            for column in zip(*(flat for flat, _ in leaves), strict=True)
        ]
        return torch.utils._pytree.tree_unflatten(stacked, leaves[0][1])

    def _slopes(self, one, two, expected, got) -> str:
        inputs = [[x for x in (given, self.state.w) if x.requires_grad] for given in (one, two)]
        slopes = []
        for given, result in zip(inputs, (expected, got), strict=True):
            floats = [t for t in torch.utils._pytree.tree_leaves(result) if t.requires_grad]
            if not floats or not given:
                slopes.append([len(floats)])
                continue
            total = sum((t * torch.arange(1, t.numel() + 1).reshape(t.shape)).sum() for t in floats)
            slopes.append(
                _result(lambda t=total, g=given: torch.autograd.grad(t, g, allow_unused=True, materialize_grads=True))
            )
        if isinstance(slopes[0], Exception) or isinstance(slopes[1], Exception):
            return "" if type(slopes[0]) is type(slopes[1]) else f"derivatives {slopes[0]!r:.90} and {slopes[1]!r:.90}"
        told = _differ(list(slopes[0]), list(slopes[1]))
        return told and f"derivative: {told}"


def _tensor(leaf):
    return (
        leaf
        if isinstance(leaf, torch.Tensor)
        else torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
    )


def _result(run, *args):
    try:
        return run(*args)
    except Exception as error:
        return error


def _differ(expected, got) -> str:
    mine, its = (torch.utils._pytree.tree_leaves(tree) for tree in (expected, got))
    if len(mine) != len(its):
        return f"{len(mine)} results, with ds.vmap {len(its)}"
    for a, b in zip(mine, its, strict=True):
        if not isinstance(a, torch.Tensor):
            if a != b:
                return f"{a} with ds.vmap {b}"
        elif (a.dtype, a.shape) != (b.dtype, b.shape):
            return f"{a.dtype} {tuple(a.shape)}, with ds.vmap {b.dtype} {tuple(b.shape)}"
        elif not torch.allclose(a.double(), b.double(), rtol=1e-6, atol=1e-7, equal_nan=True):
            return f"{a.tolist()}, with ds.vmap {b.tolist()}"
    return ""
