"""Evaluates one call: by its own rule if it has one, else by its own kernel on float64 arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from driftscope.errors import CannotLift
from driftscope.lift.formulas.linear_algebra import MovedOperands
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
from driftscope.lift.torch.ops.kinds import (
    BACKWARD_NAMES,
    EIGENVALUE_NAMES,
    EXACT_NAMES,
    FUNCTION_NAMES,
    ROUND_NAMES,
    SUM_NAMES,
    UNWRITTEN_NAMES,
)
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


def decides(name: str, namespace: str) -> bool:
    """Whether an operator of that name chooses by its numbers: they are taken natively."""
    rule = rule_of(name, namespace)
    return rule is not None and rule.__module__ == decisions.__name__


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
    if call.facts.name in UNWRITTEN_NAMES:
        outputs = [None if made is None else torch.zeros_like(made) for made in outputs]
    if call.facts.name in ("linalg_cross", "cross"):
        rounding = Rounding(Kind.ROUND, parts=lambda: _crossed(call, *args[:2]))
    elif call.facts.name in BACKWARD_NAMES and not written:
        rounding = Rounding(Kind.FUNCTION, moved=_moved(call, args, kwargs))
    # What a kernel writes to besides its results comes after them.
    return outputs + written[: len(call.formats) - len(outputs)], rounding


def _crossed(call: Call, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Size of the two products that a cross product subtracts."""
    sides = torch.broadcast_tensors(a, b)
    given = call.raw("dim")
    axis = next(k for k, size in enumerate(sides[0].shape) if size == 3) if given is None else int(given)
    products = (torch.roll(sides[0], -k, axis) * torch.roll(sides[1], k, axis) for k in (1, -1))
    return torch.hypot(*products)


def _moved(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> MovedOperands:
    count, names = len(args), list(kwargs)

    def run(operands: Sequence[Any]) -> Outputs:
        return tensors_in(call.function(*operands[:count], **dict(zip(names, operands[count:], strict=True))))

    def values(operands: Sequence[Any]) -> Sequence[Any]:
        """The values without vectors, as torch asks for them where nobody looks on."""
        if call.facts.name == "_linalg_eigh":
            return [call.function(operands[0], compute_v=False)[0], None]
        return [None, call.function(operands[0], compute_uv=False)[1], None]

    return MovedOperands(
        run, [*args, *kwargs.values()], values if call.facts.name in ("_linalg_eigh", "_linalg_svd") else None,
        unordered=call.facts.name in EIGENVALUE_NAMES, known=call.replay.tape.growths, number=call.entry.index,
    )  # fmt: skip


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
