"""Recurrent cells, taken apart into the steps at which kernels round.

Gates are (B, H) each, before their activation. What ``limit`` does to them (onnx's ``clip``) is the identity
elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from driftscope.lift.formulas.terms import FUNCTION, ROUND, Show
from driftscope.lift.steps import Rounding

Activation = Callable[[Tensor], Tensor]


def _unlimited(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True, slots=True)
class LstmVariant:
    """Where an LSTM differs from the plain one (Hochreiter and Schmidhuber, 1997; Gers and Schmidhuber, 2000).

    Parameters
    ----------
    gate, candidate, output : callable
        Activations of the gates, of the new values, and of the state that is shown.
    peepholes : tuple of torch.Tensor, each (H,), or None
        Weights of the state in the input, forget and output gate.
    coupled : bool
        The forget gate is one less the input gate.
    limit : callable
    """

    gate: Activation = torch.sigmoid
    candidate: Activation = torch.tanh
    output: Activation = torch.tanh
    peepholes: tuple[Tensor, Tensor, Tensor] | None = None
    coupled: bool = False
    limit: Activation = _unlimited


def lstm_cell(
    show: Show, gates: tuple[Tensor, Tensor, Tensor, Tensor], c: Tensor, variant: LstmVariant
) -> tuple[Tensor, Tensor]:
    """One step of an LSTM.

    Parameters
    ----------
    show : Show
    gates : tuple of torch.Tensor
        Input gate, forget gate, new values, output gate.
    c : torch.Tensor, (B, H)
        The state before.
    variant : LstmVariant

    Returns
    -------
    h, c : torch.Tensor, (B, H)
    """
    i, f, g, o = gates
    if variant.peepholes is not None:
        i, f = i + variant.peepholes[0] * c, f + variant.peepholes[1] * c
    i = variant.gate(variant.limit(i))
    f = 1 - i if variant.coupled else variant.gate(variant.limit(f))
    i, f, g = together(show, "gates", i, f, variant.candidate(variant.limit(g)))
    c = show("cell", f * c + i * g, ROUND)
    if variant.peepholes is not None:
        o = o + variant.peepholes[2] * c
    o, shown = together(show, "output gate", variant.gate(variant.limit(o)), variant.output(c))
    return show("hidden", o * shown, ROUND), c


def gru_cell(
    show: Show, gates: tuple[Tensor, Tensor], candidate: Callable[[Tensor], Tensor], h: Tensor,
    functions: tuple[Activation, Activation] = (torch.sigmoid, torch.tanh),
    rounding: Callable[[Tensor], Rounding] = lambda _argument: FUNCTION,
) -> Tensor:  # fmt: skip
    """One step of a GRU (Cho et al., 2014): ``(1 - z) n + z h``.

    Parameters
    ----------
    show : Show
    gates : tuple of torch.Tensor
        Update gate z and reset gate r, before their activation.
    candidate : callable
        Gives the new values before their activation, from the reset gate.
    h : torch.Tensor, (B, H)
    functions : tuple of callable
        Activations of the gates and of the new values.
    rounding : callable
        How the activation of the new values rounds, by its argument.
    """
    z, r = together(show, "gates", functions[0](gates[0]), functions[0](gates[1]))
    argument = candidate(r)
    n = show("candidate", functions[1](argument), rounding(argument), stored=False)
    return show("hidden", (1 - z) * n + z * h, ROUND)


def together(show: Show, name: str, *gates: Tensor) -> tuple[Tensor, ...]:
    """Show activated gates in one step: each is rounded before it is used."""
    return show(name, torch.cat(gates, -1), FUNCTION, stored=False).chunk(len(gates), -1)
