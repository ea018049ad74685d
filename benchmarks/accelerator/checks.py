"""What is asked of an accelerator: each check is a function of the device, and says what it expects.

A check returns an :class:`Answer`. ``agrees`` is None where the device cannot do what is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

import driftscope as ds
from driftscope.errors import DriftscopeError
from driftscope.programs.torch_devices import ACCELERATORS

PRODUCTS = ("torch.matmul", "torch.linear")
ANY = ("cpu", *ACCELERATORS)
SAME = (ds.Verdict.IDENTICAL, ds.Verdict.ROUNDING)


@dataclass
class Answer:
    """What one check found.

    Parameters
    ----------
    agrees : bool or None
    words : str
        One line of it.
    found : dict of str to text or number
    """

    agrees: bool | None
    words: str
    found: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """One question, and the devices that can be asked it."""

    name: str
    asks: str
    answer: Callable[[str], Answer]
    devices: tuple[str, ...] = ANY

    def run(self, device: str) -> dict[str, Any]:
        """Answer as plain data."""
        return asdict(self.answer(device))


class Encoder(nn.Module):
    """A small transformer layer: products, softmax, LayerNorm, GELU."""

    def __init__(self, width: int = 256, eps: float = 1e-5):
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps)
        self.take, self.give = nn.Linear(width, 3 * width), nn.Linear(width, width)
        # numpy's generator: torch's draws other last bits on other processors.
        random = np.random.default_rng(7)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.from_numpy(random.standard_normal(weight.shape) * width**-0.5))
            self.norm.weight.add_(1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(B, T, width)`` to the same."""
        q, k, v = self.take(self.norm(x)).chunk(3, -1)
        shares = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
        return torch.nn.functional.gelu(self.give(shares @ v)) + x


