"""A function for every cause of the catalogue, and its honest twin: what each transform must be said to do to it.

``CASES[name] = Case(make, expected)``; ``make()`` returns ``(function, examples, in_dims)`` with fresh state, and
``expected`` maps a transform to ``(outcome, cause, expression)``: the cause must be among the findings for that
transform (None: no finding but notes), placed on an expression that contains the given text (None: not asked).
"""

from __future__ import annotations

import functools
import math
import random
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from transforms.torch_abilities import COMPILES_WRITES

Expected = dict[str, tuple[str, str | None, str | None]]


@dataclass(frozen=True)
class Case:
    make: Callable[[], tuple[Any, ...]]
    expected: Expected


CASES: dict[str, Case] = {}


def case(**expected: tuple[str, str | None, str | None]) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Enter the function below; ``vmap_of_grad`` stands for ``vmap(grad)``."""

    def enter(make: Callable[[], Any]) -> Callable[[], Any]:
        named = {k.replace("_of_", "(") + (")" if "_of_" in k else ""): v for k, v in expected.items()}
        CASES[make.__name__] = Case(make, named)
        return make

    return enter


def rows(n: int = 5, seed: int = 3) -> torch.Tensor:
    return torch.randn(3, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scalars() -> torch.Tensor:
    return torch.tensor([-0.7, 1.5, 0.2], dtype=torch.float64)


SAME = ("same", None, None)
REMEMBERED: Any = None
SETTINGS = types.SimpleNamespace(scale=3.0, seen=0)


# ---- T001: tensors that outlive the transform -----------------------------------------------------------------------


@case(vmap=("same", "T001", "REMEMBERED"), grad=("same", "T001", "REMEMBERED"), compile_eager=SAME)
def global_keeps_tensor():
    def f(x):
        global REMEMBERED
        REMEMBERED = torch.tanh(x)
        return REMEMBERED + 1

    return f, (rows(),)


@case(vmap=("same", "T001", "self.last"), jvp=("same", "T001", "self.last"))
def module_keeps_activation():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.last = None

        def forward(self, x):
            self.last = x.exp()
            return self.last * 2

    return Net(), (rows(),)


@case(vmap=("same", "T001", "seen["))
def dictionary_keeps_tensor():
    seen = {}

    def f(x):
        seen["mean"] = x.mean()
        return x - seen["mean"]

    return f, (rows(),)


@case(vmap=SAME, grad=SAME, functional_call=SAME)
def reads_a_global():
    def f(x):
        return x * SETTINGS.scale

    return f, (rows(),)


@case(vmap=SAME, grad=SAME)
def keeps_nothing_local_list():
    def f(x):
        kept = []
        kept.append(x.cos())
        return kept[-1] * 2

    return f, (rows(),)


# ---- T002: Python state ---------------------------------------------------------------------------------------------


@case(vmap=("wrong", "T002", "counter["), grad=SAME)
def counter_in_result():
    counter = {"n": 0}

    def f(x):
        counter["n"] += 1
        return x * counter["n"]

    return f, (rows(),)


@case(vmap=("same", "T002", "SETTINGS.seen"))
def attribute_counter():
    SETTINGS.seen = 0

    def f(x):
        SETTINGS.seen += 1
        return x * 2

    return f, (rows(),)


@case(vmap=("wrong", "T002", "self.step"))
def module_counter():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = 0

        def forward(self, x):
            self.step += 1
            return x / self.step

    return Scaled(), (rows(),)


@case(vmap=("same", "T002", "queue.pop"))
def queue_popped():
    queue = [1, 2, 3, 4, 5]

    def f(x):
        queue.pop()
        return x + 1

    return f, (rows(),)


@case(vmap=SAME)
def reads_a_list():
    weights = [1.0, 2.0]

    def f(x):
        return x * weights[0] + weights[-1]

    return f, (rows(),)


# ---- T003, T004, T005, T026: prints and randomness ------------------------------------------------------------------


@case(vmap=("same", "T003", "print("), grad=SAME)
def prints_shape():
    def f(x):
        print("shape", tuple(x.shape))
        return x + 1

    return f, (rows(),)


@case(vmap=("wrong", "T004", "random.random()"))
def python_random():
    def f(x):
        return x + random.random()

    return f, (rows(),)


@case(vmap=("wrong", "T004", "rng.normal()"))
def numpy_generator():
    rng = np.random.default_rng(0)

    def f(x):
        return x * rng.normal()

    return f, (rows(),)


@case(vmap=("refused", "T005", "torch.randn"), vmap_different=("random", None, None), grad=SAME)
def two_draws():
    def f(x):
        return x + torch.randn(2, dtype=x.dtype).sum() * torch.rand((), dtype=x.dtype)

    return f, (rows(),)


@case(vmap=("refused", "T005", "F.dropout"), vmap_same=("random", None, None))
def dropout_inside():
    def f(x):
        return F.dropout(x, 0.5)

    return f, (rows(),)


@case(vmap=SAME, vmap_same=SAME)
def dropout_off():
    def f(x):
        return F.dropout(x, 0.5, training=False)

    return f, (rows(),)


@case(vmap_different=("wrong", "T026", "torch.manual_seed"))
def seeds_inside():
    def f(x):
        torch.manual_seed(7)
        return x + torch.rand(5, dtype=x.dtype)

    return f, (rows(),)


# ---- T006, T007, T008, T024: writes ---------------------------------------------------------------------------------


@case(vmap=("refused", "T006", "out["), grad=SAME, compile_eager=SAME)
def factory_written():
    def f(x):
        out = torch.zeros(3, dtype=x.dtype)
        out[0] = x.sum()
        return out

    return f, (rows(),)


@case(vmap=("refused", "T006", "total"), grad=SAME)
def factory_accumulates():
    def f(x):
        total = torch.zeros((), dtype=x.dtype)
        for i in range(x.shape[0]):
            total += x[i]
        return total

    return f, (rows(),)


@case(vmap=("refused", "T006", "scatter_add_"), grad=SAME)
def factory_scattered():
    def f(x):
        bins = torch.zeros(4, dtype=x.dtype)
        return bins.scatter_add_(0, torch.tensor([0, 1, 1, 3, 0]), x)

    return f, (rows(),)


@case(vmap=SAME, grad=SAME, jacfwd=SAME)
def batched_factory_written():
    def f(x):
        out = x.new_zeros(3)
        out[0] = x.sum()
        return out

    return f, (rows(),)


@case(vmap=("refused", "T007", "history"), grad=("refused", "T007", "history"))
def captured_buffer_written():
    history = torch.zeros(5, dtype=torch.float64)

    def f(x):
        history.mul_(x)
        return history + 1

    return f, (rows(),)


@case(vmap=("wrong", "T007", "ticks"), compile_eager=SAME,
      compile_aot_eager=SAME if COMPILES_WRITES else ("wrong", "T007", "ticks"))  # fmt: skip
def captured_counter_tensor():
    ticks = torch.zeros((), dtype=torch.float64)

    def f(x):
        ticks.add_(1)
        return x + ticks

    return f, (rows(),)


@case(vmap=("refused", "T007", "self.total"))
def module_buffer_written():
    class Running(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(5, dtype=torch.float64))

        def forward(self, x):
            self.total.add_(x)
            return x - self.total

    return Running(), (rows(),)


@case(vmap=("refused", "T008", "torch.mul(x, 2, out=room)"), grad=("plain-refuses", "T008", "torch.mul"))
def out_argument():
    def f(x):
        room = torch.empty_like(x)
        torch.mul(x, 2, out=room)
        return room

    return f, (rows(),)


@case(vmap=("refused", "T024", "self.norm"))
def batch_norm_training():
    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2, dtype=torch.float64)

        def forward(self, x):
            return self.norm(x.reshape(3, 2)).sum(0)

    return Normed(), (rows(6),)


@case(vmap=SAME)
def batch_norm_eval():
    net = nn.BatchNorm1d(2, dtype=torch.float64).eval()

    def f(x):
        return net(x.reshape(3, 2))

    return f, (rows(6),)


# ---- T009, T010, T011: values that decide ---------------------------------------------------------------------------


@case(vmap=("refused", "T009", "x.sum() > 0"), grad=SAME, export=("refused", "T009", "x.sum() > 0"))
def if_on_sum():
    def f(x):
        if x.sum() > 0:
            return x
        return -x

    return f, (rows(),)


@case(vmap=("refused", "T009", "x > 1"))
def ternary():
    def f(x):
        return x if x > 1 else x * 0.5

    return f, (scalars(),)


@case(vmap=("refused", "T009", "x > 0"), export_strict=("refused", "T009", None))
def and_of_tensors():
    def f(x):
        return x * (2 if (x > 0 and x < 1) else 3)

    return f, (scalars(),)


@case(vmap=("refused", "T009", "max(x[0], x[1])"))
def builtin_max():
    def f(x):
        return max(x[0], x[1]) * 2

    return f, (rows(),)


@case(vmap=("refused", "T009", "range(n)"))
def range_of_tensor():
    def f(x, n):
        for _ in range(n):
            x = x * 0.5
        return x

    return f, (rows(), torch.tensor([1, 2, 3]))


@case(vmap=SAME, grad=SAME)
def where_instead():
    def f(x):
        return torch.where(x > 0, x, -x)

    return f, (rows(),)


@case(vmap=SAME, grad=SAME, export=SAME)
def branch_on_shape():
    def f(x):
        return x.sum() if x.dim() == 1 and len(x) > 2 else x

    return f, (rows(),)


@case(vmap=("refused", "T010", "float(x.sum())"), grad=("same", "T020", "float(x.sum())"))
def float_of_tensor():
    def f(x):
        return x / float(x.sum())

    return f, (rows(),)


@case(vmap=("refused", "T010", "math.exp(x[0])"), jacfwd=("same", "T020", "math.exp(x[0])"))
def math_of_tensor():
    def f(x):
        return x * math.exp(x[0])

    return f, (rows(),)


@case(vmap=("refused", "T010", "{x.max():.3f}"))
def formatted():
    def f(x):
        name = f"{x.max():.3f}"
        return x + len(name)

    return f, (rows(),)


@case(vmap=("refused", "T010", "torch.tensor([x[0], x[1]])"))
def tensor_of_tensors():
    def f(x):
        return torch.tensor([x[0], x[1]]) * 2

    return f, (rows(),)


@case(vmap=("refused", "T010", ".numpy()"), grad=("refused", "T010", ".numpy()"))
def numpy_inside():
    def f(x):
        return x * torch.from_numpy(np.tanh(x.detach().numpy()))

    return f, (rows(),)


@case(vmap=("refused", "T011", "x[mask]"), grad=SAME)
def boolean_mask():
    def f(x):
        mask = x > 0
        return x[mask].sum()

    return f, (rows(),)


@case(vmap=("refused", "T011", "x[:n]"))
def tensor_slice_bound():
    def f(x, n):
        return x[:n].sum()

    return f, (rows(), torch.tensor([1, 2, 3]))


@case(vmap=("refused", "T011", "torch.repeat_interleave"))
def repeat_by_tensor():
    def f(x, n):
        return torch.repeat_interleave(x[:2], n).sum()

    return f, (rows(), torch.tensor([[1, 2], [3, 1], [0, 1]]))


@case(vmap=SAME)
def one_hot_with_classes():
    def f(i):
        return F.one_hot(i, num_classes=4)

    return f, (torch.tensor([0, 2, 3]),)


# ---- T012, T019, T020: autograd inside ------------------------------------------------------------------------------


@case(vmap=("refused", "T012", "requires_grad_"), grad=("refused", "T012", "requires_grad_"))
def gradient_inside():
    def f(x):
        y = x.detach().clone().requires_grad_(True)
        return torch.autograd.grad(y.pow(3).sum(), y)[0]

    return f, (rows(),)


@case(vmap=("refused", "T012", "torch.autograd.functional.hessian"))
def functional_hessian():
    def f(x):
        return torch.autograd.functional.hessian(lambda z: z.pow(3).sum(), x).diagonal()

    return f, (rows(),)


@case(vmap=SAME, grad=SAME)
def func_grad_inside():
    def f(x):
        return torch.func.grad(lambda z: z.pow(3).sum())(x)

    return f, (rows(),)


@case(vmap=SAME, grad=("same", "T020", "x.norm()"), jvp=("wrong", "T019", None), jacfwd=("wrong", "T019", None))
def no_grad_block():
    def f(x):
        with torch.no_grad():
            size = x.norm()
        return x / size

    return f, (rows(),)


@case(vmap=SAME, grad=("same", "T020", "x.norm().detach()"), jvp=("same", "T020", "x.norm().detach()"))
def detach_block():
    def f(x):
        return x / x.norm().detach()

    return f, (rows(),)


# ---- T013, T014, T028, T036: rules that are missing or wrong -----------------------------------------------------


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class RoundedThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


class SquaredWrongly(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]

    @staticmethod
    def vmap(info, in_dims, x):
        return x + x, in_dims[0]


@case(vmap=("refused", "T013", "Doubled.apply(x)"), grad=("refused", "T013", "Doubled.apply(x)"))
def old_style_function():
    def f(x):
        return Doubled.apply(x)

    return f, (rows(),)


@case(vmap=SAME, grad=SAME,
      compile_of_grad=SAME if COMPILES_WRITES else ("wrong", "T013", "RoundedThrough.apply(x)"))  # fmt: skip
def straight_through():
    def f(x):
        return (RoundedThrough.apply(x) ** 2).sum()

    return f, (rows() * 3,)


@case(vmap=("wrong", "T013", "SquaredWrongly.apply(x)"), grad=SAME)
def wrong_vmap_rule():
    def f(x):
        return SquaredWrongly.apply(x) + 1

    return f, (rows(),)


@torch.library.custom_op("catalogue::cubed", mutates_args=())
def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


@cubed.register_fake
def _(x):
    return torch.empty_like(x)


@case(grad=("plain-refuses", "T014", "cubed(x)"), jvp=("wrong", "T014", "cubed(x)"))
def operator_without_rules():
    def f(x):
        return x * cubed(x)

    return f, (rows(),)


@case(vmap=("wrong", "T028", "torch.index_fill"))
def index_fill_over_value():
    table = torch.ones(2, 3, dtype=torch.float64)

    def f(v):
        return torch.index_fill(table, 0, torch.tensor([1]), v)

    return f, (scalars(),)


@case(jvp=("wrong", "T028", "scatter_reduce"), jacfwd=("wrong", "T028", "scatter_reduce"), grad=SAME)
def scatter_product():
    def f(x):
        index = torch.tensor([0, 1, 0, 1, 1])
        return torch.ones(2, dtype=x.dtype).scatter_reduce(0, index, x, "prod")

    return f, (rows(),)


@case(grad=SAME, jvp=("wrong", "T036", "torch.where"), jacfwd=("wrong", "T036", "torch.where"),
      hessian=("wrong", "T036", "torch.where"))  # fmt: skip
def guarded_root():
    def f(x):
        return torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))

    return f, (rows(),)


@case(jvp=("wrong", "T036", "torch.where"))
def guarded_sinc():
    def f(x):
        x = x - x[0].detach()
        return torch.where(x == 0, torch.ones_like(x), torch.sin(x) / x)

    return f, (rows(),)


@case(grad=SAME, jvp=SAME, jacfwd=SAME, hessian=SAME)
def guarded_root_of_what_is_safe():
    def f(x):
        safe = torch.where(x > 0, x, torch.ones_like(x))
        return torch.where(x > 0, torch.sqrt(safe), torch.zeros_like(x)).sum()

    return f, (rows(),)


@case(vmap=SAME, grad=SAME, jvp=SAME, jacfwd=SAME)
def scatter_sum():
    def f(x):
        index = torch.tensor([0, 1, 0, 1, 1])
        return torch.zeros(2, dtype=x.dtype).scatter_reduce(0, index, x, "sum")

    return f, (rows(),)


# ---- T016, T017, T018, T021, T022 -----------------------------------------------------------------------------------


@case(vmap=("same", "T016", "torch.bincount"))
def slow_operator():
    def f(x):
        return torch.bincount((x > 0).long(), minlength=3)

    return f, (rows(),)


@case(vmap=("refused", "T017", None), functional_call=SAME)
def returns_a_number():
    def f(x):
        return x + 1, x.shape[0]

    return f, (rows(),)


@case(vmap=("wrong", "T018", "torch.where"))
def promoted_by_where():
    base = torch.arange(4, dtype=torch.float32)

    def f(s):
        return torch.where(base > 1, base, s)

    return f, (scalars(),)


@case(vmap=SAME)
def promoted_by_product():
    base = torch.arange(4, dtype=torch.float32)

    def f(s):
        return base * s

    return f, (scalars(),)


@case(vmap=("wrong", "T021", "x.max().item()"))
def swallowed():
    def f(x):
        try:
            top = x.max().item()
        except RuntimeError:
            top = 1.0
        return x / top

    return f, (rows(),)


@case(vmap=SAME)
def handler_that_is_not_reached():
    def f(x):
        try:
            top = x.max()
        except RuntimeError:
            top = 1.0
        return x / top

    return f, (rows(),)


@case(vmap=("wrong", "T022", "x.storage_offset()"))
def offset_in_result():
    def f(x):
        return x + x.storage_offset()

    return f, (rows(),)


@case(vmap=("refused", "T022", "x.data_ptr()"))
def address_taken():
    def f(x):
        return x * (1 if x.data_ptr() else 2)

    return f, (rows(),)


# ---- T023, T025, T029, T030 -----------------------------------------------------------------------------------------


@case(vmap=("not-reproducible", "T023", "perf_counter"))
def clock_in_result():
    import time

    def f(x):
        return x + time.perf_counter()

    return f, (rows(),)


@case(vmap=("not-reproducible", "T023", "time.time()"))
def time_of_day_in_result():
    import time

    def f(x):
        return x + time.time()  # between two runs it moves by less than a tolerance forgives

    return f, (rows(),)


@case(vmap_of_compile=("same", "T029", None))
def compiled_under_vmap():
    def f(x):
        return x.sin() * 2

    return f, (rows(),)


@case(grad=("same", "T030", "torch.func.functional_call"))
def misspelled_key():
    net = nn.Linear(5, 2, dtype=torch.float64)

    def f(x):
        return torch.func.functional_call(net, {"wieght": torch.ones(2, 5, dtype=torch.float64)}, (x,))

    return f, (rows(),)


@case(grad=SAME, vmap=SAME)
def right_keys():
    net = nn.Linear(5, 2, dtype=torch.float64)
    values = {k: v.detach().clone() for k, v in net.named_parameters()}

    def f(x):
        return torch.func.functional_call(net, values, (x,))

    return f, (rows(),)


# ---- compositions ---------------------------------------------------------------------------------------------------


@case(vmap_of_grad=SAME, jacfwd_of_grad=SAME, grad_of_vmap=SAME, vmap_of_vmap=SAME, hessian=SAME, vmap_of_jacrev=SAME)
def smooth():
    def f(x):
        return (x.sin() * x).sum() if x.dim() else x.sin() * x

    return f, (rows(),)


@case(vmap_of_grad=("refused", "T009", "x.sum() > 0"), grad_of_vmap=("refused", "T009", "x.sum() > 0"))
def branch_under_compositions():
    def f(x):
        return x.sum() if x.sum() > 0 else x.prod()

    return f, (rows(),)


@case(vmap=("refused", "T009", "x.sum() > 0"))
def partial_of_function():
    def f(scale, x):
        return x * scale if x.sum() > 0 else x

    return functools.partial(f, 2.0), (rows(),)


@case(vmap=("refused", "T010", "b.item()"))
def lambda_on_a_shared_line():
    first, second = (lambda a: a * 2), (lambda b: b * b.item())
    return second, (scalars(),), 0, first
