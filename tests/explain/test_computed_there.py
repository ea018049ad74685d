"""Where no single edit of a step says what differs, A's own steps in its place are tried, and only then said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import helper, numpy_helper
from torch import Tensor, nn

import driftscope as ds
from driftscope.records.verdict import Verdict

X = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """A convolution, something in the middle, and a convolution with a residual."""

    def __init__(self, middle: Callable[[Tensor], Tensor] = torch.tanh, mode: str = "zeros") -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 3, padding=1)
        self.first.padding_mode = mode
        self.middle = middle

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.first(x))
        x = self.middle(x)
        return torch.exp(x + self.last(x))


def _resized(x: Tensor) -> Tensor:
    return F.interpolate(x, size=(14, 14), mode="bilinear", align_corners=False)


def _cut(x: Tensor) -> Tensor:
    return x[..., 1:7]


def _file(module: nn.Module, folder: Path, edit: Callable[[onnx.ModelProto], None]) -> onnx.ModelProto:
    path = folder / "net.onnx"
    torch.onnx.export(module.eval(), (X,), path, dynamo=True, verbose=False)
    model = onnx.load(path)
    edit(model)
    return model


def _of(model: onnx.ModelProto, *kinds: str) -> list[onnx.NodeProto]:
    return [n for n in model.graph.node if n.op_type in kinds]


def _set(node: onnx.NodeProto, name: str, value: object) -> None:
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])


def _pads(model: onnx.ModelProto) -> None:
    _set(_of(model, "Conv")[0], "pads", [2, 1, 0, 1])


def _corners(model: onnx.ModelProto) -> None:
    _set(_of(model, "Resize")[0], "coordinate_transformation_mode", "align_corners")


def _residual(model: onnx.ModelProto) -> None:
    node = _of(model, "Add")[-1]
    node.op_type = "Identity"
    del node.input[0]


def _moved(model: onnx.ModelProto) -> None:
    node = _of(model, "Slice")[0]
    for name, by in ((node.input[1], 0), (node.input[2], 6)):
        model.graph.initializer.append(numpy_helper.from_array(torch.tensor([by]).numpy(), f"{name}_{by}"))
    node.input[1], node.input[2] = f"{node.input[1]}_0", f"{node.input[2]}_6"


FILES = {
    "pads": (torch.tanh, _pads), "resize": (_resized, _corners), "residual": (torch.tanh, _residual),
    "slice": (_cut, _moved),
}  # fmt: skip


@pytest.mark.parametrize("file", ["A", "B"])
@pytest.mark.parametrize("name", FILES)
@pytest.mark.sampled(2)
def test_an_edit_of_a_file_is_placed_and_the_fix_is_tried(name: str, file: str, tmp_path: Path) -> None:
    middle, edit = FILES[name]
    module, broken = Net(middle), _file(Net(middle), tmp_path, edit)
    c = ds.compare(*((broken, module) if file == "A" else (module, broken)), X)
    assert c.verdict is Verdict.DIFFERENT
    causes = [f for f in c.findings if not f.note]
    assert len(causes) == 1, [str(f) for f in causes]
    assert causes[0].verified, str(causes[0])


MODULES: dict[str, tuple[Net, Net]] = {"padding mode": (Net(mode="replicate"), Net())}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_an_edit_of_the_code_is_placed_and_the_fix_is_tried(name: str, swapped: bool) -> None:
    pair = MODULES[name]
    for module in pair:
        module.first._reversed_padding_repeated_twice = [1, 1, 1, 1]
    c = ds.compare(*(pair[::-1] if swapped else pair), X)
    assert c.first is not None
    assert c.first.verified, str(c.first)
    assert len([f for f in c.findings if not f.note]) == 1


def test_steps_that_read_what_b_does_not_have_are_not_said_to_mend_it() -> None:
    """Another weight in A's step: with its value in place B is right, and no edit of the step makes it."""
    one, other = Net(), Net()
    with torch.no_grad():
        other.last.weight.copy_(torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(7)))
    other.last.padding_mode, other.last._reversed_padding_repeated_twice = "replicate", [1, 1, 1, 1]
    c = ds.compare(one, other, X)
    assert c.first is not None
    assert "what A computes there" not in c.first.fix
