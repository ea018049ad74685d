"""Programs whose dependence along an axis is known: what stands beside the modules of ``invariance_modules``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from torch.nn import functional as F

import driftscope as ds
from invariance.cached_decoders import FAULTS, decoder
from invariance.cached_decoders import inputs as cache_of

HONEST, EXACT, OTHER = frozenset({"same", "rounding"}), frozenset({"same"}), frozenset({"different"})
X = torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
MASK, LENGTHS = torch.ones(3, 9), torch.tensor([9, 4, 6])


@dataclass(frozen=True)
class KnownProgram:
    """A program, its inputs, the axis that is asked and what is right along it.

    ``place``: a part of the operator's name at which results begin to differ, where that is known.
    """

    id: str
    make: Callable[[], Any]
    inputs: Any
    axis: str
    right: frozenset[str]
    place: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class _Function(nn.Module):
    """A function with layers of fixed weights."""

    def __init__(self, function: Callable[..., Any], *parts: Callable[[], nn.Module]) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.parts = nn.ModuleList(make() for make in parts)
        self.function = function
        self.eval()


class _OfRows(_Function):
    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, *self.parts)


class _WithState(_Function):
    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        return self.function(x, state, *self.parts)


class _WithMask(_Function):
    def forward(self, x: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        return self.function(x, attention_mask, *self.parts)


class _WithLengths(_Function):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        return self.function(x, lengths, *self.parts)


# --- the batch -------------------------------------------------------------------------------------------------------


def _routed(x: torch.Tensor, gate: nn.Module, *experts: nn.Module, capacity: int | None = None) -> torch.Tensor:
    weights, chosen = gate(x).softmax(-1).topk(2, -1)
    y = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        rows, places = (chosen == number).nonzero(as_tuple=True)
        rows, places = rows[:capacity], places[:capacity]
        y.index_add_(0, rows, expert(x[rows]) * weights[rows, places, None])
    return y


def _experts() -> list[Callable[[], nn.Module]]:
    return [lambda: nn.Linear(16, 4), *[lambda: nn.Linear(16, 16)] * 4]


def _nearest_subtracted(x: torch.Tensor) -> torch.Tensor:
    return x - x[torch.cdist(x, x).fill_diagonal_(1e9).argmin(1)]


def _scored(x: torch.Tensor, head: nn.Module, *, time_first: bool = False) -> torch.Tensor:
    y = head(x)
    return (y.transpose(0, 1) if time_first else y).reshape(-1, 5)


def _of_batch() -> Iterator[KnownProgram]:
    def case(id: str, make: Callable[[], Any], right: frozenset[str], place: str = "", x: Any = X) -> KnownProgram:
        return KnownProgram(id, make, x, "batch", right, place)

    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    five = lambda: nn.Linear(8, 5)  # noqa: E731
    spectral = nn.utils.parametrizations.spectral_norm
    free = torch.export.Dim.DYNAMIC
    yield case("normalisation-without-running-statistics",
               lambda: nn.BatchNorm2d(3, track_running_stats=False).eval(), OTHER, "batch_norm", images)  # fmt: skip
    yield case("spectral-norm", lambda: _OfRows(lambda x, p: p(x), lambda: spectral(nn.Linear(8, 4))), HONEST)
    yield case("routing-changes-sizes", lambda: _OfRows(_routed, *_experts()), OTHER, "nonzero", ROWS)
    yield case("scores-in-one-axis", lambda: _OfRows(_scored, five), HONEST)
    yield case(
        "scores-in-one-axis-time-first", lambda: _OfRows(lambda x, p: _scored(x, p, time_first=True), five), HONEST
    )
    yield case("scores-in-one-axis-scaled-by-all",
               lambda: _OfRows(lambda x, p: _scored(x / x.abs().amax(), p), five), OTHER, "amax")  # fmt: skip
    yield case("normalised-along-rows", lambda: _OfRows(lambda x: F.normalize(x, dim=0)), OTHER, "vector_norm", ROWS)
    yield case("normalised-along-features", lambda: _OfRows(lambda x: F.normalize(x, dim=1)), HONEST, "", ROWS)
    yield case("reshape-mixes-rows", lambda: _OfRows(lambda x: x.transpose(0, 1).reshape(len(x), -1)), OTHER, "view")
    yield case("median-of-a-row", lambda: _OfRows(lambda x: x - x.flatten(1).median(1).values[:, None, None]), EXACT)
    yield case("quantile-of-all", lambda: _OfRows(lambda x: x.clamp(max=x.quantile(0.9))), OTHER, "sort")
    yield case("nearest-row", lambda: _OfRows(_nearest_subtracted), OTHER, "cdist", ROWS)
    yield case("size-decides", lambda: _OfRows(lambda x: x * (1.0 if len(x) < 8 else 1.5)), OTHER, "mul", ROWS)
    yield case("rows-in-groups-of-8", lambda: _OfRows(lambda x, p: torch.cat([p(part) for part in x.split(8)]), five),
               HONEST, "", torch.randn(20, 8, generator=torch.Generator().manual_seed(2)))  # fmt: skip
    yield case("sampled-where-it-says", lambda: _OfRows(
        lambda x, p: F.grid_sample(x, p(x).tanh().permute(0, 2, 3, 1), align_corners=False),
        lambda: nn.Conv2d(3, 2, 3, padding=1)), HONEST, "", images)  # fmt: skip
    yield case("distances-to-prototypes", lambda: _OfRows(lambda x, p: torch.cdist(x, p.weight), five), HONEST)
    yield case("one-row-given", lambda: _OfRows(lambda x: x / x.abs().amax()), OTHER, "amax", ROWS[:1])
    yield case("numpy-scaled-by-all", lambda: lambda x: np.tanh(x) / np.abs(x).max(), OTHER, "", ROWS.double().numpy())
    yield case("exported", lambda: torch.export.export(
        nn.Linear(16, 4).eval(), (ROWS,), dynamic_shapes=({0: free},)), HONEST, "", ROWS)  # fmt: skip
    yield case("exported-for-one-batch", lambda: torch.export.export(nn.Linear(16, 4).eval(), (ROWS,)),
               frozenset({"refused"}), "", ROWS)  # fmt: skip
    yield case("bfloat16", lambda: _OfRows(lambda x, p: p(x).sum(-1), lambda: nn.Linear(8, 64).bfloat16()), HONEST, "",
               X.bfloat16())  # fmt: skip


def _file(op: str, inputs: list[str], constants: dict[str, Any], *, opset: int = 17, more: tuple[Any, ...] = (),
          **attributes: Any) -> Any:  # fmt: skip
    nodes = [helper.make_node(op, inputs, ["y"], "it", **attributes), *more]
    of = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 9, 8]) for n in ("x", "z" if more else "y")]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    graph = helper.make_graph(nodes, "g", of[:1], of[1:], stored)
    return ds.onnx(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8))


def _of_files() -> Iterator[KnownProgram]:
    def case(id: str, make: Callable[[], Any], right: frozenset[str], place: str = "") -> KnownProgram:
        return KnownProgram(f"file-{id}", make, {"x": X}, "batch", right, place)

    back = (helper.make_node("Reshape", ["y", "s"], ["z"]),)
    free, fixed = np.array([-1, 72]), np.array([3, 72])
    whole = np.array([-1, 9, 8])
    yield case("softmax-of-rows", lambda: _file("Softmax", ["x"], {}, opset=11, axis=1), HONEST)
    yield case("softmax-of-all", lambda: _file("Softmax", ["x"], {}, opset=11, axis=0), OTHER, "Softmax")
    yield case("running-sum-in-rows", lambda: _file("CumSum", ["x", "a"], {"a": np.array(1)}), HONEST)
    yield case("running-sum-over-rows", lambda: _file("CumSum", ["x", "a"], {"a": np.array(0)}), OTHER, "CumSum")
    yield case("reshaped", lambda: _file("Reshape", ["x", "r"], {"r": free, "s": whole}, more=back), EXACT)
    yield case("reshaped-to-three-rows", lambda: _file("Reshape", ["x", "r"], {"r": fixed, "s": whole}, more=back),
               frozenset({"refused"}))  # fmt: skip


# --- padding ---------------------------------------------------------------------------------------------------------


def _gru(x: torch.Tensor, lengths: torch.Tensor, gru: nn.Module, *, packed: bool) -> torch.Tensor:
    given: Any = x
    if packed:
        given = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    last: torch.Tensor = gru(given)[1][0]
    return last


def _alibi(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    at = torch.arange(x.shape[1])
    scores = x @ x.transpose(1, 2) - 0.25 * (at[None] - at[:, None]).abs()
    return scores.masked_fill(mask[:, None] == 0, -1e9).softmax(-1) @ x


def _in_half(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = (x @ x.transpose(1, 2) * 40).half() + ((1 - mask)[:, None] * -100).half()
    return scores.float().softmax(-1) @ x


def _of_padding() -> Iterator[KnownProgram]:
    def case(id: str, function: Callable[..., Any], right: frozenset[str], place: str = "",
             *parts: Callable[[], nn.Module]) -> KnownProgram:  # fmt: skip
        given = {"x": X, "attention_mask": MASK}
        return KnownProgram(id, lambda: _WithMask(function, *parts), given, "padding", right, place)

    gru = lambda: nn.GRU(8, 5, batch_first=True)  # noqa: E731
    both = lambda: nn.LSTM(8, 4, batch_first=True, bidirectional=True)  # noqa: E731
    for packed in (True, False):
        yield KnownProgram(f"gru-packed-{packed}", lambda packed=packed: _WithLengths(
            lambda x, lengths, p: _gru(x, lengths, p, packed=packed), gru), {"x": X, "lengths": LENGTHS},
            "padding", HONEST if packed else OTHER)  # fmt: skip
    yield case("alibi", _alibi, HONEST)
    yield case("weak-mask-in-half", _in_half, OTHER, "softmax")
    yield case("last-position", lambda x, mask: x[:, -1] * mask.sum(1, keepdim=True), OTHER)
    yield case("last-kept-position",
               lambda x, mask: x[torch.arange(len(x)), (mask * torch.arange(mask.shape[1])).argmax(1)],
               EXACT)  # fmt: skip
    yield case("positions-scaled-by-length",
               lambda x, mask: (x + torch.linspace(0, 1, x.shape[1])[:, None]) * mask[..., None],
               OTHER, "linspace")  # fmt: skip
    yield case("normalised-by-stored-statistics",
               lambda x, mask, p: p(x.transpose(1, 2)).transpose(1, 2) * mask[..., None], HONEST, "",
               lambda: nn.BatchNorm1d(8))  # fmt: skip
    yield case("normalised-over-positions",
               lambda x, mask, p: p(x.transpose(1, 2)).transpose(1, 2) * mask[..., None], OTHER, "batch_norm",
               lambda: nn.InstanceNorm1d(8))  # fmt: skip
    yield case("from-both-sides", lambda x, mask, p: p(x)[0] * mask[..., None], OTHER, "rnn", both)
    yield case("largest-kept", lambda x, mask: x.masked_fill(mask[..., None] == 0, -1e30).amax(1), EXACT)
    yield case("largest-of-products", lambda x, mask: (-x.abs() * mask[..., None]).amax(1), OTHER, "amax")
    yield case("scores-in-one-axis", lambda x, mask: (x * mask[..., None]).flatten(0, 1), EXACT)


# --- pieces ----------------------------------------------------------------------------------------------------------


def _turned(x: torch.Tensor, offset: int) -> torch.Tensor:
    angle = (torch.arange(x.shape[1])[:, None] + offset) * torch.tensor([1.0, 0.3, 0.1, 0.03])
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def _attends(x: torch.Tensor, state: Any, q: nn.Module, k: nn.Module, *, fault: str = "", window: int = 99) -> Any:
    """Attention with rotated queries and keys and a sliding window; the state holds keys and values."""
    done = 0 if state is None else state[0].shape[1]
    queries, keys, values = _turned(q(x), 0 if fault == "offset" else done), _turned(k(x), done), x
    if state is not None:
        keys, values = torch.cat([state[0], keys], 1), torch.cat([state[1], values], 1)
    other, own = torch.arange(keys.shape[1])[None], torch.arange(done, done + x.shape[1])[:, None]
    hidden = (other > own) | (other <= own - window)
    y = (queries @ keys.transpose(1, 2)).masked_fill(hidden, -torch.inf).softmax(-1) @ values
    if fault == "rounded":
        keys = (keys * 16).round() / 16
    return y, (keys[:, -2:], values[:, -2:]) if fault == "cut" else (keys, values)


def _streams(x: torch.Tensor, state: Any, convolution: nn.Module, *, kept: int = 3) -> Any:
    h = x.transpose(1, 2)
    h = torch.cat([h.new_zeros(len(h), 8, 3) if state is None else state, h], -1)
    return convolution(h).transpose(1, 2), F.pad(h[..., -kept:], (3 - kept, 0))


def _scans(x: torch.Tensor, state: Any, *, half: bool = False) -> Any:
    h, found = torch.zeros(len(x), x.shape[2]) if state is None else state, []
    for t in range(x.shape[1]):
        h = 0.9 * h + x[:, t]
        found.append(h * x[:, t].sigmoid())
    return torch.stack(found, 1), h.half().float() if half else h


def _of_pieces() -> Iterator[KnownProgram]:
    def case(id: str, function: Callable[..., Any], right: frozenset[str], place: str = "",
             *parts: Callable[[], nn.Module]) -> KnownProgram:  # fmt: skip
        return KnownProgram(id, lambda: _WithState(function, *parts), X, "chunking", right, place)

    two = (lambda: nn.Linear(8, 8),) * 2
    yield case("rotary", _attends, HONEST, "", *two)
    yield case("sliding-window", lambda *a: _attends(*a, window=3), HONEST, "", *two)
    yield case("queries-begin-again", lambda *a: _attends(*a, fault="offset"), OTHER, "mul", *two)
    yield case("window-cut-short", lambda *a: _attends(*a, fault="cut", window=4), OTHER, "", *two)
    yield case("keys-rounded", lambda *a: _attends(*a, fault="rounded"), OTHER, "cat", *two)
    yield case("streaming", _streams, HONEST, "", lambda: nn.Conv1d(8, 8, 4))
    yield case(
        "streaming-keeps-too-few", lambda *a: _streams(*a, kept=2), OTHER, "convolution", lambda: nn.Conv1d(8, 8, 4)
    )
    yield case("scan", _scans, HONEST)
    yield case("scan-kept-in-half", lambda *a: _scans(*a, half=True), OTHER, "_to_copy")
    for fault, operator in FAULTS.items():
        yield KnownProgram(f"file-cache-{fault or 'honest'}", lambda fault=fault: ds.onnx(decoder(fault)), cache_of(),
                           "chunking", OTHER if fault else HONEST, operator)  # fmt: skip


# --- calls -----------------------------------------------------------------------------------------------------------


class _MovingMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean: torch.Tensor
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        return x - self.mean


def _of_calls() -> Iterator[KnownProgram]:
    def case(id: str, make: Callable[[], Any], axis: str, right: frozenset[str], place: str = "") -> KnownProgram:
        return KnownProgram(id, make, ROWS, axis, right, place)

    def seeded(x: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))

    yield case("moving-mean", _MovingMean, "repeat", OTHER)
    yield case("gumbel", lambda: _OfRows(F.gumbel_softmax), "repeat", OTHER, "exponential")
    yield case("seeded-noise", lambda: _OfRows(seeded), "repeat", EXACT)
    yield case("seeded-noise-by-place", lambda: _OfRows(seeded), "order", OTHER, "randn")
    yield case("nearest-in-order", lambda: _OfRows(lambda x: x.argsort(-1)), "order", EXACT)
    yield case("threads-of-a-sum", lambda: _OfRows(lambda x: x.sum(-1)), "threads", HONEST)
    yield case("strides-of-a-product", lambda: _OfRows(lambda x: x @ x.T), "layout", HONEST)


PROGRAMS = [*_of_batch(), *_of_files(), *_of_padding(), *_of_pieces(), *_of_calls()]
