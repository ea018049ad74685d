"""The reference of the tape's tests: the same function called on float64 inputs, with float64 as the default."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from driftscope.lift.steps import LiftedOutput
from driftscope.lift.torch.tape import TorchTape, lift_torch
from driftscope.programs.value_trees import flatten


def up(value: Any) -> Any:
    """Up-cast a tensor; everything else stays."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.is_complex():
        return value.to(torch.complex128)
    return value.double() if value.is_floating_point() else value.clone()


def truth(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
    """Call a function or a copy of a module in float64 and return its output leaves."""
    if isinstance(function, torch.nn.Module):
        function = copy.deepcopy(function).double()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            result = function(*map(up, args), **{k: up(v) for k, v in kwargs.items()})
    finally:
        torch.set_default_dtype(before)
    return [leaf for _, leaf in flatten(result)[0]]


def lift(function: Callable[..., Any], *args: Any, **kwargs: Any) -> TorchTape:
    """Lift a function or module."""
    module = function if isinstance(function, torch.nn.Module) else None
    return lift_torch(function, args, kwargs, module=module)


def distance(lifted: list[LiftedOutput], reference: list[Any]) -> float:
    """Largest difference relative to the largest element, over all outputs; integers must be equal."""
    assert len(lifted) == len(reference)
    worst = 0.0
    for output, expected in zip(lifted, reference, strict=True):
        if not isinstance(expected, torch.Tensor):
            assert output.value is None
            continue
        assert output.value is not None
        assert output.value.shape == expected.shape
        if not (expected.is_floating_point() or expected.is_complex()):
            assert torch.equal(output.value, expected), str(output.path)
        elif expected.numel():
            assert output.value.dtype == expected.dtype
            scale = float(expected.abs().max()) or 1.0
            assert torch.equal(torch.isfinite(output.value), torch.isfinite(expected))
            worst = max(worst, float((output.value - expected).nan_to_num().abs().max()) / scale)
    return worst


def assert_truth(function: Callable[..., Any], *args: Any, tolerance: float = 1e-13, **kwargs: Any) -> TorchTape:
    """Assert that the lift of a function is the function in float64; return the tape."""
    tape = lift(function, *args, **kwargs)
    assert distance(tape.run(), truth(function, *args, **kwargs)) <= tolerance
    return tape
