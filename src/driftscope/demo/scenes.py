"""Three scenes of the main job: an honest export, two broken copies of it, and a conversion to float16."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor, nn

from driftscope.demo.classifier import accuracy, classifier, digits
from driftscope.inquiry import compare
from driftscope.programs.feeding.feeds import make_inputs
from driftscope.programs.loading.load import load_program
from driftscope.records.kinds.comparison import Comparison
from driftscope.records.words import agreeing, counted

OPSET = 20  # the first with a Gelu operator; every onnxruntime we support loads it
GUILTY_BLOCK = 1  # the block whose LayerNormalization or Gelu is broken in scene two: the middle one of three
EPSILON_FACTOR = 100.0
COMPARED = 90  # digits per run of a program: the comparison sees the first 90, the accuracy all 360

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """One comparison of the demo, and what a reader should take from it.

    Parameters
    ----------
    title : str
    comparison : Comparison
    accuracy_a, accuracy_b : float
        Fraction of the test digits each side classifies correctly.
    reclassified : int
        Digits to which the two sides give different classes.
    digits : int
        How many digits were shown.
    comment : str
        One sentence with the numbers of this run.
    """

    title: str
    comparison: Comparison
    accuracy_a: float
    accuracy_b: float
    reclassified: int
    digits: int
    comment: str


class HalfInside(nn.Module):
    """A module converted to float16 that still takes and returns float32, as its replacement must."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module.half()

    def forward(self, images: Tensor) -> Tensor:
        y: Tensor = self.module(images.half()).float()
        return y


def run_demo(progress: Progress | None = None) -> list[Scene]:
    """Export the digit classifier, run every copy of it on real digits, and compare.

    Parameters
    ----------
    progress : callable or None
        Called with one short sentence before each step.

    Returns
    -------
    list of Scene
        Torch against onnxruntime; the file with one LayerNormalization epsilon 100 times too large; the file
        with one Gelu approximated by tanh; the float16 conversion.
    """
    say = progress or (lambda _sentence: None)
    model = classifier()
    images, labels = digits()
    say("Exporting the digit classifier to ONNX")
    exported = export_onnx(model, images[:COMPARED])
    say("Exporting its float16 conversion")
    half = export_onnx(HalfInside(classifier()), images[:COMPARED])
    cast = (
        ("The export, run in onnxruntime", exported),
        ("The same file, one LayerNormalization epsilon 100 times too large", with_large_epsilon(exported)),
        ("The same file, one Gelu approximated by tanh", with_tanh_gelu(exported)),
        ("The float16 conversion, run in onnxruntime", half),
    )
    scenes = []
    for title, file in cast:
        say(f"Comparing: {title[0].lower()}{title[1:]}")
        scenes.append(_play(title, model, file, images, labels))
    return scenes


def export_onnx(model: nn.Module, images: Tensor) -> onnx.ModelProto:
    """Export ``model`` to ONNX for images of this shape: input ``images``, output ``logits``."""
    with _quiet_exporter():
        exported = torch.onnx.export(
            model,
            (images,),
            input_names=["images"],
            output_names=["logits"],
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    if exported is None:  # pragma: no cover - only the legacy exporter returns None
        raise RuntimeError("torch.onnx.export returned no program")
    return exported.model_proto


def with_large_epsilon(file: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of ``file`` in which one LayerNormalization has an epsilon 100 times too large."""
    copy = _copied(file)
    node = _nodes(copy, "LayerNormalization")[2 * GUILTY_BLOCK]
    epsilon = next(a for a in node.attribute if a.name == "epsilon")
    epsilon.f *= EPSILON_FACTOR
    return copy


def with_tanh_gelu(file: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of ``file`` in which one Gelu uses the tanh approximation instead of erf."""
    copy = _copied(file)
    node = _nodes(copy, "Gelu")[GUILTY_BLOCK]
    kept = [a for a in node.attribute if a.name != "approximate"]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute("approximate", "tanh")])
    return copy


def _copied(file: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(file)
    return copy


def _nodes(file: onnx.ModelProto, operator: str) -> list[onnx.NodeProto]:
    return [node for node in file.graph.node if node.op_type == operator]


def _play(title: str, model: nn.Module, file: onnx.ModelProto, images: Tensor, labels: Tensor) -> Scene:
    batches = torch.split(images, COMPARED)
    program = load_program(file)
    with torch.no_grad():
        expected = torch.cat([model(batch) for batch in batches])
    got = torch.cat([program(make_inputs({"images": batch}))["logits"] for batch in batches])
    comparison = compare(model, file, make_inputs({"images": batches[0]}))
    before, after = accuracy(expected, labels), accuracy(got, labels)
    moved = int((expected.argmax(dim=-1) != got.argmax(dim=-1)).sum())
    classified = (
        "every digit is classified the same"
        if not moved
        else f"{counted(moved, 'digit')} {agreeing(moved, 'is', 'are')} classified otherwise"
    )
    comment = (
        f"{comparison.verdict}: on {counted(len(labels), 'digit')} {classified} "
        f"({before:.1%} right before, {after:.1%} after), and the logits move by at most "
        f"{float((got - expected).abs().max()):.1e}."
    )
    return Scene(title, comparison, before, after, moved, len(labels), comment)


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence the exporter's remark that torchvision, which nothing here uses, is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
