"""Where a sampling of an image reads: relative places, and the positions in pixels that a kernel computes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from driftscope.lift.formulas.terms import ROUND, Show


def relative_places(grid: torch.Tensor, sizes: Sequence[int], aligned: bool, show: Show) -> torch.Tensor:
    """Relative places after the rounding of the positions in pixels that they stand for.

    A kernel computes ``((g + 1) size - 1) / 2``, or ``(g + 1) (size - 1) / 2`` with aligned corners, in the format of
    the grid: far outside an image, where positions are reflected back, that rounding is larger than all others.

    Parameters
    ----------
    grid : torch.Tensor, (..., D), float64
        Places, the last axis of the image first; -1 and 1 are its ends.
    sizes : sequence of int
        The D spatial sizes of the image, first axis first.
    aligned : bool
        Whether -1 and 1 are the centres of the outermost pixels.
    show : Show

    Returns
    -------
    torch.Tensor, as ``grid``
    """
    extent = torch.tensor([float(n) for n in reversed(sizes)], dtype=grid.dtype, device=grid.device)
    moved = show("moved", grid + 1.0, ROUND, (grid,))
    if aligned:
        positions = show("positions", moved * ((extent - 1.0) / 2.0), ROUND, (moved,))
        return torch.where(extent > 1.0, positions / ((extent - 1.0) / 2.0).clamp(min=0.5), moved) - 1.0
    scaled = show("scaled", moved * extent, ROUND, (moved,))
    positions = show("positions", (scaled - 1.0) / 2.0, ROUND, (scaled,))
    return (2.0 * positions + 1.0) / extent - 1.0