def sample(*shape: int) -> torch.Tensor:
    """Normal numbers, the same on every machine."""
    return torch.from_numpy(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


X = {"x": sample(2, 64, 256)}


def told(comparison: ds.Comparison) -> dict[str, str]:
    """The verdict and the first finding of a comparison, in words."""
    first = comparison.first
    words = {"verdict": comparison.verdict.value, "reason": comparison.reason}
    if first is not None:
        words |= {"finding": f"{first.code}: {first.what}", "why": str(first.why), "node": str(first.where.node)}
    return words


def _verdicts(pairs: dict[str, ds.Comparison], expected: dict[str, tuple[ds.Verdict, ...]]) -> Answer:
    agrees = all(pairs[name].verdict in wanted for name, wanted in expected.items())
    found = {f"{name}, {key}": value for name, c in pairs.items() for key, value in told(c).items()}
    return Answer(agrees, ", ".join(f"{name}: {c.verdict.value}" for name, c in pairs.items()), found)


def eager(device: str) -> Answer:
    """Processor against device: rounding; a planted epsilon: found there, at the LayerNorm."""
    here = ds.torch(Encoder(), device="cpu")
    pairs = {
        "the same module": ds.compare(here, ds.torch(Encoder(), device=device), X),
        "another epsilon": ds.compare(here, ds.torch(Encoder(eps=1e-3), device=device), X),
    }
    answer = _verdicts(pairs, {"the same module": SAME, "another epsilon": (ds.Verdict.DIFFERENT,)})
    first = pairs["another epsilon"].first
    if first is None or "norm" not in f"{first.where.node} {first.where.module} {first.what}".lower():
        return Answer(False, f"{answer.words}, but the LayerNorm is not named", answer.found)
    return answer


def compiled(device: str) -> Answer:
    """Eager against torch.compile, both on the device: rounding."""
    with_default = ds.compare(ds.torch(Encoder(), device=device), ds.torch(Encoder(), device=device, compile=True), X)
    return _verdicts({"inductor": with_default}, {"inductor": SAME})


@contextlib.contextmanager
def _allowed(place: Any, name: str, value: bool) -> Iterator[None]:
    kept = getattr(place, name)
    setattr(place, name, value)
    try:
        yield
    finally:
        setattr(place, name, kept)


def tf32(device: str) -> Answer:
    """Float32 products off: rounding. In TF32: PRECISION, and TF32 is the cause that was reproduced."""
    pairs = {}
    for allowed in (False, True):
        with _allowed(torch.backends.cuda.matmul, "allow_tf32", allowed):
            pairs["TF32" if allowed else "float32"] = ds.compare(
                ds.torch(Encoder(), device="cpu"), ds.torch(Encoder(), device=device), X
            )
    answer = _verdicts(pairs, {"float32": SAME, "TF32": (ds.Verdict.PRECISION,)})
    if torch.cuda.get_device_capability()[0] < 8:
        return Answer(None, "this device has no TF32", answer.found)
    answer.agrees = answer.agrees and "TF32" in str(answer.found)
    return answer


def half(device: str) -> Answer:
    """Float16 and bfloat16 on tensor cores, reduced-precision accumulation on and off: rounding of that format."""
    pairs = {}
    for dtype in (torch.float16, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        switch = f"allow_{'fp16' if dtype is torch.float16 else 'bf16'}_reduced_precision_reduction"
        for reduced in (True, False):
            with _allowed(torch.backends.cuda.matmul, switch, reduced):
                pairs[f"{name}, reduced accumulation {'on' if reduced else 'off'}"] = ds.compare(
                    ds.torch(Encoder(), device="cpu", dtype=dtype), ds.torch(Encoder(), device=device, dtype=dtype), X
                )
    return _verdicts(pairs, dict.fromkeys((n for n in pairs if n.endswith("off")), SAME))


def fp8(device: str) -> Answer:
    """A product of float8_e4m3fn by ``torch._scaled_mm`` is the float32 product of the same numbers, rounded once."""
    multiply = getattr(torch, "_scaled_mm", None)
    if multiply is None or not hasattr(torch, "float8_e4m3fn"):
        return Answer(None, "this torch has no product of float8")
    a, b = (sample(*shape).to(torch.float8_e4m3fn).to(device) for shape in ((64, 128), (32, 128)))
    one = torch.ones((), device=device)
    try:
        native = multiply(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    except RuntimeError as error:
        return Answer(None, f"refused: {str(error).splitlines()[0]}")
    exact = a.cpu().double() @ b.cpu().double().t()
    # Rounded once to bfloat16, 2^-9, beside the sum of 128 products of a tensor core's accumulator.
    worst = float(((native.cpu().double() - exact).abs() / exact.abs().clamp(min=1.0)).max())
    return Answer(worst < 2.0**-7, f"largest relative error {worst:.2e}", {"largest relative error": worst})


def exact(device: str) -> Answer:
    """Exact sums on the device have the processor's bits, in any order; by Triton where it is installed."""
    from driftscope.accumulation.exact import triton_sums

    found: dict[str, Any] = {"Triton": triton_sums._kernel() is not None}
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = (sample(33, 5000) * 2.0 ** torch.from_numpy(np.random.default_rng(1).integers(-9, 9, (33, 5000)))).to(dtype)
        here, there = ds.exact.sum(x, dim=-1), ds.exact.sum(x.to(device), dim=-1).cpu()
        turned = ds.exact.sum(x.flip(-1).contiguous().to(device), dim=-1).cpu()
        found[str(dtype)] = bool(torch.equal(here, there) and torch.equal(here, turned))
    same = all(value for key, value in found.items() if key != "Triton")
    return Answer(same, "the same bits" if same else "other bits", found)


def orders(device: str) -> Answer:
    """The order in which the device's kernels add: sums, products in three formats, a compiled sum."""
    questions: dict[str, tuple[Any, int, dict[str, Any]]] = {
        f"{kernel}, {n} of {dtype}": (kernel, n, {"dtype": dtype})
        for kernel, n, dtype in (
            ("torch.sum", 1000, "float32"), ("torch.mean", 4096, "float32"), ("torch.matmul", 512, "float32"),
            ("torch.matmul", 512, "float16"), ("torch.matmul", 512, "bfloat16"), ("torch.linear", 300, "float32"),
        )
    }  # fmt: skip
    questions["torch.compile of a sum, 1000 of float32"] = (torch.compile(lambda x: x.sum(-1)), 1000, {})
    found: dict[str, str] = {}
    for name, (kernel, n, options) in questions.items():
        if kernel in PRODUCTS:
            options["shape"] = (16, n, 16)
        try:
            answer = ds.reveal(kernel, n, device=device, max_seconds=15.0, **options)
            found[name] = f"{answer.pattern}, accumulator {answer.accumulator}" if answer.verified else "not verified"
        except (DriftscopeError, RuntimeError) as error:
            found[name] = f"no order: {str(error).splitlines()[0]}"
    known = sum(not words.startswith("no") for words in found.values())
    return Answer(known > 0, f"{known} of {len(found)} orders found and verified", found)


def studies(device: str) -> Answer:
    """The three studies, small, on the device."""
    made = {
        "gemm": ds.studies.gemm("64x96x32", "float32", device, "normal", levels="all", reveal=False, workers=0),
        "layer_norm": ds.studies.layer_norm(32, 96, "float32", device, "normal", workers=0),
        "reduction": ds.studies.reduction("torch.sum", "normal", 512, "float32", permutations=16, workers=0),
    }
    found = {name: f"{len(study.rows)} rows, {_refused(study)} without a result" for name, study in made.items()}
    return Answer(all(study.rows for study in made.values()), "; ".join(f"{k}: {v}" for k, v in found.items()), found)


def _refused(study: Any) -> int:
    return sum(bool(getattr(row, "error", None)) for row in study.rows)


def served(device: str) -> Answer:
    """The exported file on onnxruntime's provider for the device against torch on the processor: rounding."""
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return Answer(None, "the installed onnxruntime has no CUDA provider (pip install onnxruntime-gpu)")
    file = torch.onnx.export(Encoder(), (X["x"],), dynamo=True, verbose=False)
    pair = ds.compare(ds.torch(Encoder(), device="cpu"), ds.onnx(file.model_proto, provider="cuda"), X)
    return _verdicts({"onnxruntime": pair}, {"onnxruntime": SAME})


#: The shorter and the more important first: time may run out.
CHECKS: tuple[Check, ...] = (
    Check("eager", "is the device the processor, and is a planted bug found and located on it?", eager),
    Check("tf32", "TF32 off and on: rounding, then PRECISION with its cause", tf32, ("cuda",)),
    Check("half", "float16 and bfloat16 on tensor cores, reduced accumulation on and off", half, ("cuda",)),
    Check("fp8", "is a float8 product what its numbers say?", fp8, ("cuda",)),
    Check("exact", "do exact sums have the processor's bits, in any order?", exact),
    Check("compile", "torch.compile against eager, both on the device", compiled),
    Check("orders", "in which order do the device's kernels add?", orders, ("cpu", "cuda", "xpu")),
    Check("studies", "gemm, layer_norm and reduction, small", studies),
    Check("onnxruntime", "the exported file on the device's provider", served, ("cuda",)),
)
