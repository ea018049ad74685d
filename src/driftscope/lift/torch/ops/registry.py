"""The table of rules: an operator's name, how it is evaluated in float64, how rounding enters it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from driftscope.lift.steps import Rounding
from driftscope.lift.torch.call import Call

Outputs: TypeAlias = list[torch.Tensor | None]
Rule: TypeAlias = "Callable[[Call], tuple[Outputs, Rounding]]"
Formula: TypeAlias = "Callable[[Call], torch.Tensor]"

RULES: dict[str, Rule] = {}
FORMULAS: dict[str, Formula] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register the evaluation of operators by name (without namespace, overload and the in-place underscore)."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return register


def formula(*names: str) -> Callable[[Formula], Formula]:
    """Register a differentiable formula, used where a number of the call is replaced by a tensor."""

    def register(function: Formula) -> Formula:
        FORMULAS.update(dict.fromkeys(names, function))
        return function

    return register
