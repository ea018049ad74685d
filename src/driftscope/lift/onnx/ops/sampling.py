"""Sampling images at computed places: grids, affine grids, regions of interest."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from driftscope.lift.formulas.sampling import relative_places
from driftscope.lift.formulas.terms import dot
from driftscope.lift.onnx.registry import Node, Result, integers_of, operator
from driftscope.lift.steps import Kind, Rounding

_MODES = {"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic", "bicubic": "bicubic"}


@operator("GridSample", since=16)
def grid_sample(node: Node, x: Tensor, grid: Tensor) -> Result:
    """Values at relative places, interpolated."""
    mode = _MODES[node.text("mode", "linear")]
    padding = node.text("padding_mode", "zeros")
    aligned = node.integer("align_corners", 0) == 1
    if mode == "nearest":
        grid = node.rounded(grid, 1)
    else:
        grid = relative_places(grid.to(x.dtype), x.shape[2:], aligned, node.inner)
    if mode == "bicubic" and x.dim() == 5:
        raise node.refuse("cubic interpolation of volumes")
    y = F.grid_sample(x, grid.to(x.dtype), mode=mode, padding_mode=padding, align_corners=aligned)
    taps = {"bilinear": 2, "bicubic": 4, "nearest": 1}[mode] ** (x.dim() - 2)
    return Result(y, Rounding(Kind.EXACT) if mode == "nearest" else dot(taps), [node.format(0)])


@operator("AffineGrid", since=20, host=(1,))
def affine_grid(node: Node, theta: Tensor, size: Tensor) -> Result:
    """Relative places of an affine transformation of a regular grid."""
    aligned = node.integer("align_corners", 0) == 1
    return Result(F.affine_grid(theta, integers_of(size) or [], align_corners=aligned), dot(theta.shape[-1]))


@operator("RoiAlign", since=10)
def roi_align(node: Node, x: Tensor, rois: Tensor, batch: Tensor) -> Result:
    """Means or maxima of bilinear samples in the cells of regions (He et al., 2017)."""
    scale = node.number("spatial_scale", 1.0)
    default = "half_pixel" if node.version >= 16 else "output_half_pixel"
    half = node.text("coordinate_transformation_mode", default) == "half_pixel"
    height, width = node.integer("output_height", 1), node.integer("output_width", 1)
    corners = rois * scale - (0.5 if half else 0.0)
    largest = node.text("mode", "avg") == "max"
    cells = []
    for roi, image in zip(corners, batch.tolist(), strict=True):
        x1, y1, x2, y2 = roi.unbind()
        w, h = x2 - x1, y2 - y1
        if not half:
            w, h = w.clamp(min=1.0), h.clamp(min=1.0)
        rows = _samples(node, y1, h, height)
        columns = _samples(node, x1, w, width)
        values = _grid_values(x[int(image)], rows.reshape(-1), columns.reshape(-1), largest)
        values = values.reshape(-1, height, rows.shape[1], width, columns.shape[1])
        cells.append(values.amax((2, 4)) if largest else values.mean((2, 4)))
    y = torch.stack(cells) if cells else x.new_zeros(0, x.shape[1], height, width)
    return Result(y, dot(4), [node.format(0)])


def _samples(node: Node, start: Tensor, extent: Tensor, cells: int) -> Tensor:
    """Sampling places along one side of a region, (cells, samples per cell)."""
    ratio = node.integer("sampling_ratio", 0)
    bin_size = extent / cells
    count = ratio if ratio > 0 else int(torch.ceil(node.rounded(bin_size)))
    inside = (torch.arange(max(count, 1), device=start.device) + 0.5).to(start.dtype) / max(count, 1)
    return start + (torch.arange(cells, device=start.device).to(start.dtype)[:, None] + inside) * bin_size


def _grid_values(image: Tensor, rows: Tensor, columns: Tensor, largest: bool) -> Tensor:
    """Bilinear values of (C, H, W) at every row and column, zero beyond one pixel outside."""
    height, width = image.shape[-2:]
    beyond = ((rows < -1) | (rows > height))[:, None] | ((columns < -1) | (columns > width))[None]
    r, c = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    top, left = r.floor().long(), c.floor().long()
    bottom, right = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    dr, dc = (r - top)[:, None], (c - left)[None]
    corners = []
    for (row, wr), (column, wc) in itertools.product(((top, 1 - dr), (bottom, dr)), ((left, 1 - dc), (right, dc))):
        corners.append(image[:, row][:, :, column] * (wr * wc))
    stacked = torch.stack(corners)
    # In max mode ONNX takes the largest weighted corner, not the largest interpolated value.
    values = stacked.amax(0) if largest else stacked.sum(0)
    return torch.where(beyond, torch.zeros_like(values), values)
