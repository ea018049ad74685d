"""The table of rules: an operator's name, how it is evaluated in float64, how rounding enters it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import torch

from driftscope.lift.steps import Kind, Rounding

if TYPE_CHECKING:
    from driftscope.lift.tape_call import Call

Outputs: TypeAlias = list[torch.Tensor | None]
Rule: TypeAlias = "Callable[[Call], tuple[Outputs, Rounding]]"
Formula: TypeAlias = "Callable[[Call], torch.Tensor]"

RULES: dict[str, Rule] = {}
FORMULAS: dict[str, Formula] = {}

EXACT = Rounding(Kind.EXACT)
ROUND = Rounding(Kind.ROUND)
FUNCTION = Rounding(Kind.FUNCTION)


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
