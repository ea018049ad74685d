"""Evaluates one call: by its own rule if it has one, else by its own kernel on float64 arguments."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.formulas.terms import EXACT, FUNCTION, ROUND
from driftscope.lift.steps import Kind, Rounding
from driftscope.lift.torch.call import Call
from driftscope.lift.torch.entries import ATEN_NAMESPACES, tensors_in
from driftscope.lift.torch.ops import (
    activations,
    attention,
    casts,
    decisions,
    elementwise,
    fused,
    norms,
    pooling,
    products,
    quantised,
    recurrent,
)
from driftscope.lift.torch.ops.kinds import BACKWARD_NAMES, EXACT_NAMES, FUNCTION_NAMES, ROUND_NAMES, SUM_NAMES
from driftscope.lift.torch.ops.registry import FORMULAS, RULES, Outputs, Rule

FAMILIES = (
    activations,
    attention,
    casts,
    decisions,
    elementwise,
    fused,
    norms,
    pooling,
    products,
    quantised,
    recurrent,
)
# Libraries whose operators' names mean what they mean in ATen, or have rules of their own.
_KNOWN = frozenset({*ATEN_NAMESPACES, "quantized", "quantized_decomposed", "torchvision", "transformers"})


def evaluate(call: Call) -> tuple[Outputs, Rounding]:
    """Evaluate a call in float64.

    Raises
    ------
    CannotLift
        If the operator is not one whose float64 meaning is known.
    """
    name = call.facts.name
    own = rule_of(name, call.function.namespace)
    if own is not None:
        return own(call)
    if name in FORMULAS and _has_tensor_number(call):
        return [FORMULAS[name](call)], _kind(call)
    return by_kernel(call)


def rule_of(name: str, namespace: str) -> Rule | None:
    """Return the rule of an operator of that name (without its overload), if it has one of its own."""
    own = RULES.get(name) or RULES.get(name.removesuffix("_"))
    return own if namespace in _KNOWN else None


def by_kernel(call: Call) -> tuple[Outputs, Rounding]:
    """Evaluate a call by its own kernel on lifted arguments."""
    namespace = call.function.namespace
    if namespace not in ATEN_NAMESPACES and not _is_known(call):
        raise CannotLift(
            f"{call.entry.where}: the operator {namespace}::{call.facts.name} is opaque; "
            "what it computes inside its kernel has no float64 evaluation."
        )
    if call.facts.random and (call.raw("training") or call.raw("train")):
        raise CannotLift(f"{call.entry.where} draws random numbers inside its kernel; call eval() on the module.")
    rounding = _kind(call)
    args, kwargs = call.lifted()
    args = [_number(call, n, a) for n, a in zip(call.facts.positions, args, strict=False)]
    kwargs = {k: _number(call, k, v) for k, v in kwargs.items()}
    if call.facts.name == "binary_cross_entropy":
        # The kernel takes probabilities alone, and noise may carry one past one, where rounding stops.
        args[:2] = [p.clamp(0.0, 1.0) for p in args[:2]]
    if call.facts.name == "soft_margin_loss":
        call.show("powers", (-args[0] * args[1]).exp(), EXACT)  # the kernel keeps them in its format
    written = []
    for name in call.facts.writes:
        position = call.facts.positions.get(name)
        if position is not None and position < len(args) and isinstance(args[position], torch.Tensor):
            args[position] = args[position].clone()
            written.append(args[position])
    outputs = tensors_in(call.function(*args, **kwargs))
    if call.facts.name in BACKWARD_NAMES and not written:
        rounding = Rounding(Kind.FUNCTION, parts=lambda: _amplified(call, args, kwargs, outputs))
    # What a kernel writes to besides its results comes after them.
    return outputs + written[: len(call.formats) - len(outputs)], rounding


# Rounded operands that stand for the rounding inside a kernel of linear algebra, and by how much each is moved.
_MOVED, _STEP = 4, 2.0**-24


def _amplified(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], outputs: Sequence[Any]) -> torch.Tensor:
    """Size of what a kernel of linear algebra carries to its result, in unit roundoffs.

    Such kernels are backward stable: what they give is the exact result of operands that are rounded. (Higham,
    *Accuracy and Stability of Numerical Algorithms*, 2nd ed., sections 1.5 and 9.3.)
    """
    generator = torch.Generator().manual_seed(0)
    position = 1 if call.facts.name == "_linalg_slogdet" else 0

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        noise = torch.randn(value.shape, generator=generator, dtype=torch.float64).to(value.device)
        return value * (1.0 + _STEP * noise)

    total = torch.zeros_like(outputs[position], dtype=torch.float64)
    for _ in range(_MOVED):
        with contextlib.suppress(RuntimeError):
            again = tensors_in(call.function(*map(moved, args), **{k: moved(v) for k, v in kwargs.items()}))
            total += (again[position] - outputs[position]).abs().square()
    return (total / _MOVED).sqrt().nan_to_num(0.0, 0.0, 0.0) / _STEP


def _is_known(call: Call) -> bool:
    return call.function.namespace == "torchvision" and call.facts.name in ("roi_align", "deform_conv2d")


def _is_number(call: Call, name: str) -> bool:
    type_ = call.facts.types.get(name, "")
    return "Tensor" not in type_ and ("number" in type_ or "float" in type_) and "List" not in type_


def _number(call: Call, name: str, value: Any) -> Any:
    """Give a kernel the Python number it wants, where a number was replaced by a tensor."""
    if isinstance(value, torch.Tensor) and _is_number(call, name):
        return value.item()
    return value


def _has_tensor_number(call: Call) -> bool:
    given = call.facts.names(call.args, call.kwargs)
    return any(isinstance(v, torch.Tensor) and _is_number(call, n) for n, v in given)


def _kind(call: Call) -> Rounding:
    name = call.facts.name.removesuffix("_")
    if call.facts.view or name in EXACT_NAMES:
        return EXACT
    if not any(f is not None and (f.is_floating_point or f.is_complex) for f in call.formats):
        return EXACT
    if name in ROUND_NAMES:
        return ROUND
    if name in SUM_NAMES:
        return _sum(call)
    if call.facts.pointwise or name in FUNCTION_NAMES:
        return FUNCTION
    raise CannotLift(
        f"{call.entry.where}: {call.function.namespace}.{name} has no float64 evaluation that is known to be right."
    )


def _sum(call: Call) -> Rounding:
    first = next((a for a in call.args if hasattr(a, "lifted")), None)
    if first is None:
        return Rounding(Kind.SUM)
    number = call.entry.outputs[0] if call.entry.outputs else None
    terms = (first.stored if first.value is None else first.value).numel()
    results = 1
    if number is not None:
        for n in call.replay.tape.values[number].shape:
            results *= n
    return Rounding(Kind.SUM, max(1, terms // max(1, results)), running=_runs(call))


def _runs(call: Call) -> bool:
    """Whether a norm's kernel keeps one running sum: all do but the Euclidean one along the innermost axes.

    Measured in torch 2.13: over 256 numbers of an outer axis a norm loses 2.1 units roundoff, of the last axis 0.7.
    """
    if call.facts.name != "linalg_vector_norm":
        return False
    value, dims = call.value("self"), call.raw("dim")
    rank = value.dim()
    axes = sorted(d % rank for d in dims) if dims and rank else list(range(rank))
    order = call.raw("ord")
    return (order is not None and float(order) != 2.0) or axes != list(range(rank - len(axes), rank))
