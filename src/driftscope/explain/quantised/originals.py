"""What the float side has that quantised integers may stand for: its weights, and what it computes from them alone."""

from __future__ import annotations

import torch

from driftscope.lift.outline import tell_steps
from driftscope.lift.reconcile.folds import folded_values
from driftscope.lift.reconcile.subgraphs import evaluate
from driftscope.lift.steps import Constant, Lifted, Origin, Step, plain_name
from driftscope.records.finding import Where

# Where a product that adds its bias at once holds that bias: an exporter stores the product before it.
_BIAS = {"aten.addmm": 0, "aten.baddbmm": 0, "aten.linear": 2, "Gemm": 2}

# What a program that is quantised without the operators for it makes whole numbers with.
_ROUNDING = ("round", "floor", "ceil", "trunc", "fake_quantize")

# Noise that a number computed in another order, by another kernel, may be off by.
_NOISES = 4.0


def rounds(graph: Lifted) -> bool:
    """Whether a program makes whole numbers of floats on the way: its own quantisation, written out."""
    found = list[str]()

    def see(step: Step) -> None:
        if not step.constant and plain_name(step.operator).startswith(_ROUNDING):
            found.append(step.name)

    tell_steps(graph, see)
    return bool(found)


def float_weights(graph: Lifted) -> list[Constant]:
    """The weights of a program that may have been quantised, folded ones among them."""
    floats = [c for c in graph.constants() if c.origin is not Origin.LITERAL and c.value.dtype.is_floating_point]
    # An exporter folds a batch norm into the layer before it; what is quantised is the fold.
    return [*(c for c in floats if c.value.numel() > 1), *(fold for fold, _ in folded_values(graph).values())]


def consumed(graph: Lifted) -> set[str]:
    """What a program without batch norms stores folded: their weights, and those of the layers before them."""
    folds = folded_values(graph).items()
    return {name for words, (_, sources) in folds if "batch" in words.lower() for name in sources}


def computed_constants(graph: Lifted) -> list[Constant]:
    """What a program computes from its constants alone, as rotary tables: exporters store and quantisers round it."""
    products: dict[str, torch.Tensor] = {}

    def keep(step: Step) -> None:
        place, made = _BIAS.get(step.operator), step.outputs[0]
        bias = step.inputs[place] if place is not None and place < len(step.inputs) else None
        if bias is not None and made is not None:
            products[f"{step.name} without its bias"] = made - bias

    found = graph.constant_values(observe=keep) | products
    return [
        Constant(name, value, Origin.COMPUTED, Where())
        for name, value in found.items()
        if value.dtype.is_floating_point and value.numel() > 1
    ]


def computed_numbers(graph: Lifted) -> list[tuple[str, float, float]]:
    """The single numbers that a program computes from its constants alone, each of a softmax of a few.

    By name, with how far off they are that somebody computes and stores: few digits, where numbers cancel on the way.
    """
    found = evaluate(graph, {})
    single = {n: float(v) for n, v in found.exact.items() if v.numel() == 1 and v.dtype.is_floating_point}
    return [(n, v, sum(_NOISES * float(e.abs()) for e in found.noise_of(n))) for n, v in single.items() if v]
